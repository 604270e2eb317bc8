"""Builds on other machines, which share no disk with us: as here, and nothing is concluded from a machine that dies."""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import biopsy
from biopsy import errors
from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Artifacts
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EngineSpec
from biopsy.questions.builds.building import BuildPlan, BuildRuns, BuildsHere, BuildTally, build_repeatedly
from biopsy.questions.builds.elsewhere import BuildsElsewhere
from biopsy.questions.builds.settings import CheckTemplate, VariedSetting, separate_checks
from support.models import chain, save
from support.node_processes import Machines, NodeProcesses
from support.scripts import with_external_weight


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuildPlan:
    monkeypatch.chdir(tmp_path)
    path = save(chain(3, ("Relu", "Neg")), Path("model.onnx"))
    return BuildPlan(
        model=ModelInput(path.read_bytes(), path.parent, path),
        spec=EngineSpec("onnxrt"),
        until=2,
        artifact=Path("built.ort"),
        variations=[VariedSetting("threads", ("1", "2"))],
        seed=3,
        record_to=Path("replay.json"),
        artifacts=Artifacts((Path("log.txt"), Path("built.ort"), Path("replay.json")), Path("kept")),
    )


SAYS = """\
import json, os, pathlib, sys
built, engine = sys.argv[1:3]
assert pathlib.Path(built).stat().st_size > 100
assert engine == os.environ["BIOPSY_ENGINE"]
record = json.loads(pathlib.Path(sys.argv[3]).read_text())
assert f"threads={record['settings']['threads']}" in engine
pathlib.Path("log.txt").write_text(f"{engine} {len(record['layers'])}")
print(built)
sys.exit("threads=2" in engine)
"""


SAYS_SETTING = "import sys; sys.exit('threads=2' in sys.argv[2])"


def check(code: str, *words: str) -> tuple[str, ...]:
    Path("check.py").write_text(code)
    return (sys.executable, "check.py", *words)


def elsewhere(plan: BuildPlan, machines: NodeProcesses, words: Sequence[str], jobs: int = 2) -> BuildsElsewhere:
    return BuildsElsewhere(plan, separate_checks(CheckTemplate(tuple(words), plan.spec), "{}"), machines, jobs)


def built(plan: BuildPlan, runs: BuildRuns) -> tuple[BuildTally, list[Any]]:
    tally = BuildTally(plan=plan)
    told = [(one.number, one.change.text, one.judged.outcome, one.judged.evidence.output)
            for one in build_repeatedly(runs, tally)]  # fmt: skip
    return tally, told


def kept(folder: str) -> dict[str, str | None]:
    """What was sorted, by outcome and number; of an engine only that it is there."""
    return {
        f"{path.parent.name} {path.stem.split('_')[0]} {path.stem.split('_N')[1]}": path.read_text()
        if path.suffix == ".txt"
        else None
        for path in Path(folder).rglob("*.*")
    }


@pytest.mark.slow
def test_builds_elsewhere_say_the_same_in_the_same_order(plan: BuildPlan, machines: Machines) -> None:
    words = check(SAYS, "{}", "{engine}", "replay.json")
    here = BuildsHere(plan, lambda change: CommandCheck(CheckTemplate(words, plan.spec).with_change(change), "{}"))
    tally, told = built(plan, here)
    files = kept("kept")
    assert len(files) == 6
    workers = machines(2)
    plan = replace(plan, artifacts=replace(plan.artifacts, folder=Path("other")))
    there, told_there = built(plan, elsewhere(plan, workers, words))
    assert told_there == told
    assert kept("other") == files
    assert there.outcomes == tally.outcomes
    machine = {choice for build in there.builds for choice in build.choices if choice.kind == "machine"}
    assert len(machine) == 1
    assert [build.choices - machine for build in there.builds] == [build.choices for build in tally.builds]
    for node in workers.nodes:
        assert sorted(path.name for path in node.sent) in ([], ["check.py", "model.onnx"])


