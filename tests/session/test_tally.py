"""The tally: what a search has cost and met."""

from pathlib import Path

from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.session.trial import SearchTally
from support.session import trial


def judged(outcome: Outcome, reason: str = "so it is") -> Judged:
    return Judged(outcome, reason, Evidence(status=1))


def test_checks_are_the_runs_that_were_waited_for() -> None:
    tally = SearchTally()
    tally.outcomes[Outcome.PASSES] += 2
    tally.outcomes[Outcome.REPRODUCES] += 1
    tally.remembered = 7
    assert tally.checks == 3


def test_an_answer_that_is_taken_back_counts_no_more_unless_a_journal_gave_it() -> None:
    tally = SearchTally()
    tally.outcomes[Outcome.PASSES] += 1
    assert tally.undo(Outcome.PASSES)
    assert not tally.undo(Outcome.PASSES)
    assert tally.checks == 0


def test_another_failure_is_counted_by_models_and_the_first_model_is_kept() -> None:
    kept: list[tuple[bytes, int]] = []

    def keep(each, number: int) -> Path:
        kept.append((b"".join(each.parts), number))
        return Path(f"{number}.onnx")

    tally = SearchTally(keep_other=keep)
    for name, reason in (("a", "crash"), ("a", "crash"), ("b", "crash"), ("c", "hang")):
        tally.meet(trial(name), judged(Outcome.OTHER_FAILURE, reason))
    assert {reason: failure.times for reason, failure in tally.other_failures.items()} == {"crash": 2, "hang": 1}
    assert kept == [(b"a", 1), (b"c", 2)]
    assert tally.other_failures["hang"].model == Path("2.onnx")


def test_models_of_which_nothing_can_be_said_are_counted_by_the_reason() -> None:
    tally = SearchTally()
    for name in ("a", "b", "b"):
        tally.meet(trial(name), judged(Outcome.INVALID, "no values for x"))
    assert tally.cannot_say == {"no values for x": 2}
    assert not tally.other_failures


def test_what_passes_or_reproduces_is_no_other_failure() -> None:
    tally = SearchTally()
    tally.meet(trial("a"), judged(Outcome.PASSES))
    tally.meet(trial("b"), judged(Outcome.REPRODUCES))
    assert not tally.other_failures
    assert not tally.cannot_say
