"""What a link talks to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from forebay.wire import (
    Message,
    ProtocolError,
    RefusalCode,
    Refused,
    check_endpoint,
    decode_control_reply,
    printable,
)


@dataclasses.dataclass(frozen=True, slots=True)
class ServerKind:
    """What a link talks to, and what is said when it does not answer.

    Attributes:
        name: What it is called.
        setting: Name of the setting that holds its address; FOREBAY_ and the name in capitals is its variable.
        start: How to start one.
        look: Where to look when it takes long.
        data_setting: Name of its setting for the address that takes bulk data.
        key_setting: Name of the setting for the public key file by which it is known.
        decode_reply: Decodes what it sends; raises ProtocolError.
    """

    name: str
    setting: str
    start: str
    look: str
    data_setting: str
    key_setting: str
    decode_reply: Callable[[bytes], Message]

    def decode(self, frame: bytes) -> Message:
        """Decodes what it sends.

        Raises:
            ProtocolError: It is no such message, or says that what was sent there is none.
        """
        reply = self.decode_reply(frame)
        # Of a request that could be read it would repeat the id.
        if isinstance(reply, Refused) and reply.code is RefusalCode.BAD_REQUEST and not reply.id:
            raise ProtocolError(
                f"what listens at {self.setting} is not what it should be, and cannot read what it is sent"
                f" ({printable(reply.words)})",
                remedy=f"{self.address_remedy}, and not to that of another of its sockets",
            )
        return reply

    def checked(self, endpoint: str) -> str:
        """Returns an address of one.

        Raises:
            SettingError: It is neither ipc nor tcp.
        """
        check_endpoint(self.setting, endpoint)
        return endpoint

    @property
    def address_remedy(self) -> str:
        """What to set where its address is wrong."""
        return f"set {self.setting} (FOREBAY_{self.setting.upper()}) to its address"


DAEMON = ServerKind(
    name="daemon",
    setting="control_endpoint",
    start="start one (forebay serve)",
    look="forebay status",
    data_setting="data_endpoint",
    key_setting="server_key_file",
    decode_reply=decode_control_reply,
)
