"""An index of our own, a cache of our own, and nothing of what the person who runs the tests has configured."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.package_index import PackageIndex


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """A running index; all that is configured here is it, and the cache is in ``tmp_path / "cache"``."""
    with PackageIndex() as running:
        for name in ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_INDEX", "UV_FIND_LINKS", "PIP_FIND_LINKS", "PIP_CONSTRAINT"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("UV_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("UV_DEFAULT_INDEX", running.address)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("BIOPSY_CACHE_DIR", str(tmp_path / "cache"))
        yield running
