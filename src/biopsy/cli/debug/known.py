"""``biopsy debug known``: looks up a small failing model in the lists of known bugs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from biopsy import events
from biopsy.checks.command import CommandCheck
from biopsy.checks.words import as_word
from biopsy.cli.advice import Advice, say_advice
from biopsy.cli.arguments import checks, types
from biopsy.cli.arguments.declared import option
from biopsy.cli.console import COLUMN, Console
from biopsy.cli.debug import checking
from biopsy.cli.report import ReportOption
from biopsy.findings.model import model_tree_of
from biopsy.findings.report import versions_tree
from biopsy.model.load import require_file
from biopsy.questions.known_failures.lookup import (
    KnownLookup,
    SeenFailure,
    entry_text,
    look_up,
    new_file,
    seen_by,
    seen_in,
    write_entry,
)
from biopsy.text import line_of

REST_OPTIONS = checks.REST_OPTIONS

EPILOG = """\
It compares the pattern of the model (operators, what reads what, attributes that matter, element types; no names, sizes
or weights) with those of known bugs. It runs nothing but the check, once, if there is one.

examples:
  biopsy debug known piece.onnx --engine onnxrt
  biopsy debug known piece.onnx --check biopsy run {} --engine onnxrt:optimization=none --engine onnxrt
  biopsy debug known piece.onnx --engine openvino --release 2025.1.0 --stage build
  biopsy debug known piece.onnx --add my-bug --check biopsy run {} --openvino

exit status: 0 it was looked up, whether or not it is known; 2 wrong usage; 3 the model passes the check; 4 the model
cannot be read or is not a piece, or the check could not be run"""


_HOW = "how it fails (what is not said here, --check finds out)"


class KnownOptions(ReportOption, checks.CheckOption, checks.CheckTimeOptions):
    """All options of ``debug known``."""

    model: Path = option(
        type=types.READ, metavar="PIECE", meaning="a small model that fails, such as 'debug reduce' makes"
    )
    known_dir: Sequence[Path] = option(
        "--known-dir",
        type=types.FOLDER_READ,
        action="append",
        default=[],
        metavar="DIR",
        meaning="also look it up in the files of this folder (besides ~/.config/biopsy/known); may be given several "
        "times",
    )
    engine: str = option(
        "--engine", title=_HOW, default="", metavar="NAME[:key=value,...]", meaning="the engine that fails"
    )
    release: str = option(
        "--release", title=_HOW, default="", metavar="VERSION", meaning="its release (default: the installed one)"
    )
    stage: str = option(
        "--stage", title=_HOW, choices=("load", "build", "run", "compare"), default="", meaning="where it fails"
    )
    kind: str = option(
        "--kind", title=_HOW, default="", metavar="KIND", meaning="the kind of failure, such as mismatch or Fail"
    )
    new_name: str | None = option(
        "--add",
        title="a bug that is not known yet",
        rivals="new",
        metavar="NAME",
        meaning="write a file for this bug, to be filled in, into the folder of your own ones",
    )
    save: Path | None = option(
        "--save",
        title="a bug that is not known yet",
        rivals="new",
        type=types.WRITTEN,
        metavar="FILE.yaml",
        meaning="write it to this file, which is not there yet",
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug known``."""
    KnownOptions.add(
        parser,
        also={"report": ["-o", "--output"]},
        check="the command that the model fails, run once; takes the rest of the line. In it, {}, or the name "
        f"{checks.DEFAULT_CANDIDATE}, stands for the model",
        check_timeout="none",
    )


@KnownOptions.reading
def execute(options: KnownOptions, console: Console) -> int:
    """Look the model up; returns 0 whether or not it is known."""
    from biopsy.findings.answers import known_verdict  # imports numpy

    report = options.report_file(console)
    require_file(options.model)
    target = options.save if options.new_name is None else new_file(options.new_name)

    def warn(event: events.Event) -> None:
        if isinstance(event, events.Remark):
            console.warn(event.text)

    def sections() -> Mapping[str, Any]:
        return {
            "verdict": known_verdict(lookup),
            "model": model_tree_of(options.model),
            "versions": versions_tree([options.engine] if options.engine else []),
            "known": lookup.as_json(),
            "next": [vars(each) for each in _advice(options, lookup)],
        }

    with report.also_of_errors():
        lookup = look_up(options.model, _seen(options), options.known_dir, warn)
        report.write(0, sections)
        _say(console, options, lookup)
    if target is not None:
        write_entry(target, entry_text(lookup))
        console.say("", f"written to {target}: fill in its title, its issue and what avoids it")
    return 0


def _seen(options: KnownOptions) -> SeenFailure:
    """How the model fails, by the options or by a run of the check."""
    seen = seen_in(
        options.engine,
        release=options.release,
        stage=options.stage,
        kind=options.kind,
        is_checked=bool(options.check),
    )
    if not options.check:
        return seen
    checking.require_names(options.check, options.model)
    with checking.ended_politely():
        check = CommandCheck(options.check, checks.DEFAULT_CANDIDATE, options.check_timeout)
        return seen_by(check, options.model, seen)


def _say(console: Console, options: KnownOptions, lookup: KnownLookup) -> None:
    seen = lookup.seen
    failure = " · ".join(filter(None, (seen.engine, seen.release, seen.stage, seen.kind)))
    console.note(
        f"{'piece':<{COLUMN}} {options.model} · {lookup.fingerprint.digest}",
        *(f"{'':<{COLUMN}} {line}" for line in lookup.fingerprint.text.splitlines()),
        f"{'fails':<{COLUMN}} {failure or 'how is not known: --engine, or --check, says it'}",
        "",
    )
    for match in lookup.matches:
        evidence = [f"  {head:<{COLUMN}} {text}" for head, text in match.evidence(seen)]
        console.say(*([""] if match is not lookup.matches[0] else []), f"It {match.sentence}.", *evidence)
    if lookup.best is None:
        near = ["", "Otherwise it"] if lookup.matches else ["It"]
        console.say(*near[:-1], f"{near[-1]} is not in the list of known failures.")
    for reference in lookup.undecided:
        console.warn(f"{reference} could not be compared in time")
    say_advice(console, _advice(options, lookup))


def _advice(options: KnownOptions, lookup: KnownLookup) -> list[Advice]:
    if lookup.best is not None or options.new_name or options.save:
        return []
    words = ["--engine", lookup.seen.engine] if lookup.seen.engine else []
    line = line_of(["biopsy", "debug", "known", as_word(options.model), *words, "--add", "my-bug"])
    return [Advice(line, "add it to your own list")]
