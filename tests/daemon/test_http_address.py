"""HOST:PORT, as people write it."""

from __future__ import annotations

import pytest

from forebay.daemon import Settings
from forebay.daemon.http_address import HttpAddress, http_address
from forebay.wire import SettingError


@pytest.mark.parametrize(
    ("text", "host", "port", "is_exposed"),
    [
        ("127.0.0.1:9470", "127.0.0.1", 9470, False),
        ("localhost:0", "localhost", 0, False),
        ("[::1]:65535", "::1", 65535, False),
        ("0.0.0.0:80", "0.0.0.0", 80, True),
        ("[::]:80", "::", 80, True),
        ("host-1.example:80", "host-1.example", 80, True),
    ],
)
def test_an_address_is_read_and_written_the_same(text: str, host: str, port: int, is_exposed: bool) -> None:
    address = http_address(text)
    assert address == (host, port)
    assert str(address) == text
    assert address.is_exposed is is_exposed
    assert Settings(http_endpoint=text).http_endpoint == text


@pytest.mark.parametrize(
    "text",
    [
        "9470",
        ":9470",
        "host",
        "host:",
        "host:x",
        "host:65536",
        "host:-1",
        "::1:80",
        "[]:80",
        "http://host:80",
        "host:80/",
        "a b:80",
        "user@host:80",
        "h\nst:80",
        "höst:80",
        "host:٣",
        "host:" + "9" * 9999,
    ],
)
def test_what_is_no_address_is_a_wrong_setting(text: str) -> None:
    with pytest.raises(SettingError, match="http_endpoint"):
        Settings(http_endpoint=text)


def test_none_is_the_default() -> None:
    assert Settings().http_endpoint == ""
    assert HttpAddress("127.0.0.1", 0)
