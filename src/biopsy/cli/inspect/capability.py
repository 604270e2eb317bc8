"""``biopsy inspect capability``: which nodes an engine refuses, why, and which parts it takes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from biopsy import errors
from biopsy.checks import verdict
from biopsy.cli.arguments import absent_options, engines, groups, types
from biopsy.cli.arguments.engines import TensorrtOptions
from biopsy.cli.console import Console
from biopsy.engines.capability import Parts, Survey, file_names, survey
from biopsy.engines.registry import EngineSpec, create, installed
from biopsy.engines.worker import Worker
from biopsy.model import load, weights_file
from biopsy.model.index import ModelIndex, index_file
from biopsy.model.sources import noted_source
from biopsy.processes.cleanup import temporary_folder
from biopsy.text import count, printable

EXAMPLES = """\
examples:
  biopsy inspect capability model.onnx                          what does TensorRT refuse? (RTX needs no GPU)
  biopsy inspect capability model.onnx --with-partitioning      and write the parts into polygraphy_capability_dumps
  biopsy inspect capability model.onnx --openvino -o parts      write the parts as models
  biopsy inspect capability model.onnx --engine onnxrt:providers=cuda

exit status: 0 the engine takes every node; 1 it refuses some; 4 nothing was concluded"""

_MOST_SHOWN = 20
_DEFAULT_FOLDER = "polygraphy_capability_dumps"
"""Where Polygraphy writes the parts."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``inspect capability``."""
    parser.epilog = EXAMPLES
    groups.ModelOption.add(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=types.FOLDER_WRITTEN,
        metavar="DIR",
        help="write each part as a model into this folder",
    )
    parser.add_argument(
        "--with-partitioning",
        action="store_true",
        help=f"the same, into the folder {_DEFAULT_FOLDER} if -o names none; no parts if the engine takes every node",
    )
    parser.add_argument(
        "--build-timeout",
        type=types.duration,
        default="10m",
        metavar="TIME",
        help="a build that takes longer counts as a refusal: 90s, 10m, 1h (default: 10m)",
    )
    groups.WeightsFolderOption.add(parser)
    engines.EngineOptions.add_groups(parser, "the engine to ask (default: --trt)")
    TensorrtOptions.add_tensorrt(parser)
    absent_options.add(parser, "inspect capability")


def execute(args: argparse.Namespace, console: Console) -> int:
    """Ask, show, write."""
    spec, is_named = _engine(args, console)
    if args.with_partitioning and args.output is None:
        args.output = Path(_DEFAULT_FOLDER)
    index = index_file(args.model, args.external_data_dir)
    if args.output is not None:
        folder = args.output
        if folder == Path(_DEFAULT_FOLDER) and folder.is_symlink():
            raise errors.UsageError(f"{folder} is a symbolic link, and nobody has named it", next_steps=["-o ANOTHER"])
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise errors.UsageError(f"{folder} is not an empty folder, and nothing in it may be overwritten")
    parts = Parts(index)
    try:
        with (
            temporary_folder("biopsy-capability-") as scratch,
            Worker(spec.text, scratch, args.build_timeout) as worker,
        ):
            version = worker.version()
            verdict.report_looking()
            found = survey(index, worker, parts)
    except errors.EngineMissing as error:
        if is_named:
            raise
        raise _no_tensorrt(error.message) from error
    _show(found, f"{spec.text} {version}", console)
    if args.output is not None and not (args.with_partitioning and found.takes_all):
        _write(args.output, found, parts, console)
    return 0 if found.takes_all else 1


def _engine(args: argparse.Namespace, console: Console) -> tuple[EngineSpec, bool]:
    """The engine to ask, and whether it is named: TensorRT if not. Raises EngineMissing if that does not work here."""
    named = engines.EngineOptions.of(args).only_spec()
    if named is None:
        problem = installed("trt")[0].problem
        if problem is not None:
            raise _no_tensorrt(problem)
        console.note("no engine is named: TensorRT is asked")
    spec = named or EngineSpec("trt")
    create(spec)
    return spec, named is not None


def _no_tensorrt(problem: str) -> errors.EngineMissing:
    """What to say where TensorRT was not named, and cannot be asked."""
    return errors.EngineMissing(
        f"no engine is named, which means TensorRT, and that does not work here: {problem}",
        next_steps=["--openvino, --onnxrt or --engine NAME    asks another engine", "biopsy doctor trt"],
    )


def _show(found: Survey, engine: str, console: Console) -> None:
    nodes = found.index.nodes
    total, refused = len(nodes), len(found.refused)
    asked = [(found.queries, "question"), (found.builds, "build")]
    questions = " and ".join(count(number, noun) for number, noun in asked if number)
    console.say(f"{engine} takes {total - refused} of {total} nodes ({questions})")
    for number, reason in sorted(found.refused.items())[:_MOST_SHOWN]:
        console.say(f"  {nodes[number].label}   {reason}")
        source = noted_source(found.index, number)
        if source is not None:
            console.say(f"    {source.with_code}")
    if refused > _MOST_SHOWN:
        console.say(f"  and {refused - _MOST_SHOWN} more")
    for group in found.together:
        console.say(f"refused together, though neither half is: {_span(found.index, group.nodes)}")
        console.say(f"  {group.reason}")
        console.say("  biopsy debug reduce finds the smallest part that is refused")
    for number, why in found.unknown.items():
        console.warn(printable(f"{nodes[number].label} could not be asked about alone: {why}"))
    if refused:
        parts = found.parts()
        console.say(f"{count(len(parts), 'part')}:")
        for part in parts[:_MOST_SHOWN]:
            kind = "supported  " if part.supported else "unsupported"
            console.say(f"  {kind}  {_span(found.index, part.nodes)}")
        if len(parts) > _MOST_SHOWN:
            console.say(f"  and {len(parts) - _MOST_SHOWN} more")


def _span(index: ModelIndex, nodes: Sequence[int]) -> str:
    first, last = index.nodes[nodes[0]].label, index.nodes[nodes[-1]].label
    return first if len(nodes) == 1 else f"{len(nodes)} nodes, {first} to {last}"


def _write(folder: Path, found: Survey, parts: Parts, console: Console) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    each = found.parts()
    for part, path in zip(each, file_names(each, folder), strict=True):
        try:
            made = load.parse(parts.bytes_of(part.nodes), None)
            weights_file.save_with_weights(made, path, parts.index.folder, None)
        except errors.UsageError as error:
            console.warn(f"{path.name} is not written: {error.message}")
    console.note(f"{count(len(each), 'part')} in {folder}")
