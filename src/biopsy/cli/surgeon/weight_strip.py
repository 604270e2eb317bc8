"""``biopsy surgeon weight-strip``: removes the weights that an engine can be refitted with."""

from __future__ import annotations

import argparse
from pathlib import Path

from biopsy.cli.arguments import types
from biopsy.cli.arguments.declared import option
from biopsy.cli.arguments.types import text_in
from biopsy.cli.console import Console
from biopsy.cli.model_files import ChangeOptions
from biopsy.model import stripping
from biopsy.model.load import parse, require_file
from biopsy.text import count, size_text

EPILOG = """\
What is left is small and holds no trained values: enough to build an engine without its weights, and to show somebody
the model. 'surgeon weight-reconstruct' makes up values for it. Fold constants first: weights that nodes compute stay.

examples:
  biopsy surgeon sanitize model.onnx -o folded.onnx --fold-constants
  biopsy surgeon weight-strip folded.onnx -o stripped.onnx
  biopsy surgeon weight-strip folded.onnx -o stripped.onnx --exclude-list keep.txt"""


_LARGEST_LIST = 64 << 20


class StripOptions(ChangeOptions):
    """All options of ``surgeon weight-strip``."""

    exclude_list: Path | None = option(
        "--exclude-list",
        type=types.READ,
        meaning="a text file with the names of weights that keep their values, one in each line",
    )

    def names_excluded(self) -> set[str]:
        """The names in the file of --exclude-list. Raises UsageError if it cannot be read, or is not text."""
        if self.exclude_list is None:
            return set()
        require_file(self.exclude_list, "list of names")
        lines = text_in(self.exclude_list, _LARGEST_LIST, "--exclude-list").split("\n")
        return {line.rstrip() for line in lines} - {""}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``surgeon weight-strip``."""
    StripOptions.add(parser)


derived_files = StripOptions.reading(StripOptions.derived)


@StripOptions.reading
def execute(options: StripOptions, console: Console) -> int:
    """Strip the weights, write the model, and show how much was removed."""
    excluded = options.names_excluded()
    data = options.read()
    model = parse(data, options.model)
    strip = stripping.strip(model, None if options.ignore_external_data else options.folder, excluded)
    options.save(model, data, console, loads=False)
    for name in strip.unused:
        console.warn(f"--exclude-list names {name!r}, which is not a weight that would be stripped")
    console.say(f"{count(len(strip.names), 'weight')} stripped, {size_text(strip.size)}, written to {options.output}")
    if strip.sparse:
        console.note(f"  {count(len(strip.sparse), 'of them is', 'of them are')} marked as 2:4 sparse")
    return 0
