"""Where an engine imports its package: in this interpreter, or in another one that holds another release of it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol


class Imports(Protocol):
    """Gives modules: those that stand here, or objects that stand for them and do there what is done to them here."""

    @property
    def is_here(self) -> bool:
        """Whether modules are those of this interpreter."""

    def module(self, name: str) -> Any:
        """A module by its full name. Raises ImportError."""

    def facts(self) -> Mapping[str, str]:
        """What stands there, if that is elsewhere: versions, of ``python`` and of packages; else nothing."""

    def warm(self) -> None:
        """Have an interpreter that is warmed up from now on, until ``serve``."""

    def serve(self) -> None:
        """Let each fork of this process have a fork of the warmed interpreter."""


class Here:
    """This interpreter."""

    is_here = True

    def module(self, name: str) -> Any:
        """A module by its full name. Raises ImportError."""
        return importlib.import_module(name)

    def facts(self) -> Mapping[str, str]:
        """Nothing: who wants to know asks this interpreter."""
        return {}

    def warm(self) -> None:
        """This process itself is warmed up."""

    def serve(self) -> None:
        """Forks of this process have what it has."""
