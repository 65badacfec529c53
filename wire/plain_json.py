"""What peers said, shown so that it cannot drive a terminal."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

_NOT_ASCII = re.compile(r"[^\n -~]+")


def json_line(value: Any) -> str:
    """Encodes a value as one line of JSON, in which all but printable ASCII is spelled out."""
    text = msgspec.json.encode(value).decode()
    # It stands in strings alone, so that each stretch can be spelled as a string is.
    return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text) + "\n"
