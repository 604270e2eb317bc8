"""``biopsy data concat``: joins the iterations of several files in one file."""

from __future__ import annotations

import argparse

from biopsy import errors
from biopsy.cli.console import Console
from biopsy.cli.data.to_input import JoinOptions
from biopsy.tensors.files import concatenated, feeds_of, read_container, require_writable, write_feeds, write_results
from biopsy.text import count

EPILOG = """\
All files hold inputs, or all hold outputs; of outputs, the iterations of each runner are joined by its name. To put
tensors of the same iteration together instead, use 'data merge'.

  biopsy data concat monday.json tuesday.json -o inputs.json
  biopsy run model.onnx --onnxrt --load-inputs inputs.json

The extension chooses the format: .json, .npz, .safetensors; none for a folder with one file per iteration."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    JoinOptions.add(parser, paths="files or folders, all of inputs or all of outputs")


@JoinOptions.reading
def execute(options: JoinOptions, console: Console) -> int:
    """Join the files and show what the result holds."""
    output = options.output
    require_writable(output)
    containers = {path: read_container(path) for path in options.paths}
    kinds = {container.kind for container in containers.values()}
    if len(kinds) > 1:
        held = ", ".join(
            f"{path}: {'inputs' if container.kind == 'feeds' else 'outputs'}" for path, container in containers.items()
        )
        raise errors.UsageError(
            f"inputs and outputs cannot be put one after the other ({held})",
            next_steps=["biopsy data merge puts the tensors of each iteration together"],
        )
    if kinds == {"feeds"}:
        feeds = [feed for path in options.paths for feed in feeds_of(containers[path], path)]
        joined = {"inputs": [set(feed) for feed in feeds]}
    else:
        results = concatenated([containers[path] for path in options.paths])
        joined = {result.runner: [set(each.outputs) for each in result.iterations] for result in results}
    for kind, names in joined.items():
        other = next((number for number, iteration in enumerate(names) if iteration != names[0]), None)
        if other is not None:
            console.warn(
                f"{output}: {kind}: iteration {other} has other tensors than iteration 0: "
                f"{', '.join(sorted(names[other] ^ names[0]))} only in one of them"
            )
    if kinds == {"feeds"}:
        write_feeds(output, feeds)
    else:
        write_results(output, results)
    for kind, names in joined.items():
        console.say(f"{output}: {count(len(names), 'iteration')} of {kind}")
    return 0
