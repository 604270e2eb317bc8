"""A verdict says only what steps have shown."""

import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest

from biopsy import events
from biopsy.checks.words import NAME
from biopsy.comparison.mismatch import ErrorSize, Mismatch
from biopsy.diagnosis.context import TWO_ENGINES, StepContext
from biopsy.diagnosis.facts import (
    EngineComparison,
    FaultBeforeEngines,
    KnownBug,
    KnownFacts,
    LayerFacts,
    PrecisionFacts,
    RoundingFacts,
    Steadiness,
    StepReport,
)
from biopsy.diagnosis.steps.rounding import with_corrected_suspect
from biopsy.diagnosis.verdict import verdict_of
from biopsy.findings.verdict import Verdict
from biopsy.session.trial import BudgetMeter, BudgetSpentError
from support.diagnoses import CHECK, SUSPECT, TRUSTED, facts, failure, piece, question, settings, switch


def of(known: KnownFacts, *steps: StepReport) -> Verdict:
    """The verdict, with its reasons in its text."""
    verdict = verdict_of(known, steps, question())
    return replace(verdict, text=verdict.in_full)


def step(outcome: str, answer: str) -> StepReport:
    return StepReport(name="layer", question="is it one node?", outcome=outcome, answer=answer)  # type: ignore[arg-type]


# NaN


def one_sided(kind: str = "nan-mismatch", **by_float64: tuple[str, ...]) -> str:
    judged = RoundingFacts(verdicts=(), **by_float64)
    failing = with_corrected_suspect(failure(kind), judged)
    return of(facts(failure=failing, rounding=judged)).text


def test_float64_is_called_as_a_witness_only_if_it_calls_one_side_alone_wrong() -> None:
    assert "gives NaN where float64 does not" in one_sided(wrong=(SUSPECT,), right=(TRUSTED,))
    for by_float64 in ({}, {"wrong": (SUSPECT,)}, {"wrong": (SUSPECT, TRUSTED)}, {"right": (TRUSTED,)}):
        assert "gives NaN where ONNX Runtime (all graph optimizations disabled) does not" in one_sided(**by_float64)


@pytest.mark.parametrize(
    ("kind", "of_suspect", "of_trusted"),
    [
        ("nan-mismatch", "gives NaN where float64 does not", "does not give NaN where float64 does"),
        ("nan-expected", "does not give NaN where float64 does", "gives NaN where float64 does not"),
        ("+inf-mismatch", "gives infinity where float64 does not", "does not give infinity where float64 does"),
        ("-inf-expected", "does not give -infinity where float64 does", "gives -infinity where float64 does not"),
    ],
)
def test_who_gives_nan_or_infinity_is_told_of_either_side(kind: str, of_suspect: str, of_trusted: str) -> None:
    assert of_suspect in one_sided(kind, wrong=(SUSPECT,), right=(TRUSTED,))
    assert of_trusted in one_sided(kind, wrong=(TRUSTED,), right=(SUSPECT,))


# Types, shapes, missing outputs


def shaped(declared: str = "") -> Mismatch:
    return Mismatch(output="y", kind="shape-mismatch", form="[1, 26]", expected_form="[1, 24]", declared_form=declared)


def test_a_wrong_shape_is_told_with_the_one_that_is_right() -> None:
    failing = replace(failure("shape-mismatch"), mismatch=shaped("[1, 24]"))
    assert "gives 'y' of shape [1, 26] where the model declares [1, 24], for Pow" in of(facts(failure=failing)).text
    other = "where ONNX Runtime (all graph optimizations disabled) gives [1, 24]"
    assert other in of(facts(failure=replace(failing, mismatch=shaped()))).text


def test_a_piece_tells_its_own_shape() -> None:
    failing = replace(failure("shape-mismatch"), mismatch=shaped())
    small = replace(piece("ConvTranspose"), error=ErrorSize(replace(shaped("[1, 24]"), output="inner")))
    said = of(facts(failure=failing, piece=small)).text
    assert "gives 'inner' of shape [1, 26] where the model declares [1, 24], for one node, ConvTranspose" in said
    other_kind = replace(small, error=ErrorSize(Mismatch(output="inner")))
    assert "gives 'y' of shape" in of(facts(failure=failing, piece=other_kind)).text


def test_a_trusted_engine_of_the_wrong_shape_is_told_as_the_suspect() -> None:
    failing = replace(failure("shape-mismatch"), mismatch=shaped("[1, 26]")).swapped
    assert (
        "(all graph optimizations disabled) gives 'y' of shape [1, 24] where the model declares [1, 26]"
        in of(facts(failure=failing)).text
    )


def test_a_missing_output_is_named() -> None:
    failing = replace(failure("missing-output"), mismatch=Mismatch(output="z", kind="missing-output"))
    assert (
        "does not give 'z', which ONNX Runtime (all graph optimizations disabled) gives"
        in of(facts(failure=failing)).text
    )


