"""`forebay version`."""

from __future__ import annotations

import sys

from forebay.version import VERSION
from forebay.wire.message import PROTOCOL_VERSION


def version() -> None:
    """Print the version of this package and of its protocol."""
    sys.stdout.write(f"forebay {VERSION}, protocol {PROTOCOL_VERSION}\n")
