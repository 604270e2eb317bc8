"""How often a failure shows, and whether an engine contradicts itself, from answers of a check that are given here."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from biopsy import events
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.checks.verdict import VerdictFile
from biopsy.diagnosis.context import StepContext
from biopsy.diagnosis.facts import KnownFacts, Steadiness
from biopsy.diagnosis.question import Words
from biopsy.diagnosis.steps.rounding import steadiness
from biopsy.diagnosis.verdict import verdict_of
from support.diagnoses import SUSPECT, TRUSTED, failure, question


class Answers(StepContext):
    """Answers as ``told`` for the failing check, and as ``of_itself`` where an engine is compared with itself."""

    def __init__(
        self, told: Iterator[bool | None], of_itself: dict[str, Iterator[bool]], stage: str = "compare"
    ) -> None:
        super().__init__(question(), events.ignore)
        self.stage = stage
        self._told, self._of_itself = told, of_itself

    def run(self, words: Words, model: Path, *, description: str = "", share: float = 1.0) -> Judged:
        engines = [word for before, word in pairwise(words) if before == "--engine"]
        answers = self._of_itself.get(engines[0], iter(())) if len({*engines}) < len(engines) else self._told
        outcome = Outcome.REPRODUCES if next(answers, False) else Outcome.PASSES
        return Judged(outcome, "", Evidence(status=0, verdict=VerdictFile(stage=self.stage)))


def seen(told: str, **of_itself: str) -> Steadiness:
    """``F`` is a run that fails; the first one is known to."""
    by_engine = {"suspect": SUSPECT, "trusted": TRUSTED}
    context = Answers(
        iter([answer == "F" for answer in told]),
        {by_engine[name]: iter([answer == "F" for answer in runs]) for name, runs in of_itself.items()},
    )
    answer = steadiness.answer(KnownFacts(failure=failure()), context)
    assert answer.facts.steadiness is not None
    return answer.facts.steadiness


def test_a_failure_that_shows_each_time_is_run_five_times() -> None:
    assert (seen("FFFF").failed, seen("FFFF").runs, seen("FFFF").is_flaky) == (5, 5, False)


def test_one_that_does_not_is_measured_in_twenty_runs() -> None:
    found = seen("FPFF" + "FP" * 8)
    assert (found.failed, found.runs, found.is_flaky) == (12, 20, True)


def test_an_engine_that_refuses_now_and_then_does_not_contradict_itself() -> None:
    context = Answers(iter([True] * 4), {SUSPECT: iter([True])}, stage="run")
    known = steadiness.answer(KnownFacts(failure=failure()), context).facts
    assert known.steadiness is not None and known.steadiness.self_difference == ""


def test_of_two_engines_the_one_that_contradicts_itself_is_wrong() -> None:
    context = Answers(iter([True] * 4), {TRUSTED: iter([True])})
    known = steadiness.answer(KnownFacts(failure=failure()), context).facts
    assert (known.suspect, known.known_failure.trusted) == (TRUSTED, SUSPECT)
    assert known.is_self_contradiction


@pytest.mark.parametrize(("engine", "spec"), [("suspect", SUSPECT), ("trusted", TRUSTED)])
def test_an_engine_that_differs_from_itself_is_named(engine: str, spec: str) -> None:
    assert seen("FFFF", **{engine: "F"}).self_difference == f"compared with itself, {spec} differs in 1 of 2 runs"
    assert seen("FPFF", **{engine: "PFPPF"}).self_difference == f"compared with itself, {spec} differs in 2 of 5 runs"


# Later questions


class Told(Answers):
    """Counts the runs as a diagnosis does: these answers are those of processes."""

    run = StepContext.run

    def run_check(self, check: object, model: Path, *, description: str = "", share: float = 1.0) -> Judged:
        answer = next(self._told)
        if answer is None:
            crash = VerdictFile(stage="run", kind="SIGABRT")
            return Judged(Outcome.REPRODUCES, "crashes when it runs · SIGABRT", Evidence(status=1, verdict=crash))
        outcome = Outcome.REPRODUCES if answer else Outcome.PASSES
        return Judged(outcome, "", Evidence(status=0, verdict=VerdictFile(stage=self.stage)))


def told(answers: str) -> tuple[Told, KnownFacts]:
    context = Told(iter([{"F": True, "P": False, "C": None}[answer] for answer in answers]), {})
    known = KnownFacts(failure=failure(), steadiness=Steadiness(failed=5, runs=5))
    return context, known


def test_a_pass_in_a_later_question_makes_the_failure_flaky() -> None:
    context, known = told("FFPF")
    for _ in range(4):
        context.run((*known.known_failure.check, "--tell-rounding"), context.question.model)
    later = context.counted(known, "which setting?")
    assert later.steadiness is not None
    assert (later.steadiness.failed, later.steadiness.runs, later.is_flaky) == (8, 9, True)
    assert "It is flaky: it fails in 8 of 9 runs." in verdict_of(later, (), question()).in_full
    assert context.counted(later, "which setting?") == later


def test_runs_of_another_check_or_model_are_not_counted() -> None:
    context, known = told("PP")
    context.run((*known.known_failure.check, "--seed", "7"), context.question.model)
    context.run(known.known_failure.check, Path("piece.onnx"))
    assert context.counted(known, "which setting?") == known


def test_a_search_that_notices_that_the_failure_is_flaky_is_told_of() -> None:
    context, known = told("")
    context.listener(events.FlakyFailure(18, 20, 2, 0.99))
    later = context.counted(known, "which setting?")
    assert later.is_flaky and (later.rate.failed, later.rate.runs) == (18, 20)
    text = verdict_of(later, (), question()).in_full
    assert "It is flaky: it fails in 5 of 5 runs, and in 18 of 20 when asked 'which setting?'." in text


CRASH = "crashes when it runs · SIGABRT"


@pytest.mark.parametrize(
    ("searched", "flaky"),
    [
        ("compare · mismatch", events.FlakyFailure(10, 19, 5, 0.99, 9, CRASH)),
        (CRASH, events.FlakyFailure(9, 19, 5, 0.99, 10, "compare · mismatch")),
    ],
    ids=["the failure", "the crash"],
)
def test_a_run_that_crashes_instead_makes_no_other_failure_flaky(searched: str, flaky: events.FlakyFailure) -> None:
    context, known = told("FCFC")
    for _ in range(4):
        context.run(known.known_failure.check, context.question.model)
    context.listener(events.OriginalFails(searched, searched, 0.1))
    context.listener(flaky)
    later = context.counted(known, "which setting?")
    assert later.steadiness is not None and not later.is_flaky
    assert (later.steadiness.failed, later.steadiness.runs) == (7, 7)
    text = verdict_of(later, (), question()).in_full
    assert f"In 11 of 28 runs it failed in another way ({CRASH})." in text
    assert "flaky" not in text
