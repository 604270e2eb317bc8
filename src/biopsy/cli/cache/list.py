"""``biopsy cache list``: what is in the cache of environments, and for which Python."""

from __future__ import annotations

import argparse

from biopsy.cli.console import Console
from biopsy.processes.environments.cache import Cache, CachedEnvironment
from biopsy.text import count, series, size_text

EPILOG = """\
Other releases of packages, such as those of 'debug version' or 'run --package', are installed in environments of their
own, which later runs use again. They are in $BIOPSY_CACHE_DIR, or else in $XDG_CACHE_HOME/biopsy or ~/.cache/biopsy. If
all of them are larger than $BIOPSY_CACHE_LIMIT (default: 10GB), the one that was not used for longest goes first.

examples:
  biopsy cache list
  BIOPSY_CACHE_DIR=/mnt/big/biopsy biopsy cache list

exit status: 0, also if there is none"""


def configure(parser: argparse.ArgumentParser) -> None:
    """There is nothing to choose."""
    parser.epilog = EPILOG


def execute(args: argparse.Namespace, console: Console) -> int:
    """List all environments, the one that was used last at the end."""
    del args
    cache = Cache.of_user()
    found = cache.entries()
    if found:
        console.say(f"{'size':>9}  {'last used':<16}  holds")
    for environment in found:
        used = environment.used.astimezone().strftime("%Y-%m-%d %H:%M")
        now = " · in use" if environment.in_use and environment.record else ""
        console.say(f"{size_text(environment.bytes):>9}  {used:<16}  {contents(environment)}{now}")
    have = f"{count(len(found), 'environment')} in {cache.folder}"
    console.say(
        f"{have}: {total(found)} of at most {size_text(cache.limit)}" if found else f"no environments in {cache.folder}"
    )
    return 0


# How an environment of the cache is written: what was asked for, for which Python.


def contents(environment: CachedEnvironment) -> str:
    """``onnxruntime==1.17.3 with numpy<2, Python 3.11.7``; of one that is not whole, what is known of it."""
    record = environment.record
    if record is None:
        return "being installed" if environment.in_use else "left by an installation that was interrupted"
    added = f" with {series(record.added)}" if record.added else ""
    return f"{series(record.requirements)}{added}, Python {record.python}"


def total(environments: list[CachedEnvironment]) -> str:
    """The size of several: ``1.2 GB``."""
    return size_text(sum(environment.bytes for environment in environments))
