"""Trials: what several runs say together, what is never checked twice, and where the work ends."""

import time
from pathlib import Path

import onnx
import pytest

import biopsy
from biopsy import events
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.session.trials import concluded
from support.models import chain, save
from support.predicates import has, names


def said(*outcomes: Outcome) -> list[Judged]:
    return [Judged(outcome, outcome.value, Evidence(status=0)) for outcome in outcomes]


def test_one_run_that_reproduces_is_enough() -> None:
    runs = said(Outcome.PASSES, Outcome.OTHER_FAILURE, Outcome.REPRODUCES)
    assert concluded(runs, 9) is runs[2]


def test_a_model_passes_only_after_as_many_runs_as_are_needed() -> None:
    assert concluded([], 1) is None
    assert concluded(said(*[Outcome.PASSES] * 2), 3) is None
    found = concluded(said(*[Outcome.PASSES] * 3), 3)
    assert found is not None
    assert found.outcome is Outcome.PASSES


@pytest.mark.parametrize("outcome", [Outcome.INVALID, Outcome.TIMED_OUT])
def test_what_cannot_be_said_is_not_asked_for_again(outcome: Outcome) -> None:
    found = concluded(said(outcome), 9)
    assert found is not None
    assert found.outcome is outcome


def test_runs_that_contradict_each_other_without_reproducing_are_unstable() -> None:
    found = concluded(said(Outcome.PASSES, Outcome.OTHER_FAILURE, Outcome.PASSES), 3)
    assert found is not None
    assert found.outcome is Outcome.UNSTABLE
    assert found.reason == "3 runs: 2 passed, 1 another failure"


def test_no_model_is_checked_twice(reducer) -> None:
    reducer(chain(40), has("n7", "n31"), repeat=1)
    seen = [model.SerializeToString(deterministic=True) for model in reducer.seen[:-1]]  # the last is the final check
    assert len(set(seen)) == len(seen)


def test_max_checks_ends_with_the_best_result_and_says_so(reducer) -> None:
    told: list[events.Event] = []
    found = reducer(chain(64), has("n7", "n31"), max_checks=9, listener=told.append)
    assert found.stopped == "--max-checks 9"
    assert {"n7", "n31"} <= set(names(reducer.result))
    assert len(found.nodes) < 64
    assert events.Stopped("--max-checks 9") in told
    assert isinstance(told[-1], events.Verified)


@pytest.mark.parametrize("jobs", [1, 2])
def test_max_time_does_not_wait_for_a_check_that_hangs(tmp_path: Path, jobs: int) -> None:
    save(chain(8, ("Relu",)), tmp_path / "m.onnx")
    check = tmp_path / "check.sh"
    check.write_text('#!/bin/sh\ngrep -q n7 "$1" && exit 1\ngrep -q Relu "$1" || exit 0\ntouch "$0.waits"; sleep 60\n')
    check.chmod(0o755)
    started = time.monotonic()
    found = biopsy.reduce(
        tmp_path / "m.onnx", [str(check), "{}"], tmp_path / "r.onnx", max_seconds=3.0, jobs=jobs, repeat=1
    )
    assert found.stopped == "--max-time 3"
    assert time.monotonic() - started < 30
    assert (tmp_path / "check.sh.waits").exists()


def test_a_check_begun_ahead_in_vain_is_ended(tmp_path: Path) -> None:
    save(chain(8, ("Relu",)), tmp_path / "m.onnx")
    check = tmp_path / "check.py"
    check.write_text(
        "#!/usr/bin/env python3\nimport os, sys, time\nnames = open(sys.argv[1], 'rb').read()\n"
        "if b'n0' in names: sys.exit(1)\n"
        "open(f'{sys.argv[0]}.{os.getpid()}', 'w').close()\n"
        "time.sleep(0.3)\n"
    )
    check.chmod(0o755)
    told: list[events.Event] = []
    biopsy.reduce(tmp_path / "m.onnx", [str(check), "{}"], tmp_path / "r.onnx", jobs=3, repeat=1, listener=told.append)
    begun = {event.number for event in told if isinstance(event, events.Checking)}
    ended = {event.number for event in told if isinstance(event, events.Checked | events.Abandoned)}
    assert begun == ended
    for mark in tmp_path.glob("check.py.*"):
        assert not Path(f"/proc/{mark.suffix[1:]}").exists()


def test_one_model_of_each_other_failure_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from biopsy.cli.app import main

    save(chain(16), tmp_path / "m.onnx")
    check = tmp_path / "check.sh"
    check.write_text('#!/bin/sh\ngrep -q n3 "$1" || exit 0\ngrep -q n9 "$1" && exit 1\nexit 7\n')
    check.chmod(0o755)
    words = ["debug", "reduce", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "r.onnx")]
    words += ["--keep-other", str(tmp_path / "other"), "--check", str(check), "{}"]
    assert main(words) == 0
    kept = list((tmp_path / "other").iterdir())
    assert [path.name for path in kept] == ["other_failure_1.onnx"]
    found = names(onnx.load(kept[0]))
    assert "n3" in found
    assert "n9" not in found
    assert f"x exit status 7, as in {kept[0]}" in capsys.readouterr().out


def test_checks_that_run_at_once_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from biopsy.cli.app import main

    monkeypatch.chdir(tmp_path)
    save(chain(16, ("Relu",)), Path("m.onnx"))
    check = ["--jobs", "4", "--check", "sh", "-c", '! grep -q n5 "$0"', "{}"]
    assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx", *check]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "r.onnx"]
