"""Releases that a check is made with: installed before it is asked, and told to it and to the journal."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments.packages import PinnedPackage, packages_of
from biopsy.isolation.variables import variables

if TYPE_CHECKING:
    from biopsy.checks.command_line import OwnRun
    from biopsy.cli.console import Console
    from biopsy.engines.base import Engine

_SIGNS = ("release=", "python=", "--package")
"""What stands in the words of a check that names a release by itself."""


@contextmanager
def releases_installed(args: argparse.Namespace, console: Console) -> Iterator[None]:
    """Have all releases that the check in ``args.check`` is made with, which gets those of ``--package``.

    ``args.environments`` are what they hold, for the journal. Raises UsageError where the check cannot take a release,
    CannotInstall.
    """
    from biopsy.checks.command_line import OwnCommand, OwnRun, parse

    args.environments = {}
    packages = packages_of(args)
    if packages and args.check is None:
        raise errors.UsageError("--package belongs to a check, and there is none", next_steps=["--check biopsy run {}"])
    command = parse(args.check or ())
    with ExitStack() as held:
        if isinstance(command, OwnRun):
            if packages or any(sign in word for word in command.words for sign in _SIGNS):
                _tell_own_run(args, command, console, held)
        elif packages and isinstance(command, OwnCommand):
            raise errors.UsageError(
                f"--package {packages[0].text}: this check runs no engine",
                next_steps=["--check biopsy run {} --onnxrt"],
            )
        elif packages:
            _tell_foreign(args, packages, console, held)
        yield


def _tell_own_run(args: argparse.Namespace, command: OwnRun, console: Console, held: ExitStack) -> None:
    """Have a ``biopsy run`` take the releases, and install all that it names."""
    from biopsy.engines.other_release.classes import variables_of

    told = command.with_options(*_options(args)) if getattr(args, "packages", ()) else command
    args.check = list(told.words)
    engines = _installed(told, console)
    contents = {label: _text(engine.imports.packages()) for label, engine in engines.items()}
    args.environments = {f"environment of {label}": text for label, text in contents.items()}
    held.enter_context(variables(variables_of(engines.values())))  # checks find the releases at once that we hold open


def _options(args: argparse.Namespace) -> list[str]:
    """The three options as ``biopsy run`` takes them."""
    words = [word for text in args.packages for word in ("--package", text)]
    words += ["--with", *args.beside] if args.beside else []
    return words + (["--python", args.python] if args.python is not None else [])


def _installed(command: OwnRun, console: Console) -> Mapping[str, type[Engine]]:
    """The engines of a ``biopsy run`` that are run from another release, by their labels, once that is installed."""
    from biopsy.cli.debug.engine_substitution import engines_of_run
    from biopsy.cli.installing import install
    from biopsy.engines.registry import class_of

    engines: dict[str, type[Engine]] = {spec.text: class_of(spec) for spec in engines_of_run(command)}
    install(engines.values(), console)
    return {label: engine for label, engine in engines.items() if not engine.imports.is_here}


def _tell_foreign(
    args: argparse.Namespace, packages: Sequence[PinnedPackage], console: Console, held: ExitStack
) -> None:
    """Have the interpreter of one environment with all packages stand in the words of a foreign check."""
    from biopsy.blame.releases.release_check import PYTHON_PLACE

    if not any(PYTHON_PLACE in word for word in args.check):
        raise errors.UsageError(
            f"--package {packages[0].text}: the check must say where its interpreter goes, by {PYTHON_PLACE}",
            next_steps=[f"--check {PYTHON_PLACE} check.py {{}}"],
        )
    from biopsy.cli.progress import Progress
    from biopsy.environments.interpreter import interpreter_of
    from biopsy.environments.prepared import prepared

    wanted = [*(package.text for package in packages), *args.beside]
    with Progress(console, None) as progress:
        made = prepared(wanted, python=interpreter_of(args.python), listener=progress)
        environment = held.enter_context(made)
    args.check = [word.replace(PYTHON_PLACE, str(environment.python)) for word in args.check]
    args.environments = {f"environment {PYTHON_PLACE}": _text(environment.packages)}


def _text(packages: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))
