"""Reading and writing models in commands that change them: their options, and sources of types and shapes.

A result that is less valid than the original is refused, unless ``--allow-invalid`` is given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

from biopsy import errors
from biopsy.checks import verdict
from biopsy.cli.arguments.declared import Options, option, switch
from biopsy.cli.arguments.groups import FallbackInputs, ModelOption, WeightsFileOptions, WeightsFolderOption
from biopsy.cli.arguments.types import Derived, parse_ranges, parse_shapes, written_over
from biopsy.cli.console import Console
from biopsy.engines.runner import Inputs, casts, casts_text, checked_feed, feeds_for
from biopsy.model import external, index, load, weights_file
from biopsy.model.known_names import require_known
from biopsy.model.tensor_type import TensorType, ValueType
from biopsy.model.weights_file import Anew
from biopsy.processes import writing
from biopsy.processes.writing import write_whole
from biopsy.questions.lint.specification import lost_validity
from biopsy.recording.types import types_by_running
from biopsy.slow_imports import onnx
from biopsy.tensors.results import Feed


class ResultOptions(WeightsFileOptions):
    """The model that is written, and whether it may be less valid than the original."""

    output: Path = option(
        "-o",
        "--output",
        type=written_over("model"),
        required=True,
        meaning="write the result to this file, which may be the model itself",
    )
    allow_invalid: bool = switch(
        "--allow-invalid", meaning="write the result even if it is invalid where the model was not", decides="yes"
    )

    def require_as_valid(
        self,
        result: onnx.ModelProto,
        original: bytes,
        folder: Path,
        console: Console,
        *,
        filled: Collection[str] = (),
        at_fault: Sequence[str] = (),
        loads: bool = True,
    ) -> None:
        """Raise InvalidResult, before anything is written, if the result is invalid and the original is not.

        With ``--allow-invalid``, or where an engine only lacks an implementation, warn instead. ``at_fault`` are lines
        on what may be the cause; ``filled`` and ``loads`` are those of ``lost_validity``.
        """
        lost = lost_validity(result, original, folder, filled=filled, loads=loads)
        if lost is None:
            return
        if not lost.certain:
            console.warn(f"{lost.judge} can run the model, but not the result: {lost.reason}")
        elif self.allow_invalid:
            console.warn(f"what was written is invalid, and the model was not: {lost}")
        else:
            raise errors.InvalidResult(
                f"the result would be invalid, and the model is not: {lost}",
                kept=f"nothing was written to {self.output}",
                next_steps=[*at_fault, "--allow-invalid    writes it anyway"],
            )


class ChangeOptions(ModelOption, WeightsFolderOption, ResultOptions):
    """The model that a surgeon command changes, and the result."""

    ignore_external_data: bool = switch(
        "--ignore-external-data",
        title="weights in files of their own",
        meaning="do not look for external weights, which may be missing: what is written refers to them as the model "
        "does",
    )

    def derived(self) -> Derived:
        """The file of weights beside the output."""
        return self.derived_weights(self.output)

    @property
    def folder(self) -> Path:
        """The folder of external weights."""
        return self.external_data_dir or self.model.parent

    def read(self) -> bytes:
        """The bytes of the model. Raises ModelError if it is damaged, UsageError if the output cannot be written."""
        import onnx  # noqa: F401 -- before report_looking, so that a failure of onnx is not taken for the model's

        verdict.report_looking()
        if self.ignore_external_data and self.save_external_data is not None:
            raise errors.UsageError(
                "--save-external-data moves weights, and --ignore-external-data leaves them where they are",
                next_steps=["leave out one of them"],
            )
        data = load.read_bytes(self.model)
        external.require_safe_locations(data, self.folder, self.model)
        index.require_sound(data, self.model)
        writing.require_writable(self.output)
        return data

    def save(
        self,
        model: onnx.ModelProto,
        original: bytes,
        console: Console,
        anew: Sequence[Anew] = (),
        *,
        at_fault: Sequence[str] = (),
        loads: bool = True,
    ) -> None:
        """Write ``model``; ``anew`` are initializers with new values.

        Raises InvalidResult if it is less valid than the ``original``, as ``require_as_valid`` does, and the exceptions
        of ``weights_file``. ``loads``: whether an engine can load the result.
        """
        filled = [weight.name for weight, _ in anew]
        self.require_as_valid(model, original, self.folder, console, filled=filled, at_fault=at_fault, loads=loads)
        if self.ignore_external_data:
            weights_file.put_inside(model, self.output, anew)
            write_whole(self.output, [weights_file.serialized(model, self.output)])
            return
        name, threshold = self.weights_file(self.output), self.external_data_size_threshold
        weights_file.save_with_weights(model, self.output, self.folder, name, threshold, anew=anew)


class InferenceOptions(Options, title="shape inference"):
    """How types and shapes are found: by onnx's inference or by a run of the model."""

    shape_inference: bool = switch(
        "--shape-inference", "--do-shape-inference", rivals="inference", meaning="has no effect: {text}"
    )
    no_shape_inference: bool = switch(
        "--no-shape-inference", rivals="inference", text="write no inferred types and shapes", meaning="{text}"
    )
    force_fallback_shape_inference: bool = switch(
        "--force-fallback-shape-inference",
        rivals="inference",
        meaning="take types and shapes from a run of the model in onnxruntime; dynamic dimensions become fixed{text}",
    )
    no_onnxruntime_shape_inference: bool = switch(
        "--no-onnxruntime-shape-inference",
        meaning="has no effect: shapes are inferred by onnx alone, in any case",
    )


