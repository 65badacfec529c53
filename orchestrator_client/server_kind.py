"""What a link talks to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from forebay.wire import Message, decode_control_reply


@dataclasses.dataclass(frozen=True, slots=True)
class ServerKind:
    """What a link talks to, and what is said when it does not answer.

    Attributes:
        name: What it is called.
        setting: Name of the setting that holds its address; FOREBAY_ and the name in capitals is its variable.
        start: How to start one.
        look: Where to look when it takes long.
        decode: Decodes what it sends; raises ProtocolError.
    """

    name: str
    setting: str
    start: str
    look: str
    decode: Callable[[bytes], Message]

    @property
    def address_remedy(self) -> str:
        """What to set where its address is wrong."""
        return f"set {self.setting} (FOREBAY_{self.setting.upper()}) to its address"


DAEMON = ServerKind(
    name="daemon",
    setting="control_endpoint",
    start="start one (forebay serve)",
    look="forebay status",
    decode=decode_control_reply,
)
