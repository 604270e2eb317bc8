"""The model that a command reads and the one that it writes: their options, opening and saving them, and learning
types and shapes. What is written is at least as valid as what was given, unless ``--allow-invalid`` says
otherwise.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.checks import verdict
from biopsy.cli.arguments import absent_options, groups
from biopsy.cli.arguments.comparing import parse_ranges
from biopsy.cli.arguments.declared import Options, switch
from biopsy.cli.arguments.types import Derived, written_over
from biopsy.cli.console import Console
from biopsy.model import external, index, load, weights_file
from biopsy.model.known_names import require_known
from biopsy.model.tensor_type import TensorType, ValueType
from biopsy.model.weights_file import Anew
from biopsy.processes import writing
from biopsy.processes.writing import write_whole
from biopsy.questions.lint.specification import lost_validity
from biopsy.recording.types import types_by_running
from biopsy.tensors.results import Feed

if TYPE_CHECKING:
    import onnx

    from biopsy.engines.runner import Inputs


def add(parser: argparse.ArgumentParser, command: str) -> None:
    """The model, the file to write, where weights stand and go, and what Polygraphy's ``command`` has besides."""
    groups.ModelOption.add(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=written_over("model"),
        required=True,
        metavar="FILE",
        help="write the result to this file, which may be the model itself",
    )
    group = parser.add_argument_group("weights in files of their own")
    groups.WeightsFolderOption.add(group)
    group.add_argument(
        "--ignore-external-data",
        action="store_true",
        help="do not look for external weights, which may be missing: what is written refers to them as the model does",
    )
    groups.WeightsFileOptions.add(group)
    AllowInvalidOption.add(parser)
    absent_options.add(parser, command)


