"""The tutorial as a reader follows it: what it shows is what PyTorch, its exporter and biopsy print."""

from pathlib import Path

import pytest

from support.pages import ROOT, follow

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PAGE = ROOT / "docs" / "tutorial" / "from-pytorch.md"


def test_what_the_tutorial_shows_is_what_happens(tmp_path: Path) -> None:
    follow(PAGE, tmp_path, slow=False)
