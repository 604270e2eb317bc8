"""Settings that are tried on other machines, several at once: the same answer as one after the other."""

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import biopsy
from biopsy import errors, events
from biopsy.checks.judge import Rules
from biopsy.engines.registry import parse_spec
from biopsy.questions.builds.flags import Flags, find_switches
from biopsy.questions.builds.settings import CheckTemplate, varied_check
from biopsy.session.pool import Workers
from support.models import chain, save
from support.node_processes import NodeProcesses


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[NodeProcesses]:
    folder = tmp_path / "machines"
    folder.mkdir()
    with closing(NodeProcesses(folder, 2)) as made:
        yield made


@pytest.fixture(autouse=True)
def source(tmp_path: Path) -> Path:
    return save(chain(2), tmp_path / "m.onnx")


def found(folder: Path, code: str, machines: Workers | None, *words: str, engine: str = "onnxrt") -> list[object]:
    """What is found, without times, and all that is told of on the way. The check has its ``words`` after its file."""
    (folder / "check.py").write_text(
        f"import os, sys\non = os.environ['BIOPSY_ENGINE'].partition(':')[2].split(',')\n{code}"
    )
    template = CheckTemplate((sys.executable, str(folder / "check.py"), *words), parse_spec(engine))
    told: list[events.Event] = []
    with closing(varied_check(template, "c.onnx")) as check:
        flags = find_switches(check, folder / "m.onnx", Rules(), told.append, None, machines)
    assert isinstance(flags, Flags)
    return [flags, *(_without_time(event) for event in told)]


def _without_time(event: events.Event) -> object:
    return replace(event, seconds=0.0) if hasattr(event, "seconds") else event


@pytest.mark.parametrize(
    "code",
    [
        "sys.exit(not ('threads=1' in on or 'execution=parallel' in on))",
        pytest.param(
            "sys.exit(not {'threads=1', 'execution=parallel'} <= set(on))", marks=pytest.mark.slow, id="two together"
        ),
        pytest.param("sys.exit(1)", marks=pytest.mark.slow, id="none"),
    ],
)
def test_what_is_found_and_told_is_the_same(tmp_path: Path, machines: NodeProcesses, code: str) -> None:
    assert found(tmp_path, code, machines, "{}") == found(tmp_path, code, None, "{}")
    assert machines.nodes


@pytest.mark.slow
def test_variables_of_the_environment_are_set_there(tmp_path: Path, machines: NodeProcesses) -> None:
    code = "sys.exit(os.environ.get('ONEDNN_MAX_CPU_ISA') != 'AVX2')"
    flags, *_ = found(tmp_path, code, machines, "{}", engine="openvino")
    assert [one.change.environment for one in flags.switches] == [{"ONEDNN_MAX_CPU_ISA": "AVX2"}]


def test_a_check_may_name_the_model_itself(tmp_path: Path, machines: NodeProcesses) -> None:
    code = "open(sys.argv[1], 'rb').read(); sys.exit('threads=1' not in on)"
    flags, *_ = found(tmp_path, code, machines, str(tmp_path / "m.onnx"))
    assert [one.change.settings for one in flags.switches] == [{"threads": "1"}]


def test_a_check_that_names_no_model_is_refused(tmp_path: Path, machines: NodeProcesses) -> None:
    with pytest.raises(errors.UsageError, match="where the candidate's path goes"):
        found(tmp_path, "sys.exit(1)", machines)


@pytest.mark.slow
def test_a_failure_that_wavers_is_asked_for_as_often(tmp_path: Path, machines: NodeProcesses) -> None:
    """It passes once, whichever run is first to be there; then two of three fail, and twenty are asked for."""
    code = (
        "import pathlib\n"
        "if 'threads=1' in on: sys.exit(0)\n"
        "try: pathlib.Path(sys.argv[2]).touch(exist_ok=False)\n"
        "except FileExistsError: sys.exit(1)"
    )
    flags, *_ = found(tmp_path, code, machines, "{}", str(tmp_path / "passed"))
    assert (flags.failed, flags.runs) == (19, 20)
    assert [(one.change.settings, one.verified) for one in flags.switches] == [({"threads": "1"}, True)]


@pytest.mark.slow
def test_a_large_model_is_sent_once_to_each_machine(
    tmp_path: Path, machines: NodeProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("biopsy.checks.portable._MOST_BYTES_OF_A_TASK", 10)
    model = (tmp_path / "m.onnx").read_bytes()
    code = f"size = len(open(sys.argv[1], 'rb').read()); sys.exit(size != {len(model)} or 'threads=1' not in on)"
    flags, *_ = found(tmp_path, code, machines, "{}")
    assert [one.change.settings for one in flags.switches] == [{"threads": "1"}]
    for node in machines.nodes:
        assert sorted(path.name for path in node.sent) == ["check.py", "m.onnx"]


def test_python_code_may_give_the_machines(tmp_path: Path, machines: NodeProcesses) -> None:
    (tmp_path / "check.py").write_text("import sys; open(sys.argv[1]); sys.exit('threads=1' not in sys.argv[2])")
    words = [sys.executable, str(tmp_path / "check.py"), "{}", "{engine}"]
    flags = biopsy.flags(tmp_path / "m.onnx", "onnxrt", words, executor=machines)
    assert [one.change.settings for one in flags.switches] == [{"threads": "1"}]
