"""Files that belong together, such as a model and its weights: all of them are written, or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from biopsy.filesystem.folders import folders_of
from biopsy.filesystem.write import cannot_write
from biopsy.isolation.cleanup import temporary_folder


@contextmanager
def written_together(path: Path) -> Iterator[Path]:
    """A path in a fresh folder beside ``path``; what is written there, weights beside it too, replaces what is here.

    Raises UsageError if it cannot be written. If what stands inside fails or crashes, nothing of it is left. A link is
    replaced, not followed; folders that are missing are made.
    """
    try:
        with folders_of(path), temporary_folder(f".{path.name}.", path.parent.resolve()) as scratch:
            yield scratch / path.name
            for made in sorted(scratch.iterdir(), key=lambda made: made.name == path.name):  # the model last
                made.replace(path.parent / made.name)
    except OSError as error:
        raise cannot_write(path, error) from error
