"""``biopsy data concat``: the iterations of several files one after the other, in one file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from biopsy import errors
from biopsy.cli.console import Console
from biopsy.cli.data import to_input
from biopsy.tensors.results import RunnerResult
from biopsy.text import count

EPILOG = """\
All files hold inputs, or all hold outputs; of outputs, the iterations of each runner are joined by its name. To put
tensors of the same iteration together instead, use 'data merge'.

  biopsy data concat monday.json tuesday.json -o inputs.json
  biopsy run model.onnx --onnxrt --load-inputs inputs.json

The extension chooses the format: .json, .npz, .safetensors; none for a folder with one file per iteration."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = EPILOG
    to_input.add(parser, "files or folders, all of inputs or all of outputs")


def execute(args: argparse.Namespace, console: Console) -> int:
    """Join the files and say what the result holds."""
    from biopsy.tensors.files import (
        concatenated,
        feeds_of,
        read_container,
        require_writable,
        write_feeds,
        write_results,
    )

    require_writable(args.output)
    containers = [read_container(path) for path in args.paths]
    kinds = {container.kind for container in containers}
    if len(kinds) > 1:
        held = ", ".join(
            f"{path}: {'inputs' if container.kind == 'feeds' else 'outputs'}"
            for path, container in zip(args.paths, containers, strict=True)
        )
        raise errors.UsageError(
            f"inputs and outputs cannot be put one after the other ({held})",
            next_steps=["biopsy data merge puts the tensors of each iteration together"],
        )
    if kinds == {"feeds"}:
        feeds = [feed for path, one in zip(args.paths, containers, strict=True) for feed in feeds_of(one, path)]
        _warn_of_names(args.output, [("inputs", [list(feed) for feed in feeds])], console)
        write_feeds(args.output, feeds)
        console.say(f"{args.output}: {count(len(feeds), 'iteration')} of inputs")
        return 0
    results = concatenated(containers)
    _warn_of_names(args.output, [(result.runner, _names(result)) for result in results], console)
    write_results(args.output, results)
    for result in results:
        console.say(f"{args.output}: {count(len(result.iterations), 'iteration')} of {result.runner}")
    return 0


def _names(result: RunnerResult) -> list[list[str]]:
    return [list(iteration.outputs) for iteration in result.iterations]


def _warn_of_names(output: object, runners: Sequence[tuple[str, list[list[str]]]], console: Console) -> None:
    for runner, names in runners:
        other = next((number for number, one in enumerate(names) if set(one) != set(names[0])), None)
        if other is not None:
            console.warn(
                f"{output}: {runner}: iteration {other} has other tensors than iteration 0: "
                f"{', '.join(sorted(set(names[other]) ^ set(names[0])))} only in one of them"
            )
