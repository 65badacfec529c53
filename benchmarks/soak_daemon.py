"""The daemon of the soak: the real one, which also tells its stacks when it is asked to.

Run as `python -m forebay.benchmarks.soak_daemon READY_FD PARENT_FD`, settings from the environment.
"""

from __future__ import annotations

import faulthandler
import signal
import sys

from forebay.daemon.main import main

if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    sys.exit(main())