def derived(args: argparse.Namespace) -> Derived:
    """The file for weights beside the output."""
    return groups.WeightsFileOption.of(args).derived_weights(args.output)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A model that was read: as bytes, without its external weights; these stand in ``folder``, if it needs them."""

    data: bytes
    path: Path
    folder: Path
    ignores_weights: bool

    def parsed(self) -> onnx.ModelProto:
        """The model as an object. Raises ModelError if it is damaged."""
        return load.parse(self.data, self.path)


def opened(args: argparse.Namespace) -> Opened:
    """Read and check the model, and make sure that the output can be written.

    Raises UsageError or ModelError that name the file.
    """
    import onnx  # noqa: F401 -- loaded before the model is looked at

    verdict.report_looking()
    if args.ignore_external_data and args.save_external_data is not None:
        raise errors.UsageError(
            "--save-external-data moves weights, and --ignore-external-data leaves them where they are",
            next_steps=["leave out one of them"],
        )
    data = load.read_bytes(args.model)
    folder = args.external_data_dir or args.model.parent
    external.require_safe_locations(data, folder, args.model)
    index.require_sound(data, args.model)
    writing.require_writable(args.output)
    return Opened(data=data, path=args.model, folder=folder, ignores_weights=args.ignore_external_data)


def save(
    args: argparse.Namespace,
    model: onnx.ModelProto,
    opened: Opened,
    console: Console,
    anew: Sequence[Anew] = (),
    *,
    at_fault: Sequence[str] = (),
    loads: bool = True,
) -> None:
    """Write ``model`` as the options say; ``anew`` are initializers with other values.

    It is not written if it is less valid than what was opened: ``at_fault`` are lines on the options that may have made
    it so, ``loads`` says whether an engine can be asked. Raises InvalidResult then, and as ``weights_file`` does.
    """
    filled = [weight.name for weight, _ in anew]
    require_as_valid(args, model, opened.data, opened.folder, console, filled=filled, at_fault=at_fault, loads=loads)
    if args.ignore_external_data:
        weights_file.put_inside(model, args.output, anew)
        write_whole(args.output, [weights_file.serialized(model, args.output)])
        return
    name = groups.WeightsFileOption.of(args).weights_file(args.output)
    threshold = args.external_data_size_threshold
    weights_file.save_with_weights(model, args.output, opened.folder, name, threshold, anew=anew)


# How a surgeon command learns types and shapes: its options, and the inputs of a run that tells them.


def add_shape_inference(
    group: argparse._ArgumentGroup, *, no_effect: str, without: str
) -> argparse._MutuallyExclusiveGroup:
    """``--shape-inference``, of which ``no_effect`` says why it has none, and ``--no-shape-inference``.

    Returns the group of options that exclude each other.
    """
    ways = group.add_mutually_exclusive_group()
    ways.add_argument(
        "--shape-inference", "--do-shape-inference", action="store_true", help=f"has no effect: {no_effect}"
    )
    ways.add_argument("--no-shape-inference", action="store_true", help=without)
    return ways


def add_no_onnxruntime(group: argparse._ArgumentGroup) -> None:
    """The option of Polygraphy that names the only way there is here."""
    group.add_argument(
        "--no-onnxruntime-shape-inference",
        action="store_true",
        help="has no effect: shapes are inferred by onnx alone, in any case",
    )


def warn_of_idle_options(args: argparse.Namespace, console: Console, *, runs: bool) -> None:
    """Say which options on inputs mean nothing: all of them if there is no run, and some in any case."""
    inputs = groups.FallbackInputs.of(args)
    given = {**inputs.sources_given(), **inputs.draws_given()}
    if given and not runs:
        console.warn(f"{', '.join(given)} has no effect without --force-fallback-shape-inference")
    elif "--iterations" in given:
        console.warn("--iterations has no effect: types and shapes are taken from one run")


class FallbackRun:
    """Tells types and shapes by running a model, with the inputs that ``groups.FallbackInputs`` say.

    ``folder`` is where external weights stand. ``shapes``, of random inputs whose dimensions the model leaves open, are
    those of the option ``--model-input-shapes``; others are 1.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        folder: Path,
        console: Console,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self._options = groups.FallbackInputs.of(args)
        self._folder = folder
        self._console = console
        self._shapes = shapes or {}
        self._told = False

    @cached_property
    def _inputs(self) -> Inputs:
        from biopsy.engines.runner import Inputs

        given = self._options.given_feeds()
        return Inputs(
            given=None if given is None else given[:1],
            seed=1 if self._options.seed is None else self._options.seed,
            val_range=parse_ranges(self._options.val_range),
            shapes=self._shapes,
        )

    def types(self, data: bytes) -> dict[str, TensorType]:
        """Types of the inputs and outputs of a model in that run.

        Raises BiopsyError if the run fails, DoesNotFit and CannotCompare if the inputs do not fit the model.
        """
        return types_by_running(data, self._folder, self._feed)

    def _feed(self, wanted: Mapping[str, ValueType | None]) -> Feed:
        from biopsy.engines.runner import casts, casts_told, checked_feed, feeds_for

        require_known("--model-input-shapes", "input", self._shapes, wanted)
        found = feeds_for(wanted, self._inputs).feeds
        if not found:
            raise errors.CannotCompare("no inputs were loaded: there is nothing to run the model with")
        feed = checked_feed(found[0], wanted, 0)
        changes = casts(found[:1], [feed]) if self._inputs.given is not None else ()
        if changes and not self._told:
            self._told = True
            self._console.warn(casts_told(changes))
        return feed


# What a command writes is at least as valid as what it was given, unless ``--allow-invalid`` says otherwise.


class AllowInvalidOption(Options):
    """Whether a model is written all the same."""

    allow_invalid: bool = switch(
        "--allow-invalid", meaning="write the result even if it is invalid where the model was not", decides="yes"
    )


def require_as_valid(
    args: argparse.Namespace,
    result: onnx.ModelProto,
    original: bytes,
    folder: Path,
    console: Console,
    *,
    filled: Collection[str] = (),
    at_fault: Sequence[str] = (),
    loads: bool = True,
) -> None:
    """Raise InvalidResult, before anything is written, if a judge refuses the result and accepts the original.

    With ``--allow-invalid`` it is a warning, as where an engine only lacks an implementation. ``at_fault`` are lines on
    what may have made it so; ``filled`` and ``loads`` as ``lost_validity`` has it.
    """
    lost = lost_validity(result, original, folder, filled=filled, loads=loads)
    if lost is None:
        return
    if not lost.certain:
        console.warn(f"{lost.judge} can run the model, but not what is made of it: {lost.reason}")
    elif args.allow_invalid:
        console.warn(f"what was written is invalid, and the model was not: {lost}")
    else:
        raise errors.InvalidResult(
            f"the result would be invalid, and the model is not: {lost}",
            kept=f"nothing was written to {args.output}",
            next_steps=[*at_fault, "--allow-invalid    writes it all the same"],
        )
