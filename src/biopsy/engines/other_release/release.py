"""Which release of an engine's package is asked for: the settings that every such engine takes besides its own."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from biopsy import errors, events
from biopsy.engines.imports import RELEASE_SETTINGS
from biopsy.environments.requirements import normalized

RELEASE, WITH, PYTHON = RELEASE_SETTINGS

_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.!+_-]*")
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>.*)")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*(\[[\w.,-]*\])?\s*([<>=!~][^;@]*)?")
_EXAMPLE = "onnxrt:release=1.20.1,with=numpy<2,python=3.11"


@dataclass(frozen=True, kw_only=True)
class EngineRelease:
    """A release of a distribution, what is installed with it, and the Python that it is for.

    ``version`` None: what is there in the environment of the interpreter ``python``, into which nothing is installed.
    """

    distribution: str
    version: str | None = None
    others: tuple[str, ...] = ()
    python: str | None = None

    @property
    def requirements(self) -> tuple[str, ...]:
        """What is installed."""
        return (f"{self.distribution}=={self.version}", *self.others)

    @property
    def place(self) -> str:
        """Where it stands, in words."""
        return f"the environment of {self.python}" if self.version is None else f"the environment with {self}"

    def __str__(self) -> str:
        if self.version is None:
            return f"{self.distribution} of {self.python}"
        python = f" on Python {self.python}" if self.python else ""
        return f"{' with '.join(self.requirements)}{python}"


def release_of(settings: Mapping[str, str | None], distributions: tuple[str, ...], engine: str) -> EngineRelease:
    """The release that settings ask for, of one of these distributions. Raises UsageError."""
    version, others, python = (_text(settings, key, engine) for key in RELEASE_SETTINGS)
    if version is None:
        return _as_it_is(python, others, distributions[0], engine)
    distribution, version = _named(version, distributions, engine)
    if not _VERSION.fullmatch(version):
        raise _wrong(engine, f"{RELEASE}={version} is no release")
    wanted = tuple(filter(None, (each.strip() for each in (others or "").split("+"))))
    for each in wanted:
        if not _REQUIREMENT.fullmatch(each):
            raise _wrong(engine, f"{WITH}={each} is no package, and no range of its releases")
    return EngineRelease(distribution=distribution, version=version, others=wanted, python=python)


def _as_it_is(python: str | None, others: str | None, distribution: str, engine: str) -> EngineRelease:
    """What is there in an environment of the user's own."""
    if python is None or "/" not in python:
        asked = f"{PYTHON}={python}" if others is None else f"{WITH}={others}"
        raise _wrong(engine, f"{asked} asks for no release: {RELEASE}=VERSION is missing")
    if others is not None:
        raise _wrong(engine, f"{WITH}={others}: nothing is installed into the environment of {python}")
    return EngineRelease(distribution=distribution, python=python)


def _named(version: str, distributions: tuple[str, ...], engine: str) -> tuple[str, str]:
    """The distribution and the version, of ``1.20.1`` and of ``onnxruntime-gpu==1.20.1``."""
    named = _NAMED.fullmatch(version)
    if named is None:
        return distributions[0], version
    name = normalized(named["name"])
    if name not in distributions:
        raise _wrong(engine, f"{RELEASE}={version}: it is run from {' or '.join(distributions)}")
    return name, named["version"]


def _text(settings: Mapping[str, str | None], key: str, engine: str) -> str | None:
    if key in settings and not settings[key]:
        raise _wrong(engine, f"{key} needs a value")
    return settings.get(key)


def _wrong(engine: str, problem: str) -> errors.UsageError:
    return errors.UsageError(f"engine {engine!r}: {problem}", next_steps=[f"such as {_EXAMPLE}"])


OPEN_VARIABLE = "BIOPSY_OPEN_RELEASES"
"""Under this name, the environment of a check says which releases the process that asks it holds open, as JSON."""


def told_to_children(opened: Mapping[EngineRelease, OpenEnvironment]) -> str:
    """What ``OPEN_VARIABLE`` is to say: finding an environment again costs a check some tenths of a second."""
    return json.dumps({str(release): [str(each.python), dict(each.packages)] for release, each in opened.items()})


def _told_by_parent() -> Mapping[str, OpenEnvironment]:
    try:
        told = json.loads(os.environ.get(OPEN_VARIABLE, "{}"))
        found = {str(name): OpenEnvironment(Path(python), dict(held)) for name, (python, held) in told.items()}
    except (ValueError, TypeError, AttributeError):
        return {}
    return {name: each for name, each in found.items() if each.python.is_file()}


class OpenEnvironment(NamedTuple):
    """The interpreter of an environment, and what it holds; nothing is known of one that the user has made."""

    python: Path
    packages: Mapping[str, str]


def opened(release: EngineRelease, held: ExitStack, listener: events.Listener) -> OpenEnvironment:
    """An environment that has a release, which ``held`` keeps from being removed.

    It is installed first if it is not there. Raises CannotInstall, and UsageError for an interpreter that is none.
    """
    if release.version is None:
        assert release.python is not None
        path = Path(release.python).expanduser()
        if not path.is_file():
            raise errors.UsageError(f"there is no interpreter {release.python}")
        return OpenEnvironment(path.absolute(), {})
    told = _told_by_parent().get(str(release))
    if told is not None:
        return told
    from biopsy.environments.interpreter import interpreter_of
    from biopsy.environments.prepared import prepared

    interpreter = interpreter_of(release.python)
    environment = held.enter_context(prepared(release.requirements, python=interpreter, listener=listener))
    return OpenEnvironment(environment.python, {"python": interpreter.version, **environment.packages})
