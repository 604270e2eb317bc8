"""What tools, releases and changes add to a verdict: only what was verified, and never more than that."""

import dataclasses
from dataclasses import replace

from biopsy.diagnosis.facts import (
    ChangeFacts,
    EngineComparison,
    KnownFacts,
    ReleaseChange,
    ReleaseFacts,
    RightChange,
    StepReport,
    TransformationFacts,
)
from biopsy.diagnosis.following import next_lines
from biopsy.diagnosis.question import Effort
from biopsy.diagnosis.verdict import verdict_of
from biopsy.findings.verdict import Verdict
from biopsy.records import plain, record_of
from support.diagnoses import facts, question, settings, switch

BROKE = ReleaseChange(
    text="1.21.0 broke it, 1.20.1 is right", right="1.20.1", engine="onnxrt:release=1.20.1", verified=True
)
OFF = switch("Fusion")
SETTING = RightChange(
    kind="setting",
    text="disabled_optimizers=Fusion",
    engine=OFF.engine,
    latency="it takes 1.20 times as long (1.10 to 1.30)",
)
MARK = RightChange(kind="mark", text="its result marked", engine="onnxrt", nodes=1, path="diagnosis/workaround.onnx")
BY_TOOL = TransformationFacts(tool="slim 1.0", sentence="slim 1.0 breaks the model (output 'y').", breaks=True)


def released(*changes: ReleaseChange, doubt: str = "", complete: bool = True) -> ReleaseFacts:
    text = f"onnxruntime: {'; '.join(change.text for change in changes)}"
    return ReleaseFacts(package="onnxruntime", text=text, changes=changes, doubt=doubt, complete=complete)


def of(seen: KnownFacts, *steps: StepReport) -> Verdict:
    """The verdict, with its reasons in its text."""
    verdict = verdict_of(seen, steps, question())
    return replace(verdict, text=verdict.in_full)


def with_further(**known: object) -> KnownFacts:
    return facts(settings=settings(OFF), **known)


def test_a_release_that_broke_it_is_named_and_the_one_before_it_is_a_workaround() -> None:
    found = of(with_further(releases=released(BROKE)))
    assert "onnxruntime: 1.21.0 broke it, 1.20.1 is right." in found.text
    last = found.workarounds[-1]
    assert last.text == "onnxruntime 1.20.1: the model passes."
    assert last.line is not None and "--engine onnxrt:release=1.20.1" in last.line
    assert not found.not_tried


def test_a_release_is_not_named_if_the_whole_model_does_not_confirm_it() -> None:
    found = of(with_further(releases=released(dataclasses.replace(BROKE, verified=False))))
    assert "broke" not in found.text
    assert found.certainty is not None and "Not confirmed with the whole model: onnxruntime, 1.21.0" in found.certainty
    assert not any("onnxruntime 1.20.1" in one.text for one in found.workarounds)


def test_a_release_is_not_named_if_there_is_a_doubt_or_the_search_was_stopped() -> None:
    doubted = of(with_further(releases=released(BROKE, doubt="float64 says otherwise")))
    stopped = of(with_further(releases=released(BROKE, complete=False)))
    assert "broke" not in doubted.text and "broke" not in stopped.text
    assert doubted.certainty is not None and "Float64 says otherwise." in doubted.certainty


def test_a_question_about_releases_that_was_stopped_is_open_once() -> None:
    step = StepReport(name="release", question="which release?", outcome="stopped", answer="not finished", seconds=1.0)
    assert of(facts(), step).not_tried == ("Which release? (not finished)",)
    never = StepReport(name="release", question="which release?", outcome="skipped", answer="--no-download")
    assert of(facts(), never).not_tried == ("Other releases of ONNX Runtime were not tried.",)


def test_what_a_setting_costs_is_told_with_it_and_a_changed_model_has_its_line() -> None:
    found = of(with_further(changes=ChangeFacts(best=(SETTING, MARK))))
    first, second = found.workarounds
    assert first.text == "Fusion off: the model passes; it takes 1.20 times as long (1.10 to 1.30)."
    assert second.text == "Its result marked: diagnosis/workaround.onnx, the model with that, is right, 1 node changed."
    assert second.line is not None and "biopsy run diagnosis/workaround.onnx " in second.line


def test_a_setting_that_is_wrong_on_other_inputs_is_told_as_that() -> None:
    rejected = ((OFF.engine, "output 'y': differs on a fresh input"),)
    found = of(with_further(changes=ChangeFacts(rejected=rejected)))
    assert found.workarounds[0].text == (
        "Fusion off: the model passes; but it is not shown to be right: output 'y': differs on a fresh input."
    )


def test_whose_word_workarounds_rest_on_is_told() -> None:
    found = of(with_further(changes=ChangeFacts(best=(MARK,), doubt="what is right is what onnxrt gives")))
    assert found.certainty is not None
    assert "Of workarounds, what is right is what onnxrt gives; nothing else confirms it." in found.certainty


def test_a_model_that_passes_and_that_a_tool_breaks_does_not_pass() -> None:
    compared = EngineComparison(rows=(("onnxrt", "reference"),), passed=("they agree",))
    found = of(KnownFacts(compared=compared, transformation=BY_TOOL))
    assert found.kind == "fails"
    assert found.text.startswith(
        "slim 1.0 breaks the model (output 'y'). Before that, the model does not fail: they agree"
    )
    right = dataclasses.replace(BY_TOOL, sentence="what slim makes of it is right", breaks=False)
    assert of(KnownFacts(compared=compared, transformation=right)).kind == "passes"


def test_what_the_optimizer_makes_of_the_piece_is_evidence() -> None:
    made = TransformationFacts(tool="onnxruntime", sentence="-", breaks=True, of_piece=True, operators="Fused")
    found = of(with_further(transformation=made))
    assert found.certainty is not None
    assert (
        "The optimizer turns the piece into Fused, which gives the wrong result with the optimizer off too: "
        "either that rewriting is wrong, or the engine's computation of it." in found.certainty
    )


def test_what_was_not_asked_is_proposed_and_what_was_is_not() -> None:
    asked = dataclasses.replace(question(), line=("-v", "diagnose", "model.onnx", "--onnxrt"))
    proposed = [line for line, _ in next_lines(facts(), asked)]
    assert "biopsy -v diagnose --thorough model.onnx --onnxrt" in proposed
    thorough = dataclasses.replace(asked, effort=Effort(thorough=True))
    assert not any("--thorough" in line for line, _ in next_lines(facts(), thorough))


def test_facts_come_back_from_the_file_of_the_evidence() -> None:
    seen = with_further(
        transformation=BY_TOOL,
        changes=ChangeFacts(best=(SETTING, MARK), rejected=(("a", "b"),)),
        releases=released(BROKE),
    )
    assert record_of(KnownFacts, plain(seen)) == seen
