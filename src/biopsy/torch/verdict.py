"""Who is to blame, the exporter or the engine, and what shows it; with the steps by which questions are asked and
told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from biopsy import errors, events
from biopsy.diagnosis.context import TimeUpError
from biopsy.diagnosis.facts import Outcome, StepReport
from biopsy.engines.registry import PLAIN
from biopsy.model.infer import checker_objection, inference_objection, judged_form
from biopsy.model.load import parse, read_bytes
from biopsy.torch.evaluation import Evaluation, Evaluators, ModuleDifference, OnnxModel, TimeLeft
from biopsy.torch.facts import Blame, ExporterPart, ModuleLine


def blamed(
    engines: Evaluators, suspected: Evaluation, model: OnnxModel, unoptimized: Callable[[], OnnxModel] | None
) -> Accusation:
    """Who is to blame for what the suspect gives of a model, which is wrong.

    ``unoptimized`` makes the model without onnxscript's optimizer; None if it did not run.
    """
    if not suspected.ran:
        light = judged_form(parse(read_bytes(model.path), model.path))
        objection = checker_objection(light) or inference_objection(light)
        if objection is not None:
            text = f"The exported model is invalid, and no engine need take it: {objection}"
            return _shown_by(suspected, model, "exporter", text, part="translation")
    if suspected.rounding is not None and suspected.rounding.verdict == "unknown":
        reason = f"rounding cannot be told from a fault: {suspected.rounding.reason}"
        return _undecided(suspected, model, reason)
    others = [engines.evaluation(engine, model) for engine in PLAIN if engine != suspected.engine]
    right = [one for one in others if one.is_right]
    if right:
        names = " and ".join(one.engine for one in right)
        does = "compute" if len(right) > 1 else "computes"
        also = [one.engine for one in others if one.ran and not one.is_right]
        gives = suspected.failure or "gives something else"
        text = f"{suspected.engine} {gives}, and {names} {does} from the same model what the module gives."
        return _shown_by(suspected, model, "engine", text, reason=f"{also[0]} is wrong, too" if also else "")
    wrong = [one for one in others if one.ran]
    if not wrong:
        reasons = "; ".join(f"{one.engine} {one.failure}" for one in others)
        text = "No engine that could be trusted runs the exported model."
        return _shown_by(suspected, model, "unknown", text, reason=reasons)
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


def _is_confirmed(engines: Evaluators, wrong: list[Evaluation], model: OnnxModel) -> bool:
    """Whether several engines give the same, all of it wrong."""
    return len(wrong) > 1 and all(engines.agree(one, wrong[0], model) for one in wrong[1:])


def _of_exporter(wrong: Evaluation, model: OnnxModel, part: ExporterPart) -> Accusation:
    text = (
        "The exported model computes something else than the module, in the reference evaluator and in ONNX Runtime."
        if part == "translation"
        else "onnxscript's optimizer makes a model that computes something else; without it, the model is right."
    )
    return _shown_by(wrong, model, "exporter", text, part=part)


def _unconfirmed(suspected: Evaluation, model: OnnxModel, wrong: list[Evaluation]) -> Accusation:
    reason = (
        f"only {wrong[0].engine} runs the model, too, and is wrong: the fault may be the exporter's or ONNX Runtime's"
        if len(wrong) == 1
        else "the engines to be trusted disagree with each other, and all of them are wrong"
    )
    return _undecided(suspected, model, reason)


def _undecided(suspected: Evaluation, model: OnnxModel, reason: str) -> Accusation:
    text = f"{suspected.engine} does not give what the module gives: nobody can tell whose fault it is."
    return _shown_by(suspected, model, "unknown", text, reason=reason)


def _shown_by(
    seen: Evaluation, model: OnnxModel, blame: Blame, text: str, *, part: ExporterPart | None = None, reason: str = ""
) -> Accusation:
    """An accusation whose evidence is what an engine gave."""
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


# Questions that are asked one after the other: each is told when it begins, and when it has an answer.

_Answer = TypeVar("_Answer")

_OPEN = "open: the time was over"

_ANSWERS = {"passes": "yes", "tolerance": "no, by rounding alone", "unknown": "nobody can tell"}
"""What a question is answered with that ends in a verdict, whose own text follows: to all others the answer is no."""


class BlamedError(Exception):
    """The verdict is known: no further question is asked about whose fault it is."""

    def __init__(self, accusation: Accusation) -> None:
        super().__init__(accusation.text)
        self.accusation = accusation


class Steps:
    """Asks ``questions``, which are known by their names, and keeps what became of each in ``reports``.

    ``left`` is the time for all of them.
    """

    def __init__(self, questions: Mapping[str, str], listener: events.Listener, left: TimeLeft) -> None:
        self._questions = questions
        self._listener = listener
        self.left = left
        self.reports: list[StepReport] = []

    def ask(self, name: str, answer: Callable[[], tuple[_Answer, str]]) -> _Answer:
        """Ask a question, and report the line that ``answer`` gives; returns the value beside that line.

        Raises what ``answer`` raises, which is reported too, and TimeUpError if the time was over before.
        """
        question, began = self._questions[name], time.monotonic()
        number = list(self._questions).index(name) + 1
        self._listener(events.StepStarted(name, question, number, len(self._questions)))
        outcome: Outcome = "failed"
        line = ""
        try:
            self.left.require()
            found, line = answer()
            outcome = "done"
        except BlamedError as known:
            outcome, line = "done", _ANSWERS.get(known.accusation.blame, "no")
            raise
        except TimeUpError:
            outcome, line = "stopped", _OPEN
            raise
        except errors.BiopsyError as error:
            line = error.summary
            if self.left.is_over:
                outcome, line = "stopped", _OPEN
            raise
        except KeyboardInterrupt:
            outcome = "stopped"
            raise
        finally:
            seconds = time.monotonic() - began
            self.reports.append(StepReport(name=name, question=question, outcome=outcome, answer=line, seconds=seconds))
            self._listener(events.StepDone(name=name, outcome=outcome, answer=line, seconds=seconds, checks=0))
        return found

    @property
    def open(self) -> list[str]:
        """The names of the questions that there was no time for; none if there was enough."""
        if all(report.outcome != "stopped" for report in self.reports):
            return []
        asked = {report.name for report in self.reports if report.outcome != "stopped"}
        return [name for name in self._questions if name not in asked]


@dataclass(frozen=True, kw_only=True)
class Accusation:
    """Who is to blame, and what for. ``model`` is what shows it in ``engine``; ``error`` what was raised, in a line.

    ``places`` are known where the question itself has told them.
    """

    blame: Blame
    text: str
    part: ExporterPart | None = None
    reason: str = ""
    difference: ModuleDifference | None = None
    error: str = ""
    engine: str = ""
    model: OnnxModel | None = None
    places: tuple[ModuleLine, ...] = ()
