"""A daemon whose loop can be held: at SIGHUP it says so on one pipe, and goes on at a byte on another."""

from __future__ import annotations

import os
import resource
import sys

from forebay.daemon import Settings, load_settings, serve


def main(held_fd: int, go_fd: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a test ends it by SIGABRT
    settings = load_settings()

    def hold() -> Settings:
        os.write(held_fd, b".")
        os.read(go_fd, 1)
        return settings

    serve(settings, read=hold)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
