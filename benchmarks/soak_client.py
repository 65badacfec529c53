"""The client of the soak's orchestrators."""

from __future__ import annotations

from typing import Any

from forebay.orchestrator_client import StagingClient
from forebay.orchestrator_client.data_endpoint import Target


class ProxiedClient(StagingClient):
    """A client whose chunks go by way of the proxy as well, wherever the daemon wants them.

    With keys, what the daemon tells is encrypted, so that the proxy itself cannot change it.

    Args:
        data_endpoint: The proxy's.
        settings: See `StagingClient`.
    """

    def __init__(self, data_endpoint: str, *settings: Any, **more: Any) -> None:
        super().__init__(*settings, **more)
        self._data_endpoint = data_endpoint

    def _data_target(self) -> Target:
        return super()._data_target()._replace(endpoint=self._data_endpoint)
