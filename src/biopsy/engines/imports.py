"""Where an engine imports its package: in this interpreter, or in another one that holds another release of it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from biopsy import events

RELEASE_SETTINGS = ("release", "with", "python")
"""Settings of every engine that can be run from another release, besides its own options."""


class Imports(Protocol):
    """Gives modules: those that stand here, or objects that stand for them and do there what is done to them here."""

    @property
    def is_here(self) -> bool:
        """Whether modules are those of this interpreter."""

    def module(self, name: str) -> Any:
        """A module by its full name. Raises ImportError; elsewhere EngineMissing for a package that is not there."""

    def gathered(self, objects: Sequence[Any], *steps: str) -> list[Any]:
        """What stands at the end of some steps from each object of a package, all in one list.

        A step is an attribute, or a method where ``()`` follows its name; what comes as a list is gone through. From
        another interpreter that is one answer, where a loop would be many.
        """

    def packages(self) -> Mapping[str, str]:
        """The versions of all packages that stand there, if that is elsewhere, as far as they are known."""

    def facts(self) -> Mapping[str, str]:
        """What stands there, if that is elsewhere: versions, of ``python`` and of packages; else nothing."""

    def install(self, listener: events.Listener) -> None:
        """Have the packages there, if that is elsewhere. Raises CannotInstall, UsageError."""

    def close(self) -> None:
        """End the interpreter, if that is another one, until something is asked of it again."""

    def warm(self) -> None:
        """Have an interpreter that is warmed up from now on, until ``serve``."""

    def serve(self, trial: Callable[[], None]) -> None:
        """Let each fork of this process have a fork of the warmed interpreter, if ``trial`` works in the first one."""


class Here:
    """The interpreter that runs this program."""

    is_here = True

    def module(self, name: str) -> Any:
        """A module by its full name. Raises ImportError."""
        return importlib.import_module(name)

    def gathered(self, objects: Sequence[Any], *steps: str) -> list[Any]:
        """What stands at the end of some steps from each object, all in one list."""
        from biopsy.engines.other_release.wire import gathered

        return gathered(objects, steps)

    def packages(self) -> Mapping[str, str]:
        """Nothing: it is no other interpreter."""
        return {}

    def facts(self) -> Mapping[str, str]:
        """Nothing: it is no other interpreter."""
        return {}

    def install(self, listener: events.Listener) -> None:
        """Do nothing: what is not here is missing."""

    def close(self) -> None:
        """Do nothing: this interpreter goes on."""

    def warm(self) -> None:
        """Do nothing: this process itself is warmed up."""

    def serve(self, trial: Callable[[], None]) -> None:
        """Do nothing: forks of this process have what it has."""
