"""A check that looks at the engine that is built of a candidate."""

import sys
from contextlib import closing
from pathlib import Path

import pytest

from biopsy.checks.command import CommandCheck
from biopsy.checks.task import EngineFileCheck, Task
from support.node_processes import NodeProcesses
from support.session import LIMIT

BUILD = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[2])"
CHECK = "import sys; sys.exit(int(open(sys.argv[1]).read()))"


@pytest.fixture
def check(tmp_path: Path) -> EngineFileCheck:
    """Copies a candidate to ``engine``; the status is the number that stands there."""
    built = tmp_path / "engine"
    builder = CommandCheck([sys.executable, "-c", BUILD, "{}", str(built)], "candidate")
    return EngineFileCheck(builder, CommandCheck([sys.executable, "-c", CHECK, "{}"], "candidate"), built)


def candidate(folder: Path, text: str) -> Path:
    path = folder / "candidate"
    path.write_text(text)
    return path


@pytest.mark.parametrize("status", [0, 3])
def test_the_check_is_asked_about_what_was_built(check: EngineFileCheck, tmp_path: Path, status: int) -> None:
    assert check.run(candidate(tmp_path, str(status))).status == status


def test_what_cannot_be_built_says_nothing_of_precision(check: EngineFileCheck, tmp_path: Path) -> None:
    evidence = check.run(tmp_path / "nobody")
    assert evidence.status == 125
    assert evidence.verdict.outcome == "invalid" and "no engine could be built" in (evidence.verdict.message or "")


def test_the_engine_of_another_candidate_is_never_asked_about(check: EngineFileCheck, tmp_path: Path) -> None:
    assert check.run(candidate(tmp_path, "0")).status == 0
    assert check.run(tmp_path / "nobody").status == 125


def test_the_last_engine_goes_at_the_end_unless_it_is_to_be_kept(check: EngineFileCheck, tmp_path: Path) -> None:
    check.run(candidate(tmp_path, "0"))
    assert check.built.exists()
    check.close()
    assert not check.built.exists()


def test_a_file_that_it_has_not_made_stays(check: EngineFileCheck) -> None:
    check.built.write_text("somebody else's")
    check.close()
    assert check.built.read_text() == "somebody else's"


def test_the_line_shows_both_commands(check: EngineFileCheck, tmp_path: Path) -> None:
    line = check.line(tmp_path / "candidate")
    assert " && " in line and str(check.built) in line


def test_other_machines_build_where_they_check_each_with_a_file_of_its_own(tmp_path: Path) -> None:
    for name, code in (
        ("build.py", f"import time; time.sleep(0.3); {BUILD}"),
        ("check.py", f"print(sys.argv); {CHECK}"),
    ):
        (tmp_path / name).write_text(f"import sys; {code}")
    built = tmp_path / "engine"
    builder = CommandCheck([sys.executable, str(tmp_path / "build.py"), "{}", str(built)], "candidate")
    check = EngineFileCheck(
        builder, CommandCheck([sys.executable, str(tmp_path / "check.py"), "{}"], "candidate"), built
    )
    (tmp_path / "machines").mkdir()
    with closing(NodeProcesses(tmp_path / "machines", 2)) as machines:
        runs = [machines.begin(Task(check, tmp_path / f"c{text}", [text.encode()])) for text in ("0", "3", "no number")]
        for run in runs:
            machines.wait([run], LIMIT)
        assert [run.result().status for run in runs] == [0, 3, 1]
        assert all(f"'{built}'".encode() in run.result().output for run in runs)
        broken = CommandCheck(["false", "{}"], "candidate")
        run = machines.begin(Task(EngineFileCheck(broken, check.check, built), tmp_path / "c", [b"0"]))
        machines.wait([run], LIMIT)
        assert run.result().verdict.outcome == "invalid"
    assert not built.exists()
