"""``biopsy surgeon sanitize``: fix input shapes, fold constants, clean up, sort."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from biopsy.cli import model_files
from biopsy.cli.arguments import groups, types
from biopsy.cli.arguments.comparing import by_name, parse_symbolic_shapes
from biopsy.cli.console import Console
from biopsy.model import sanitize
from biopsy.model.extract import OutputChoice, choose_outputs
from biopsy.model.sanitize import set_upper_bounds

if TYPE_CHECKING:
    import onnx


EXAMPLES = """\
examples:
  biopsy surgeon sanitize model.onnx -o fixed.onnx --override-input-shapes x:[1,3,224,224]
  biopsy surgeon sanitize model.onnx -o folded.onnx --override-input-shapes x:[1,3] --fold-constants
  biopsy surgeon sanitize model.onnx -o folded.onnx --fold-constants --fold-size-threshold 16M
  biopsy surgeon sanitize model.onnx -o part.onnx --outputs 'layer4/*' --cleanup
  biopsy surgeon sanitize model.onnx -o bounded.onnx --fold-constants --set-unbounded-dds-upper-bound 1000 boxes:300
  biopsy surgeon sanitize model.onnx -o clean.onnx --cleanup --toposort --save-external-data clean.bin"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``surgeon sanitize``."""
    parser.epilog = EXAMPLES
    model_files.add(parser, "surgeon sanitize")
    parser.add_argument(
        "--override-input-shapes",
        "--override-inputs",
        nargs="+",
        metavar="NAME:SHAPE",
        help="fix the shapes of inputs; a symbolic dimension gets its size everywhere",
    )
    parser.add_argument("--cleanup", action="store_true", help="remove unused nodes, weights and functions")
    parser.add_argument("--toposort", action="store_true", help="sort the nodes so that each comes after its inputs")
    _add_outputs(parser)
    group = parser.add_argument_group("shape inference")
    shapes = group.add_mutually_exclusive_group()
    shapes.add_argument("--no-shape-inference", action="store_true", help="write no inferred types and shapes")
    shapes.add_argument(
        "--force-fallback-shape-inference",
        action="store_true",
        help="take types and shapes from a run of the model in onnxruntime; dynamic dimensions become fixed",
    )
    model_files.add_no_onnxruntime(group)
    groups.FallbackInputs.add(
        group, load_inputs="the run that types and shapes are taken from has the first of these inputs"
    )
    _add_folding(parser)


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("outputs")
    group.add_argument(
        "--outputs",
        "--onnx-outputs",
        dest="onnx_outputs",
        nargs="+",
        metavar="NAME",
        help="these tensors instead of the model's outputs; patterns allowed; 'mark all' or '*' means every tensor",
    )
    group.add_argument(
        "--outputs-by-type",
        nargs="+",
        default=(),
        metavar="OPERATOR",
        help="what these operators compute, such as Conv, instead of the model's outputs, or besides --outputs",
    )
    group.add_argument(
        "--exclude-outputs", nargs="+", default=(), metavar="NAME", help="leave out these outputs; patterns allowed"
    )
    group.add_argument(
        "--set-unbounded-dds-upper-bound",
        nargs="+",
        metavar="[NAME:]BOUND",
        help="bound the sizes that the model computes from values, by a Min behind them, for engines that plan memory"
        " before; all sizes, or the tensor NAME; with --fold-constants, those that are left after it",
    )