def test_a_piece_with_a_node_that_is_wrong_by_itself_is_not_called_one_of_which_no_node_can_go() -> None:
    up = "ConvTranspose 'up', which gives 'u' of shape [1, 26] where the model declares [1, 24]"
    alone = LayerFacts(alone=(up,), suspect=SUSPECT, layers=2)
    verdict = of(facts(piece=piece("Relu", "ConvTranspose 'up'"), layers=alone))
    assert f"Wrong by itself, on the values that it gets there: {up}." in verdict.text
    assert "can be left out" not in (verdict.certainty or "")
    assert "without any one of its nodes, the check does not fail in the same way" in (verdict.certainty or "")


@pytest.mark.parametrize(("form", "tolerance"), [("int8 [4, 8]", "0"), ("bool [8]", "0"), ("float32 [4, 8]", "1e-05")])
def test_the_tolerance_that_is_named_is_that_of_the_type(form: str, tolerance: str) -> None:
    worst = Mismatch(output="q", elements=32, wrong=7, actual=7.0, expected=8.0, index=(0, 5))
    found = of(facts(failure=replace(failure(), mismatch=worst), piece=replace(piece("Cast"), types=(("q", form),))))
    assert f"(atol and rtol {tolerance}, the default)" in found.text


def test_an_engine_that_float64_blames_is_not_excused_by_a_low_precision() -> None:
    precision = PrecisionFacts(low="fp16", passes=True, high=("Sigmoid 's'",), layers=3, output="mixed.onnx")
    blamed = of(facts(precision=precision))
    assert blamed.kind == "reduced" and "computes wrong values" in blamed.text
    unjudged = of(facts(precision=precision, rounding=None))
    assert unjudged.kind == "precision"


def test_an_output_of_the_model_is_not_told_as_one_of_the_layer_that_is_wrong() -> None:
    worst = Mismatch(output="y", elements=32, wrong=7, actual=7.0, expected=8.0)
    layers = LayerFacts(alone=("Relu 'r'",), suspect=SUSPECT, of_piece=False, layers=3)
    found = of(facts(failure=replace(failure(), mismatch=worst), piece=None, layers=layers)).text
    assert "for Relu 'r'. In the whole model, 'y'" in found


def test_an_engine_that_agrees_with_the_suspect_is_named() -> None:
    compared = EngineComparison(rows=((TRUSTED, SUSPECT),))
    agree = "Compared directly, ONNX Runtime (all graph optimizations disabled) and ONNX Runtime agree on these inputs."
    assert agree in of(facts(compared=compared)).in_full
    assert agree not in of(facts()).in_full
    flaky = Steadiness(failed=6, runs=20)
    assert agree not in of(facts(compared=compared, steadiness=flaky)).in_full


def test_a_search_in_a_share_of_the_time_is_not_said_to_have_met_a_limit_that_nobody_gave(tmp_path: Path) -> None:
    with StepContext(question(tmp_path), events.ignore) as context:
        meter = BudgetMeter(context.budget(share=0.0))
    with meter.enforced(), pytest.raises(BudgetSpentError, match="the time for this question"):
        meter.spend()


# An optimizer


def test_an_optimizer_is_named_if_it_alone_mends_the_model() -> None:
    found = of(facts(settings=settings(switch("LayerNormFusion"))))
    assert found.kind == "reduced"
    assert found.text.startswith("ONNX Runtime 9.9's optimizer LayerNormFusion computes wrong values for Pow -> Add.")
    assert [one.line for one in found.workarounds] == [
        f"biopsy run model.onnx --engine {TRUSTED} --engine onnxrt:disabled_optimizers=LayerNormFusion"
    ]


@pytest.mark.parametrize(
    "seen",
    [
        settings(switch("A"), switch("B")),
        settings(switch("A", "B")),
        settings(switch("A"), switch(text="with threads=1")),
        settings(switch("A"), complete=False),
        settings(switch("A", verified=False)),
        settings(switch("A", mends=False)),
        settings(switch(text="with threads=1")),
        settings(),
    ],
)
def test_no_optimizer_is_blamed_where_another_change_may_be_the_switch(seen: object) -> None:
    assert "'s optimizer" not in of(facts(settings=seen)).text


def test_a_switch_that_does_not_mend_the_whole_model_is_no_workaround() -> None:
    found = of(facts(settings=settings(switch("A", mends=False))))
    assert "; the whole model does not." in found.text
    assert found.workarounds == ()


def test_a_switch_in_the_environment_stands_before_the_line() -> None:
    isa = dataclasses.replace(switch(text="with env.ISA=AVX 2"), engine=SUSPECT)
    (workaround,) = of(facts(settings=settings(isa))).workarounds
    assert workaround.line is not None and workaround.line.startswith(f"env 'ISA=AVX 2' {NAME} run model.onnx")


