"""Files that a process which was killed has left."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path


def remove_files(folder: Path, pattern: str, *, but_of_the_living: bool = False) -> None:
    """Remove the files of a folder of which the whole name matches a pattern.

    ``but_of_the_living``: not those of processes that still run; the pattern's group ``process`` is the number of one.
    """
    matching = re.compile(pattern)
    with contextlib.suppress(OSError):
        for found in [matching.fullmatch(name) for name in os.listdir(folder)]:  # noqa: PTH208 -- names, not paths
            if found is not None and not (but_of_the_living and _is_alive(int(found["process"]))):
                with contextlib.suppress(OSError):
                    (folder / found[0]).unlink()


def _is_alive(process: int) -> bool:
    if os.name != "posix":
        return True  # nobody knows: there this signal would end it
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
