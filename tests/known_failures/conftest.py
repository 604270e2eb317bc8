from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_list_of_the_user(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Whoever runs the tests may have known failures of their own."""
    folder = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder / "biopsy" / "known"
