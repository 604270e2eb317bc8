"""Environment variables of this process, for as long as its children need them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """Have these variables, then what was there before. For one thread: they are those of the whole process."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
