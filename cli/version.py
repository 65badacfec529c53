"""`forebay version`."""

from __future__ import annotations

import sys

from forebay.version import VERSION
from forebay.wire.message import PROTOCOL_VERSION


def version() -> None:
    """Print the package's version and its protocol's."""
    sys.stdout.write(f"forebay {VERSION}, protocol {PROTOCOL_VERSION}\n")
