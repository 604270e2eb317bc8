"""Running an exported model in engines, comparing its outputs with those of the module, and concluding what is to blame
for a difference, all within a time limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from biopsy import errors, events
from biopsy.comparison import metrics
from biopsy.comparison.mismatch import (
    ErrorSize,
    Mismatch,
    Rounding,
    error_text,
    may_be_rounding,
    most_telling,
    special_of,
)
from biopsy.comparison.mismatch_size import run_mismatches
from biopsy.comparison.runs import compare_runs
from biopsy.diagnosis.context import TimeUpError
from biopsy.diagnosis.facts import Outcome, StepReport
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import PLAIN
from biopsy.engines.worker import CANNOT_RUN, Worker
from biopsy.model.infer import checker_objection, inference_objection, judged_form
from biopsy.model.load import parse, read_bytes
from biopsy.questions.layers.question import Judge
from biopsy.tensors.results import Array, Iteration, RunnerResult
from biopsy.text import first_line
from biopsy.torch.arrays import LONE, Leaf, array_of_leaf
from biopsy.torch.calls import Arguments
from biopsy.torch.facts import Blame, ExporterPart, ModuleLine, TorchVerdict
from biopsy.torch.noise import Noise, Outputs

COMPUTED = " as computed"
"""The end of the name of an output that is a tensor of the original model."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Arguments of a module, and the outputs that it gives for them.

    ``sizes`` are the shapes of the arguments in words, "" for the user's own arguments.
    """

    given: Arguments
    expected: Sequence[Leaf]
    sizes: str = ""

    @property
    def where(self) -> str:
        """The end of a sentence on the sizes; "" for the user's own arguments."""
        return f" with sizes {self.sizes}" if self.sizes else ""


