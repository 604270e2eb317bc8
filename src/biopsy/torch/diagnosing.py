"""``biopsy.torch.diagnose``: the questions that are asked about a PyTorch module, one after the other, until there is a
verdict.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

from biopsy import errors, events
from biopsy.api.running import require_seconds, tolerances_and_stats
from biopsy.comparison.mismatch import Rounding
from biopsy.comparison.tolerance import DEFAULT_TOLERANCE
from biopsy.diagnosis.context import TimeUpError
from biopsy.engines.registry import create
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import require_writable
from biopsy.questions.layers.question import Judge
from biopsy.tensors.files import write_feeds
from biopsy.text import count, first_of
from biopsy.torch.arrays import Leaf, arrays_by_output, arrays_by_path, imported
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
    apart,
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
from biopsy.torch.facts import Blame, FurtherFault, ModuleLine, TorchDiagnosis, place_of_node, rounding_text
from biopsy.torch.location import LOCATING, Locator, place_of_failure
from biopsy.torch.noise import noise_of_outputs
from biopsy.torch.recording import input_values, random_nodes, record


def diagnose(
    module: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    suspect: str = "onnxrt",
    output: str | PathLike[str] | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    export: Mapping[str, Any] | None = None,
    run_timeout: float | None = None,
    max_time: float | None = None,
    listener: events.Listener = events.ignore,
) -> TorchDiagnosis:
    """Find out why ``module``, exported to ONNX, gives something else in the engine ``suspect`` than in PyTorch.

    ``args`` and ``kwargs`` are the arguments of the module. ``dynamic_shapes`` and ``export`` are further arguments of
    ``torch.onnx.export`` (``{"optimize": False}``, ``{"custom_translation_table": ...}``). ``atol`` and ``rtol`` are
    those of ``compare``; without either, a difference fails only if the measured noise of rounding does not explain it.
    ``output`` is a new or empty folder that keeps the model, its inputs, the values of the
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
        judge=Judge(
            *tolerances_and_stats(
                DEFAULT_TOLERANCE if atol is None else atol, DEFAULT_TOLERANCE if rtol is None else rtol, "elemwise"
            )
        ),
        may_round=atol is None and rtol is None,
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


INPUTS, OTHER_INPUTS = "inputs.safetensors", "other_inputs_"
"""The file of the arguments given, and the beginning of the names of files with arguments of other sizes."""

_PACKAGES = ("torch", "onnxscript", "onnx")

_OTHER_SEED = 20_011
"""The seed of a second run, which shows whether the result depends on random numbers."""

_QUESTIONS = {
    "steady": "does the module give the same twice?",
    "capture": "does the program that torch.export captures give the same?",
    "sizes": "and with smaller, larger and much larger sizes?",
    "export": "does the exporter translate it?",
    "engine": "does the engine give what the module gives?",
    "rounding": "is it further from float64 than rounding takes PyTorch?",
    "blame": "is it the exporter or the engine?",
}


