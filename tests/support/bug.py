"""The real bug of onnxruntime that the demonstration, a tutorial and some tests live with: is it still there?"""

from functools import cache
from pathlib import Path

import pytest

import biopsy
from biopsy.cli.demo import demonstration_model

OFF, ON = "onnxrt:optimization=none,threads=1", "onnxrt:threads=1"


def disagrees(candidate: Path | bytes) -> bool:
    """Whether onnxruntime with its optimizer on and off gives different outputs for the same made inputs."""
    expected, actual = biopsy.run(candidate, engines=[OFF, ON])
    return not biopsy.compare(actual, expected, atol=1e-3, rtol=1e-3).passed


@cache
def is_there() -> bool:
    return disagrees(demonstration_model().SerializeToString(deterministic=True))


def skip_without_it() -> None:
    if not is_there():
        pytest.skip("the installed onnxruntime does not have this bug any more")
