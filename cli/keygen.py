"""`forebay keygen`: a key pair as two files, and what an authorised_file says of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from forebay.sockets import load_public_key, make_key_files
from forebay.wire import Right, on_one_line


def keygen(
    name: Annotated[str, typer.Argument(help="of the files: NAME.key and NAME.key_secret")],
    folder: Annotated[Path, typer.Option(help="where they are written")] = Path(),
    right: Annotated[list[Right] | None, typer.Option(help="for the printed entry; may be repeated")] = None,
) -> None:
    """Make the keys of a daemon, a worker or a client.

    Prints the entry of an authorised_file that lets a client with them in.
    """
    public, secret = make_key_files(folder, name)
    key = load_public_key(str(public), "key_file").decode()
    sys.stderr.write(
        f"secret key: {on_one_line(str(secret))}, stays where it is used\n"
        f"public key: {on_one_line(str(public))}, for the other side\n"
    )
    rights = json.dumps([str(one) for one in right or [Right.STAGE]])
    # Quoted as JSON's is TOML's text as well; JSON's spelling of what is not ASCII is not.
    quoted = json.dumps(name, ensure_ascii=False)
    sys.stdout.write(f'[{quoted}]\nkey = "{key}"\nrights = {rights}\n')