# Nodes


def test_one_node_is_named_only_if_no_node_can_go() -> None:
    assert "for one node, Pow 'a'" in of(facts(piece=piece("Pow 'a'"))).text
    assert "one node" not in of(facts(piece=piece("Pow 'a'", stopped="--max-time 3"))).text


def test_it_is_said_in_which_lines_the_piece_was_written_if_an_exporter_says_so() -> None:
    found = replace(piece("Pow 'a'"), places=("m.py:3 in M.forward", "m.py:4 in M.forward", "m.py:5 in M.forward"))
    code = "m.py:3 in M.forward, m.py:4 in M.forward and 1 more"
    assert f"By their names or the notes of an exporter, its nodes come from {code}." in of(facts(piece=found)).text
    assert "written" not in of(facts(piece=piece("Pow 'a'"))).text


def test_marking_is_said_to_prevent_a_failure_of_nodes_together_only_if_it_does() -> None:
    group = (("Pow 'a'", "Add 'b'"),)
    assert "but not if the tensors between them are outputs" in of(facts()).text
    found = of(facts(layers=LayerFacts(together=group, hides=False, layers=2)))
    assert "only all of them together." in found.text and "fusion" not in found.text
    part = of(facts(layers=LayerFacts(together=(("Pow 'a'", "x"),), hides=True), piece=piece("a", "b", "c")))
    assert "together" not in part.text
    assert "together" not in of(facts(layers=LayerFacts(together=group, hides=True, complete=False))).text


# Rounding


def test_a_known_bug_is_named_only_where_the_piece_looks_like_it() -> None:
    seen = KnownBug(sentence="looks like owner/name#7: it is wrong", reference="owner/name#7")
    assert of(facts(piece=piece("Neg"), known_bug=seen)).text.endswith(" It looks like owner/name#7: it is wrong.")
    none = KnownBug(sentence="not in our list")
    assert "our list" not in of(facts(piece=piece("Neg"), known_bug=none)).text


def test_rounding_is_said_only_by_float64_for_all_inputs() -> None:
    every = RoundingFacts(verdicts=("rounding", "rounding"), inputs=3, times=2.5, passing_limits=("--atol", "1e-3"))
    found = of(facts(rounding=every, piece=None))
    assert found.kind == "rounding"
    assert "2.5 times the rounding error of a plain run (2 of 3 sets of inputs differ)" in found.text
    assert [one.line for one in found.workarounds] == [f"{' '.join(CHECK).format('model.onnx')} --atol 1e-3"]
    for verdicts in (("rounding", "bug"), ("rounding", "unknown"), ("unknown",)):
        assert of(facts(rounding=RoundingFacts(verdicts=verdicts, reason="?"))).kind == "reduced"


def test_engines_that_are_wrong_alike_are_not_called_right() -> None:
    alike = RoundingFacts(verdicts=("rounding",), times=2.0, reason="both sides are wrong in the same way")
    found = of(facts(rounding=alike))
    assert "no bug" not in found.text and found.text.endswith("But both sides are wrong in the same way.")


def test_what_float64_cannot_tell_is_said() -> None:
    found = of(facts(rounding=RoundingFacts(verdicts=("unknown",), reason="it cannot run Foo")))
    assert "Whether it is rounding is not known: it cannot run Foo." in (found.certainty or "")
    assert "by more than rounding" not in found.text


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ((SUSPECT,), "computes wrong values"),
        ((SUSPECT, TRUSTED), "float64 agrees with neither"),
        ((), "which of the two is wrong is not known"),
    ],
)
def test_an_engine_is_called_wrong_only_if_float64_says_so(wrong: tuple[str, ...], told: str) -> None:
    assert told in of(facts(rounding=RoundingFacts(verdicts=("bug",), wrong=wrong))).text


# Other answers


def test_an_engine_that_contradicts_itself_is_the_headline() -> None:
    of_itself = "compared with itself, onnxrt differs in 1 of 2 runs"
    found = of(facts(steadiness=Steadiness(failed=5, runs=5, contradicts_itself=SUSPECT, self_difference=of_itself)))
    assert found.kind == "flaky"
    assert found.text.startswith("Not deterministic: ONNX Runtime 9.9 gives different outputs for the same input")
    assert "Compared with itself, onnxrt differs in 1 of 2 runs." in found.text


def test_a_flaky_failure_is_told_with_its_rate() -> None:
    found = of(facts(steadiness=Steadiness(failed=3, runs=20, self_difference="compared with itself, onnxrt differs")))
    assert found.kind == "flaky"
    assert "It is flaky: it fails in 3 of 20 runs. Compared with itself, onnxrt differs." in found.text
    assert "failed in" not in (found.certainty or "")