@dataclass(frozen=True, kw_only=True)
class OnnxModel:
    """A model in a file, a file of its inputs, and the expected outputs by name.

    ``program`` is the ``ONNXProgram`` that it was saved from, ``sample`` the sample that the values come from.
    ``noise`` is that of the outputs; None if it is unknown. ``data`` is the model if it is not the one in ``path``.
    """

    path: Path
    feeds: Path
    expected: Mapping[str, Array]
    program: Any
    sample: Sample
    noise: Noise | None = None
    data: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The result of a model in an engine.

    ``failure`` says why there are no outputs; ``difference`` is that from the expected outputs. ``rounding`` says
    whether the engine is further from float64 than rounding takes PyTorch; None if types, shapes or names differ.
    ``faults`` are the outputs that are.
    """

    engine: str
    failure: str = ""
    outputs: Mapping[str, Array] = field(default_factory=dict)
    difference: ModuleDifference | None = None
    rounding: Rounding | None = None
    faults: Sequence[str] = ()

    @property
    def ran(self) -> bool:
        """Whether the engine gave outputs."""
        return not self.failure

    @property
    def is_right(self) -> bool:
        """Whether the engine gave the expected outputs, except for rounding."""
        is_rounding = self.rounding is not None and self.rounding.verdict == "rounding"
        return self.ran and (self.difference is None or is_rounding)

    @property
    def error_text(self) -> str:
        """Why there are no outputs, or how they differ, in a line."""
        return self.failure or ("" if self.difference is None else self.difference.text)


class Evaluators:
    """Runs models in engines, in processes that end with the ``with`` statement. ``scratch`` is for transient files.

    ``timeout`` is in seconds per run. ``left`` is the time for all runs; once it is over, TimeUpError is raised.
    """

    def __init__(self, judge: Judge, scratch: Path, timeout: float | None, left: TimeLeft) -> None:
        self._judge = judge
        self._left = left
        self._scratch = scratch
        self._timeout = timeout
        self._workers: dict[str, Worker] = {}

    def __enter__(self) -> Evaluators:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers.values():
            worker.close()

    def worker(self, engine: str) -> Worker:
        """The process of an engine, which is made if there is none."""
        if engine not in self._workers:
            self._workers[engine] = Worker(engine, self._scratch, self._timeout)
        return self._workers[engine]

    def evaluation(self, engine: str, model: OnnxModel) -> Evaluation:
        """Run a model in an engine and compare its outputs with the expected ones.

        Raises EngineMissing, CannotCompare if nothing can be compared, TimeUpError.
        """
        try:
            outputs = self._run(engine, model, model.feeds)
        except CANNOT_RUN as error:
            stage = f"cannot {error.stage} it: " if isinstance(error, errors.EngineFailure) else ""
            return Evaluation(engine=engine, failure=f"{stage}{first_line(error.message)}")
        deviation = difference(outputs, model.expected, self._judge)
        if deviation is None or not deviation.is_of_numbers or model.noise is None:
            return Evaluation(engine=engine, outputs=outputs, difference=deviation)
        names = self._failing(outputs, model.expected)
        rounding = model.noise.rounding(outputs, model.expected, names, self._left.require)
        if rounding.verdict == "unknown" and not deviation.may_be_rounding:
            rounding = replace(rounding, verdict="bug")
        is_measured = rounding.verdict == "bug" and not rounding.reason
        faults = model.noise.faults(outputs, model.expected, names) if is_measured else ()
        return Evaluation(engine=engine, outputs=outputs, difference=deviation, rounding=rounding, faults=faults)

    def _failing(self, actual: Outputs, expected: Outputs) -> set[str]:
        """The outputs that are out of tolerance."""
        return {name for name in expected if not self._judge.error(name, [actual[name]], [expected[name]]).passed}

    def agree(self, one: Evaluation, other: Evaluation, model: OnnxModel) -> bool:
        """Whether two engines give the same outputs, except for rounding."""
        disagreement = difference(one.outputs, other.outputs, self._judge)
        if disagreement is None:
            return True
        share = None if one.difference is None else disagreement.share_of(one.difference)
        if share is not None and share <= _SMALL_PART:
            return True
        if not disagreement.is_of_values or model.noise is None:
            return False
        # PyTorch's values, moved by the disagreement, are as near to the exact ones as PyTorch's own.
        moved = {name: _moved(value, one.outputs[name], other.outputs[name]) for name, value in model.expected.items()}
        names = self._failing(one.outputs, other.outputs)
        return model.noise.rounding(moved, model.expected, names, self._left.require).verdict == "rounding"

    def _run(self, engine: str, model: OnnxModel, feeds: Path) -> Outputs:
        self._left.require()
        worker = self.worker(engine)
        worker.limit(self._left.for_run(self._timeout))
        given = ModelInput(model.data, model.path.parent, None if model.data else model.path)
        try:
            return {name.removesuffix(COMPUTED): value for name, value in worker.run(given, feeds)[0].items()}
        except errors.BiopsyError:
            self._left.require()  # the end of the time may have ended the run
            raise


def _moved(value: Array, left: Array, right: Array) -> Array:
    """A value, moved by the difference of two others of its shape."""
    value, left, right = (metrics.numeric(each) for each in (value, left, right))
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.subtract(left, right, dtype=np.result_type(left, right, np.float64))
        return np.asarray(value + np.where(np.isfinite(difference), difference, 0))


def _result(name: str, outputs: Outputs) -> RunnerResult:
    return RunnerResult(name, (Iteration(outputs),))


_MOST_MISMATCHES = 8
_SMALL_PART = 0.01


@dataclass(frozen=True, kw_only=True)
class ModuleDifference:
    """How two runs differ: the largest mismatches of each kind, the gravest first."""

    mismatches: tuple[Mismatch, ...]

    @property
    def worst(self) -> Mismatch:
        """The gravest mismatch."""
        return self.mismatches[0]

    @property
    def text(self) -> str:
        """The gravest mismatch in words."""
        return error_text(ErrorSize(self.worst))

    @property
    def outputs(self) -> set[str]:
        """The names of the outputs that differ."""
        return {mismatch.output for mismatch in self.mismatches}

    @property
    def is_of_values(self) -> bool:
        """Whether only values differ, which rounding may explain, and no types, shapes or names."""
        return all(mismatch.kind == "mismatch" for mismatch in self.mismatches)

    @property
    def is_of_numbers(self) -> bool:
        """Whether only numbers differ, which may be NaN or infinite on one side."""
        return all(mismatch.kind == "mismatch" or special_of(mismatch.kind) for mismatch in self.mismatches)

    @property
    def may_be_rounding(self) -> bool:
        """Whether only values differ, and not by far more than rounding errors."""
        return self.is_of_values and may_be_rounding(self.mismatches)

    def share_of(self, other: ModuleDifference) -> float | None:
        """The error as a share of the error of another difference; None if either is unknown."""
        error, other_error = self.worst.error, other.worst.error
        if not self.is_of_values or error is None or other_error is None:
            return None
        return error / other_error if other_error else math.inf


def difference(actual: Outputs, expected: Outputs, judge: Judge) -> ModuleDifference | None:
    """How arrays differ from the expected ones of the same names; None if they do not.

    Raises CannotCompare if there is nothing to compare: no array has an element.
    """
    mismatches = [Mismatch(output=name, kind="missing-output") for name in actual.keys() ^ expected.keys()]
    common = actual.keys() & expected.keys()
    mismatches += [
        Mismatch(
            output=name,
            kind="type-mismatch",
            form=actual[name].dtype.name,
            expected_form=expected[name].dtype.name,
        )
        for name in common
        if actual[name].dtype.kind != "U" and actual[name].dtype != expected[name].dtype
    ]
    if not common and not mismatches:
        raise errors.CannotCompare("the module returns no tensor and no number: there is nothing to compare")
    if common:
        sides = _result("actual", actual), _result("expected", expected)
        try:
            mismatches += run_mismatches(*sides, compare_runs(*sides, judge.tolerances, judge.stats))
        except errors.CannotCompare:
            if not mismatches:
                raise
    return ModuleDifference(mismatches=most_telling(mismatches, _MOST_MISMATCHES)) if mismatches else None


def difference_of_leaves(actual: Sequence[Leaf], expected: Sequence[Leaf], judge: Judge) -> ModuleDifference | None:
    """How the values that two runs return differ, in structure, types or numbers; None if they do not."""
    arrays: list[dict[str, Array]] = []
    kinds: list[dict[str, str]] = []  # the type of each value that is not an array
    for leaves in (actual, expected):
        values = {leaf.path or LONE: (leaf.value, array_of_leaf(leaf.value)) for leaf in leaves}
        arrays.append({name: array for name, (_, array) in values.items() if array is not None})
        others = {name: value for name, (value, array) in values.items() if array is None}
        kinds.append({name: "None" if value is None else type(value).__name__ for name, value in others.items()})
    if kinds[0] != kinds[1]:
        names = [name for name in {**kinds[0], **kinds[1]} if kinds[0].get(name, "") != kinds[1].get(name, "")]
        mismatches = tuple(Mismatch(output=name, kind="type-mismatch") for name in names[:_MOST_MISMATCHES])
        return ModuleDifference(mismatches=mismatches)
    return difference(arrays[0], arrays[1], judge)


_LEAST_SECONDS = 1.0


class TimeLeft:
    """The time that a diagnosis may still take, of ``seconds`` from now on; None for no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def seconds(self) -> float | None:
        """The seconds that are left, at least 0; None without a limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return self.seconds == 0

    def require(self) -> None:
        """Raise TimeUpError if no time is left."""
        if self.is_over:
            raise TimeUpError

    def for_run(self, timeout: float | None) -> float | None:
        """The seconds that a run with this ``timeout`` may take; None for no limit."""
        left = None if self.seconds is None else max(_LEAST_SECONDS, self.seconds)
        return min((limit for limit in (timeout, left) if limit is not None), default=None)

    def bounding(self, listener: events.Listener) -> events.Listener:
        """A listener that ends any work by raising TimeUpError once the time is over."""

        def bounded(event: events.Event) -> None:
            listener(event)
            self.require()

        return bounded


@dataclass(frozen=True, kw_only=True)
class Accusation:
    """What is to blame, with the evidence.

    ``model`` shows the fault in ``engine``; ``error`` is what was raised, in a line. ``places`` are the lines of code
    if the question that accuses knows them. ``is_hidden``: single steps show the fault, and no output. ``right`` are
    engines that compute from the same model what the module gives.
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
    is_hidden: bool = False
    right: tuple[str, ...] = ()

    @property
    def verdict(self) -> TorchVerdict:
        """The verdict of a diagnosis."""
        return TorchVerdict(blame=self.blame, text=self.text, part=self.part, reason=self.reason)

    @property
    def error_text(self) -> str:
        """What was raised, or the difference, in a line."""
        return self.error or ("" if self.difference is None else self.difference.text)


