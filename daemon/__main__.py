"""The daemon as a child process; see `forebay.daemon.main.main`."""

import sys

from .main import main

sys.exit(main())
