"""A search with a check: what is written however it ends, what is resumed, and the last word on the file written."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import pytest

import biopsy
from biopsy import errors, events
from biopsy.checks.journal import Journal
from biopsy.checks.outcome import Outcome, UndoError
from biopsy.session.checked_search import CheckedSearch, require_confirmed, trials_of_file
from biopsy.session.files import ResultFile, Resume, run_with_journal
from biopsy.session.oracle import Oracle
from biopsy.session.trial import CONFIRM, FINAL, ORIGINAL, Budget
from support.models import chain, save
from support.predicates import has, names
from support.session import Answers, Session, trial


def nothing(candidate: str) -> None:
    """What happens while a candidate is made, unless a test says otherwise."""


@dataclass
class Shortest:
    """A task: the shortest beginning of a word that still fails, written as text.

    ``searches`` is how often the search is run until the last word says that it is enough.
    """

    oracle: Oracle
    output: Path
    word: str = "abcdef"
    best: str | None = None
    searches: int = 1
    during: Callable[[str], None] = nothing
    steps: list[str] = field(default_factory=list)

    @property
    def has_result(self) -> bool:
        return self.best is not None

    @property
    def is_worth_resuming(self) -> bool:
        return self.best not in (None, self.word)

    @property
    def progress(self) -> str:
        return f"at {self.best}"

    def preflight(self) -> None:
        self.steps.append("preflight")
        if self.oracle.judge(trial(self.word, ORIGINAL)).outcome is not Outcome.REPRODUCES:
            raise errors.OriginalPasses("it passes")
        self.best = self.word

    def begin(self) -> None:
        self.steps.append("begin")

    def search(self) -> bool:
        self.steps.append("search")
        with self.oracle.budget.enforced():
            assert self.best is not None
            while len(self.best) > 1:
                candidate = self.best[:-1]
                self.during(candidate)
                if self.oracle.judge(trial(candidate)).outcome is not Outcome.REPRODUCES:
                    break
                self.best = candidate
        return True

    def undo(self, digest: bytes | None) -> bool:
        self.best = self.word
        return digest == trial(self.word).digest

    def write(self) -> None:
        assert self.best is not None
        self.output.write_text(self.best)

    def rescue(self) -> str | None:
        if self.best in (None, self.word):
            return None
        self.write()
        return f"{self.best} in {self.output.name}"

    def verify(self) -> bool:
        self.steps.append("verify")
        self.searches -= 1
        return self.searches > 0


def fails_from_three() -> Answers:
    """Three letters are needed."""
    return Answers({"abcdef": [1], "abcde": [1], "abcd": [1], "abc": [1], "ab": [0]})


def search_of(session: Session, check: Answers, checks: int | None = None) -> tuple[CheckedSearch, Shortest]:
    oracle = session.oracle(check, budget=Budget(checks=checks))
    task = Shortest(oracle, session.folder / "result.txt")
    return CheckedSearch(task, oracle, ResultFile([task.output], task.write, session.told.append)), task


def raising(stop: BaseException, at: str) -> Callable[[str], None]:
    def during(candidate: str) -> None:
        if candidate == at:
            raise stop

    return during


def test_the_preflight_the_search_the_result_and_the_last_word_come_in_this_order(session: Session) -> None:
    search, task = search_of(session, fails_from_three())
    assert search.run() is None
    assert task.output.read_text() == "abc"
    assert task.steps == ["preflight", "begin", "search", "verify"]


def test_a_last_word_that_tells_something_new_has_the_search_run_again(session: Session) -> None:
    search, task = search_of(session, fails_from_three())
    task.searches = 2
    assert search.run() is None
    assert task.steps == ["preflight", "begin", "search", "verify", "begin", "search", "verify"]


def test_a_limit_ends_the_search_with_the_best_by_then_and_that_is_verified(session: Session) -> None:
    search, task = search_of(session, fails_from_three(), checks=3)
    assert search.run() == "--max-checks 3"
    assert task.output.read_text() == "abcd"
    assert events.Stopped("--max-checks 3") in session.told
    assert task.steps[-1] == "verify"


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), errors.Interrupted("stopped on request")])
def test_an_interruption_leaves_the_best_so_far_and_says_how_far_it_came(session: Session, stop: BaseException) -> None:
    search, task = search_of(session, fails_from_three())
    task.during = raising(stop, at="abc")
    with pytest.raises(errors.Interrupted, match="at abcd") as caught:
        search.run()
    assert caught.value.kept == "abcd in result.txt"
    assert task.output.read_text() == "abcd"


def test_a_check_that_cannot_be_run_any_more_leaves_the_best_so_far(session: Session) -> None:
    check = fails_from_three()
    check.statuses["abc"] = [127]
    search, task = search_of(session, check)
    with pytest.raises(errors.CheckError, match="could not be run") as caught:
        search.run()
    assert caught.value.kept == "abcd in result.txt"
    assert task.output.read_text() == "abcd"


def test_what_the_preflight_raises_ends_it_with_nothing_written(session: Session) -> None:
    search, task = search_of(session, Answers())
    with pytest.raises(errors.OriginalPasses):
        search.run()
    assert not task.output.exists()


@pytest.mark.parametrize("last", [1, 0, 127])
def test_however_it_ends_the_check_is_closed_and_no_candidate_is_left(session: Session, last: int) -> None:
    check = fails_from_three()
    check.statuses["abcde"] = [last]
    search, _ = search_of(session, check)
    with contextlib.suppress(errors.CheckError):
        search.run()
    assert check.closed == 1
    assert not (session.folder / "candidate.onnx").exists()
    session.made.clear()


def test_an_answer_that_is_taken_back_is_asked_again_and_the_search_begins_anew(session: Session) -> None:
    check = fails_from_three()
    search, task = search_of(session, check)
    taken_back: list[str] = []

    def during(candidate: str) -> None:
        if candidate == "abcd" and not taken_back:
            taken_back.append(candidate)
            raise UndoError

    task.during = during
    assert search.run() is None
    assert check.asked == ["abcdef", "abcde", "abcde", "abcd", "abc", "ab"]
    assert task.steps == ["preflight", "begin", "search", "search", "verify"]


def test_an_answer_about_the_original_that_is_taken_back_has_the_preflight_run_again(session: Session) -> None:
    check = fails_from_three()
    search, task = search_of(session, check)
    taken_back: list[str] = []

    def during(candidate: str) -> None:
        if not taken_back:
            taken_back.append(candidate)
            raise UndoError

    task.during = during
    assert search.run() is None
    assert check.asked[:2] == ["abcdef", "abcdef"]
    assert task.steps == ["preflight", "begin", "search", "preflight", "search", "verify"]


def test_a_limit_that_ends_the_preflight_after_an_answer_was_taken_back_leaves_nothing(session: Session) -> None:
    search, task = search_of(session, fails_from_three(), checks=1)

    def undo(digest: bytes | None) -> bool:
        task.best = None
        return True

    task.undo = undo  # type: ignore[method-assign]
    task.during = raising(UndoError(), at="abcde")
    with pytest.raises(errors.Interrupted):
        search.run()
    assert not task.output.exists()


def test_a_result_that_was_removed_meanwhile_is_written_again_and_that_is_said(session: Session) -> None:
    search, task = search_of(session, fails_from_three())
    verify = task.verify

    def verify_and_remove() -> bool:
        task.output.unlink()
        return verify()

    task.verify = verify_and_remove  # type: ignore[method-assign]
    search.run()
    assert task.output.read_text() == "abc"
    assert any(isinstance(event, events.Remark) and "was removed" in event.text for event in session.told)


# The last word


def test_the_file_is_checked_as_fresh_copies_beside_it(tmp_path: Path) -> None:
    output = tmp_path / "result.onnx"
    output.write_bytes(b"result")
    restored: list[None] = []
    with trials_of_file(output, trial("plain", FINAL), Answers(), lambda: restored.append(None)) as fresh:
        for _ in range(2):
            place = fresh().place
            assert place is not None
            assert place.parent == tmp_path
            assert place.read_bytes() == b"result"
            place.write_bytes(b"changed by the check")
    assert len(restored) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["result.onnx"]


def test_without_a_file_the_model_is_checked_where_candidates_stand(tmp_path: Path) -> None:
    result = trial("plain", FINAL)
    for output in (None, tmp_path / "nothing.onnx"):
        with trials_of_file(output, result, Answers(), lambda: None) as fresh:
            assert fresh() is result


def test_a_person_is_asked_once_more_only_about_what_a_journal_says(session: Session) -> None:
    result = trial("abc", CONFIRM)
    asked = session.oracle(Answers({"abc": [1]}, is_person=True))
    asked.judge(trial("abc"))
    require_confirmed(asked, result, Outcome.REPRODUCES, "the result fails", "nothing")
    assert asked.tally.checks == 1
    unasked = session.oracle(Answers(is_person=True))
    with pytest.raises(errors.CheckError, match="the journal says that the result fails, and you do not"):
        require_confirmed(unasked, result, Outcome.REPRODUCES, "the result fails", "the journal, as it is")
    automatic = session.oracle(Answers())
    require_confirmed(automatic, result, Outcome.REPRODUCES, "the result fails", "nothing")
    assert automatic.tally.checks == 0


# Resuming


def with_journal(
    session: Session, check: Answers, checks: int | None = None
) -> tuple[CheckedSearch, Shortest, Journal]:
    search, task = search_of(session, check, checks)
    journal = task.oracle.memory.journal = Journal.open(session.folder / "j.journal", {"check": "c"})
    return search, task, journal


def run(session: Session, search: CheckedSearch, journal: Journal) -> str | None:
    with contextlib.closing(journal):
        return run_with_journal(
            search.run, journal, Resume(), session.told.append, lambda: search.task.is_worth_resuming
        )


def test_a_search_that_has_ended_leaves_no_journal(session: Session) -> None:
    search, _, journal = with_journal(session, fails_from_three())
    assert run(session, search, journal) is None
    assert not journal.path.exists()


def test_a_search_that_is_stopped_keeps_its_journal_and_the_next_one_repeats_nothing(session: Session) -> None:
    first, second = fails_from_three(), fails_from_three()
    search, _, journal = with_journal(session, first, checks=3)
    assert run(session, search, journal) == "--max-checks 3"
    assert journal.path.exists()
    search, task, journal = with_journal(session, second)
    assert run(session, search, journal) is None
    assert first.asked == ["abcdef", "abcde", "abcd"]
    assert second.asked == ["abc", "ab"]
    assert task.output.read_text() == "abc"
    assert task.oracle.tally.remembered == 3
    assert events.Resumed(str(journal.path), 3) in session.told


def test_an_interruption_names_the_journal(session: Session) -> None:
    search, task, journal = with_journal(session, fails_from_three())
    task.during = raising(KeyboardInterrupt(), at="abc")
    with pytest.raises(errors.Interrupted) as caught:
        run(session, search, journal)
    assert caught.value.kept == f"abcd in result.txt, and 3 answers in {journal.path}"
    assert journal.path.exists()


def test_where_nothing_was_learnt_nothing_is_left(session: Session) -> None:
    search, _, journal = with_journal(session, Answers())
    with pytest.raises(errors.OriginalPasses):
        run(session, search, journal)
    assert not journal.path.exists()


# A whole reduction


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


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_max_time_ends_a_check_that_hangs(tmp_path: Path, jobs: int) -> None:
    save(chain(8, ("Relu",)), tmp_path / "m.onnx")
    check = tmp_path / "check.sh"
    check.write_text('#!/bin/sh\ngrep -q n7 "$1" && exit 1\ngrep -q Relu "$1" || exit 0\nsleep 600\n')
    check.chmod(0o755)
    found = biopsy.reduce(
        tmp_path / "m.onnx",
        [str(check), "{}"],
        tmp_path / "r.onnx",
        max_time=3.0,
        jobs=jobs,
        repeat=1,
    )
    assert found.stopped == "--max-time 3"


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
    biopsy.reduce(
        tmp_path / "m.onnx",
        [str(check), "{}"],
        tmp_path / "r.onnx",
        jobs=3,
        repeat=1,
        listener=told.append,
    )
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
