"""``--package``, ``--with`` and ``--python``: the releases that engines are run from, for those that name none."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from biopsy import errors
from biopsy.similar_names import did_you_mean
from biopsy.text import printable

if TYPE_CHECKING:
    from biopsy.engines.registry import EngineSpec

ALIKE = 0.7
"""How alike the name of another package must be for a question whether it was meant."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_PINNED = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)\s*==\s*(?P<version>[0-9A-Za-z][0-9A-Za-z.!+_-]*)")


class PinnedPackage(NamedTuple):
    """A release that was asked for, by the distribution's name on the package index."""

    name: str
    version: str

    @property
    def text(self) -> str:
        """As it is typed."""
        return f"{self.name}=={self.version}"


def add_packages(parser: argparse.ArgumentParser, title: str, meaning: str) -> None:
    """Add the three options; ``meaning`` says for what the releases are taken."""
    group = parser.add_argument_group(title)
    group.add_argument(
        "--package",
        dest="packages",
        action="append",
        default=[],
        metavar="NAME==VERSION",
        help=f"{meaning}, such as onnxruntime==1.20.1 (repeatable): installed into an environment of its own, once",
    )
    add_surroundings(group)


def add_surroundings(group: argparse._ArgumentGroup) -> None:
    """``--with`` and ``--python``: what a release is installed beside, and for which Python."""
    group.add_argument(
        "--with",
        dest="beside",
        nargs="+",
        action="extend",
        default=[],
        metavar="REQUIREMENT",
        help="what is installed beside it, such as 'numpy<2'",
    )
    group.add_argument(
        "--python", metavar="PYTHON", help="a version of Python, or its path (default: the one that runs biopsy)"
    )


def packages_of(args: argparse.Namespace) -> list[PinnedPackage]:
    """The releases asked for. Raises UsageError for what is none, or for a package that is asked for twice."""
    found = []
    for text in getattr(args, "packages", ()):
        from biopsy.environments.requirements import normalized

        pinned = _PINNED.fullmatch(text.strip())
        if pinned is None:
            name = _NAME.match(text.strip())
            raise errors.UsageError(
                f"--package {printable(text)} is not NAME==VERSION",
                next_steps=[f"--package {name[0]}==VERSION" if name else "--package onnxruntime==1.20.1"],
            )
        found.append(PinnedPackage(normalized(pinned["name"]), pinned["version"]))
    for option, value in (("--with", getattr(args, "beside", ())), ("--python", getattr(args, "python", None))):
        if value and not found:
            raise errors.UsageError(f"{option} belongs to --package, which is missing", next_steps=[
                f"--package onnxruntime==1.20.1 {option} ..."
            ])  # fmt: skip
    names = [package.name for package in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise errors.UsageError(
            f"--package {twice} is given twice",
            next_steps=["--engine onnxrt:release=1.20.1 --engine onnxrt:release=1.23.2    compares two releases"],
        )
    return found


def of_packages(specs: Sequence[EngineSpec], args: argparse.Namespace) -> list[EngineSpec]:
    """The engines, each from the release that was asked for of its package; one that names a release keeps that.

    Raises UsageError for a package that is that of no engine.
    """
    found = list(specs)
    for package in packages_of(args):
        found = _of_package(found, package, args)
    return found


def _of_package(specs: Sequence[EngineSpec], package: PinnedPackage, args: argparse.Namespace) -> list[EngineSpec]:
    from biopsy.engines.imports import RELEASE_SETTINGS
    from biopsy.engines.registry import EngineSpec, engines_of_distribution, release_settings

    names = engines_of_distribution(package.name)
    if not any(spec.name in names for spec in specs):
        raise _not_used(package, names, specs)
    asked = release_settings(names[0], package.name, package.version, beside=args.beside, python=args.python)
    return [
        EngineSpec(spec.name, {**asked, **spec.settings})
        if spec.name in names and not spec.settings.keys() & {*RELEASE_SETTINGS}
        else spec
        for spec in specs
    ]


def _not_used(package: PinnedPackage, names: Sequence[str], specs: Sequence[EngineSpec]) -> errors.UsageError:
    from biopsy.engines.registry import parse_spec

    shown = ", ".join(dict.fromkeys(parse_spec(spec.text).name for spec in specs))
    if names:
        return errors.UsageError(
            f"--package {package.text} is of the engine {names[0]}, and what runs here is {shown}",
            next_steps=[f"--engine {names[0]}    or leave out --package {package.text}"],
        )
    return errors.UsageError(
        f"--package {package.text} is of no engine that runs here: {shown}",
        next_steps=[
            *did_you_mean(package.name, distributions_of(specs), cutoff=ALIKE),
            f"--package ... --with {package.text}    installs it beside the release of an engine",
        ],
    )


def distributions_of(specs: Sequence[EngineSpec]) -> list[str]:
    """The packages that engines are usually installed from; those of an engine without releases are none."""
    from biopsy.engines.registry import find_class

    return list(dict.fromkeys(name for spec in specs for name in find_class(spec.name).distributions[:1]))
