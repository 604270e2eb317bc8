"""``biopsy surgeon sanitize``: fixes input shapes, folds constants, cleans up and sorts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from biopsy.cli.arguments import groups, types
from biopsy.cli.arguments.declared import Options, option, switch
from biopsy.cli.arguments.types import by_name, parse_symbolic_shapes
from biopsy.cli.console import Console
from biopsy.cli.model_files import FALLBACK, ChangeOptions, FallbackOptions
from biopsy.model import folding, sanitize
from biopsy.model.extract import OutputChoice, choose_outputs
from biopsy.model.load import parse
from biopsy.slow_imports import onnx

EPILOG = """\
examples:
  biopsy surgeon sanitize model.onnx -o fixed.onnx --override-input-shapes x:[1,3,224,224]
  biopsy surgeon sanitize model.onnx -o folded.onnx --override-input-shapes x:[1,3] --fold-constants
  biopsy surgeon sanitize model.onnx -o folded.onnx --fold-constants --fold-size-threshold 16M
  biopsy surgeon sanitize model.onnx -o part.onnx --outputs 'layer4/*' --cleanup
  biopsy surgeon sanitize model.onnx -o bounded.onnx --fold-constants --set-unbounded-dds-upper-bound 1000 boxes:300
  biopsy surgeon sanitize model.onnx -o clean.onnx --cleanup --toposort --save-external-data clean.bin"""


_LARGEST_SIZE = (1 << 31) - 1


class ChosenOutputs(Options, title="outputs"):
    """The outputs of the model, and bounds of sizes that it computes."""

    onnx_outputs: Sequence[str] | None = option(
        "--outputs",
        "--onnx-outputs",
        nargs="+",
        metavar="NAME",
        meaning="return these tensors instead of the model's outputs; patterns allowed; 'mark all' or '*' returns all",
    )
    outputs_by_type: Sequence[str] = option(
        "--outputs-by-type",
        nargs="+",
        default=(),
        metavar="OPERATOR",
        meaning="return what these operators compute, such as Conv, instead of the model's outputs, or besides "
        "--outputs",
    )
    exclude_outputs: Sequence[str] = option(
        "--exclude-outputs", nargs="+", default=(), metavar="NAME", meaning="leave out these outputs; patterns allowed"
    )
    set_unbounded_dds_upper_bound: Sequence[str] | None = option(
        "--set-unbounded-dds-upper-bound",
        nargs="+",
        metavar="[NAME:]BOUND",
        meaning="bound the sizes that the model computes from values, by inserting a Min, for engines that plan memory "
        "in advance; all sizes, or the tensor NAME; with --fold-constants, those that are left after it",
    )

    def choice(self) -> OutputChoice:
        """The outputs to choose."""
        names = groups.all_or(self.onnx_outputs)
        return OutputChoice(names=names, without=self.exclude_outputs, operators=self.outputs_by_type)


class FoldingOptions(Options, title="constants"):
    """Whether and how constants are folded."""

    fold_constants: bool = switch(
        "--fold-constants",
        meaning="compute what does not depend on the inputs, and remove what that leaves unused "
        "(needs biopsy[surgeon])",
    )
    num_passes: int | None = option(
        "--num-passes",
        "--num-const-fold-passes",
        type=types.count,
        meaning="fold at most N times (default: until nothing changes)",
    )
    partitioning: str | None = option(
        "--partitioning",
        choices=["basic", "recursive"],
        meaning="has no effect: each node is computed by itself, so one that fails never prevents the others",
    )
    no_fold_shapes: bool = switch("--no-fold-shapes", meaning="leave operations on shapes as they are")
    no_per_pass_shape_inference: bool = switch(
        "--no-per-pass-shape-inference", meaning="infer shapes before folding only, not in each pass"
    )
    fold_size_threshold: int | None = option(
        "--fold-size-threshold",
        type=types.binary_size,
        meaning="compute no tensor of more bytes; 16K, 16M and 1G are KiB, MiB and GiB (default: results of at most "
        "262144 elements, computed from weights of at most 8192)",
    )

    def folding(self, *, infers: bool, ignores_weights: bool) -> folding.Folding:
        """How constants are folded; whether shapes may be inferred, and weights may be missing."""
        return folding.Folding(
            shapes=not self.no_fold_shapes,
            infers=infers and not self.no_per_pass_shape_inference,
            threshold=self.fold_size_threshold,
            ignores_weights=ignores_weights,
            **({} if self.num_passes is None else {"passes": self.num_passes}),
        )


class SanitizeOptions(ChangeOptions, FallbackOptions, ChosenOutputs, FoldingOptions):
    """All options of ``surgeon sanitize``."""

    override_input_shapes: Sequence[str] | None = option(
        "--override-input-shapes",
        "--override-inputs",
        nargs="+",
        metavar="NAME:SHAPE",
        meaning="fix the shapes of inputs; a symbolic dimension gets its size everywhere",
    )
    cleanup: bool = switch("--cleanup", meaning="remove unused nodes, weights and functions")
    toposort: bool = switch("--toposort", meaning="sort the nodes so that each comes after its inputs")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``surgeon sanitize``."""
    SanitizeOptions.add(parser, without=("shape_inference", "model_input_shapes"), load_inputs=FALLBACK)


