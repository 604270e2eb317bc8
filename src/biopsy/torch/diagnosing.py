"""``biopsy.torch.diagnose``: the questions that are asked about a PyTorch module, one after the other, until there is a
verdict.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

from biopsy import errors, events
from biopsy.api.running import require_seconds, tolerances_and_stats
from biopsy.comparison.tolerance import DEFAULT_TOLERANCE
from biopsy.diagnosis.context import TimeUpError
from biopsy.engines.registry import create
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import require_writable
from biopsy.questions.layers.question import Judge
from biopsy.tensors.files import write_feeds
from biopsy.text import count, first_of
from biopsy.torch.arrays import Leaf, array_of_leaf, imported, outputs_of
from biopsy.torch.calls import (
    Arguments,
    ModuleState,
    arguments_of,
    eager_leaves,
    exception_text,
    leaves_of_call,
    preserved,
    require_evaluation,
    training_hint,
)
from biopsy.torch.deviation import (
    FAST_PATH,
    fast_part,
    origin_of_change,
    origin_of_variation,
    sizes_of,
    with_other_sizes,
    without_fast_path,
)
from biopsy.torch.evaluation import (
    Accusation,
    BlamedError,
    Evaluation,
    Evaluators,
    ModuleDifference,
    OnnxModel,
    Sample,
    Steps,
    TimeLeft,
    accusation_of,
    difference_of_leaves,
)
from biopsy.torch.exporting import (
    CannotCaptureError,
    CannotTranslateError,
    capture,
    require_options,
    save,
    translate,
    weights_beside,
)
from biopsy.torch.facts import ModuleLine, TorchDiagnosis, TorchVerdict
from biopsy.torch.location import LOCATING, Locator
from biopsy.torch.places import place_of_node
from biopsy.torch.programs import place_of_failure
from biopsy.torch.recording import input_values, random_nodes


def diagnose(
    module: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    suspect: str = "onnxrt",
    output: str | PathLike[str] | None = None,
    atol: float = DEFAULT_TOLERANCE,
    rtol: float = DEFAULT_TOLERANCE,
    export: Mapping[str, Any] | None = None,
    run_timeout: float | None = None,
    max_time: float | None = None,
    listener: events.Listener = events.ignore,
) -> TorchDiagnosis:
    """Find out why ``module``, exported to ONNX, gives something else in the engine ``suspect`` than in PyTorch.

    ``args`` and ``kwargs`` are the arguments of the module. ``dynamic_shapes`` and ``export`` are further arguments of
    ``torch.onnx.export`` (``{"optimize": False}``, ``{"custom_translation_table": ...}``). ``atol`` and ``rtol`` are
    those of ``compare``. ``output`` is a new or empty folder that keeps the model, its inputs, the values of the
    module, and the smallest part that still fails, ready to send; None keeps nothing. ``run_timeout`` is in seconds per
    run of an engine. ``max_time`` is in seconds too: the result then has what is known and the open questions; PyTorch
    itself and its exporter are not interrupted.

    The result's ``verdict`` says what is to blame, ``places`` at which lines, ``failed`` whether anything fails. The
    state of the module, its gradients and the random number generators are restored.

    Raises UsageError for anything but a module in evaluation mode and for arguments that cannot be used, CannotCompare
    if the module itself raises or returns nothing that can be compared, EngineMissing without PyTorch or the engine.
    """
    require_seconds(run_timeout=run_timeout, max_time=max_time)
    require_evaluation(module)
    leaves, _ = imported("torch.utils._pytree").tree_flatten((args, kwargs))
    for value in (*module.parameters(), *module.buffers(), *leaves):
        if isinstance(value, imported().Tensor) and value.is_meta:
            raise errors.UsageError(
                "the module or an argument is on the device 'meta', where tensors have no values",
                next_steps=["make them on the CPU"],
            )
    require_options(export or {})
    create(suspect)
    folder = None if output is None else Path(output)
    question = ModuleQuestion(
        module=module,
        given=arguments_of(args, kwargs),
        dynamic_shapes=dynamic_shapes,
        suspect=suspect,
        judge=Judge(*tolerances_and_stats(atol, rtol, "elemwise")),
        export=dict(export or {}),
        folder=folder,
        timeout=run_timeout,
        seconds=max_time,
    )
    is_new = folder is not None and not folder.is_dir()
    if folder is not None:
        require_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with preserved(module) as state, temporary_folder("biopsy-torch-") as scratch:
            diagnosis = Inquiry(question, state, scratch, listener).run()
    finally:
        if folder is not None and is_new:  # remove it if it is empty
            with suppress(OSError):
                folder.rmdir()
    return diagnosis if folder is None or folder.is_dir() else replace(diagnosis, folder=None)


def require_folder(folder: Path) -> None:
    """Raise UsageError unless the folder is new or empty, and can be written to."""
    if folder.is_dir() and any(folder.iterdir()):
        raise errors.UsageError(
            f"the folder {folder} is not empty, and nothing is overwritten there", next_steps=["name a new folder"]
        )
    require_writable(folder / "a file")


INPUTS, OTHER_INPUTS = "inputs.safetensors", "other_inputs.safetensors"
"""The files of inputs: the arguments given, and those of other sizes."""

_PACKAGES = ("torch", "onnxscript", "onnx")

_OTHER_SEED = 20_011
"""The seed of a second run, which shows whether the result depends on random numbers."""

_QUESTIONS = {
    "steady": "does the module give the same twice?",
    "capture": "does the program that torch.export captures give the same?",
    "sizes": "and with other sizes?",
    "export": "does the exporter translate it?",
    "engine": "does the engine give what the module gives?",
    "blame": "is it the exporter or the engine?",
}


@dataclass(frozen=True, kw_only=True)
class ModuleQuestion:
    """The arguments of ``diagnose``."""

    module: Any
    given: Arguments
    dynamic_shapes: Any
    suspect: str
    judge: Judge
    export: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    timeout: float | None = None
    seconds: float | None = None


class Inquiry:
    """Asks the questions. ``state`` is the state of the module to restore, ``scratch`` a folder for transient files."""

    def __init__(self, question: ModuleQuestion, state: ModuleState, scratch: Path, listener: events.Listener) -> None:
        self._question = question
        self._state = state
        self._scratch = scratch
        self._folder = question.folder or scratch
        self._listener = listener
        self._left = TimeLeft(question.seconds)
        self._steps = Steps({**_QUESTIONS, **LOCATING}, listener, self._left)
        self._remarks: list[str] = []
        self._failure: Evaluation | None = None
        self._written: Mapping[object, Any] = {}
        self._program: Any = None

    def run(self) -> TorchDiagnosis:
        """Ask until there is a verdict. Raises EngineMissing, or CannotCompare if the module itself raises."""
        question, began = self._question, time.monotonic()
        with Evaluators(question.judge, self._scratch, question.timeout, self._left) as engines:
            engines.worker(question.suspect).start()  # early, while PyTorch works
            release = {question.suspect: engines.worker(question.suspect).version()}
            try:
                first = Sample(given=self._question.given, expected=self._steps.ask("steady", self._steady))
                self._program = program = self._steps.ask("capture", lambda: self._captured(first))
                second = self._steps.ask("sizes", lambda: self._second(program))
                samples = [first, *filter(None, [second])]
                models = self._steps.ask(
                    "export", lambda: self._exported(program, samples, "model", self._question.export)
                )
                number, suspected = self._steps.ask("engine", lambda: self._suspected(engines, models))
                accusation = self._steps.ask("blame", lambda: self._blamed(engines, program, suspected, models[number]))
            except BlamedError as verdict:
                accusation = verdict.accusation
            except TimeUpError:
                accusation = self._unfinished()
        model = accusation.model
        locator = Locator(
            given=question.given if model is None else model.sample.given,
            judge=question.judge,
            timeout=question.timeout,
            folder=self._folder,
            scratch=self._scratch,
            steps=self._steps,
            listener=self._listener,
            captured=self._program,
        )
        located = locator.locate(accusation, bundled=question.folder is not None)
        accusation = located.accusation
        if self._steps.open:
            left_open = f"open, for the time was over: {', '.join(self._steps.open)}"
            accusation = replace(accusation, reason="; ".join(filter(None, [accusation.reason, left_open])))
        return TorchDiagnosis(
            verdict=TorchVerdict(
                blame=accusation.blame, text=accusation.text, part=accusation.part, reason=accusation.reason
            ),
            suspect=question.suspect,
            steps=tuple(self._steps.reports),
            places=located.places or self._without_place(accusation),
            error=accusation.error or (accusation.difference.text if accusation.difference is not None else ""),
            mismatches=() if accusation.difference is None else accusation.difference.mismatches,
            values=located.values,
            piece=located.piece,
            remarks=tuple(self._remarks),
            versions={**{name: version(name) for name in _PACKAGES}, **release},
            folder=question.folder,
            seconds=time.monotonic() - began,
        )

    def _without_place(self, accusation: Accusation) -> tuple[ModuleLine, ...]:
        """Why the line of a fault is not known."""
        if accusation.blame not in ("exporter", "engine"):
            return ()
        open_steps = [report.name for report in self._steps.reports if report.outcome in ("failed", "stopped")]
        why = f"no answer to {' and '.join(open_steps)}" if open_steps else "the nodes that fail do not note it"
        return (ModuleLine(unknown=why),)

    def _unfinished(self) -> Accusation:
        """The verdict if the time was over before it was known what is to blame."""
        if (failure := self._failure) is None:
            return Accusation(blame="unknown", text="The time was over before it was known who is to blame.")
        return Accusation(
            blame="unknown",
            text=f"{failure.engine} does not give what the module gives: the time was over before it was known who is "
            "to blame.",
            difference=failure.difference,
            error=failure.failure,
            engine=failure.engine,
        )

    def _eager(self, given: Arguments) -> list[Leaf]:
        return eager_leaves(self._question.module, self._state, given)

    def _steady(self) -> tuple[list[Leaf], str]:
        question = self._question
        first, second = self._eager(question.given), self._eager(question.given)
        variation = difference_of_leaves(second, first, question.judge)
        if self._state.changed:
            names = first_of(sorted(self._state.changed), 4)
            self._remarks.append(f"the module changes its buffers ({names}): an ONNX model does not keep that")
        if variation is None:
            return first, "yes"
        place = origin_of_variation(question.module, question.given, self._state.restore)
        by = f", {place.operators[0]} the first in it" if place is not None else ""
        text = f"The module gives something else each time it is called{by}: no other model can give the same."
        text += training_hint(question.module)
        raise BlamedError(Accusation(blame="varies", text=text, difference=variation, places=_places(place)))

    def _captured(self, sample: Sample) -> tuple[Any, str]:
        question = self._question
        try:
            program = capture(question.module, self._state, question.given, question.dynamic_shapes)
        except CannotCaptureError as error:
            text = f"torch.export cannot capture the module: {error}"
            accusation = Accusation(blame="capture", text=text, error=str(error), places=error.places)
            raise BlamedError(accusation) from error
        try:
            outputs = self._called(program, question.given)
        except Exception as error:
            text = f"The program that torch.export captures raises where the module does not: {exception_text(error)}"
            places = (place_of_failure(program, question.given),)
            accusation = Accusation(blame="capture", text=text, error=exception_text(error), places=places)
            raise BlamedError(accusation) from error
        self._require_as_module(program, outputs, sample, "")
        self._require_not_random(program, sample)
        return program, "yes"

    def _require_not_random(self, program: Any, sample: Sample) -> None:
        """Raise BlamedError if the program's outputs depend on random numbers, whose seed the module may set itself."""
        drawn_by = random_nodes(program.graph.nodes)
        if not drawn_by:
            return
        imported().manual_seed(_OTHER_SEED)
        try:
            variation = difference_of_leaves(
                self._called(program, self._question.given), sample.expected, self._question.judge
            )
        except Exception:
            return
        if variation is not None:
            first = next(iter(drawn_by))
            text = f"The module draws random numbers ({drawn_by[first]}) after a seed of its own: no other model does."
            places = (place_of_node(first),)
            raise BlamedError(Accusation(blame="varies", text=text, difference=variation, places=places))

    def _called(self, program: Any, given: Arguments) -> list[Leaf]:
        """The outputs of a captured program. It may share buffers with the module, which are restored."""
        try:
            return leaves_of_call(program.module(), given)
        finally:
            self._state.restore()

    def _require_as_module(self, program: Any, outputs: list[Leaf], sample: Sample, where: str) -> None:
        """Raise BlamedError if the captured program's outputs differ from those of the module."""
        error = difference_of_leaves(outputs, sample.expected, self._question.judge)
        if error is None:
            return
        text = f"The program that torch.export captures gives something else than the module{where}"
        fast = fast_part(self._question.module)
        if fast is not None:
            with without_fast_path():
                slow = self._eager(sample.given)
            if difference_of_leaves(outputs, slow, self._question.judge) is None:
                text = f"{text}, which takes PyTorch's fast path for attention: {FAST_PATH}"
                raise BlamedError(Accusation(blame="capture", text=text, difference=error, places=(fast,)))
        place = origin_of_change(self._question.module, program, sample.given, self._state.restore)
        place = place or ModuleLine(unknown="no operator of the module was found whose result the program lacks")
        raise BlamedError(Accusation(blame="capture", text=f"{text}.", difference=error, places=(place,)))

    def _second(self, program: Any) -> tuple[Sample | None, str]:
        """A sample with arguments of other sizes; None if no size is open or no other size works."""
        refused = ""
        for given in with_other_sizes(program, self._question.given):
            sizes = sizes_of(given)
            try:
                sample = Sample(given=given, expected=self._eager(given), sizes=sizes)
            except errors.CannotCompare:
                continue  # the module does not take these sizes
            try:
                outputs = self._called(program, given)
            except Exception as error:
                refused = (
                    f"with sizes {sizes} the captured program raises, and the module does not: {exception_text(error)}"
                )
                continue
            self._require_as_module(program, outputs, sample, f", with tensors of sizes {sizes}")
            return sample, f"yes, with {sizes}"
        if refused:
            self._remarks.append(refused)
        return None, "no other sizes" if not refused else "no other sizes that both take"

    def _exported(
        self, program: Any, samples: Sequence[Sample], name: str, options: Mapping[str, Any]
    ) -> tuple[list[OnnxModel], str]:
        """The exported model in a file, with the inputs and expected outputs of each sample."""
        question = self._question
        try:
            onnx_program = translate(program, question.given, question.dynamic_shapes, **options)
        except CannotTranslateError as error:
            text = f"torch.onnx.export raises for what torch.export has captured: {error.cause}"
            accusation = Accusation(
                blame="exporter", text=text, part=error.part, error=error.cause, places=error.places
            )
            raise BlamedError(accusation) from error
        path = self._folder / f"{name}.onnx"
        save(onnx_program, path, self._written)
        self._written = self._written or weights_beside(onnx_program, path)
        models = []
        for sample in samples:
            feeds = self._folder / (OTHER_INPUTS if sample.sizes else INPUTS)
            given = sample.given.copied()
            write_feeds(feeds, [input_values(onnx_program, given.args, given.kwargs)])
            outputs = outputs_of(onnx_program, sample.expected)
            golden = {output: array_of_leaf(leaf.value) for output, leaf in outputs.items()}
            expected = {output: value for output, value in golden.items() if value is not None}
            models.append(OnnxModel(path=path, feeds=feeds, expected=expected, program=onnx_program, sample=sample))
        return models, count(sum(1 for _ in onnx_program.model.graph), "node")

    def _suspected(self, engines: Evaluators, models: Sequence[OnnxModel]) -> tuple[tuple[int, Evaluation], str]:
        """The number of the first sample for which the suspect is wrong by more than rounding, and its evaluation."""
        suspect = self._question.suspect
        rounded: ModuleDifference | None = None
        for number, model in enumerate(models):
            evaluation = engines.evaluation(suspect, model)
            if not evaluation.is_right:
                self._failure = evaluation
                error = evaluation.failure or (evaluation.difference.text if evaluation.difference is not None else "")
                return (number, evaluation), f"no{model.sample.where}: {error}"
            rounded = rounded or evaluation.difference
        if rounded is not None:
            text = f"{suspect} differs from the module by rounding alone: the tolerances are narrower than that."
            raise BlamedError(Accusation(blame="tolerance", text=text, difference=rounded))
        text = f"{suspect} gives what the module gives{models[-1].sample.where}."
        raise BlamedError(Accusation(blame="passes", text=text))

    def _blamed(
        self, engines: Evaluators, program: Any, suspected: Evaluation, model: OnnxModel
    ) -> tuple[Accusation, str]:
        def plain() -> OnnxModel:
            options = {**self._question.export, "optimize": False}
            return self._exported(program, [model.sample], "unoptimized", options)[0][0]

        is_optimized = bool(self._question.export.get("optimize", True))
        try:
            accusation = accusation_of(engines, suspected, model, plain if is_optimized else None)
        finally:
            for file in self._folder.glob("unoptimized.onnx*"):  # it may have weights of its own
                with suppress(OSError):
                    file.unlink()
        part = f", its {accusation.part}" if accusation.part else ""
        return accusation, f"{accusation.blame}{part}"


def _places(place: ModuleLine | None) -> tuple[ModuleLine, ...]:
    return () if place is None else (place,)
