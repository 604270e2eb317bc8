"""``biopsy debug workaround``: the smallest change with which a model is right in the engine that must be used."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import checks, file_kinds, groups
from biopsy.cli.debug import checking
from biopsy.cli.debug.workaround import options
from biopsy.cli.report_file import report_file

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.workarounds.question import WorkaroundQuestion
    from biopsy.workarounds.result import VerifiedChange, Workarounds

REST_OPTIONS = checks.REST_OPTIONS


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug workaround``."""
    options.add(parser)


def derived_files(args: argparse.Namespace) -> file_kinds.Derived:
    """The file for weights."""
    return groups.derived_weights(args)


def execute(args: argparse.Namespace, console: Console) -> int:
    """Search; returns 0 if a workaround was found, 1 if none was, 4 if nothing could be tried.

    Raises what ends with another status.
    """
    from biopsy.cli.debug.workaround.question import question_of
    from biopsy.cli.debug.workaround.summary import WorkaroundProgress, say_result, sections
    from biopsy.filesystem.write import require_writable
    from biopsy.workarounds.find import find_workarounds

    report = report_file(args, console)
    if args.output is not None:
        require_writable(args.output)
    question = question_of(args, console)
    with WorkaroundProgress(console, args) as progress, report.also_of_errors():
        with checking.ended_politely():
            progress.line("model", f"{args.model} in {question.template.spec.text}")
            found = find_workarounds(question, progress)
        status = _status(found)
        shown = [*enumerate(found.best, 1)]
        lines = {number: _line(args, question, one) for number, one in shown if _can_be_shown(args, found, one)}
        report.write(status, lambda: sections(found, question.index, progress, lines))
        say_result(console, found, question.index, lines)
        progress.ended(status)
    if found.interrupted or status == errors.Interrupted.status:
        kept = None if found.output is None else f"{found.output}, with which the model is right"
        raise errors.Interrupted(f"stopped by {found.stopped}; what is known is shown above", kept=kept)
    return status


def _status(found: Workarounds) -> int:
    if found.interrupted or (found.stopped and not found.found):
        return errors.Interrupted.status
    if not found.tried:
        return errors.CheckError.status
    return 0 if found.found else 1


def _can_be_shown(args: argparse.Namespace, found: Workarounds, one: VerifiedChange) -> bool:
    """Whether a line shows a workaround: a patched model must have been written."""
    return not one.changes_model or (found.output is not None and one is found.patched)


def _line(args: argparse.Namespace, question: WorkaroundQuestion, one: VerifiedChange) -> str:
    """The check that shows a workaround, as it is typed; a patched model stands where it was or would be written."""
    from biopsy.checks.command_line import parse
    from biopsy.shell_words import line_of
    from biopsy.tactics.setting_changes import ENGINE_PLACE, SETTINGS_PLACE, VARIABLE

    settings = one.engine.partition(":")[2]
    words = [
        word.replace(ENGINE_PLACE, one.engine).replace(SETTINGS_PLACE, settings) for word in question.template.words
    ]
    told = {} if question.template.names_settings else {VARIABLE: one.engine}
    environment = [f"{name}={value}" for name, value in {**one.environment, **told}.items()]
    model = args.output if one.changes_model else args.model
    typed = parse(words).words_for(model, checks.DEFAULT_CANDIDATE)
    return line_of([*(["env", *environment] if environment else []), *typed])
