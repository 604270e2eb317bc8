"""Sessions in one process, and the reducer of these tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.reducer import reducer
from support.session import Session

__all__ = ["reducer"]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """Makes oracles around a check that does as the test says; all of them are closed at the end."""
    made = Session(tmp_path)
    yield made
    for oracle in made.made:
        oracle.close()
