"""``--reduce``: the smallest part of the model that fails as it does, found with a release that fails."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors, events
from biopsy.cli.arguments import checks, file_kinds
from biopsy.cli.arguments.given_options import given

if TYPE_CHECKING:
    from biopsy.blame.releases.probe import ReleaseQuestion
    from biopsy.cli.console import Console
    from biopsy.environments.releases import Release

_PASSED_ON = ("--fail-code", "--ignore-fail-code", "--fail-regex", "--check-timeout", "--external-data-dir")


def piece_file(model: Path) -> Path:
    """Where the piece is written."""
    return Path(f"{model.stem}_reduced.onnx")


def piece_of(
    args: argparse.Namespace, console: Console, question: ReleaseQuestion, release: Release
) -> ReleaseQuestion:
    """The same question about the smallest part of the model that fails with ``release``.

    Raises what ``debug reduce`` raises, UsageError for a check whose words do not say where the release belongs.
    """
    from biopsy.blame.releases.runs import installed

    check = question.check
    if not check.names_release:
        raise errors.UsageError(
            "--reduce needs a check that says where the release belongs",
            next_steps=["write {python} in it, in the place of python"],
        )
    console.note("", f"reduce     with {check.package} {release.version}")
    with installed(check, release, events.ignore) as environment:
        words = check.words_of(release.version, str(environment.python))
        fed = _reduced(args, console, words)
    console.note("")
    piece = piece_file(args.model)
    if fed is None:
        return replace(question, model=piece)
    return replace(question, model=piece, check=replace(check, words=_fed(check.words, fed)))


def _reduced(args: argparse.Namespace, console: Console, check: tuple[str, ...]) -> Path | None:
    """Reduce, as the command does; the file of inputs that the piece is fed, if there is one."""
    from biopsy.cli.commands import COMMANDS
    from biopsy.cli.debug import checking
    from biopsy.cli.debug.reduce import command as reduce
    from biopsy.cli.debug.reduce.outputs import feeds_recorded
    from biopsy.cli.parser import parser_of
    from biopsy.reduction.inputs_file import inputs_file

    output = piece_file(args.model)
    words = ["debug", "reduce", str(args.model), "-o", str(output), "--match", args.match, *_options(args)]
    command = next(one for one in COMMANDS if one.words == ("debug", "reduce"))
    asked = parser_of("biopsy", command).parse_args(words[2:])
    asked.check, asked.words = list(check), [*words, "--check", *check]
    asked.began, asked.started, asked.warming = time.time(), time.monotonic(), None
    fed = inputs_file(output) if feeds_recorded(asked, checking.own_run(asked), output) else None
    status = reduce.execute(asked, console)
    if status != 0:
        raise errors.Interrupted("the reduction ended before its end", kept=str(output))
    return fed


def _options(args: argparse.Namespace) -> list[str]:
    """The options that mean the same for ``debug reduce``."""
    shown = ["--hide-fail-output"] if args.hide_fail_output else ["--show-output"] if args.show_output else []
    return [word for option in given(args, _PASSED_ON) for word in option.words] + shown


def _fed(words: tuple[str, ...], inputs: Path) -> tuple[str, ...]:
    """The words of a ``biopsy run`` with the inputs of the piece."""
    from biopsy.checks.command_line import LOAD_INPUTS, OwnRun

    return OwnRun(words).without_option(LOAD_INPUTS).with_options(LOAD_INPUTS[0], str(inputs)).words


def derived(args: argparse.Namespace) -> file_kinds.Derived:
    """The piece, and what stands beside it."""
    from biopsy.reduction.inputs_file import inputs_file

    if not args.reduce:
        return {}
    piece = piece_file(args.model)
    return {
        "the piece of --reduce": (piece, file_kinds.WRITTEN),
        "the inputs of the piece": (inputs_file(piece), file_kinds.WRITTEN),
        "the journal of --reduce": (checks.journal_of(piece), file_kinds.WRITTEN),
    }
