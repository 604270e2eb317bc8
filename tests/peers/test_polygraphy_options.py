"""The docs of Polygraphy 0.53.6 are generated from what its parsers say. BIOPSY_PEER is the path of its command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.peer

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_its_options_are_those_that_the_docs_are_generated_from() -> None:
    python = Path(os.environ["BIOPSY_PEER"]).with_name("python")
    command = [python, REFERENCE / "dump_polygraphy.py"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    assert said == (REFERENCE / "polygraphy-0.53.6.json").read_text(encoding="utf-8")
