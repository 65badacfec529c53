"""Which keys a client uses with which server."""

from __future__ import annotations

from forebay.sockets import ClientKeys, load_client_keys

from .settings import load_orchestrator_settings


def daemon_keys(client_key_file: str | None, server_key_file: str | None) -> ClientKeys | None:
    """Reads the keys for a daemon, from what is given or set; None where there are none.

    Raises:
        SettingError: Only one of the two files is there, or one of them cannot be used.
    """
    settings = load_orchestrator_settings({"client_key_file": client_key_file, "server_key_file": server_key_file})
    return load_client_keys(settings.client_key_file, settings.server_key_file, server_setting="server_key_file")


def worker_keys(
    client_key_file: str | None, server_key_file: str | None, worker_key_file: str | None
) -> ClientKeys | None:
    """Reads the keys for a trainer's worker; where it has no key file of its own, the daemon's stands for both.

    Raises:
        SettingError: Only one of the two files is there, or one of them cannot be used.
    """
    given = {
        "client_key_file": client_key_file,
        "server_key_file": server_key_file,
        "worker_key_file": worker_key_file,
    }
    settings = load_orchestrator_settings(given)
    setting = "worker_key_file" if settings.worker_key_file else "server_key_file"
    return load_client_keys(settings.client_key_file, getattr(settings, setting), server_setting=setting)
