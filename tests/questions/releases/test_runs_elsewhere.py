"""Searches for a release on other machines, each of which makes its own environments: the same borders as here."""

import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from biopsy import errors, events
from biopsy.checks.task import TaskSite
from biopsy.processes.environments.releases import Release, releases
from biopsy.processes.watch import Stop
from biopsy.questions.releases.find import ReleaseSearch, ReleaseSearchOptions
from biopsy.questions.releases.findings import ReleaseFindings
from biopsy.questions.releases.question import NamedReleases, ReleaseCheck, ReleaseQuestion, span_of
from biopsy.questions.releases.runs import ReleasePreparation, ReleaseRun, ReleaseRuns, RunsElsewhere, task_of
from processes.environments.conftest import index as index
from support.models import chain, save
from support.node_processes import Machines
from support.package_index import PackageIndex
from support.session import LIMIT

PASSES, FAILS = "def look(): pass", "def look(): raise SystemExit(1)"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("check.py").write_text("import thing, beside\nbeside.look_with(thing)\n")
    Path("beside.py").write_text("def look_with(thing): thing.look()\n")
    return save(chain(1), Path("model.onnx"))


def found(
    model: Path,
    runs: ReleaseRuns | None = None,
    *,
    every: bool = False,
    words: tuple[str, ...] = ("{python}", "check.py", "{}"),
    listener: events.Listener = events.ignore,
) -> ReleaseFindings:
    question = ReleaseQuestion(check=ReleaseCheck(package="thing", words=words), model=model)
    span = span_of("thing", releases("thing"), NamedReleases())
    return ReleaseSearch(question, span, listener, ReleaseSearchOptions(every=every), runs=runs).run()


def told(findings: ReleaseFindings) -> object:
    """All that a person is told, but for where and when."""
    tried = [
        (one.release.version, one.outcome, one.reason, one.runs, one.added, one.obstacle) for one in findings.tried
    ]
    borders = [(one.before.version, one.after.version, one.change == "broke", one.verified) for one in findings.borders]
    return tried, borders, findings.failure, findings.failed, findings.runs, findings.checks, findings.text


@pytest.mark.slow
@pytest.mark.parametrize("every", [False, True])
def test_the_same_borders_are_found_with_any_number_of_machines(
    index: PackageIndex, model: Path, machines: Machines, every: bool
) -> None:
    for number in range(1, 9):
        index.add("thing", f"{number}.0", FAILS if number >= 6 else PASSES)
    index.stuck.clear()
    here = found(model, every=every)
    assert [(border.before.version, border.after.version) for border in here.borders] == [("5.0", "6.0")]
    for room in (1, 3):
        workers = machines(room)
        with closing(RunsElsewhere(workers, room)) as runs:
            assert told(found(model, runs, every=every)) == told(here)
        for node in workers.nodes:
            assert sorted(path.name for path in node.sent) in ([], ["beside.py", "check.py", "model.onnx"])


@pytest.mark.slow
def test_a_release_that_cannot_be_installed_there_says_nothing_of_the_model(
    index: PackageIndex, model: Path, machines: Machines
) -> None:
    index.add("thing", "1.0", PASSES)
    index.add("thing", "2.0", PASSES, needs=["missing"])
    index.add("thing", "3.0", FAILS)
    with closing(RunsElsewhere(machines(2), 2)) as runs:
        findings = found(model, runs)
        assert [(one.release.version, one.words) for one in findings.tried][0::2] == [
            ("1.0", "passes"),
            ("3.0", "fails"),
        ]
        assert findings.tried[1].obstacle is not None
        (border,) = findings.borders
        assert (border.before.version, border.after.version, border.verified) == ("1.0", "3.0", True)


@pytest.mark.slow
def test_a_check_that_uses_no_release_is_noticed_there_too(
    index: PackageIndex, model: Path, machines: Machines
) -> None:
    for version in ("1.0", "2.0"):
        index.add("thing", version, PASSES)
    Path("beside.py").write_text("raise SystemExit(1)\n")
    with (
        closing(RunsElsewhere(machines(2), 2)) as runs,
        pytest.raises(errors.VacuousCheck, match=r"may fail on anything|may use none"),
    ):
        found(model, runs)
    with closing(RunsElsewhere(machines(1), 1)) as runs, pytest.raises(errors.UsageError, match="names neither"):
        found(model, runs, words=("{python}", "check.py"))


def test_an_installation_that_nobody_waits_for_any_more_keeps_no_machine(
    index: PackageIndex, model: Path, machines: Machines
) -> None:
    index.add("thing", "1.0", PASSES)
    index.stuck.add(index.add("thing", "2.0", FAILS))
    workers = machines(1)
    with closing(RunsElsewhere(workers, 1)) as runs:
        check = ReleaseCheck(package="thing", words=("{python}", "check.py", "{}"))
        run = ReleaseRun(
            check=check, release=Release(version="2.0", date=None), model=model, default_name="{}", timeout=60.0
        )
        runs.expect(run, 1)
        until = time.monotonic() + LIMIT
        while not any("2.0" in asked for asked in index.asked) and time.monotonic() < until:
            time.sleep(0.02)
        runs.foresee([])
        other = workers.begin_prepared(task_of(replace(run, release=Release(version="1.0", date=None))))
        workers.wait([other], LIMIT / 2)  # the index gives up after LIMIT
        assert other.done()
        assert other.result().evidence.status == 0
    assert len(workers.nodes) == 1
    index.released.set()


def test_a_machine_with_another_python_refuses() -> None:
    there = ReleasePreparation(requirements=("thing==1.0",), python=None, series="3.7", is_own_run=False, is_bare=False)
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    refusal = pytest.raises(errors.UsageError, match=rf"has Python {ours}, and the releases are those for Python 3.7")
    with refusal, there.prepared(TaskSite(Path, {}), Stop()):
        pass
