from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_list_of_the_user(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user's list would be; there is none yet."""
    folder = tmp_path_factory.mktemp("config") / "known"
    monkeypatch.setenv("BIOPSY_KNOWN_DIR", str(folder))
    return folder
