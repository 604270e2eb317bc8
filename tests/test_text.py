"""Several texts in one line."""

from pathlib import Path

import pytest

from biopsy import text
from biopsy.text import first_of, install_line, series


@pytest.mark.parametrize(
    ("texts", "line"),
    [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")],
)
def test_a_series_reads_like_a_sentence(texts: list[str], line: str) -> None:
    assert series(texts) == line


def test_the_first_texts_are_followed_by_how_many_more_there_are() -> None:
    assert first_of(["a", "b", "c"], 3) == "a, b, c"
    assert first_of(["a", "b", "c", "d"], 2, " -> ") == "a -> b and 2 more"


def test_an_extra_is_installed_from_where_biopsy_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "__file__", str(tmp_path / "src" / "biopsy" / "text.py"))
    assert install_line("biopsy[ray]") == 'pip install "biopsy[ray]"'
    (tmp_path / "pyproject.toml").touch()
    assert install_line("biopsy[ray]") == f'pip install "{tmp_path}[ray]"'
    monkeypatch.chdir(tmp_path)
    assert install_line("biopsy[ray]") == 'pip install ".[ray]"'
    assert install_line("onnxruntime") == 'pip install "onnxruntime"'
