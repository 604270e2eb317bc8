"""What is asked of releases: the check with a place for them, and which of them are looked at."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import checks, packages
from biopsy.cli.debug import checking, engine_substitution
from biopsy.similar_names import did_you_mean
from biopsy.text import printable

if TYPE_CHECKING:
    from biopsy.blame.releases.probe import ReleaseQuestion
    from biopsy.blame.releases.release_check import ReleaseCheck
    from biopsy.blame.releases.span import ReleaseSpan
    from biopsy.checks.command_line import OwnRun
    from biopsy.cli.console import Console
    from biopsy.engines.registry import EngineSpec


def question_of(args: argparse.Namespace, console: Console) -> ReleaseQuestion:
    """The question of a command line. Raises UsageError, ModelError."""
    from biopsy.blame.releases.probe import ReleaseQuestion
    from biopsy.blame.releases.release_check import PYTHON_VARIABLE
    from biopsy.engines.base import ModelInput
    from biopsy.model.index import index_file
    from biopsy.model.load import read_bytes

    ModelInput(read_bytes(args.model), args.external_data_dir or args.model.parent, args.model)  # checks what it names
    checking.require_names(args, args.model)
    check = _check(args)
    if not check.names_release:
        console.note(f"the check has no {{python}} and no {{engine}}: it must run {PYTHON_VARIABLE} of its environment")
    return ReleaseQuestion(
        check=check,
        model=args.model,
        rules=checking.rules_of(args),
        weights=args.external_data_dir,
        operators=frozenset(node.op_type for node in index_file(args.model, args.external_data_dir).nodes),
        default_name=checks.DEFAULT_CANDIDATE,
        timeout=args.check_timeout,
    )


def span_of_line(args: argparse.Namespace, question: ReleaseQuestion) -> ReleaseSpan:
    """The releases that a command line asks for. Raises UsageError, CannotInstall."""
    from biopsy.blame.releases.span import NamedReleases, span_of
    from biopsy.environments.releases import releases

    known = releases(args.package, python=question.check.python)
    return span_of(args.package, known, NamedReleases(good=args.good, bad=args.bad, versions=args.versions))


def _check(args: argparse.Namespace) -> ReleaseCheck:
    """The words of the check with a place for the release."""
    from biopsy.blame.releases.release_check import ReleaseCheck, engine_of, has_place, requirements_of
    from biopsy.checks.command_line import OwnRun, parse
    from biopsy.engines.registry import EngineSpec, parse_spec
    from biopsy.environments.interpreter import interpreter_of

    beside = requirements_of(args.package, args.beside)
    command = parse(args.check)
    words, yardstick = command.words, ""
    named = engine_of(args.package)
    spec = parse_spec(args.engine) if args.engine else EngineSpec(named) if named else None
    if isinstance(command, OwnRun) and not has_place(words):
        words, spec, yardstick = _own_run(args, command, spec)
    return ReleaseCheck(
        package=args.package,
        words=words,
        spec=spec,
        is_own_run=isinstance(command, OwnRun),
        beside=beside,
        python=interpreter_of(args.python),
        python_text=args.python,
        yardstick=yardstick,
    )


def _own_run(
    args: argparse.Namespace, command: OwnRun, spec: EngineSpec | None
) -> tuple[tuple[str, ...], EngineSpec, str]:
    """The words of a ``biopsy run`` with ``{engine}`` in them, that engine, and which others of the package stay."""
    run = engine_substitution.engines_of_run(command)
    if spec is None or (not args.engine and spec.name not in {one.name for one in run}):
        theirs = packages.distributions_of(run)
        raise errors.UsageError(
            f"the check is 'biopsy run', and no engine of it is the package {printable(args.package)}",
            next_steps=[
                *did_you_mean(args.package, theirs, cutoff=packages.ALIKE),
                *(f"--package {name}" for name in theirs),
                "--check {python} check.py {}    any command that uses the package",
            ],
        )
    template = engine_substitution.own_template(command, spec.text if args.engine else spec.name)
    others = [one.text for one in run if one.name == template.spec.name]
    others.remove(template.spec.text)
    return template.words, template.spec, ", ".join(others)
