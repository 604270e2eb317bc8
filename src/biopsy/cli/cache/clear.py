"""``biopsy cache clear``: environments go, but for those that somebody uses."""

from __future__ import annotations

import argparse
import datetime

from biopsy import errors
from biopsy.cli.arguments import types
from biopsy.cli.cache.list import contents, total
from biopsy.cli.console import Console
from biopsy.processes.environments.cache import Cache
from biopsy.text import count, size_text

EPILOG = """\
What a command uses at the moment stays. The next command that needs an environment installs it again. The caches of uv
and pip themselves are not touched: 'uv cache clean' and 'pip cache purge' clear those.

examples:
  biopsy cache clear
  biopsy cache clear --older-than 30

exit status: 0, also if something in use stays; 4 if something cannot be removed"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``cache clear``."""
    parser.epilog = EPILOG
    parser.add_argument(
        "--older-than",
        type=types.count,
        default=0,
        metavar="DAYS",
        help="remove only what was not used for so many days (default: 0, all)",
    )


def execute(args: argparse.Namespace, console: Console) -> int:
    """Remove environments and say which."""
    cache = Cache.of_user()
    cleared = cache.clear(unused_for=datetime.timedelta(days=args.older_than))
    for environment in cleared.gone:
        console.say(f"removed  {contents(environment)} · {size_text(environment.bytes)}")
    for environment in cleared.in_use:
        console.say(f"stays    {contents(environment)} · it is in use")
    console.say(f"{count(len(cleared.gone), 'environment')} removed, {total(cleared.gone)}")
    if cleared.stuck:
        raise errors.BiopsyError(
            f"{count(len(cleared.stuck), 'environment')} cannot be removed: files in {cache.folder} cannot be deleted"
        )
    return 0