def test_the_first_bad_build_of_the_order_ends_it_and_what_runs_beside_it_is_stopped(
    plan: BuildPlan, machines: Machines
) -> None:
    plan = replace(plan, until="bad", record_to=None, artifacts=Artifacts())
    words = check("import os, sys, time; time.sleep(0 if os.environ['SEEN'] == 'b' else 600)\nsys.exit(1)", "{}")
    plan = replace(plan, variations=[VariedSetting("env.SEEN", ("a", "b"))], seed=first_is_b(plan))
    tally, _ = built(plan, elsewhere(plan, machines(2), words, jobs=2))
    assert tally.runs == 1


def first_is_b(plan: BuildPlan) -> int:
    """A seed with which the first build has SEEN=b, and the second has not."""
    from biopsy.questions.builds.settings import changes

    variations = [VariedSetting("env.SEEN", ("a", "b"))]
    for seed in range(50):
        order = changes(variations, seed)
        if [next(order).change.environment["SEEN"] for _ in range(2)] == ["b", "a"]:
            return seed
    raise AssertionError


@pytest.mark.slow
def test_a_build_that_fails_is_told_and_a_machine_that_is_lost_is_not(plan: BuildPlan, machines: Machines) -> None:
    spec = EngineSpec("fake", {"crash.Neg": "build"})
    failing = replace(plan, spec=spec, until=2, artifact=None, variations=(), record_to=None, artifacts=Artifacts())
    failing = replace(failing, checks_building=True)
    workers = machines(1)
    tally, told = built(failing, elsewhere(failing, workers, ["build"]))
    assert (tally.runs, len(tally.builds)) == (2, 2)
    assert told == built(failing, BuildsHere(failing, lambda _: CommandCheck(["build"], "{}")))[1]
    gone = Path("gone").absolute()
    words = check(
        f"import os, pathlib, signal\nplace = pathlib.Path({str(gone)!r})\nif not place.exists():\n"
        f"    place.touch(); os.kill(os.getppid(), {signal.SIGKILL.value})",
        "{}",
    )
    plain = replace(plan, until=2, record_to=None, variations=(), artifacts=Artifacts())
    tally, _ = built(plain, elsewhere(plain, workers, words))
    assert [outcome.name for outcome in tally.outcomes] == ["PASSES"]
    assert tally.runs == 2
    assert len(workers.nodes) == 2


REFUSED = {
    "import os; os.mkdir('log.txt')": "not a plain file",
    "import os; os.symlink('/etc/passwd', 'log.txt')": "symbolic link",
    "open('log.txt', 'wb').truncate(1 << 30)": "at most 256.0 MB",
}


def test_what_cannot_be_done_elsewhere_is_one_line(plan: BuildPlan, machines: Machines) -> None:
    plan = replace(plan, until=1, record_to=None, artifacts=Artifacts((Path("log.txt"),)), variations=())
    workers = machines(1)
    with pytest.raises(errors.UsageError, match="names neither"):
        built(plan, elsewhere(plan, workers, check("", "{engine}")))
    for code, why in REFUSED.items():
        with pytest.raises(errors.CheckError, match=f"log.txt cannot be brought back .*{why}"):
            built(plan, elsewhere(plan, workers, check(code, "{}")))
    assert not Path("log.txt").exists()
    assert not os.path.lexists("polygraphy_artifacts")
    assert len(workers.nodes) == 1


def test_python_gives_the_machines_as_an_executor(plan: BuildPlan, machines: Machines) -> None:
    workers = machines(1)
    found = biopsy.build(
        "model.onnx",
        "onnxrt",
        check(SAYS_SETTING, "{}", "{engine}"),
        until=2,
        vary={"threads": [1, 2]},
        executor=workers,
    )
    assert (found.good, found.bad) == (1, 1)
    assert {choice.kind for build in found.builds for choice in build.choices} >= {"machine", "option"}
    with pytest.raises(errors.UsageError, match="a function cannot be sent"):
        biopsy.build("model.onnx", "onnxrt", lambda path, engine: True, until=1, executor=workers)
    Path("weights").mkdir()
    source = with_external_weight(Path("with_weights"))
    (source.parent / "w.bin").rename("weights/w.bin")
    with pytest.raises(errors.UsageError, match=r"the weights of .* are in another folder"):
        biopsy.build(source, "onnxrt", until=1, executor=workers, external_data_dir="weights")
