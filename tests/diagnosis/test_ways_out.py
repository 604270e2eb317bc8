"""What avoids a failure is called right only after many runs, and any failure counts. The answers are given here."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from biopsy import events
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.checks.verdict import VerdictFile
from biopsy.comparison.mismatch import Mismatch
from biopsy.diagnosis.context import TIME, StepContext, TimeUpError
from biopsy.diagnosis.facts import EngineComparison, FailureReport, KnownFacts
from biopsy.diagnosis.question import Words
from biopsy.diagnosis.steps.causes import RUNS_OF_A_CLAIM, holding
from biopsy.diagnosis.verdict import verdict_of
from biopsy.diagnosis.ways_out import ways_out
from biopsy.findings.verdict import Verdict
from support.diagnoses import SUSPECT, TRUSTED, facts, failure, question, settings, switch

ANOTHER = VerdictFile(outcome="fails", stage="run", kind="RuntimeError", engine=SUSPECT)
THE_SAME = VerdictFile(outcome="fails", stage="compare", kind="mismatch", engine=SUSPECT, outputs=("y",))
KNOWN = facts(settings=settings(switch("A")))


class Runs(StepContext):
    """All runs pass, but for those with these numbers."""

    def __init__(self, failing: dict[int, VerdictFile], in_time: int = 100) -> None:
        super().__init__(question(), events.ignore)
        self._failing, self.ran, self._in_time = failing, 0, in_time

    def run(self, words: Words, model: Path, *, description: str = "", share: float = 1.0) -> Judged:
        if self.ran == self._in_time:
            raise TimeUpError
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
    assert "is no workaround: it passed at first, but failed in 2 of 21 further runs (RuntimeError)." in verdict.in_full
    assert "fresh processes" not in (verdict.certainty or "")
    assert known.mending_switches  # of the failure that was asked about


def test_a_switch_with_which_the_failure_comes_back_does_not_mend_it() -> None:
    verdict, known = verdict_after({7: THE_SAME})
    assert verdict.workarounds == () and not known.mending_switches
    assert "The piece passes when A is disabled; the whole model does not." in verdict.in_full


def test_the_answer_tells_runs_of_every_way_out_and_those_that_time_was_short_for() -> None:
    known = facts(settings=settings(switch("A"), switch("B"), switch("C")))
    answer = holding.answer(known, Runs({}, in_time=24))
    assert answer.ended == TIME
    assert [each.runs for each in answer.facts.ways_out] == [21, 3, 0]
    assert answer.line.startswith("run only 3 more times, for lack of time: ")
    assert " · not run again, for lack of time: " in answer.line
    assert answer.line.endswith(" · yes: all of 21 further runs pass")
    said = holding.answer(KNOWN, Runs({0: ANOTHER})).line
    assert said.startswith("no, it fails in 1 of 21 further runs: biopsy run ")


def test_what_was_hardly_run_in_the_time_is_not_said_to_hold() -> None:
    answer = holding.answer(facts(settings=settings(switch("A"), switch("B"))), Runs({}, in_time=1))
    assert answer.ended == TIME and "yes" not in answer.line


REFUSED = replace(failure("RuntimeError", "run"), report=FailureReport(signature="", stage="run", kind="RuntimeError"))


def test_the_suspect_is_no_other_engine_where_the_two_agreed_once() -> None:
    compared = EngineComparison(rows=((TRUSTED, "openvino"),))
    failing = replace(REFUSED, suspect="openvino")
    (way,) = ways_out(facts(failure=failing, compared=compared, settings=None), question())
    assert "ONNX Runtime runs the model" in way.text and "openvino" not in way.words


def test_another_engine_is_offered_that_gives_the_shape_that_the_model_declares() -> None:
    wrong = Mismatch(output="y", kind="shape-mismatch", form="[2]", expected_form="[3]", declared_form="[3]")
    failing = replace(failure("shape-mismatch"), suspect="openvino", mismatch=wrong)
    (way,) = ways_out(facts(failure=failing, settings=None), question())
    assert way.text == "Another engine: ONNX Runtime runs the model."
    not_declared = replace(failing, mismatch=replace(wrong, declared_form=""))
    assert not list(ways_out(facts(failure=not_declared, settings=None), question()))


def test_another_engine_is_offered_with_its_usual_settings_if_these_give_the_same() -> None:
    known = facts(failure=replace(REFUSED, suspect="openvino"), settings=None)
    (usual,) = ways_out(known, question())
    assert [word for before, word in pairwise(usual.words) if before == "--engine"] == [TRUSTED, "onnxrt"]
    assert usual.code[-1].startswith("session = ") and "options" not in usual.code[-1]
    (other,) = ways_out(holding.answer(known, Runs({2: ANOTHER})).facts, question())
    assert "ONNX Runtime (all graph optimizations disabled) runs the model" in other.text
    assert other.words.count("--engine") == 1
    (chosen,) = ways_out(known, replace(question(), engines=(TRUSTED, "openvino")))
    assert chosen.text == other.text


def test_an_engine_for_production_that_holds_is_offered_before_the_reference_evaluator() -> None:
    known = facts(failure=replace(REFUSED, trusted="reference"), settings=None)
    (evaluator,) = ways_out(known, question())
    assert evaluator.text == "Another engine: the reference evaluator of onnx runs the model."
    context = Runs({})
    answer = holding.answer(known, context)
    (offered,) = ways_out(answer.facts, question())
    assert offered.text == "Another engine: OpenVINO runs the model." and context.ran == 1 + RUNS_OF_A_CLAIM
    assert offered.words[-4:] == ("--engine", "reference", "--engine", "openvino")
    for failing in ({0: ANOTHER}, {9: ANOTHER}):  # at once, or later
        assert [*ways_out(holding.answer(known, Runs(failing)).facts, question())] == [evaluator]


def test_a_switch_is_run_again_where_no_other_engine_is_offered() -> None:
    known = facts(failure=replace(failure(), trusted="reference"), rounding=None, settings=settings(switch("A")))
    context = Runs({})
    known = holding.answer(known, context).facts
    assert context.ran == RUNS_OF_A_CLAIM
    assert list(texts(verdict_of(known, (), question()))) == ["A off: the model passes (in 21 of 21 further runs)."]


def test_what_switches_a_crash_off_is_compared_too() -> None:
    (way,) = ways_out(facts(failure=REFUSED, settings=settings(switch("A"))), question())
    engines = [word for before, word in pairwise(way.words) if before == "--engine"]
    assert engines == [TRUSTED, "onnxrt:disabled_optimizers=A"]


def test_what_only_ends_a_crash_is_not_said_to_have_passed() -> None:
    known = holding.answer(
        facts(failure=REFUSED, settings=settings(switch("A"))), Runs(dict.fromkeys(range(21), THE_SAME))
    )
    verdict = verdict_of(known.facts, (), question())
    text = "disabled_optimizers=A is no workaround: the engine runs, but its values are not those of ONNX Runtime"
    assert f"{text} (all graph optimizations disabled) (21 of 21 runs)." in verdict.in_full
    assert verdict.workarounds == () and "fresh processes" not in (verdict.certainty or "")


def test_nothing_is_run_where_nothing_avoids_the_failure() -> None:
    assert holding.reason_to_skip(facts(), Runs({})) == "nothing is known that avoids it"