def _add_folding(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("constants")
    group.add_argument(
        "--fold-constants",
        action="store_true",
        help="compute what does not depend on the inputs, and remove what that leaves unused "
        '(pip install "biopsy[surgeon]")',
    )
    group.add_argument(
        "--num-passes",
        "--num-const-fold-passes",
        type=types.count,
        metavar="N",
        help="fold at most N times (default: until nothing changes)",
    )
    group.add_argument(
        "--partitioning",
        choices=["basic", "recursive"],
        help="has no effect: each node is computed by itself, so one that fails never prevents the others",
    )
    group.add_argument("--no-fold-shapes", action="store_true", help="leave operations on shapes as they are")
    group.add_argument(
        "--no-per-pass-shape-inference", action="store_true", help="infer shapes before folding only, not in each pass"
    )
    group.add_argument(
        "--fold-size-threshold",
        type=types.binary_size,
        metavar="SIZE",
        help="compute no tensor of more bytes; 16K, 16M and 1G are KiB, MiB and GiB"
        " (default: results up to 262144 elements, of weights up to 8192)",
    )


derived_files = model_files.derived


def execute(args: argparse.Namespace, console: Console) -> int:
    """Do what was asked in a fixed order, write, and tell what changed."""
    model_files.warn_of_idle_options(args, console, runs=args.force_fallback_shape_inference)
    of_folding = {
        "--num-passes": args.num_passes is not None,
        "--partitioning": args.partitioning is not None,
        "--no-fold-shapes": args.no_fold_shapes,
        "--no-per-pass-shape-inference": args.no_per_pass_shape_inference,
        "--fold-size-threshold": args.fold_size_threshold is not None,
    }
    if not args.fold_constants:
        for option in (option for option, is_given in of_folding.items() if is_given):
            console.warn(f"{option} has no effect without --fold-constants")
    opened = model_files.opened(args)
    model = _with_outputs(opened, args).parsed()
    before = sanitize.count_operators(model)
    _change(model, args, opened, console)
    after = sanitize.count_operators(model)
    suspects = {
        "give --override-input-shapes sizes that the operators can work with": args.override_input_shapes,
        "leave out --force-fallback-shape-inference": args.force_fallback_shape_inference,
        "leave out --fold-constants, or add --no-fold-shapes": args.fold_constants,
    }
    at_fault = [line for line, given in suspects.items() if given]
    model_files.save(args, model, opened, console, at_fault=at_fault)
    for why in sanitize.endless(model):
        console.warn(f"what was written is no valid ONNX, and no engine can run it: {why}")
    console.say(f"{before.total()} -> {after.total()} nodes, written to {args.output}")
    console.note(f"  {', '.join(sanitize.changes(before, after)) or 'no node was added or removed'}")
    return 0


def _with_outputs(opened: model_files.Opened, args: argparse.Namespace) -> model_files.Opened:
    choice = OutputChoice(
        names=groups.all_or(args.onnx_outputs), without=args.exclude_outputs, operators=args.outputs_by_type
    )
    return opened if choice.changes_nothing else replace(opened, data=choose_outputs(opened.data, choice))


def _change(model: onnx.ModelProto, args: argparse.Namespace, opened: model_files.Opened, console: Console) -> None:
    from biopsy.model import folding

    if args.toposort:
        sanitize.sort_nodes(model)
    if args.override_input_shapes:
        shapes = parse_symbolic_shapes(args.override_input_shapes, "--override-input-shapes")
        for symbol in sanitize.freeze_inputs(model, shapes).conflicts:
            console.warn(
                f"the dimension {symbol!r} was given two sizes: it is fixed in the inputs named, and only there"
            )
    run = model_files.FallbackRun(args, opened.folder, console)
    _infer(model, run, args)
    if args.fold_constants:
        how = folding.Folding(
            shapes=not args.no_fold_shapes,
            infers=not (args.no_per_pass_shape_inference or args.no_shape_inference),
            threshold=args.fold_size_threshold,
            ignores_weights=args.ignore_external_data,
            **({} if args.num_passes is None else {"passes": args.num_passes}),
        )
        left_out = folding.fold_constants(model, opened.folder, how)
        if left_out:
            console.warn(left_out)
        _infer(model, run, args)
    if args.set_unbounded_dds_upper_bound is not None:
        bounds = by_name(args.set_unbounded_dds_upper_bound, "--set-unbounded-dds-upper-bound", "1000 boxes:300", _size)
        said = ", ".join(f"{name!r} at most {bound}" for name, bound in set_upper_bounds(model, bounds).items())
        console.note(f"  bounded: {said or 'nothing, every size is known or bounded already'}")
    if args.cleanup:
        sanitize.clean_up(model)


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) > _LARGEST_SIZE:
        raise ValueError(f"{text!r} is no whole number from 0 to {_LARGEST_SIZE}")
    return int(text)


_LARGEST_SIZE = (1 << 31) - 1


def _infer(model: onnx.ModelProto, run: model_files.FallbackRun, args: argparse.Namespace) -> None:
    if args.force_fallback_shape_inference:
        sanitize.infer_by_running(model, run.types)
    elif not args.no_shape_inference:
        sanitize.refresh_shapes(model)
