"""Whatever a check leaves in the place of its verdict, reading it ends at once and takes little memory."""

import json
import os
import sys
import tempfile
import time
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from biopsy import errors
from biopsy.checks import verdict
from biopsy.checks.command import CommandCheck
from biopsy.cli.app import main
from biopsy.comparison.mismatch import Mismatch, size_beside
from support.models import chain, save


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


def folder(path: Path) -> None:
    path.mkdir()


def link(path: Path) -> None:
    path.with_name("elsewhere").write_text('{"outcome": "passes"}')
    path.symlink_to("elsewhere")


def nested(path: Path) -> None:
    path.write_text("[" * 500_000)


@pytest.mark.parametrize("left", [fifo, device, huge, folder, link, nested], ids=lambda left: left.__name__)
def test_what_is_no_plain_small_file_is_told_at_once(tmp_path: Path, left) -> None:
    left(tmp_path / "verdict.json")
    started = time.monotonic()
    with pytest.raises(errors.CheckError, match=r"verdict\.json"):
        verdict.read(tmp_path / "verdict.json")
    assert time.monotonic() - started < 1


def test_a_file_that_grows_while_it_is_read_is_read_no_further(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "verdict.json"
    path.write_bytes(b" ")
    look, seen = os.fstat, list[int]()

    def fstat(descriptor: int) -> os.stat_result:
        found = look(descriptor)
        seen.append(found.st_size)
        if len(seen) == 2:  # the first look is for its kind, the second for its size
            os.truncate(path, 3 << 20)
        return found

    monkeypatch.setattr(os, "fstat", fstat)
    with pytest.raises(errors.CheckError, match="larger than"):
        verdict.read(path)
    assert seen[:2] == [1, 1]


@pytest.mark.parametrize(
    "code",
    [
        "os.mkfifo(told)",
        "os.symlink('/dev/zero', told)",
        "os.truncate(os.open(told, os.O_CREAT | os.O_WRONLY), 1 << 40)",
        "os.mkdir(told)",
    ],
)
def test_a_check_that_leaves_one_ends_the_reduction_in_time_and_in_one_line(tmp_path: Path, monkeypatch, capsys, code):
    monkeypatch.chdir(tmp_path)
    save(chain(4), tmp_path / "m.onnx")
    Path("check.py").write_text(f"import os, sys\ntold = os.environ['BIOPSY_VERDICT']\n{code}\nsys.exit(1)\n")
    started = time.monotonic()
    assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx", "--check", sys.executable, "-S", "check.py", "{}"]) == 4
    assert time.monotonic() - started < 20
    assert "verdict" in capsys.readouterr().err
    assert not Path("r.onnx").exists()


def test_a_plain_verdict_is_read_as_before(tmp_path: Path) -> None:
    code = f"open(os.environ['BIOPSY_VERDICT'], 'w').write({json.dumps(json.dumps({'outcome': 'passes'}))})"
    check = CommandCheck([sys.executable, "-c", f"import os, sys; {code}; sys.exit(1)"], "c.onnx")
    assert check.run(tmp_path / "c.onnx").verdict.outcome == "passes"


NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(10**400), 1 << 63, True])
PLAIN = st.none() | NUMBERS | st.text(max_size=5) | st.lists(NUMBERS | st.none(), max_size=3)
KEYS = [field.name for field in fields(Mismatch)]
TREES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner),
    max_leaves=8,
)
MISMATCHES = st.fixed_dictionaries({"output": st.just("y")}, optional=dict.fromkeys(KEYS[1:], PLAIN))
ROUNDINGS = st.fixed_dictionaries({"verdict": st.sampled_from(["bug", "rounding", "odd"]), "times": PLAIN})
VERDICTS = TREES | st.fixed_dictionaries(
    {},
    optional={
        "outcome": st.sampled_from(["fails", "passes", "odd"]) | PLAIN,
        "kind": PLAIN,
        "outputs": TREES,
        "status": PLAIN,
        "mismatches": st.lists(MISMATCHES | TREES, max_size=2) | TREES,
        "rounding": ROUNDINGS | TREES,
    },
)


@given(VERDICTS)
@example({"mismatches": [{"output": "y", "index": [None]}]})
@example({"mismatches": [{"output": "y", "error": 10**400}]})
@example({"mismatches": [{"output": "y", "elements": 10**400, "wrong": 10**400}]})
@example({"rounding": {"verdict": "bug", "times": 10**400}})
def test_any_json_is_a_verdict_or_an_error_of_the_check(tree: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "verdict.json")
        path.write_text(json.dumps(tree))
        try:
            said = verdict.read(path)
        except errors.CheckError as error:
            assert str(path) in error.message
            return
    assert all(isinstance(number, int) for one in said.mismatches for number in one.index)
    size_beside(said.mismatches, said.mismatches)
    assert isinstance(said.kinds, tuple)
