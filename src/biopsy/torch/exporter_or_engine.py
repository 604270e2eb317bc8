"""Whether the exporter or the engine is to blame, from what engines give of an exported model.

An engine is to blame only where another one computes from the same model what the module gives; the exporter only where
two engines that share no code compute the same, and it is not what the module gives. All else is left open.
"""

from __future__ import annotations

from collections.abc import Callable

from biopsy.engines.yardsticks import PLAIN
from biopsy.model.load import parse, read_bytes
from biopsy.model.validity import checker_objection, inference_objection, judged_form
from biopsy.torch.accusation import Accusation
from biopsy.torch.evaluation import Evaluation, Evaluators, OnnxModel
from biopsy.torch.facts import Blame, ExporterPart


def blamed(
    engines: Evaluators, suspected: Evaluation, model: OnnxModel, unoptimized: Callable[[], OnnxModel] | None
) -> Accusation:
    """Who is to blame for what the suspect gives of a model, which is wrong.

    ``unoptimized`` makes the model without onnxscript's optimizer; None if it did not run.
    """
    objection = None if suspected.ran else _objection(model)
    if objection is not None:
        return _of_invalid(suspected, model, objection)
    if suspected.rounding is not None and suspected.rounding.verdict == "unknown":
        reason = f"rounding cannot be told from a fault: {suspected.rounding.reason}"
        return _undecided(suspected, model, reason)
    others = [engines.evaluation(engine, model) for engine in PLAIN if engine != suspected.engine]
    right = [one for one in others if one.is_right]
    if right:
        return _of_engine(suspected, model, right, others)
    wrong = [one for one in others if one.ran]
    if not wrong:
        return _nobody_runs_it(suspected, model, others)
    if not _is_confirmed(engines, wrong, model):
        return _unconfirmed(suspected, model, wrong)
    if unoptimized is None:
        return _of_exporter(wrong[0], model, "translation")
    before = unoptimized()
    plain = [engines.evaluation(engine, before) for engine in PLAIN]
    if any(one.is_right for one in plain):
        return _of_exporter(wrong[0], model, "optimizer")
    ran = [one for one in plain if one.ran]
    if not _is_confirmed(engines, ran, before):
        return _unconfirmed(suspected, model, wrong)
    return _of_exporter(wrong[0], model, "translation")


def _objection(model: OnnxModel) -> str | None:
    """Why the model is no valid one, by the standard; None if it is, as far as anybody knows."""
    light = judged_form(parse(read_bytes(model.path), model.path))
    return checker_objection(light) or inference_objection(light)


def _of_invalid(suspected: Evaluation, model: OnnxModel, objection: str) -> Accusation:
    text = f"The exported model is invalid, and no engine need take it: {objection}"
    return _shown_by(suspected, model, "exporter", text, part="translation")


def _is_confirmed(engines: Evaluators, wrong: list[Evaluation], model: OnnxModel) -> bool:
    """Whether several engines give the same, all of it wrong."""
    return len(wrong) > 1 and all(engines.agree(one, wrong[0], model) for one in wrong[1:])


def _of_engine(
    suspected: Evaluation, model: OnnxModel, right: list[Evaluation], others: list[Evaluation]
) -> Accusation:
    names = " and ".join(one.engine for one in right)
    does = "compute" if len(right) > 1 else "computes"
    also = [one.engine for one in others if one.ran and not one.is_right]
    gives = suspected.failure or "gives something else"
    text = f"{suspected.engine} {gives}, and {names} {does} from the same model what the module gives."
    return _shown_by(suspected, model, "engine", text, reason=f"{also[0]} is wrong, too" if also else "")


def _of_exporter(wrong: Evaluation, model: OnnxModel, part: ExporterPart) -> Accusation:
    text = (
        "The exported model computes something else than the module, in the reference evaluator and in ONNX Runtime."
        if part == "translation"
        else "onnxscript's optimizer makes a model that computes something else; without it, the model is right."
    )
    return _shown_by(wrong, model, "exporter", text, part=part)


def _nobody_runs_it(suspected: Evaluation, model: OnnxModel, others: list[Evaluation]) -> Accusation:
    reasons = "; ".join(f"{one.engine} {one.failure}" for one in others)
    text = "No engine that could be trusted runs the exported model."
    return _shown_by(suspected, model, "unknown", text, reason=reasons)


def _unconfirmed(suspected: Evaluation, model: OnnxModel, wrong: list[Evaluation]) -> Accusation:
    reason = (
        f"only {wrong[0].engine} runs the model besides, and is wrong, too: the exporter may be, or ONNX Runtime"
        if len(wrong) == 1
        else "the engines that are to be trusted disagree, and all of them are wrong"
    )
    return _undecided(suspected, model, reason)


def _undecided(suspected: Evaluation, model: OnnxModel, reason: str) -> Accusation:
    text = f"{suspected.engine} does not give what the module gives: nobody can tell whose fault it is."
    return _shown_by(suspected, model, "unknown", text, reason=reason)


def _shown_by(
    seen: Evaluation, model: OnnxModel, blame: Blame, text: str, *, part: ExporterPart | None = None, reason: str = ""
) -> Accusation:
    """An accusation with what an engine gave as its evidence."""
    return Accusation(
        blame=blame,
        text=text,
        part=part,
        reason=reason,
        difference=seen.difference,
        error=seen.failure,
        engine=seen.engine,
        model=model,
    )
