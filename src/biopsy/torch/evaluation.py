"""An exported model in engines, held value by value against what the module gives, within the time that is left; and
who is to blame where that differs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from biopsy import errors, events
from biopsy.comparison.mismatch import ErrorSize, Mismatch, Rounding, error_text, may_be_rounding, most_telling
from biopsy.comparison.mismatch_size import explained, only, run_mismatches
from biopsy.comparison.runs import compare_runs
from biopsy.diagnosis.context import TimeUpError
from biopsy.diagnosis.facts import Outcome, StepReport
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EXACT, PLAIN
from biopsy.engines.worker import Worker
from biopsy.model.infer import checker_objection, inference_objection, judged_form
from biopsy.model.load import parse, read_bytes
from biopsy.questions.layers.question import Judge
from biopsy.tensors.files import read_feeds, write_feeds
from biopsy.tensors.generate import differ, roundings_off
from biopsy.tensors.results import Array, Iteration, RunnerResult
from biopsy.text import first_line
from biopsy.torch.arrays import Leaf, array_of_leaf
from biopsy.torch.calls import Arguments
from biopsy.torch.facts import Blame, ExporterPart, ModuleLine

Outputs: TypeAlias = "Mapping[str, Array]"

_CANNOT_RUN = (errors.EngineFailure, errors.CannotCompare, errors.DataError, errors.ModelError)
_ROUNDINGS = 10
_PERTURBED = 4


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Arguments of a module, and what it gives for them. ``sizes`` in words, "" if they are those that were given."""

    given: Arguments
    expected: Sequence[Leaf]
    sizes: str = ""

    @property
    def where(self) -> str:
        """The end of a sentence that says with which sizes; "" for those that were given."""
        return f", also with sizes {self.sizes}" if self.sizes else ""