def accusation_of(
    engines: Evaluators, suspected: Evaluation, model: OnnxModel, unoptimized: Callable[[], OnnxModel] | None
) -> Accusation:
    """Who is to blame for a model that is wrong in the suspected engine.

    ``unoptimized`` exports the model without onnxscript's optimizer; None if the optimizer did not run.
    """
    if not suspected.ran:
        light = judged_form(parse(read_bytes(model.path), model.path))
        objection = checker_objection(light) or inference_objection(light)
        if objection is not None:
            text = f"The exported model is invalid, and no engine need take it: {objection}"
            return _shown_by(suspected, model, "exporter", text, part="translation")
    if suspected.rounding is not None and suspected.rounding.verdict == "unknown":
        return _undecided(suspected, model, f"rounding cannot be told from a fault: {suspected.rounding.reason}")
    others = [engines.evaluation(engine, model) for engine in PLAIN if engine != suspected.engine]
    wrong = [other for other in others if other.ran and not other.is_right]
    right = [other.engine for other in others if other.is_right]
    if right:
        does = "compute" if len(right) > 1 else "computes"
        gives = suspected.failure or "gives something else"
        text = (
            f"{suspected.engine} {gives}, and {' and '.join(right)} {does} from the same model what the module gives."
        )
        reason = f"{wrong[0].engine} is wrong, too" if wrong else ""
        return replace(_shown_by(suspected, model, "engine", text, reason=reason), right=tuple(right))
    if not wrong:
        reasons = "; ".join(f"{other.engine} {other.failure}" for other in others)
        text = "No engine that could be trusted runs the exported model."
        return _shown_by(suspected, model, "unknown", text, reason=reasons)
    is_confirmed = _is_confirmed(engines, wrong, model)
    if is_confirmed and unoptimized is not None:
        plain_model = unoptimized()
        plain = [engines.evaluation(engine, plain_model) for engine in PLAIN]
        if any(each.is_right for each in plain):
            text = "onnxscript's optimizer makes a model that computes something else; without it, the model is right."
            return _shown_by(wrong[0], model, "exporter", text, part="optimizer")
        is_confirmed = _is_confirmed(engines, [each for each in plain if each.ran], plain_model)
    if not is_confirmed:
        reason = "the engines to be trusted disagree with each other, and all of them are wrong"
        if len(wrong) == 1:
            of_whom = "the fault may be the exporter's or ONNX Runtime's"
            reason = f"only {wrong[0].engine} runs the model, too, and is wrong: {of_whom}"
        return _undecided(suspected, model, reason)
    text = "The exported model computes something else than the module, in the reference evaluator and in ONNX Runtime."
    return _shown_by(wrong[0], model, "exporter", text, part="translation")


