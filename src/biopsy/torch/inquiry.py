"""The questions about a module, one after the other, until somebody is to blame: a verdict is what is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from biopsy import errors, events
from biopsy.diagnosis.facts import Outcome, StepReport
from biopsy.tensors.files import write_feeds
from biopsy.torch.blame import Accusation, blamed
from biopsy.torch.calls import Arguments, called, eager, said
from biopsy.torch.capture import CannotCaptureError, CannotTranslateError, captured, translated
from biopsy.torch.evaluation import Evaluators, OnnxModel
from biopsy.torch.facts import TorchDiagnosis, TorchVerdict
from biopsy.torch.interface import Leaf, array_of_leaf, outputs_of
from biopsy.torch.judging import Asked, Difference, difference_of_leaves
from biopsy.torch.module_state import ModuleState
from biopsy.torch.values import input_values

_Answer = TypeVar("_Answer")

_PACKAGES = ("torch", "onnxscript", "onnx")

_QUESTIONS = {
    "steady": "does the module give the same twice?",
    "capture": "does the program that torch.export captures give the same?",
    "export": "does the exporter translate it?",
    "fails": "does the engine give what the module gives?",
    "blame": "is it the exporter or the engine?",
}


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked: see ``diagnose``."""

    module: Any
    given: Arguments
    dynamic_shapes: Any
    suspect: str
    asked: Asked
    export: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    timeout: float | None = None


class _BlamedError(Exception):
    """The verdict is known: no further question is asked."""

    def __init__(self, accusation: Accusation) -> None:
        super().__init__(accusation.text)
        self.accusation = accusation


