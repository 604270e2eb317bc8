"""What avoids a failure is called right only after many runs, and any failure counts. The answers are given here."""

from collections.abc import Iterator
from pathlib import Path

from biopsy import events
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.checks.verdict import VerdictFile
from biopsy.diagnosis.context import StepContext, TimeUpError
from biopsy.diagnosis.facts import KnownFacts
from biopsy.diagnosis.question import Words
from biopsy.diagnosis.steps.causes import RUNS_OF_A_CLAIM, holding
from biopsy.diagnosis.verdict import verdict_of
from biopsy.findings.verdict import Verdict
from support.diagnoses import SUSPECT, facts, question, settings, switch

ANOTHER = VerdictFile(outcome="fails", stage="run", kind="RuntimeError", engine=SUSPECT)
THE_SAME = VerdictFile(outcome="fails", stage="compare", kind="mismatch", engine=SUSPECT, outputs=("y",))
KNOWN = facts(settings=settings(switch("A")))


class Runs(StepContext):
    """All runs pass, but for those with these numbers."""

    def __init__(self, failing: dict[int, VerdictFile]) -> None:
        super().__init__(question(), events.ignore)
        self._failing, self.ran = failing, 0

    def run(self, words: Words, model: Path, *, description: str = "", share: float = 1.0) -> Judged:
        said = self._failing.get(self.ran, VerdictFile(outcome="passes"))
        self.ran += 1
        outcome = Outcome.REPRODUCES if said.outcome == "fails" else Outcome.PASSES
        return Judged(outcome, said.kind, Evidence(status=int(said.outcome == "fails"), verdict=said))


def verdict_after(failing: dict[int, VerdictFile]) -> tuple[Verdict, KnownFacts]:
    context = Runs(failing)
    known = holding.answer(KNOWN, context).facts
    assert context.ran == RUNS_OF_A_CLAIM == 21
    return verdict_of(known, (), question()), known


def texts(verdict: Verdict) -> Iterator[str]:
    return (each.text for each in verdict.workarounds)


def test_a_workaround_says_how_often_it_held() -> None:
    verdict, _ = verdict_after({})
    assert list(texts(verdict)) == ["A off: the model passes (in 21 of 21 further runs)."]


def test_a_workaround_with_which_the_model_fails_in_another_way_is_none() -> None:
    verdict, known = verdict_after({7: ANOTHER, 20: ANOTHER})
    assert verdict.workarounds == ()
    assert "fails in 2 of 21 further runs (RuntimeError)" in verdict.in_full
    assert known.mending_switches  # of the failure that was asked about


def test_a_switch_with_which_the_failure_comes_back_does_not_mend_it() -> None:
    verdict, known = verdict_after({7: THE_SAME})
    assert verdict.workarounds == () and not known.mending_switches
    assert "The piece passes when A is disabled; the whole model does not." in verdict.in_full


def test_the_answer_tells_runs_of_every_way_out_and_those_that_time_was_short_for() -> None:
    class Short(Runs):
        @property
        def seconds_left(self) -> float:
            return 100.0 - self.ran

        def run(self, words: Words, model: Path, *, description: str = "", share: float = 1.0) -> Judged:
            if self.ran >= 24:
                raise TimeUpError
            return super().run(words, model, description=description, share=share)

    known = facts(settings=settings(switch("A"), switch("B"), switch("C")))
    said = holding.answer(known, Short({})).line
    assert said == "yes, in 21 of 21 and 3 of 3 further runs · 1 not run again: the time was over"
    said = holding.answer(KNOWN, Runs({0: ANOTHER})).line
    assert said.startswith("no, it fails in 1 of 21 further runs: biopsy run ")


def test_nothing_is_run_where_nothing_avoids_the_failure() -> None:
    assert holding.reason_to_skip(facts(), Runs({})) == "nothing is known that avoids it"
