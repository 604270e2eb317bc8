"""``biopsy debug known``: which public bugs a small failing model looks like."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import events
from biopsy.checks.command import CommandCheck
from biopsy.checks.words import as_word
from biopsy.cli.advice import Advice, say_advice
from biopsy.cli.arguments import checks, types
from biopsy.cli.console import COLUMN, Console
from biopsy.cli.debug import checking
from biopsy.cli.report import ReportOption, report_file
from biopsy.model.load import require_file
from biopsy.text import line_of

if TYPE_CHECKING:
    from biopsy.questions.known_failures.lookup import KnownLookup, SeenFailure

REST_OPTIONS = checks.REST_OPTIONS

_EPILOG = """\
It compares the pattern of the model (operators, what reads what, attributes that matter, element types; no names, sizes
or weights) with those of known bugs. It runs nothing but the check, once, if there is one.

examples:
  biopsy debug known piece.onnx --engine onnxrt
  biopsy debug known piece.onnx --check biopsy run {} --engine onnxrt:optimization=none --engine onnxrt
  biopsy debug known piece.onnx --engine openvino --release 2025.1.0 --stage build
  biopsy debug known piece.onnx --add my-bug --check biopsy run {} --openvino

exit status: 0 it was looked up, whether or not it is known; 2 wrong usage; 3 the model passes the check; 4 the model
cannot be read or is no piece, or the check could not be run"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug known``."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "model", type=types.READ, metavar="PIECE", help="a small model that fails, such as 'debug reduce' makes"
    )
    parser.add_argument(
        "--known-dir",
        type=types.FOLDER_READ,
        action="append",
        default=[],
        metavar="DIR",
        help="also look it up in the files of this folder (besides ~/.config/biopsy/known); may be given several times",
    )
    ReportOption.add(parser, also={"report": ["-o", "--output"]})
    seen = parser.add_argument_group("how it fails", "What is not said here, --check finds out")
    seen.add_argument("--engine", default="", metavar="NAME[:key=value,...]", help="the engine that fails")
    seen.add_argument("--release", default="", metavar="VERSION", help="its release (default: the installed one)")
    seen.add_argument("--stage", choices=("load", "build", "run", "compare"), default="", help="where it fails")
    seen.add_argument("--kind", default="", metavar="KIND", help="the kind of failure, such as mismatch or Fail")
    adding = parser.add_argument_group("a bug that is not known yet").add_mutually_exclusive_group()
    adding.add_argument(
        "--add", metavar="NAME", help="write a file for this bug, to be filled in, into the folder of your own ones"
    )
    adding.add_argument(
        "--save", type=types.WRITTEN, metavar="FILE.yaml", help="write it to this file, which is not there yet"
    )
    group = parser.add_argument_group("the check")
    checks.CheckOption.add(
        group,
        check="the command that the model fails, run once; takes the rest of the line. In it, {}, or the name "
        f"{checks.DEFAULT_CANDIDATE}, stands for the model",
    )
    checks.CheckTimeOptions.add(group, check_timeout="none")


def execute(args: argparse.Namespace, console: Console) -> int:
    """Look it up; returns 0 whether or not it is known."""
    from biopsy.questions.known_failures.lookup import look_up

    report = report_file(args, console)
    require_file(args.model)
    target = _target(args)

    def warn(event: events.Event) -> None:
        if isinstance(event, events.Remark):
            console.warn(event.text)

    with report.also_of_errors():
        found = look_up(args.model, _seen(args), args.known_dir, warn)
        report.write(0, lambda: _sections(args, found))
        _say(console, args, found)
    if target is not None:
        from biopsy.questions.known_failures.lookup import entry_text, write_entry

        write_entry(target, entry_text(found.fingerprint, found.seen))
        console.say("", f"written to {target}: fill in its title, its issue and what avoids it")
    return 0


def _seen(args: argparse.Namespace) -> SeenFailure:
    """How the model fails, as it was said or as the check shows."""
    from biopsy.questions.known_failures.lookup import seen_by, seen_in

    checked = bool(args.check)
    seen = seen_in(args.engine, release=args.release, stage=args.stage, kind=args.kind, is_checked=checked)
    if not checked:
        return seen

    checking.require_names(args.check, args.model)
    with checking.ended_politely():
        return seen_by(CommandCheck(args.check, checks.DEFAULT_CANDIDATE, args.check_timeout), args.model, seen)


def _target(args: argparse.Namespace) -> Path | None:
    """The new file that is wanted."""
    if args.add is None:
        path: Path | None = args.save
        return path
    from biopsy.questions.known_failures.lookup import new_file

    return new_file(args.add)


# What is shown


def _say(console: Console, args: argparse.Namespace, found: KnownLookup) -> None:
    doubt = "" if found.fingerprint.exact else " (too symmetrical to be exact: others may have it too)"
    console.note(f"{'piece':<{COLUMN}} {args.model} · {found.fingerprint.digest}{doubt}")
    for line in found.fingerprint.text.splitlines():
        console.note(f"{'':<{COLUMN}} {line}")
    console.note(f"{'fails':<{COLUMN}} {_told(found.seen)}")
    console.note("")
    for number, match in enumerate(found.matches):
        if number:
            console.say("")
        console.say(f"It {match.sentence}.")
        for head, text in match.evidence(found.seen):
            console.say(f"  {head:<{COLUMN}} {text}")
    if found.best is None:
        if found.matches:
            console.say("")
        near = "Otherwise it" if found.matches else "It"
        console.say(f"{near} is not in the list of known failures.")
    for reference in found.undecided:
        console.warn(f"{reference} could not be compared in time")
    say_advice(console, list(_advice(args, found)))


def _told(seen: SeenFailure) -> str:
    told = " · ".join(filter(None, (seen.engine, seen.release, seen.stage, seen.kind)))
    return told or "how is not known: --engine, or --check, says it"


def _advice(args: argparse.Namespace, found: KnownLookup) -> Iterator[Advice]:
    if found.best is None and not (args.add or args.save) and found.fingerprint.exact:
        words = [one for one in ("--engine", found.seen.engine) if found.seen.engine]
        line = line_of(["biopsy", "debug", "known", as_word(args.model), *words, "--add", "my-bug"])
        yield Advice(line, "add it to your own list")


def _sections(args: argparse.Namespace, found: KnownLookup) -> Mapping[str, Any]:
    """What a report tells."""
    from biopsy.findings.answers import known_verdict
    from biopsy.findings.model import model_tree_of
    from biopsy.findings.report import versions_tree

    return {
        "verdict": known_verdict(found),
        "model": model_tree_of(args.model),
        "versions": versions_tree([args.engine] if args.engine else []),
        "known": found.as_json(),
        "next": [vars(one) for one in _advice(args, found)],
    }
