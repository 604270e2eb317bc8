"""An index of our own, a cache of our own, and nothing of what the person who runs the tests has configured."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.package_index import PackageIndex, only_index


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """A running index; all that is configured here is it, and the cache is in ``tmp_path / "cache"``."""
    with only_index(tmp_path, monkeypatch) as running:
        yield running
