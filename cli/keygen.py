"""`forebay keygen`: a key pair as two files, and what an authorised_file says of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from forebay.sockets import load_public_key, make_key_files
from forebay.wire import Right, UsageError, check_name, on_one_line


def keygen(
    name: Annotated[str, typer.Argument(help="of the files: NAME.key and NAME.key_secret")],
    folder: Annotated[Path, typer.Option(help="where they are written")] = Path(),
    right: Annotated[
        list[Right] | None, typer.Option(help="of a client, whose entry is printed; may be repeated")
    ] = None,
    queue: Annotated[
        list[str] | None, typer.Option(help="in which alone the client may stage; may be repeated")
    ] = None,
) -> None:
    """Make the keys of a daemon, a worker or a client.

    With --right, prints the entry of an authorised_file that lets a client with them in. A server needs none.
    """
    if queue and not right:
        raise UsageError("option --queue is for a client's entry", remedy="give it --right stage as well")
    for one in queue or ():
        check_name("option --queue", one)
    public, secret = make_key_files(folder, name)
    sys.stderr.write(
        f"secret key: {on_one_line(str(secret))}, stays where it is used\n"
        f"public key: {on_one_line(str(public))}, for the other side\n"
    )
    if right:
        key = load_public_key(str(public), "key_file").decode()
        sys.stdout.write(_entry(name, key, right, queue))
    else:
        sys.stderr.write(
            "no entry for an authorised_file: a server needs none, a client's is printed with --right\n"
        )


def _entry(name: str, key: str, rights: list[Right], queues: list[str] | None) -> str:
    lines = [f"[{_quoted(name)}]", f'key = "{key}"', f"rights = {_list(rights)}"]
    return "\n".join([*lines, *([f"queues = {_list(queues)}"] if queues else [])]) + "\n"


def _list(texts: list[Right] | list[str]) -> str:
    return f"[{', '.join(_quoted(str(text)) for text in texts)}]"


def _quoted(text: str) -> str:
    # TOML's text is quoted as JSON's is; but it has no such spelling of what is not ASCII, and needs one for DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