FALLBACK = "inputs for the run that types and shapes are taken from: the first of them"
"""The help of ``--load-inputs``."""


class FallbackOptions(InferenceOptions, FallbackInputs, title="shape inference"):
    """How types and shapes are found, with the inputs of the run."""

    model_input_shapes: Sequence[str] | None = option(
        "--model-input-shapes",
        "--model-inputs",
        nargs="+",
        metavar="NAME:SHAPE",
        meaning="shapes of the model's inputs in that run, where it leaves them open",
    )

    def warn_of_idle_options(self, console: Console, *, runs: bool) -> None:
        """Warn of options for inputs that have no effect: all of them without a run, --iterations in any case."""
        given = {**self.sources_given(), **self.draws_given()}
        if given and not runs:
            console.warn(f"{', '.join(given)} has no effect without --force-fallback-shape-inference")
        elif "--iterations" in given:
            console.warn("--iterations has no effect: types and shapes are taken from one run")

    def types_in_run(self, folder: Path, console: Console) -> Callable[[bytes], dict[str, TensorType]]:
        """A function that runs a model, given as bytes, and returns the types of its inputs and outputs by name.

        It raises BiopsyError if the run fails, DoesNotFit and CannotCompare if the inputs do not fit the model.
        ``folder`` holds the external weights. This method raises UsageError for words that are not shapes.
        """
        shapes = parse_shapes(self.model_input_shapes, "--model-input-shapes")
        warned = False

        @cache
        def inputs() -> Inputs:
            given = self.given_feeds()
            return Inputs(
                given=None if given is None else given[:1],
                seed=1 if self.seed is None else self.seed,
                val_range=parse_ranges(self.val_range),
                shapes=shapes,
            )

        def feed(wanted: Mapping[str, ValueType | None]) -> Feed:
            nonlocal warned
            require_known("--model-input-shapes", "input", shapes, wanted)
            feeds = feeds_for(wanted, inputs()).feeds
            if not feeds:
                raise errors.CannotCompare("no inputs were loaded: there is nothing to run the model with")
            checked = checked_feed(feeds[0], wanted, 0)
            changes = casts(feeds[:1], [checked]) if inputs().given is not None else ()
            if changes and not warned:
                warned = True
                console.warn(casts_text(changes))
            return checked

        return lambda data: types_by_running(data, folder, feed)
