"""``biopsy data to-input``: merges inputs and layerwise outputs into a file for ``--load-inputs``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from biopsy.cli.arguments import types
from biopsy.cli.arguments.declared import Options, option
from biopsy.cli.console import Console
from biopsy.tensors.files import feeds_of, merge_feeds, read_container, require_writable, write_feeds
from biopsy.text import count

EPILOG = """\
A smaller candidate needs values for tensors inside the original model. Save all of them once, merge them with the
inputs, and let every check load the merged file:

  biopsy run model.onnx --onnxrt --save-inputs inputs.json \\
      --onnx-outputs mark all --save-outputs layerwise_golden.json
  biopsy data to-input inputs.json layerwise_golden.json -o layerwise_inputs.json

The extension chooses the format: .json, .npz, .safetensors; none for a folder with one file per iteration.
If two files hold the same tensor, the later file wins. Each iteration keeps its own values."""


class JoinOptions(Options):
    """The files of tensors to join, and the result."""

    paths: Sequence[Path] = option(nargs="+", type=types.READ, metavar="FILE", meaning="{text}")
    output: Path = option("-o", "--output", type=types.WRITTEN, required=True, meaning="the file to write")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    JoinOptions.add(parser, paths="files or folders of inputs, or of outputs of one runner")


@JoinOptions.reading
def execute(options: JoinOptions, console: Console) -> int:
    """Merge the files and show what the result holds."""
    require_writable(options.output)
    files = []
    for path in options.paths:
        container = read_container(path)
        if len(container.runners) > 1:
            others = ", ".join(runner.runner for runner in container.runners[1:])
            console.warn(f"{path} holds several runners: {container.runners[0].runner} is taken, not {others}")
        files.append(feeds_of(container, path))
    merged = merge_feeds(files)
    write_feeds(options.output, merged)
    counts = ", ".join(f"{len(feeds[0])} of {path}" for path, feeds in zip(options.paths, files, strict=True))
    console.say(f"{options.output}: {count(len(merged), 'iteration')} of {len(merged[0])} tensors ({counts})")
    return 0