@dataclass(frozen=True, kw_only=True)
class OnnxModel:
    """A model in a file, a file of what it is fed with, and what the module gives for it, by the names of outputs.

    ``program`` is the ``ONNXProgram`` that it was saved from, ``sample`` where the values come from.
    """

    path: Path
    feeds: Path
    expected: Mapping[str, Array]
    program: Any
    sample: Sample


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What an engine gives of a model: ``failure`` says why it gives nothing, ``difference`` how that is wrong.

    ``rounding``: whether rounding explains the difference.
    """

    engine: str
    failure: str = ""
    outputs: Mapping[str, Array] = field(default_factory=dict)
    difference: ModuleDifference | None = None
    rounding: Rounding | None = None

    @property
    def ran(self) -> bool:
        """Whether it gave anything."""
        return not self.failure

    @property
    def is_right(self) -> bool:
        """Whether it gave what is expected, but for rounding."""
        is_rounding = self.rounding is not None and self.rounding.verdict == "rounding"
        return self.ran and (self.difference is None or is_rounding)


class Evaluators:
    """Runs models in engines. Use it in a ``with``: their processes end there. ``scratch`` is for transient files.

    ``timeout`` is in seconds per run. ``left`` is the time for all of them: once it is over, TimeUpError is raised.
    """

    def __init__(self, asked: Judge, scratch: Path, timeout: float | None, left: TimeLeft) -> None:
        self._asked = asked
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
        """The process of an engine."""
        if engine not in self._workers:
            self._workers[engine] = Worker(engine, self._scratch, self._timeout)
        return self._workers[engine]

    def evaluation(self, engine: str, model: OnnxModel) -> Evaluation:
        """What an engine gives of a model, judged.

        Raises EngineMissing, CannotCompare if nothing can be judged, TimeUpError.
        """
        try:
            outputs = self._run(engine, model, model.feeds)
        except _CANNOT_RUN as error:
            stage = f"cannot {error.stage} it: " if isinstance(error, errors.EngineFailure) else ""
            return Evaluation(engine=engine, failure=f"{stage}{first_line(error.message)}")
        differs = difference(outputs, model.expected, self._asked)
        rounding = None
        if differs is not None and differs.may_be_rounding:
            rounding = self._explained(model, outputs, model.expected, differs)
        return Evaluation(engine=engine, outputs=outputs, difference=differs, rounding=rounding)

    def agree(self, one: Evaluation, other: Evaluation, model: OnnxModel) -> bool:
        """Whether two engines give the same, but for rounding."""
        found = difference(one.outputs, other.outputs, self._asked)
        share = found.share_of(one.difference) if found is not None and one.difference is not None else None
        if found is None or (share is not None and share <= _SMALL_PART):
            return True
        return found.is_of_values and self._explained(model, one.outputs, other.outputs, found).verdict == "rounding"

    def _run(self, engine: str, model: OnnxModel, feeds: Path) -> Outputs:
        self._left.require()
        worker = self.worker(engine)
        worker.limit(self._left.for_run(self._timeout))
        try:
            return worker.run(ModelInput(b"", model.path.parent, model.path), feeds)[0]
        except errors.BiopsyError:
            self._left.require()  # it may have been ended by that, be it while it started
            raise

    def _explained(self, model: OnnxModel, actual: Outputs, expected: Outputs, differs: ModuleDifference) -> Rounding:
        """Whether the roundings of plain float32 explain how two runs differ."""
        try:
            exact, plain = self._run(EXACT, model, model.feeds), None
            for engine in PLAIN[:-1]:
                with suppress(*_CANNOT_RUN):
                    plain = plain or self._run(engine, model, model.feeds)
            plain = plain or self._run(PLAIN[-1], model, model.feeds)
            runs = {"actual": actual, "expected": expected, "plain": plain, "exact": exact}
            sides = [only(_result(name, outputs), differs.outputs) for name, outputs in runs.items()]
            return explained(sides[0], sides[1], sides[2], sides[3], lambda: self._perturbed(model))
        except errors.BiopsyError as error:
            return Rounding("unknown", reason=first_line(error.message))

    def _perturbed(self, model: OnnxModel) -> Iterator[RunnerResult]:
        given = read_feeds(model.feeds)
        for seed in range(_PERTURBED):
            others = roundings_off(given, _ROUNDINGS, seed)
            if not differ(given, others):
                return
            path = self._scratch / f"perturbed-{seed}.safetensors"
            try:
                write_feeds(path, others)
                yield _result("perturbed", self._run(EXACT, model, path))
            finally:
                path.unlink(missing_ok=True)


def _result(name: str, outputs: Outputs) -> RunnerResult:
    return RunnerResult(name, (Iteration(outputs),))


# What two runs give, value by value: tensors within tolerances, of the same type and shape, and all else equal.

_MOST_TOLD = 8
_SMALL_PART = 0.01
_LONE = "output"
"""What the one value is called that a module returns as it is."""


@dataclass(frozen=True, kw_only=True)
class ModuleDifference:
    """How two runs differ: the greatest mismatches of each kind, the gravest first."""

    mismatches: tuple[Mismatch, ...]

    @property
    def worst(self) -> Mismatch:
        """The one that tells most."""
        return self.mismatches[0]

    @property
    def text(self) -> str:
        """The worst, in words."""
        return error_text(ErrorSize(self.worst))

    @property
    def outputs(self) -> set[str]:
        """The outputs that differ."""
        return {one.output for one in self.mismatches}

    @property
    def is_of_values(self) -> bool:
        """Whether numbers differ, and nothing else: what rounding may explain."""
        return all(one.kind == "mismatch" for one in self.mismatches)

    @property
    def may_be_rounding(self) -> bool:
        """Whether it is worthwhile to ask float64: numbers differ, and not by far more than rounding could make."""
        return self.is_of_values and may_be_rounding(self.mismatches)

    def share_of(self, other: ModuleDifference) -> float | None:
        """How far numbers differ, as a share of how far they do in another case; None where either is not known."""
        error, whole = self.worst.error, other.worst.error
        if not self.is_of_values or error is None or whole is None:
            return None
        return error / whole if whole else math.inf


def difference(actual: Outputs, expected: Outputs, asked: Judge) -> ModuleDifference | None:
    """How arrays differ from those that are expected, by name; None if they do not.

    Raises CannotCompare if there is nothing to compare: no array has an element.
    """
    found = [Mismatch(output=name, kind="missing-output") for name in actual.keys() ^ expected.keys()]
    common = actual.keys() & expected.keys()
    found += [
        Mismatch(output=name, kind="type-mismatch")
        for name in common
        if actual[name].dtype.kind != "U" and actual[name].dtype != expected[name].dtype
    ]
    if not common and not found:
        raise errors.CannotCompare("the module returns no tensor and no number: there is nothing to compare")
    if common:
        sides = _result("actual", actual), _result("expected", expected)
        try:
            found += run_mismatches(*sides, compare_runs(*sides, asked.tolerances, asked.stats))
        except errors.CannotCompare:
            if not found:
                raise
    return ModuleDifference(mismatches=most_telling(found, _MOST_TOLD)) if found else None


def difference_of_leaves(actual: Sequence[Leaf], expected: Sequence[Leaf], asked: Judge) -> ModuleDifference | None:
    """How what two runs return differs, in structure, in what is no number, and in numbers; None if it does not."""
    arrays: list[dict[str, Array]] = []
    kinds: list[dict[str, str]] = []  # of each value that is no array; None has a name of its own
    for leaves in (actual, expected):
        values = {leaf.path or _LONE: (leaf.value, array_of_leaf(leaf.value)) for leaf in leaves}
        arrays.append({name: array for name, (_, array) in values.items() if array is not None})
        others = {name: value for name, (value, array) in values.items() if array is None}
        kinds.append({name: "None" if value is None else type(value).__name__ for name, value in others.items()})
    if kinds[0] != kinds[1]:
        names = [name for name in {**kinds[0], **kinds[1]} if kinds[0].get(name, "") != kinds[1].get(name, "")]
        mismatches = tuple(Mismatch(output=name, kind="type-mismatch") for name in names[:_MOST_TOLD])
        return ModuleDifference(mismatches=mismatches)
    return difference(arrays[0], arrays[1], asked)


# The time that a diagnosis may take: what is left of it for a run, and when it is over.

_LEAST_SECONDS = 1.0


class TimeLeft:
    """Counts from when it is made; ``seconds`` is None for no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def seconds(self) -> float | None:
        """What is left, never less than 0; None without a limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return self.seconds == 0

    def require(self) -> None:
        """Raise TimeUpError if it is over."""
        if self.is_over:
            raise TimeUpError

    def for_run(self, timeout: float | None) -> float | None:
        """The seconds that a run may take which may take ``timeout`` by itself; None for any."""
        left = None if self.seconds is None else max(_LEAST_SECONDS, self.seconds)
        return min((one for one in (timeout, left) if one is not None), default=None)

    def bounding(self, listener: events.Listener) -> events.Listener:
        """A listener for work that knows of no limit: it raises TimeUpError once the time is over."""

        def bounded(event: events.Event) -> None:
            listener(event)
            self.require()

        return bounded


# Who is to blame, the exporter or the engine, and what shows it.


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
        return _undecided(suspected, model, f"rounding cannot be told from a fault: {suspected.rounding.reason}")
    others = [engines.evaluation(engine, model) for engine in PLAIN if engine != suspected.engine]
    wrong = [one for one in others if one.ran and not one.is_right]
    right = [one.engine for one in others if one.is_right]
    if right:
        does = "compute" if len(right) > 1 else "computes"
        gives = suspected.failure or "gives something else"
        text = (
            f"{suspected.engine} {gives}, and {' and '.join(right)} {does} from the same model what the module gives."
        )
        reason = f"{wrong[0].engine} is wrong, too" if wrong else ""
        return _shown_by(suspected, model, "engine", text, reason=reason)
    if not wrong:
        reasons = "; ".join(f"{one.engine} {one.failure}" for one in others)
        text = "No engine that could be trusted runs the exported model."
        return _shown_by(suspected, model, "unknown", text, reason=reasons)
    is_confirmed = _is_confirmed(engines, wrong, model)
    if is_confirmed and unoptimized is not None:
        before = unoptimized()
        plain = [engines.evaluation(engine, before) for engine in PLAIN]
        if any(one.is_right for one in plain):
            text = "onnxscript's optimizer makes a model that computes something else; without it, the model is right."
            return _shown_by(wrong[0], model, "exporter", text, part="optimizer")
        is_confirmed = _is_confirmed(engines, [one for one in plain if one.ran], before)
    if not is_confirmed:
        reason = "the engines to be trusted disagree with each other, and all of them are wrong"
        if len(wrong) == 1:
            of_whom = "the fault may be the exporter's or ONNX Runtime's"
            reason = f"only {wrong[0].engine} runs the model, too, and is wrong: {of_whom}"
        return _undecided(suspected, model, reason)
    text = "The exported model computes something else than the module, in the reference evaluator and in ONNX Runtime."
    return _shown_by(wrong[0], model, "exporter", text, part="translation")


def _is_confirmed(engines: Evaluators, wrong: list[Evaluation], model: OnnxModel) -> bool:
    """Whether several engines give the same, all of it wrong."""
    return len(wrong) > 1 and all(engines.agree(one, wrong[0], model) for one in wrong[1:])


def _undecided(suspected: Evaluation, model: OnnxModel, reason: str) -> Accusation:
    text = f"{suspected.engine} does not give what the module gives: nobody can tell whose fault it is."
    return _shown_by(suspected, model, "unknown", text, reason=reason)


def _shown_by(
    seen: Evaluation, model: OnnxModel, blame: Blame, text: str, *, part: ExporterPart | None = None, reason: str = ""
) -> Accusation:
    """An accusation whose evidence is what an engine gave."""
    evidence = Accusation(blame=blame, text=text, difference=seen.difference, error=seen.failure, engine=seen.engine)
    return replace(evidence, part=part, reason=reason, model=model)


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
