"""What a big model costs, counted: work grows with the nodes of a model, and not at all with its weights."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import onnx
import pytest

import biopsy
from benchmarks import models
from support.predicates import has, names

GIGABYTE = 10**9


def read_so_far() -> int:
    """Bytes that this process has asked the system for."""
    line = Path("/proc/self/io").read_text().splitlines()[0]
    return int(line.removeprefix("rchar: "))


def bytes_read(path: Path, wanted: str) -> int:
    """What a reduction to one node reads."""
    before = read_so_far()

    def fails(candidate: Path) -> bool:
        return wanted in names(onnx.load(candidate, load_external_data=False))

    biopsy.reduce(path, fails, path.with_name("r.onnx"))
    assert names(onnx.load(path.with_name("r.onnx"), load_external_data=False)) == [wanted]
    return read_so_far() - before


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="bytes are counted by Linux")
@pytest.mark.parametrize("layout", ["beside", "several files"])
def test_the_weights_of_a_hundred_gigabytes_are_never_read(layout: str, tmp_path: Path) -> None:
    """The same nodes with small weights, and with large ones in sparse files; the result has none."""
    read = {}
    for width in (16, 16, 20_000):  # the first one reads modules too
        folder = tmp_path / str(len(read)) / str(width)
        folder.mkdir(parents=True)
        path = models.big(folder, layout, layers=64, width=width)
        size = sum(file.stat().st_size for file in folder.glob("*.bin"))
        read[size > 100 * GIGABYTE] = bytes_read(path, "n65")
    assert abs(read[True] - read[False]) < 100_000


@contextmanager
def counted_calls(found: Counter[str]) -> Iterator[None]:
    """Count the calls of Python functions."""

    def count(frame: FrameType, event: str, _: object) -> None:
        found[event] += 1

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


def calls(nodes: int, folder: Path) -> Counter[str]:
    """The calls that a whole reduction makes, with a check that costs none."""
    model = models.transformer(nodes)
    wanted = models.PATTERNS["middle"](names(model))
    found: Counter[str] = Counter()
    with counted_calls(found):
        biopsy.reduce(model, has(*wanted), folder / f"{nodes}.onnx", takes="model")
    return found


def test_the_work_of_a_reduction_is_linear_in_the_nodes(tmp_path: Path) -> None:
    """Twice the nodes, twice the calls: at most one check more, of which each looks at a share of the nodes."""
    calls(100, tmp_path)  # what is loaded once
    few, many = calls(1_000, tmp_path), calls(2_000, tmp_path)
    assert many["call"] < 2.3 * few["call"]
    assert many["c_call"] < 2.3 * few["c_call"]


@pytest.mark.slow
def test_a_hundred_thousand_nodes_are_reduced_to_the_one(tmp_path: Path) -> None:
    model = models.transformer(100_000)
    wanted = models.PATTERNS["middle"](names(model))
    found = biopsy.reduce(model, has(*wanted), tmp_path / "r.onnx", takes="model")
    assert names(onnx.load(tmp_path / "r.onnx")) == wanted
    assert found.checks <= 2 * 17 + 10
