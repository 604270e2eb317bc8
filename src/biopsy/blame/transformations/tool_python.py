"""The interpreter that has a tool: this one, or that of an environment which is made for it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from biopsy import errors, events
from biopsy.blame.transformations.spec import ToolSpec
from biopsy.environments.requirements import normalized


@dataclass(frozen=True, kw_only=True)
class ToolPackages:
    """What was asked for: requirements such as ``onnxslim==0.1.50``, others ``beside`` them, and a ``python``."""

    packages: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    python: str | None = None

    @property
    def are_asked_for(self) -> bool:
        """Whether an environment was asked for."""
        return bool(self.packages or self.beside or self.python)


@contextmanager
def tool_python(spec: ToolSpec, wanted: ToolPackages, listener: events.Listener = events.ignore) -> Iterator[Path]:
    """The interpreter, as long as it is used. One that has the tool is this one, unless packages are asked for.

    Raises CannotInstall if the environment cannot be made, UsageError if packages are asked for a command.
    """
    if spec.known is None:
        if wanted.are_asked_for:
            raise errors.UsageError("--package, --with and --python are for known tools: a command brings its own")
        yield Path(sys.executable)
        return
    if not wanted.are_asked_for and _is_here(spec.known.module):
        yield Path(sys.executable)
        return
    from biopsy.environments.interpreter import interpreter_of
    from biopsy.environments.prepared import prepared

    python = interpreter_of(wanted.python)
    with prepared(requirements(spec, wanted), python=python, listener=listener) as environment:
        yield environment.python


def requirements(spec: ToolSpec, wanted: ToolPackages) -> Sequence[str]:
    """What the environment of a known tool holds: the tool, in the release asked for, and what it needs besides."""
    assert spec.known is not None
    asked = [*wanted.packages, *wanted.beside]
    named = {_distribution(one) for one in asked}
    more = [one for one in (spec.known.package, *spec.known.needs) if _distribution(one) not in named]
    return [*asked, *more]


def _distribution(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]*[A-Za-z0-9]", requirement.strip())
    return normalized(found.group() if found else requirement)


def _is_here(module: str) -> bool:
    try:
        return find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False
