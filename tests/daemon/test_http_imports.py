"""Who asks for no HTTP does not wait for its libraries."""

from __future__ import annotations

import subprocess
import sys


def test_a_daemon_without_http_loads_none_of_its_libraries() -> None:
    libraries = ("prometheus_client", "http.server")
    code = f"import forebay.daemon.main, sys; print([name for name in {libraries} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
