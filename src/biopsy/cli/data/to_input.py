"""``biopsy data to-input``: inputs and layerwise outputs into one file that ``--load-inputs`` takes."""

from __future__ import annotations

import argparse

from biopsy.cli.arguments import types
from biopsy.cli.console import Console
from biopsy.text import count

EPILOG = """\
A smaller candidate needs values for tensors inside the original model. Save all of them once, merge them with the
inputs, and let every check load the merged file:

  biopsy run model.onnx --onnxrt --save-inputs inputs.json \\
      --onnx-outputs mark all --save-outputs layerwise_golden.json
  biopsy data to-input inputs.json layerwise_golden.json -o layerwise_inputs.json

The extension chooses the format: .json, .npz, .safetensors; none for a folder with one file per iteration.
If two files hold the same tensor, the later file wins. Each iteration keeps its own values."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = EPILOG
    add(parser, "files or folders of inputs, or of outputs of one runner")


def execute(args: argparse.Namespace, console: Console) -> int:
    """Merge the files and say what the result holds."""
    from biopsy.tensors.files import feeds_of, merge_feeds, read_container, require_writable, write_feeds

    require_writable(args.output)
    files = []
    for path in args.paths:
        container = read_container(path)
        if len(container.runners) > 1:
            others = ", ".join(runner.runner for runner in container.runners[1:])
            console.warn(f"{path} holds several runners: {container.runners[0].runner} is taken, not {others}")
        files.append(feeds_of(container, path))
    merged = merge_feeds(files)
    write_feeds(args.output, merged)
    counts = ", ".join(f"{len(feeds[0])} of {path}" for path, feeds in zip(args.paths, files, strict=True))
    console.say(f"{args.output}: {count(len(merged), 'iteration')} of {len(merged[0])} tensors ({counts})")
    return 0


# The files of tensors that a data command reads and the one that it writes: their options.


def add(parser: argparse.ArgumentParser, read: str) -> None:
    """The paths, and ``--output``; ``read`` says what the files hold."""
    parser.add_argument("paths", nargs="+", type=types.READ, metavar="FILE", help=read)
    parser.add_argument("-o", "--output", type=types.WRITTEN, required=True, metavar="FILE", help="the file to write")