def test_inputs_of_a_size_that_no_engine_can_do_with_are_at_fault() -> None:
    fault = FaultBeforeEngines(
        kind="input", every=("onnxrt", "openvino"), text="", shapes=("x:[1,3,1,1]",), passes_with=("x:[1,3,64,64]",)
    )
    broken = dataclasses.replace(
        failure("Fail", "run"), passes_with=fault.passes_with, passing_inputs="diagnosis/inputs_of_size_64.npz"
    )
    found = of(KnownFacts(failure=dataclasses.replace(broken, fault=fault)))
    assert found.kind == "input"
    assert "onnxrt and openvino fail with x:[1,3,1,1], and none of them with x:[1,3,64,64]" in found.text
    assert "--load-inputs diagnosis/inputs_of_size_64.npz" in (found.workarounds[0].line or "")


def test_a_model_that_every_engine_refuses_is_not_called_the_bug_of_one() -> None:
    fault = FaultBeforeEngines(kind="refused", every=("onnxrt", "reference"), text="every engine fails")
    refused = failure("Fail", "build")
    refused = dataclasses.replace(
        refused, report=dataclasses.replace(refused.report, message="no Op registered for Foo")
    )
    found = of(KnownFacts(failure=dataclasses.replace(refused, fault=fault), piece=piece("Foo 'f'")))
    assert found.kind == "refused"
    assert found.text.endswith("ONNX Runtime says: no Op registered for Foo")
    assert "either none of them supports it, or the model or its inputs are wrong" in found.text
    assert "one node, Foo 'f'" in found.text


def test_an_engine_that_can_run_the_model_is_a_workaround_for_one_that_cannot() -> None:
    found = of(facts(failure=failure("RuntimeError", "build"), rounding=None))
    assert found.text.startswith("ONNX Runtime 9.9 cannot build Pow -> Add (")
    assert [one.line for one in found.workarounds] == [f"biopsy run model.onnx --engine {TRUSTED}"]


def test_a_model_passes_only_if_something_was_compared() -> None:
    passed = EngineComparison(rows=((TRUSTED, SUSPECT),), passed=("they agree",))
    assert of(KnownFacts(compared=passed)).kind == "passes"
    nothing = EngineComparison(not_compared=("reference cannot say: it lacks Foo.",))
    found = of(KnownFacts(compared=nothing))
    assert found.kind == "unknown" and "it lacks Foo." in found.text
    assert not any(".." in text for text in (found.text, *found.not_tried))
    assert of(KnownFacts()).kind == "unknown"


def test_questions_without_an_answer_are_left_open_and_those_that_need_none_are_not() -> None:
    found = of(facts(), step("stopped", "not answered in time"), step("skipped", TWO_ENGINES), step("failed", "broken"))
    assert [line.partition("(")[2] for line in found.not_tried[:3]] == [
        "not answered in time)", f"{TWO_ENGINES})", "broken)",
    ]  # fmt: skip
    assert not of(KnownFacts(), step("skipped", "nothing fails"), step("done", "yes")).not_tried


def test_questions_after_the_one_that_was_cut_short_are_one_line() -> None:
    found = of(
        facts(), step("stopped", "interrupted"), *[step("stopped", "not asked: the end of time came before")] * 9
    )
    assert [line.partition("(")[2] for line in found.not_tried[:2]] == ["interrupted)", "the end of time came before)."]


def test_where_the_first_of_two_engines_is_wrong_the_values_are_told_from_its_side() -> None:
    seen = failure()
    worst = Mismatch(output="y", elements=8, wrong=3, actual=1.0, expected=2.0)
    check = ("biopsy", "run", "{}", "--engine", TRUSTED, "--engine", SUSPECT)
    told = replace(seen, check=check, mismatch=worst, report=replace(seen.report, engine=SUSPECT)).swapped
    assert (told.suspect, told.trusted, told.report.engine) == (TRUSTED, SUSPECT, TRUSTED)
    assert told.check == ("biopsy", "run", "{}", "--engine", SUSPECT, "--engine", TRUSTED)
    assert told.mismatch is not None and (told.mismatch.actual, told.mismatch.expected) == (2.0, 1.0)


@pytest.mark.parametrize(("name", "whose"), [("x", "Inputs and outputs:"), ("lifted", "In the piece's file,")])
def test_a_tensor_that_only_the_piece_has_is_not_told_as_one_of_the_model(name: str, whose: str) -> None:
    asking = question()
    types = ((name if name != "x" else asking.index.names[asking.index.inputs[0]], "float32 [4]"),)
    known = facts(failure=failure("SIGSEGV", stage="run"), piece=replace(piece("If 'n'"), types=types), rounding=None)
    assert whose in verdict_of(known, (), asking).text
