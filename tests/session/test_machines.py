"""Checks on other machines, which share no disk with us: the same result, byte for byte, and nothing is lost."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import onnx
import pytest

import biopsy
from biopsy import errors
from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Evidence
from biopsy.checks.task import Task
from biopsy.checks.warm import command_check
from biopsy.session.conditions import this_machine
from biopsy.session.pool import Workers
from support.machine_kinds import installed
from support.models import chain, save
from support.node_processes import NodeProcesses
from support.processes import runs, waited_for
from support.real_failures import normalization_of_columns, product_and_slopes_of_channels
from support.scripts import WAITS, script_check, with_external_weight
from support.session import LIMIT


@pytest.fixture
def machines(tmp_path: Path):
    made: list[NodeProcesses] = []

    def of(room: int, **more) -> NodeProcesses:
        folder = tmp_path / f"machines{len(made)}"
        folder.mkdir()
        made.append(NodeProcesses(folder, room, **more))
        return made[-1]

    yield of
    for workers in made:
        workers.close()


def reduced(source: Path, check: list[str], output: Path, workers: Workers | None, jobs: int) -> bytes:
    biopsy.reduce(source, check, output, jobs=jobs, executor=workers)
    return output.read_bytes()


def test_a_script_with_all_that_it_reads_gives_the_same_bytes(tmp_path: Path, machines) -> None:
    source, check = save(chain(12), tmp_path / "m.onnx"), script_check(tmp_path / "check")
    here = reduced(source, check, tmp_path / "r.onnx", None, 1)
    workers = machines(2)
    assert reduced(source, check, tmp_path / "r.onnx", workers, 2) == here
    assert isinstance(workers, Workers)
    sent = [sorted(path.name for path in node.sent) for node in workers.nodes]
    assert ["check.py", "rule.py", "wanted.txt"] in sent


def test_a_check_that_knows_candidates_by_their_usual_name_sees_each_at_its_own_place(
    tmp_path: Path, machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["polygraphy_debug.onnx" if word == "{}" else word for word in script_check(tmp_path / "check")]
    workers = machines(1)
    check = command_check(words, "polygraphy_debug.onnx")
    for name, model in (("polygraphy_debug", chain(12)), ("polygraphy_debug-1", chain(4)), ("other", chain(12))):
        run = workers.begin(Task(check, Path(f"{name}.onnx"), [model.SerializeToString()]))
        workers.wait([run], LIMIT)
        assert run.result().status == (len(model.graph.node) == 12), name


def test_weights_are_sent_once_to_each_machine(tmp_path: Path, machines) -> None:
    source = with_external_weight(tmp_path / "model")
    workers = machines(2)
    reduced(source, script_check(tmp_path / "check", "n9"), tmp_path / "r.onnx", workers, 2)
    sent = [sorted(path.name for path in node.sent) for node in workers.nodes]
    assert ["check.py", "rule.py", "w.bin", "wanted.txt"] in sent
    assert all(len(names) == len(set(names)) for names in sent)  # one may check the model of one Identity node alone


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "words"),
    [
        (normalization_of_columns, ["--engine", "onnxrt:optimization=none", "--onnxrt"]),
        (product_and_slopes_of_channels, ["--openvino", "--onnxrt"]),
    ],
    ids=["wrong values", "PRelu"],
)
def test_our_own_run_gives_the_same_bytes(
    tmp_path: Path, machines, made: Callable[[], onnx.ModelProto], words: list[str]
) -> None:
    source, check = save(made(), tmp_path / "m.onnx"), ["biopsy", "run", "{}", *words]
    here = reduced(source, check, tmp_path / "r.onnx", None, 1)
    assert reduced(source, check, tmp_path / "r.onnx", machines(2), 2) == here


def test_what_a_check_says_names_our_files(tmp_path: Path, machines) -> None:
    (tmp_path / "check.py").write_text("import sys; print(sys.argv[1], __file__); raise ValueError(sys.argv[1])")
    check = CommandCheck([sys.executable, str(tmp_path / "check.py"), "{}"], "c.onnx")
    here, there = (tmp_path / "c.onnx", tmp_path / "d" / "c.onnx")
    there.parent.mkdir()
    workers = machines(1)
    run = workers.begin(Task(check, here, [b"model"]))
    workers.wait([run], LIMIT)
    found = run.result()
    here.write_bytes(b"model")
    assert found.output == check.run(here).output
    assert found.scripts == check.run(here).scripts
    assert found.candidate == str(here)


def test_a_run_that_is_stopped_is_gone_with_all_that_it_has_started(tmp_path: Path, machines) -> None:
    (tmp_path / "check.py").write_text(WAITS)
    told = tmp_path / "pid"
    check = CommandCheck([sys.executable, str(tmp_path / "check.py"), "{}", str(told)], "c.onnx")
    workers = machines(1)
    run = workers.begin(Task(check, tmp_path / "c.onnx", [b"model"]))
    waited_for(told)
    child = int(told.read_text())
    workers.stop(run)
    workers.wait([run], LIMIT)
    assert not runs(child)
    again = workers.begin(Task(CommandCheck(["true", "{}"], "c.onnx"), tmp_path / "c.onnx", [b"model"]))
    workers.wait([again], LIMIT)
    assert again.result().status == 0
    assert len(workers.nodes) == 1


def test_a_stop_that_comes_too_late_ends_no_other_run(tmp_path: Path, machines) -> None:
    workers, check = machines(1), CommandCheck(["sleep", "0.2", "{}"], "c.onnx")
    evidence(workers, check, tmp_path)
    workers.nodes[0].stop()  # nothing runs there: it would be for the next
    (tmp_path / "check.py").write_text("import sys; sys.exit(7)")
    found = evidence(workers, CommandCheck([sys.executable, str(tmp_path / "check.py"), "{}"], "c.onnx"), tmp_path)
    assert (found.status, found.remark) == (7, "")


def test_a_machine_that_dies_says_nothing_of_the_model(tmp_path: Path, machines) -> None:
    workers = machines(1)
    (tmp_path / "check.py").write_text("import sys, time; time.sleep(float(open(sys.argv[2]).read()))")
    (tmp_path / "seconds").write_text("600")
    words = [sys.executable, str(tmp_path / "check.py"), "{}", str(tmp_path / "seconds")]
    run = workers.begin(Task(CommandCheck(words, "c.onnx"), tmp_path / "c.onnx", [b"model"]))
    until = monotonic() + LIMIT
    while not (workers.nodes and len(workers.nodes[0].sent) == 2) and monotonic() < until:
        sleep(0.01)
    os.kill(workers.nodes[0].process.pid, signal.SIGKILL)
    until = monotonic() + LIMIT
    while len(workers.nodes) < 2 and monotonic() < until:
        sleep(0.01)
    workers.stop(run)
    workers.wait([run], LIMIT)
    assert run.done()
    assert len(workers.nodes) == 2


def test_a_check_that_ends_three_machines_is_told_and_its_model_is_kept(tmp_path: Path, machines) -> None:
    (tmp_path / "check.py").write_text("import os, signal; os.kill(os.getppid(), signal.SIGKILL); input()")
    check = CommandCheck([sys.executable, str(tmp_path / "check.py"), "{}"], "c.onnx")
    workers = machines(1)
    run = workers.begin(Task(check, tmp_path / "c.onnx", [b"model"]))
    workers.wait([run], LIMIT)
    with pytest.raises(errors.CheckError, match="3 machines in a row") as told:
        run.result()
    assert (tmp_path / "c.lost.onnx").read_bytes() == b"model"
    assert "c.lost.onnx" in str(told.value.kept)
    assert len(workers.nodes) == 3


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["true"], "does not say where the candidate"),
        (["true", "{}", "data"], "data.*folder"),
        (["true", "{}", "data/x", "--again=up/../data/x"], "data/x"),
        (["python3", "-m", "rule", "{}"], "rule.py.*no word"),
    ],
)
def test_a_check_that_could_not_run_there_is_refused(
    tmp_path: Path, machines, monkeypatch: pytest.MonkeyPatch, words: list[str], match: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("data", "up"):
        (tmp_path / folder).mkdir()
    for name in ("data/x", "rule.py"):
        (tmp_path / name).touch()
    workers = machines(1)
    run = workers.begin(Task(command_check(words, "c.onnx"), Path("c.onnx"), [b"model"]))
    workers.wait([run], LIMIT)
    with pytest.raises(errors.UsageError, match=match):
        run.result()
    assert workers.nodes == []


def test_each_answer_names_the_machine_it_came_from(tmp_path: Path, machines) -> None:
    workers = machines(1)
    found = evidence(workers, CommandCheck(["true", "{}"], "c.onnx"), tmp_path)
    assert found.machine == str(this_machine())
    assert (found.may_be_kept, found.remark) == (True, "")


def test_a_machine_of_another_kind_that_comes_later_is_told_once_and_kept_in_no_journal(
    tmp_path: Path, machines
) -> None:
    workers = machines(1, packages=[installed(tmp_path / "packages", "onnx-made-up", "2.0")])
    check = CommandCheck(["false", "{}"], "c.onnx")
    found = [evidence(workers, check, tmp_path) for _ in range(2)]
    assert [one.may_be_kept for one in found] == [False, False]
    assert "onnx-made-up: none, 2.0" in found[0].remark
    assert not found[1].remark


def test_what_a_machine_of_an_unknown_kind_says_advances_a_search_and_is_asked_again_by_the_next(
    tmp_path: Path, machines
) -> None:
    source, check = save(chain(12), tmp_path / "m.onnx"), script_check(tmp_path / "check")
    journal = tmp_path / "j"
    workers = machines(1, packages=[installed(tmp_path / "packages", "onnx-made-up", "2.0")])
    biopsy.reduce(
        source,
        check,
        tmp_path / "r.onnx",
        max_checks=6,
        journal=journal,
        jobs=1,
        executor=workers,
    )
    assert '["run"' not in journal.read_text()


def test_a_machine_that_was_lost_is_told_with_the_answer_of_the_next(tmp_path: Path, machines) -> None:
    (tmp_path / "check.py").write_text(
        "import os, pathlib, signal, sys\n"
        "place = pathlib.Path(sys.argv[2])\n"
        "if not place.exists(): place.touch(); os.kill(os.getppid(), signal.SIGKILL); input()\n"
    )
    workers = machines(1)
    words = [sys.executable, str(tmp_path / "check.py"), "{}", str(tmp_path / "begun")]
    found = evidence(workers, CommandCheck(words, "c.onnx"), tmp_path)
    assert "a machine was lost, so its check was asked again: " in found.remark
    assert (found.status, workers.lost) == (0, 1)


def test_machines_that_die_while_nothing_runs_there_are_held_against_no_check(tmp_path: Path, machines) -> None:
    workers, check = machines(4), CommandCheck(["true", "{}"], "c.onnx")
    workers.expect(4)
    until = monotonic() + LIMIT
    while len(workers.nodes) < 4 and monotonic() < until:
        sleep(0.01)
    assert evidence(workers, check, tmp_path).status == 0
    for node in list(workers.nodes):
        os.kill(node.process.pid, signal.SIGKILL)
        node.process.join()
    found = evidence(workers, check, tmp_path)
    assert (found.status, found.remark, workers.lost) == (0, "", 0)


def evidence(workers: Workers, check: CommandCheck, folder: Path) -> Evidence:
    run = workers.begin(Task(check, folder / "c.onnx", [b"model"]))
    workers.wait([run], LIMIT)
    return run.result()
