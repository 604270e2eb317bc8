"""The packages of the extra ``releases``: without one of them, a line says what to type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from biopsy import errors


@contextmanager
def needing(package: str) -> Iterator[None]:
    """Around the import of ``package``. Raises BiopsyError if it is not installed."""
    try:
        yield
    except ImportError as error:
        raise errors.BiopsyError(
            f"other releases of packages need {package}, which is not installed",
            next_steps=['pip install "biopsy[releases]"'],
        ) from error
