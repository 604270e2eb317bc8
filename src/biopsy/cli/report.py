"""``biopsy report``: the page of a report, made later or somewhere else."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import file_kinds
from biopsy.quantities import size_text

if TYPE_CHECKING:
    from biopsy.cli.console import Console

_EPILOG = """\
The page is one file that loads nothing: attach it to an issue, or open it in any browser, offline. It is made of the
report alone, so it can be made on another machine than the one that had the failure.

  biopsy run model.onnx --onnxrt --openvino --report report.json
  biopsy report report.json -o page.html"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``report``."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "report",
        type=file_kinds.READ,
        metavar="FILE.json",
        help="the report, as the option --report of a command has written it",
    )
    parser.add_argument(
        "-o", "--output", type=file_kinds.WRITTEN, required=True, metavar="PAGE.html", help="the page to write"
    )


def execute(args: argparse.Namespace, console: Console) -> int:
    """Make the page."""
    from biopsy.filesystem.write import require_writable, write_whole
    from biopsy.report.page.branch import DamagedReport
    from biopsy.report.page.document import page_of
    from biopsy.report.page.reading import read_report

    require_writable(args.output)
    report = read_report(args.report)
    try:
        page = page_of(report).encode()
    except DamagedReport as error:
        raise errors.UsageError(f"{args.report} is damaged: {error.message}") from error
    write_whole(args.output, [page])
    console.say(f"{args.output}: {size_text(len(page))}")
    return 0
