"""What is asked for: requirements such as ``onnxruntime==1.20.1``, as a person or another part of this program says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.text import printable, shortened

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.version import Version


@dataclass(frozen=True, kw_only=True)
class WantedPackage:
    """One distribution that is asked for: its normalized ``name``, and the ``text`` of the requirement."""

    name: str
    text: str
    requirement: Requirement


def parsed(requirements: Iterable[str]) -> tuple[WantedPackage, ...]:
    """The requirements in the order of their names, each once; those that do not hold for this machine are kept too.

    Raises UsageError for what is no requirement, and for one that names a file or an address: what stands there may
    change, and may be something that is built by running a stranger's code.
    """
    wanted = {each.text: each for each in map(_parsed, requirements)}
    if not wanted:
        raise errors.UsageError("no package is named", next_steps=["onnxruntime==1.20.1"])
    return tuple(sorted(wanted.values(), key=lambda each: (each.name, each.text)))


def normalized(name: str) -> str:
    """The name of a distribution as an index knows it: small letters, and a dash between its words (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _parsed(text: str) -> WantedPackage:
    from packaging.requirements import InvalidRequirement, Requirement

    shown = printable(shortened(text.strip(), 100))
    try:
        requirement = Requirement(text.strip())
    except InvalidRequirement as error:
        raise errors.UsageError(
            f"'{shown}' names no package with a version", next_steps=["onnxruntime==1.20.1", "'numpy<2'"]
        ) from error
    if requirement.url is not None:
        raise errors.UsageError(
            f"'{shown}' names an address: packages are installed from the package index only",
            next_steps=[f"{requirement.name}==VERSION    and the index in PIP_EXTRA_INDEX_URL"],
        )
    return WantedPackage(name=normalized(requirement.name), text=str(requirement), requirement=requirement)


def pinned(wanted: WantedPackage) -> Version | None:
    """The one version that a requirement allows; None if it allows several."""
    from packaging.version import InvalidVersion, Version

    specifiers = list(wanted.requirement.specifier)
    if len(specifiers) != 1 or specifiers[0].operator not in {"==", "==="}:
        return None
    try:
        return Version(specifiers[0].version)
    except InvalidVersion:  # ==1.20.*
        return None


def names(wanted: Sequence[WantedPackage]) -> frozenset[str]:
    """The names of all distributions that are asked for."""
    return frozenset(each.name for each in wanted)