class Inquiry:
    """Asks the questions. ``scratch`` is a folder for transient files; ``state`` is that of the module at first."""

    def __init__(self, question: Question, state: ModuleState, scratch: Path, listener: events.Listener) -> None:
        self._question = question
        self._state = state
        self._scratch = scratch
        self._listener = listener
        self._steps: list[StepReport] = []
        self._remarks: list[str] = []

    def run(self) -> TorchDiagnosis:
        """The answer. Raises EngineMissing, and CannotCompare if the module itself raises."""
        question, began = self._question, time.monotonic()
        with Evaluators(question.asked, self._scratch, question.timeout) as engines:
            engines.start(question.suspect)
            release = {question.suspect: engines.version(question.suspect)}
            try:
                accusation = self._accused(engines)
            except _BlamedError as known:
                accusation = known.accusation
        return TorchDiagnosis(
            verdict=TorchVerdict(
                blame=accusation.blame, text=accusation.text, part=accusation.part, reason=accusation.reason
            ),
            suspect=question.suspect,
            steps=tuple(self._steps),
            error=accusation.error or (accusation.difference.text if accusation.difference is not None else ""),
            mismatches=() if accusation.difference is None else accusation.difference.mismatches,
            remarks=tuple(self._remarks),
            versions={**{name: version(name) for name in _PACKAGES}, **release},
            folder=question.folder,
            seconds=time.monotonic() - began,
        )

    def _accused(self, engines: Evaluators) -> Accusation:
        question = self._question
        expected = self._ask("steady", self._steady)
        program = self._ask("capture", lambda: self._captured(expected))
        options = dict(question.export)
        model = self._ask("export", lambda: self._model(program, expected, "model", options))
        failing = self._ask("fails", lambda: self._failing(engines, model))
        del failing
        return self._ask("blame", lambda: self._blamed(engines, program, expected, model))

    def _ask(self, name: str, answer: Callable[[], tuple[_Answer, str]]) -> _Answer:
        """Ask a question and tell listeners; what ends the inquiry ends the question, too."""
        question, began = _QUESTIONS[name], time.monotonic()
        self._listener(events.StepStarted(name, question, list(_QUESTIONS).index(name) + 1, len(_QUESTIONS)))
        outcome: Outcome = "done"
        line = ""
        try:
            found, line = answer()
        except _BlamedError as known:
            line = known.accusation.text
            raise
        except errors.BiopsyError as error:
            outcome, line = "failed", error.summary
            raise
        finally:
            seconds = time.monotonic() - began
            report = StepReport(name=name, question=question, outcome=outcome, answer=line, seconds=seconds)
            self._steps.append(report)
            self._listener(events.StepDone(name=name, outcome=outcome, answer=line, seconds=seconds, checks=0))
        return found

    # The questions

    def _steady(self) -> tuple[list[Leaf], str]:
        question = self._question
        first = eager(question.module, self._state, question.given)
        second = eager(question.module, self._state, question.given)
        found = difference_of_leaves(second, first, question.asked)
        if self._state.changed:
            names = ", ".join(sorted(self._state.changed)[:4])
            self._remarks.append(f"the module changes its buffers ({names}): an ONNX model does not keep that")
        if found is not None:
            raise _BlamedError(_accusation_of_variation(found))
        return first, "yes"

    def _captured(self, expected: list[Leaf]) -> tuple[Any, str]:
        question = self._question
        try:
            program = captured(question.module, self._state, question.given, question.dynamic_shapes)
        except CannotCaptureError as error:
            text = f"torch.export cannot capture the module: {error}"
            raise _BlamedError(Accusation(blame="capture", text=text, error=str(error))) from error
        try:
            given = called(program.module(), question.given)
        except Exception as error:
            text = f"The program that torch.export captures raises where the module does not: {said(error)}"
            raise _BlamedError(Accusation(blame="capture", text=text, error=said(error))) from error
        finally:
            self._state.restore()
        found = difference_of_leaves(given, expected, question.asked)
        if found is not None:
            text = "The program that torch.export captures gives something else than the module."
            raise _BlamedError(Accusation(blame="capture", text=text, difference=found))
        return program, "yes"

    def _model(
        self, program: Any, expected: list[Leaf], name: str, options: Mapping[str, Any]
    ) -> tuple[OnnxModel, str]:
        """The exported model in a file, with what it is fed and what it should give."""
        question = self._question
        try:
            made = translated(program, question.given, question.dynamic_shapes, **options)
        except CannotTranslateError as error:
            text = f"torch.onnx.export raises for what torch.export has captured: {error}"
            raise _BlamedError(Accusation(blame="exporter", text=text, part="translation", error=str(error))) from error
        path, feeds = self._scratch / f"{name}.onnx", self._scratch / "inputs.safetensors"
        made.save(str(path))
        write_feeds(feeds, [input_values(made, question.given.args, question.given.kwargs)])
        golden = {output: array_of_leaf(leaf.value) for output, leaf in outputs_of(made, expected).items()}
        model = OnnxModel(
            path=path,
            feeds=feeds,
            expected={output: value for output, value in golden.items() if value is not None},
            program=made,
        )
        return model, f"{sum(1 for _ in made.model.graph)} nodes"

    def _failing(self, engines: Evaluators, model: OnnxModel) -> tuple[None, str]:
        suspect = self._question.suspect
        found = engines.evaluation(suspect, model)
        if found.ran and found.difference is None:
            text = f"{suspect} gives what the module gives."
            raise _BlamedError(Accusation(blame="passes", text=text))
        if found.is_rounding and found.difference is not None:
            text = f"{suspect} differs from the module by rounding alone: the tolerances are narrower than that."
            raise _BlamedError(Accusation(blame="tolerance", text=text, difference=found.difference))
        self._suspected = found
        return None, f"no: {found.failure or (found.difference.text if found.difference else '')}"

    def _blamed(
        self, engines: Evaluators, program: Any, expected: list[Leaf], model: OnnxModel
    ) -> tuple[Accusation, str]:
        def plain() -> OnnxModel:
            return self._model(program, expected, "unoptimized", {**self._question.export, "optimize": False})[0]

        is_optimized = bool(self._question.export.get("optimize", True))
        accusation = blamed(engines, self._suspected, model, plain if is_optimized else None)
        return accusation, accusation.text


def _accusation_of_variation(found: Difference) -> Accusation:
    text = "The module gives something else each time that it is called: nothing can be said of its ONNX model."
    return Accusation(blame="varies", text=text, difference=found)
