"""``python -m biopsy``: the same as the command ``biopsy``."""

import sys

from biopsy.cli.app import main

sys.exit(main())
