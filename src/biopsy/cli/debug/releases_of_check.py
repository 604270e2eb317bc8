"""Releases that a check is made with: installed before it is asked, and told to it and to the journal."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments.packages import PinnedPackage, packages_of

if TYPE_CHECKING:
    from biopsy.checks.command_line import OwnRun
    from biopsy.cli.console import Console
    from biopsy.engines.base import Engine

PYTHON_PLACE = "{python}"
"""What stands in the words of a foreign check for the interpreter of the environment with the releases."""

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
    packages = packages_of(args) if getattr(args, "packages", ()) or getattr(args, "beside", ()) else []
    if packages and args.check is None:
        raise errors.UsageError("--package belongs to a check, and there is none", next_steps=["--check biopsy run {}"])
    command = parse(args.check or ())
    if isinstance(command, OwnRun) and (packages or any(sign in word for word in command.words for sign in _SIGNS)):
        told = command.with_options(*_options(args)) if packages else command
        args.check = list(told.words)
        args.environments = _installed(told, console)
    elif packages and isinstance(command, OwnCommand):
        raise errors.UsageError(
            f"--package {packages[0].text}: this check runs no engine", next_steps=["--check biopsy run {} --onnxrt"]
        )
    elif packages:
        with _interpreter_in(args, packages, console):
            yield
        return
    yield


def _options(args: argparse.Namespace) -> list[str]:
    """The three options as ``biopsy run`` takes them."""
    words = [word for text in args.packages for word in ("--package", text)]
    words += ["--with", *args.beside] if args.beside else []
    return words + (["--python", args.python] if args.python is not None else [])


def _installed(command: OwnRun, console: Console) -> Mapping[str, str]:
    """What the environments of the engines of a ``biopsy run`` hold, once they are there; each engine by its label."""
    from biopsy.cli.debug.engine_substitution import engines_of_run
    from biopsy.cli.installing import install
    from biopsy.engines.registry import class_of

    engines: dict[str, type[Engine]] = {spec.text: class_of(spec) for spec in engines_of_run(command)}
    install(engines.values(), console)
    elsewhere = {label: engine for label, engine in engines.items() if not engine.imports.is_here}
    return {f"environment of {label}": _text(engine.imports.packages()) for label, engine in elsewhere.items()}


@contextmanager
def _interpreter_in(args: argparse.Namespace, packages: Sequence[PinnedPackage], console: Console) -> Iterator[None]:
    """Have the interpreter of one environment with all packages stand in the words of a foreign check."""
    if not any(PYTHON_PLACE in word for word in args.check):
        raise errors.UsageError(
            f"--package {packages[0].text}: the check must say where its interpreter goes, by {PYTHON_PLACE}",
            next_steps=[f"--check {PYTHON_PLACE} check.py {{}}"],
        )
    from biopsy.cli.progress import Progress
    from biopsy.environments.interpreter import interpreter_of
    from biopsy.environments.prepared import prepared

    wanted = [*(package.text for package in packages), *args.beside]
    with ExitStack() as held:
        with Progress(console, None) as progress:
            made = prepared(wanted, python=interpreter_of(args.python), listener=progress)
            environment = held.enter_context(made)
        args.check = [word.replace(PYTHON_PLACE, str(environment.python)) for word in args.check]
        args.environments = {f"environment {PYTHON_PLACE}": _text(environment.packages)}
        yield


def _text(packages: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))
