"""``python -m biopsy``: the same as the command ``biopsy``, which imports nothing from the current folder."""

import os
import sys

# The path that -m has put in front; nothing may be imported before, and these two are loaded already. What a person
# put there by PYTHONPATH stays.
if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):  # noqa: PTH109 -- loaded
    del sys.path[0]

from biopsy.cli.app import main

sys.exit(main())