@dataclass(frozen=True, kw_only=True)
class ModuleQuestion:
    """The arguments of ``diagnose``. ``may_round``: rounding beyond the tolerances is no failure."""

    module: Any
    given: Arguments
    dynamic_shapes: Any
    suspect: str
    judge: Judge
    may_round: bool = True
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
        self._rounding: Rounding | None = None
        self._refused: Accusation | None = None
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
                others = self._steps.ask("sizes", lambda: self._others(program))
                models = self._steps.ask(
                    "export", lambda: self._exported(program, [first, *others], "model", self._question.export)
                )
                evaluated = self._steps.ask("engine", lambda: self._suspected(engines, models))
                wrong = self._steps.ask("rounding", lambda: self._more_than_rounding(engines, *evaluated))
                accusation = self._steps.ask("blame", lambda: self._blamed(engines, program, *wrong))
            except BlamedError as verdict:
                accusation = verdict.accusation
            except TimeUpError:
                accusation = self._unfinished()
            refused = self._refused
            if refused is not None and (accusation.blame == "passes" or not accusation.error_text):
                accusation = replace(refused, text=f"{refused.text.rstrip('.')}. Without that: {accusation.text}")
                refused = None
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
                engines=engines,
            )
            located = locator.locate(accusation, bundled=question.folder is not None)
            further = [*locator.further(located, question.suspect)]
            if refused is not None:
                further.append(FurtherFault(verdict=refused.verdict, places=refused.places, error=refused.error))
        accusation = located.accusation
        if self._steps.open:
            left_open = f"open, for the time was over: {', '.join(self._steps.open)}"
            accusation = replace(accusation, reason="; ".join(filter(None, [accusation.reason, left_open])))
        return TorchDiagnosis(
            verdict=accusation.verdict,
            suspect=question.suspect,
            steps=tuple(self._steps.reports),
            places=located.places or self._without_place(accusation),
            error=accusation.error_text,
            mismatches=() if accusation.difference is None else accusation.difference.mismatches,
            rounding=self._rounding,
            further=tuple(further),
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
            self._remarks.append(
                f"the module changes buffers or attributes ({names}): an ONNX model does not keep that"
            )
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
        self._require_as_module(program, outputs, sample)
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

    def _require_as_module(self, program: Any, outputs: list[Leaf], sample: Sample) -> None:
        """Raise BlamedError if the captured program's outputs differ from those of the module by more than rounding."""
        judge = self._question.judge
        error = difference_of_leaves(outputs, sample.expected, judge)
        if error is None:
            return
        if error.is_of_numbers:
            named = partial(arrays_by_path, sample.expected)
            noise = noise_of_outputs(program, sample.given, named)
            own, captured = (named([leaf.value for leaf in side]) for side in (sample.expected, outputs))
            if noise.rounding(own, captured, error.outputs, self._left.require).verdict == "rounding":
                return
        text = f"The program that torch.export captures gives something else than the module{sample.where}"
        fast = fast_part(self._question.module)
        if fast is not None:
            with without_fast_path():
                slow = self._eager(sample.given)
            if difference_of_leaves(outputs, slow, judge) is None:
                text = f"{text}, which takes PyTorch's fast path for attention: {FAST_PATH}"
                raise BlamedError(Accusation(blame="capture", text=text, difference=error, places=(fast,)))
        place = origin_of_change(self._question.module, program, sample.given, self._state.restore)
        place = place or ModuleLine(unknown="no operator of the module was found whose result the program lacks")
        raise BlamedError(Accusation(blame="capture", text=f"{text}.", difference=error, places=(place,)))

    def _others(self, program: Any) -> tuple[list[Sample], str]:
        """Samples with arguments of other sizes, one of each kind of size; none if no size is open or works."""
        samples: dict[str, Sample] = {}
        refused: dict[str, str] = {}
        for kind, given in with_other_sizes(program, self._question.given):
            self._left.require()
            if kind in samples:
                continue
            sizes = sizes_of(given)
            try:
                sample = Sample(given=given, expected=self._eager(given), sizes=sizes)
            except errors.CannotCompare:
                continue  # the module does not take these sizes
            try:
                outputs = self._called(program, given)
            except Exception as error:
                refused[kind] = (
                    f"with sizes {sizes} the captured program raises, and the module does not: {exception_text(error)}"
                )
                continue
            self._require_as_module(program, outputs, sample)
            samples[kind] = sample
        self._remarks += [text for kind, text in refused.items() if kind not in samples]
        if samples:
            return list(samples.values()), f"yes, with {'; '.join(sample.sizes for sample in samples.values())}"
        return [], "no other sizes" if not refused else "no other sizes that both take"

    def _exported(
        self, program: Any, samples: Sequence[Sample], name: str, options: Mapping[str, Any]
    ) -> tuple[list[OnnxModel], str]:
        """The exported model in a file, with the inputs and expected outputs of each sample."""
        question = self._question
        try:
            onnx_program, refusal = translate(program, question.given, question.dynamic_shapes, **options)
        except CannotTranslateError as error:
            raise BlamedError(_raised(error, "what torch.export has captured")) from error
        if refusal is not None:
            leaves = [samples[0].expected[number] for number in refusal.outputs]
            refused = first_of([f"{leaf.path} = {leaf.value!r}" for leaf in leaves], 3, "; ")
            self._refused = _raised(refusal.error, f"what the module returns besides tensors ({refused})")
        path = self._folder / f"{name}.onnx"
        save(onnx_program, path, self._written)
        self._written = self._written or weights_beside(onnx_program, path)
        models = []
        for number, sample in enumerate(samples):
            feeds = self._folder / (f"{OTHER_INPUTS}{number}.safetensors" if sample.sizes else INPUTS)
            given = sample.given.copied()
            write_feeds(feeds, [input_values(onnx_program, given.args, given.kwargs)])
            named = partial(arrays_by_output, onnx_program, sample.expected)
            model = OnnxModel(
                path=path,
                feeds=feeds,
                expected=named([leaf.value for leaf in sample.expected]),
                program=onnx_program,
                sample=sample,
                noise=noise_of_outputs(program, sample.given, named),
            )
            models.append(model)
        nodes = count(sum(1 for _ in onnx_program.model.graph), "node")
        return models, nodes if refusal is None else f"not all that the module returns; without {refused}: {nodes}"

    def _suspected(self, engines: Evaluators, models: Sequence[OnnxModel]) -> tuple[tuple[Evaluation, OnnxModel], str]:
        """The evaluation of the first sample for which the suspect is wrong, else of one for which it differs."""
        suspect = self._question.suspect
        rounded: tuple[Evaluation, OnnxModel] | None = None
        for model in models:
            evaluation = engines.evaluation(suspect, model)
            if not evaluation.is_right:
                self._failure = evaluation
                return (evaluation, model), f"no{model.sample.where}: {evaluation.error_text}"
            if evaluation.difference is not None:
                rounded = rounded or (evaluation, model)
        if rounded is not None:
            return rounded, f"not exactly{rounded[1].sample.where}: {rounded[0].error_text}"
        sizes = "; ".join(model.sample.sizes for model in models if model.sample.sizes)
        also = f", also with sizes {sizes}" if sizes else ""
        raise BlamedError(Accusation(blame="passes", text=f"{suspect} gives what the module gives{also}."), "yes")

    def _more_than_rounding(
        self, engines: Evaluators, evaluation: Evaluation, model: OnnxModel
    ) -> tuple[tuple[Evaluation, OnnxModel, OnnxModel], str]:
        """The evaluation that shows a fault, and of which model: this one, or its steps apart; and this model.

        Raises BlamedError if rounding explains the outputs, and also each step by itself.
        """
        rounding = self._rounding = evaluation.rounding
        if rounding is None:
            return (evaluation, model, model), "yes: it differs in more than numbers, or fails"
        measured = rounding_text(evaluation.engine, rounding)
        if rounding.verdict != "rounding":
            return (evaluation, model, model), f"{'yes' if rounding.verdict == 'bug' else 'unknown'}: {measured}"
        steps = self._steps_apart(model)
        each = None if steps is None else engines.evaluation(evaluation.engine, steps)
        if steps is not None and each is not None and each.faults:
            return (each, steps, model), f"no, but some steps by themselves: {first_of(each.faults, 3)}"
        blame: Blame = "passes" if self._question.may_round else "tolerance"
        gives = "gives what the module gives, except for rounding"
        if blame == "tolerance":
            gives = "differs from the module by rounding alone, and the tolerances are narrower than that"
        text = f"{evaluation.engine} {gives}{model.sample.where}: {measured}"
        raise BlamedError(Accusation(blame=blame, text=text, difference=evaluation.difference))

    def _steps_apart(self, model: OnnxModel) -> OnnxModel | None:
        """The model with each step fed with PyTorch's own values; None if few or too many of these are known."""
        golden = self._scratch / "steps.safetensors"
        given = model.sample.given.copied()
        try:
            record(model.program, given.args, golden, given.kwargs)
        except errors.BiopsyError:
            return None
        return apart(model, golden)

    def _blamed(
        self, engines: Evaluators, program: Any, suspected: Evaluation, shown: OnnxModel, model: OnnxModel
    ) -> tuple[Accusation, str]:
        def plain() -> OnnxModel:
            options = {**self._question.export, "optimize": False}
            exported = self._exported(program, [model.sample], "unoptimized", options)[0][0]
            return (self._steps_apart(exported) or shown) if is_hidden else exported

        is_hidden = shown is not model
        is_optimized = bool(self._question.export.get("optimize", True))
        try:
            accusation = accusation_of(engines, suspected, shown, plain if is_optimized else None)
        finally:
            for file in self._folder.glob("unoptimized.onnx*"):  # it may have weights of its own
                with suppress(OSError):
                    file.unlink()
        text = accusation.text
        if is_hidden:
            text += " It shows in single steps, and at the end not more than rounding."
        if model.sample.sizes:
            text += f" That is with sizes {model.sample.sizes}, and not with {sizes_of(self._question.given)}."
        part = f", its {accusation.part}" if accusation.part else ""
        return replace(accusation, text=text, model=model, is_hidden=is_hidden), f"{accusation.blame}{part}"


def _raised(error: CannotTranslateError, given: str) -> Accusation:
    """The exporter raises for ``given``."""
    text = f"torch.onnx.export raises for {given}: {error.cause}"
    return Accusation(blame="exporter", text=text, part=error.part, error=error.cause, places=error.places)


def _places(place: ModuleLine | None) -> tuple[ModuleLine, ...]:
    return () if place is None else (place,)
