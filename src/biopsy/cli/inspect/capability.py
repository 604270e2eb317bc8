"""``biopsy inspect capability``: shows which nodes an engine refuses, why, and which parts of the model it takes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from biopsy import errors
from biopsy.checks import verdict
from biopsy.cli.arguments import engines, groups, types
from biopsy.cli.arguments.declared import option, switch
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

EPILOG = """\
examples:
  biopsy inspect capability model.onnx                          what does TensorRT refuse? (RTX needs no GPU)
  biopsy inspect capability model.onnx --with-partitioning      and write the parts into polygraphy_capability_dumps
  biopsy inspect capability model.onnx --openvino -o parts      write the parts as models
  biopsy inspect capability model.onnx --engine onnxrt:providers=cuda

exit status: 0 the engine takes every node; 1 it refuses some; 4 nothing was concluded"""

_MOST_SHOWN = 20
_DEFAULT_FOLDER = "polygraphy_capability_dumps"
"""The default of Polygraphy."""


class CapabilityOptions(groups.ModelOption, groups.WeightsFolderOption, engines.EngineOptions):
    """All options of ``inspect capability``."""

    output: Path | None = option(
        "-o", "--output", type=types.FOLDER_WRITTEN, meaning="write each part as a model into this folder"
    )
    with_partitioning: bool = switch(
        "--with-partitioning",
        meaning=f"write the parts, into the folder {_DEFAULT_FOLDER} without -o; none if the engine takes every node",
    )
    build_timeout: float = option(
        "--build-timeout",
        type=types.duration,
        default="10m",
        meaning="a build that takes longer counts as a refusal: 90s, 10m, 1h (default: 10m)",
    )

    def folder(self) -> Path | None:
        """The folder for the parts, or None.

        Raises UsageError if it is not empty, or if the default folder is a symbolic link.
        """
        if self.output is None and not self.with_partitioning:
            return None
        folder = self.output or Path(_DEFAULT_FOLDER)
        if folder == Path(_DEFAULT_FOLDER) and folder.is_symlink():
            raise errors.UsageError(
                f"the default folder {folder} is a symbolic link, which is not followed", next_steps=["-o ANOTHER"]
            )
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise errors.UsageError(f"{folder} is not an empty folder, and nothing in it may be overwritten")
        return folder


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``inspect capability``."""
    CapabilityOptions.add(
        parser, without=TensorrtOptions.declared, titles={"engines": "the engine to ask (default: --trt)"}
    )
    TensorrtOptions.add(parser)


@CapabilityOptions.reading
def execute(options: CapabilityOptions, console: Console) -> int:
    """Find and show the refused nodes, and write the parts."""
    named = options.only_spec()
    if named is None:
        problem = installed("trt")[0].problem
        if problem is not None:
            raise _no_tensorrt(problem)
        console.note("no engine is named: TensorRT is asked")
    spec = named or EngineSpec("trt")
    create(spec)
    index = index_file(options.model, options.external_data_dir)
    folder, parts = options.folder(), Parts(index)
    try:
        with (
            temporary_folder("biopsy-capability-") as scratch,
            Worker(spec.text, scratch, options.build_timeout) as worker,
        ):
            version = worker.version()
            verdict.report_looking()
            result = survey(index, worker, parts)
    except errors.EngineMissing as error:
        if named is not None:
            raise
        raise _no_tensorrt(error.message) from error
    asked = [(result.queries, "question"), (result.builds, "build")]
    questions = " and ".join(count(number, noun) for number, noun in asked if number)
    total = len(index.nodes)
    console.say(f"{spec.text} {version} takes {total - len(result.refused)} of {total} nodes ({questions})")
    for line in _refused_lines(result):
        console.say(line)
    for number, why in result.unknown.items():
        console.warn(printable(f"{index.nodes[number].label} could not be tested alone: {why}"))
    for line in _part_lines(result):
        console.say(line)
    if folder is not None and not (options.with_partitioning and result.takes_all):
        _write(folder, result, parts, console)
    return 0 if result.takes_all else 1


def _no_tensorrt(problem: str) -> errors.EngineMissing:
    """The error if no engine is named and TensorRT does not work here."""
    return errors.EngineMissing(
        f"no engine is named, which means TensorRT, and that does not work here: {problem}",
        next_steps=["--openvino, --onnxrt or --engine NAME    asks another engine", "biopsy doctor trt"],
    )


def _write(folder: Path, result: Survey, parts: Parts, console: Console) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    written = result.parts()
    for part, path in zip(written, file_names(written, folder), strict=True):
        try:
            piece = load.parse(parts.bytes_of(part.nodes), None)
            weights_file.save_with_weights(piece, path, result.index.folder, None)
        except errors.UsageError as error:
            console.warn(f"{path.name} is not written: {error.message}")
    console.note(f"{count(len(written), 'part')} in {folder}")


def _refused_lines(result: Survey) -> Iterator[str]:
    for number, reason in sorted(result.refused.items())[:_MOST_SHOWN]:
        yield f"  {result.index.nodes[number].label}   {reason}"
        source = noted_source(result.index, number)
        if source is not None:
            yield f"    {source.with_code}"
    if len(result.refused) > _MOST_SHOWN:
        yield f"  and {len(result.refused) - _MOST_SHOWN} more"
    for group in result.together:
        yield f"refused together, though neither half is: {_span(result.index, group.nodes)}"
        yield f"  {group.reason}"
        yield "  biopsy debug reduce finds the smallest part that is refused"


def _part_lines(result: Survey) -> Iterator[str]:
    parts = result.parts() if result.refused else []
    if parts:
        yield f"{count(len(parts), 'part')}:"
    for part in parts[:_MOST_SHOWN]:
        yield f"  {'supported  ' if part.supported else 'unsupported'}  {_span(result.index, part.nodes)}"
    if len(parts) > _MOST_SHOWN:
        yield f"  and {len(parts) - _MOST_SHOWN} more"


def _span(index: ModelIndex, nodes: Sequence[int]) -> str:
    first, last = index.nodes[nodes[0]].label, index.nodes[nodes[-1]].label
    return first if len(nodes) == 1 else f"{len(nodes)} nodes, {first} to {last}"