def _is_confirmed(engines: Evaluators, wrong: list[Evaluation], model: OnnxModel) -> bool:
    """Whether several engines give the same wrong outputs."""
    return len(wrong) > 1 and all(engines.agree(each, wrong[0], model) for each in wrong[1:])


def _undecided(suspected: Evaluation, model: OnnxModel, reason: str) -> Accusation:
    text = f"{suspected.engine} does not give what the module gives, and whose fault that is could not be found out."
    return _shown_by(suspected, model, "unknown", text, reason=reason)


def _shown_by(
    shown: Evaluation, model: OnnxModel, blame: Blame, text: str, *, part: ExporterPart | None = None, reason: str = ""
) -> Accusation:
    """An accusation whose evidence is the result of an engine."""
    evidence = Accusation(blame=blame, text=text, difference=shown.difference, error=shown.failure, engine=shown.engine)
    return replace(evidence, part=part, reason=reason, model=model)


_Answer = TypeVar("_Answer")

_OPEN = "open: the time was over"


class BlamedError(Exception):
    """The verdict is known, so no further question is asked about whose fault it is.

    ``answer`` is that to the question asked last; the verdict's text follows it.
    """

    def __init__(self, accusation: Accusation, answer: str = "no") -> None:
        super().__init__(accusation.text)
        self.accusation = accusation
        self.answer = answer


class Steps:
    """Asks ``questions``, a mapping from name to question, and keeps a report of each in ``reports``.

    ``left`` is the time for all of them.
    """

    def __init__(self, questions: Mapping[str, str], listener: events.Listener, left: TimeLeft) -> None:
        self._questions = questions
        self._listener = listener
        self.left = left
        self.reports: list[StepReport] = []

    def ask(self, name: str, answer: Callable[[], tuple[_Answer, str]]) -> _Answer:
        """Ask a question by calling ``answer``, which returns a value and the answer in a line.

        Emits the events of the step and returns the value. Raises what ``answer`` raises, which is reported too, and
        TimeUpError if the time is over.
        """
        question, began = self._questions[name], time.monotonic()
        number = list(self._questions).index(name) + 1
        self._listener(events.StepStarted(name, question, number, len(self._questions)))
        outcome: Outcome = "failed"
        line = ""
        try:
            self.left.require()
            value, line = answer()
            outcome = "done"
        except BlamedError as verdict:
            outcome, line = "done", verdict.answer
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
        return value

    @property
    def open(self) -> list[str]:
        """The names of the questions that there was no time for."""
        if all(report.outcome != "stopped" for report in self.reports):
            return []
        answered = {report.name for report in self.reports if report.outcome != "stopped"}
        return [name for name in self._questions if name not in answered]
