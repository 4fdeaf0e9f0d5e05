"""`python -m taskmap.cli`."""

import sys

from taskmap.cli import main

sys.exit(main())
