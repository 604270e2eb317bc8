"""``biopsy cache list`` and ``cache clear``: the environments with other releases of packages."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence

from biopsy import errors
from biopsy.cli.arguments import types
from biopsy.cli.console import Console
from biopsy.processes.environments.cache import Cache, CachedEnvironment
from biopsy.text import count, series, size_text

_LIST = """\
Other releases of packages, such as those of 'debug version' or 'run --package', are installed in environments of their
own, which later runs use again. They are in $BIOPSY_CACHE_DIR, or else in $XDG_CACHE_HOME/biopsy or ~/.cache/biopsy. If
they take more than $BIOPSY_CACHE_LIMIT (default: 10GB), those that have not been used for longest are removed.

examples:
  biopsy cache list
  BIOPSY_CACHE_DIR=/mnt/big/biopsy biopsy cache list

exit status: 0, also if there is none"""

_CLEAR = """\
An environment that a command is using stays. The next command that needs an environment installs it again. The caches
of uv and pip are not touched: 'uv cache clean' and 'pip cache purge' clear those.

examples:
  biopsy cache clear
  biopsy cache clear --older-than 30

exit status: 0, also if something in use stays; 4 if something cannot be removed"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``cache clear``; ``cache list`` has none."""
    parser.epilog = _LIST
    if parser.prog.endswith(" clear"):
        parser.epilog = _CLEAR
        parser.add_argument(
            "--older-than",
            type=types.count,
            default=0,
            metavar="DAYS",
            help="remove only environments that were not used for this many days (default: 0, all)",
        )


def execute(args: argparse.Namespace, console: Console) -> int:
    """List all environments, the one used last at the end; or remove them and show which."""
    cache = Cache.of_user()
    if hasattr(args, "older_than"):
        cleared = cache.clear(unused_for=datetime.timedelta(days=args.older_than))
        for environment in cleared.gone:
            console.say(f"removed  {_contents(environment)} · {size_text(environment.bytes)}")
        for environment in cleared.in_use:
            console.say(f"stays    {_contents(environment)} · it is in use")
        console.say(f"{count(len(cleared.gone), 'environment')} removed, {_total(cleared.gone)}")
        if cleared.stuck:
            stuck = count(len(cleared.stuck), "environment")
            raise errors.BiopsyError(f"{stuck} cannot be removed: files in {cache.folder} cannot be deleted")
        return 0
    environments = cache.entries()
    if environments:
        console.say(f"{'size':>9}  {'last used':<16}  holds")
    for environment in environments:
        used = environment.used.astimezone().strftime("%Y-%m-%d %H:%M")
        now = " · in use" if environment.in_use and environment.record else ""
        console.say(f"{size_text(environment.bytes):>9}  {used:<16}  {_contents(environment)}{now}")
    if environments:
        total = f"{count(len(environments), 'environment')} in {cache.folder}: {_total(environments)}"
        console.say(f"{total} of at most {size_text(cache.limit)}")
    else:
        console.say(f"no environments in {cache.folder}")
    return 0


def _contents(environment: CachedEnvironment) -> str:
    """``onnxruntime==1.17.3 with numpy<2, Python 3.11.7``, or why the environment is incomplete."""
    record = environment.record
    if record is None:
        return "being installed" if environment.in_use else "left by an installation that was interrupted"
    added = f" with {series(record.added)}" if record.added else ""
    return f"{series(record.requirements)}{added}, Python {record.python}"


def _total(environments: Sequence[CachedEnvironment]) -> str:
    """The size of several environments, such as ``1.2 GB``."""
    return size_text(sum(environment.bytes for environment in environments))