derived_files = SanitizeOptions.reading(SanitizeOptions.derived)


@SanitizeOptions.reading
def execute(options: SanitizeOptions, console: Console) -> int:
    """Make the changes in a fixed order, write the model, and show what changed."""
    options.warn_of_idle_options(console, runs=options.force_fallback_shape_inference)
    for option_ in () if options.fold_constants else options.given(FoldingOptions.declared):
        console.warn(f"{option_} has no effect without --fold-constants")
    data = options.read()
    choice = options.choice()
    model = parse(data if choice.changes_nothing else choose_outputs(data, choice), options.model)
    before = sanitize.count_operators(model)
    _change(model, options, console)
    after = sanitize.count_operators(model)
    suspects = {
        "give --override-input-shapes sizes that the operators can work with": options.override_input_shapes,
        "leave out --force-fallback-shape-inference": options.force_fallback_shape_inference,
        "leave out --fold-constants, or add --no-fold-shapes": options.fold_constants,
    }
    options.save(model, data, console, at_fault=[line for line, given in suspects.items() if given])
    for why in sanitize.endless(model):
        console.warn(f"what was written is not valid ONNX, and no engine can run it: {why}")
    console.say(f"{before.total()} -> {after.total()} nodes, written to {options.output}")
    console.note(f"  {', '.join(sanitize.changes(before, after)) or 'no node was added or removed'}")
    return 0


def _change(model: onnx.ModelProto, options: SanitizeOptions, console: Console) -> None:
    if options.toposort:
        sanitize.sort_nodes(model)
    shapes = parse_symbolic_shapes(options.override_input_shapes, "--override-input-shapes")
    for symbol in sanitize.freeze_inputs(model, shapes):
        console.warn(f"the dimension {symbol!r} was given two sizes: it is fixed in the inputs named, and only there")
    types_of = options.types_in_run(options.folder, console)

    def infer() -> None:
        if options.force_fallback_shape_inference:
            sanitize.infer_by_running(model, types_of)
        elif not options.no_shape_inference:
            sanitize.refresh_shapes(model)

    infer()
    if options.fold_constants:
        infers, ignores_weights = not options.no_shape_inference, options.ignore_external_data
        how = options.folding(infers=infers, ignores_weights=ignores_weights)
        left_out = folding.fold_constants(model, options.folder, how)
        if left_out:
            console.warn(left_out)
        infer()
    if options.set_unbounded_dds_upper_bound is not None:
        words, option_ = options.set_unbounded_dds_upper_bound, "--set-unbounded-dds-upper-bound"
        bounded = sanitize.set_upper_bounds(model, by_name(words, option_, "1000 boxes:300", _size))
        listed = ", ".join(f"{name!r} at most {bound}" for name, bound in bounded.items())
        console.note(f"  bounded: {listed or 'nothing, every size is known or bounded already'}")
    if options.cleanup:
        sanitize.clean_up(model)


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) > _LARGEST_SIZE:
        raise ValueError(f"{text!r} is not a whole number from 0 to {_LARGEST_SIZE}")
    return int(text)
