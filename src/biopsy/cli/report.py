"""``biopsy report``, which makes a page of a report; and the option ``--report`` of the commands that write one."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from biopsy import errors
from biopsy.cli import advice, commands
from biopsy.cli.arguments import types
from biopsy.cli.arguments.declared import Options, option
from biopsy.processes.writing import require_writable, write_whole
from biopsy.text import line_of, size_text

if TYPE_CHECKING:
    from biopsy.cli.console import Console

_EPILOG = """\
The page is one file that loads nothing: attach it to an issue, or open it in any browser, offline. It is made of the
report alone, so it can be made on another machine than the one that had the failure. Of the folder of a diagnosis, the
bundle to send is made too, if the model fails.

  biopsy run model.onnx --onnxrt --openvino --report report.json
  biopsy report report.json -o page.html
  biopsy report model_diagnosis/                       model_diagnosis.html and model_diagnosis.zip

exit status: 0 the page is made, and the bundle if the model fails; 2 wrong usage; 4 the page is made, but the script of
the bundle does not show the failure"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``report``."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "report",
        type=types.READ,
        metavar="FILE.json|DIR",
        help="the report, as the option --report of a command has written it, or the folder of a diagnosis",
    )
    parser.add_argument(
        "-o", "--output", type=types.WRITTEN, metavar="PAGE.html", help="the page to write (default: beside the report)"
    )


def derived_files(args: argparse.Namespace) -> types.Derived:
    """The page, if no option names it, and the bundle of a diagnosis."""
    return {
        "the page": (None if args.output else _beside(args.report, _PAGE), types.WRITTEN),
        "the bundle": (_beside(args.report, ".zip") if args.report.is_dir() else None, types.WRITTEN),
    }


def _beside(report: Path, ending: str) -> Path:
    """The file of this ending beside a report, or beside the folder of a diagnosis."""
    place = report.resolve() if report.name in ("", "..") else report
    return place.with_name(f"{place.name}{ending}") if report.is_dir() else place.with_suffix(ending)


def execute(args: argparse.Namespace, console: Console) -> int:
    """Make the page; of a diagnosis, also the bundle."""
    args.output = args.output or _beside(args.report, _PAGE)
    if args.report.is_dir():
        return _of_diagnosis(args.report, args.output)
    from biopsy.findings.page.document import page_of
    from biopsy.findings.page.reading import DamagedReport, read_report

    require_writable(args.output)
    report = read_report(args.report)
    try:
        page = page_of(report).encode()
    except DamagedReport as error:
        raise errors.UsageError(f"{args.report} is damaged: {error.message}") from error
    write_whole(args.output, [page])
    console.say(f"{args.output}: {size_text(len(page))}")
    return 0


def _of_diagnosis(folder: Path, page: Path) -> int:
    """Repeat the diagnosis that a folder holds, from its answers alone, to write its page and its bundle."""
    from biopsy.cli.app import main
    from biopsy.cli.arguments.checks import REST_OPTIONS
    from biopsy.diagnosis.evidence import line_of_evidence

    words = line_of_evidence(folder)
    made = ["--answered", "--dir", str(folder), "--report", str(page), "--bundle", str(_beside(folder, ".zip"))]
    return main(advice.words_with(words, REST_OPTIONS, "diagnose", made, ["--dir"])[1:])


Sections: TypeAlias = "Callable[[], Mapping[str, Any]]"
"""Makes the sections of a report that are the command's own; called only if a report is written."""

_PAGE = ".html"


@dataclass(frozen=True, kw_only=True)
class ReportFile:
    """The report of one command line; it includes the remarks of ``console``."""

    options: ReportOption
    console: Console

    @property
    def path(self) -> Path | None:
        """The file to write; None if no report is wanted."""
        return self.options.report

    @property
    def folder(self) -> Path:
        """The folder that paths in the report are relative to."""
        return Path() if self.path is None else self.path.parent

    def write(self, status: int, sections: Sections) -> None:
        """Write the report of a command that ends with this status. Raises UsageError if it cannot be written."""
        if self.path is None:
            return
        report = self.as_bytes(status, sections)
        write_whole(self.path, [page_in(report) if self.path.suffix == _PAGE else report])

    def as_bytes(self, status: int, sections: Sections) -> bytes:
        """The report of a command that ends with this status, as JSON."""
        from biopsy.findings.report import as_json, report_tree
        from biopsy.records import plain

        words, seconds = self.options.words, time.monotonic() - self.options.started
        content = {**sections(), "remarks": [vars(remark) for remark in self.console.remarks]}
        if self.console.basis.text and content.get("verdict"):
            content["verdict"] = {**plain(content["verdict"]), "settings": self.console.basis.text}
        command = commands.read(words).command
        head = " ".join(command.words) if command else "", line_of(["biopsy", *words])
        return as_json(report_tree(*head, status=status, began=self.options.began, seconds=seconds, sections=content))

    @contextlib.contextmanager
    def also_of_errors(self, sections: Sections = dict) -> Iterator[None]:
        """Write a report also if the block raises a BiopsyError other than a UsageError."""
        try:
            yield
        except errors.BiopsyError as error:
            if not isinstance(error, errors.UsageError):
                from biopsy.findings.verdict import verdict_of_error

                verdict = verdict_of_error(error)
                try:
                    self.write(error.status, lambda: {"verdict": verdict, **sections()})
                except errors.UsageError as unwritten:  # the first error is the one to raise
                    self.console.warn(unwritten.message)
            raise


def page_in(report: bytes) -> bytes:
    """The HTML page of a report in JSON, the same as ``biopsy report`` makes of its file."""
    from biopsy.findings.page.document import page_of

    return page_of(json.loads(report)).encode()


class ReportOption(Options):
    """``--report``, and facts for the report: the words of the command line, and when it began.

    ``began`` is in seconds since 1970, ``started`` by ``time.monotonic``.
    """

    report: Path | None = option(
        "--report",
        type=types.WRITTEN,
        meaning="write all that was found to this file: FILE.json as JSON, FILE.html as a page that shows it",
    )
    words: Sequence[str] = ()
    began: float = 0
    started: float = 0

    def report_file(self, console: Console) -> ReportFile:
        """The report to write. Raises UsageError if it could not be written."""
        if self.report is not None:
            require_writable(self.report)
        return ReportFile(options=self, console=console)


def report_file(args: argparse.Namespace, console: Console) -> ReportFile:
    """The report of a command line. Raises the exceptions of ``ReportOption.report_file``."""
    return ReportOption.of(args).report_file(console)
