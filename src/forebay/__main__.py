"""`python -m forebay`, the same as `forebay`."""

import sys

from forebay.cli import main

sys.exit(main())
