"""`python -m forebay.cli`, the same as `forebay`."""

import sys

from .app import main

sys.exit(main())
