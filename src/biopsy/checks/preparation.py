"""What a machine makes before a check looks at a model there: a build of the model, an environment for the check.

A ``Preparation`` travels with a task, and is carried out by the machine. It names files as they are named here; the
``TaskSite`` tells where they stand there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from biopsy import errors
from biopsy.checks.command import CommandCheck
from biopsy.comparison.mismatch import Mismatch
from biopsy.isolation.watch import Stop


class Closable(Protocol):
    """What is kept warm, and ended at the end."""

    def close(self) -> None:
        """End it."""


Kept = TypeVar("Kept", bound=Closable)


class TaskSite(Protocol):
    """Where a preparation is carried out."""

    def path(self, ours: str) -> Path:
        """Where a file stands that is called ``ours`` here; it is one of its task."""

    def kept(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """What was made for a key before, or now; it is kept warm for the tasks that follow."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What was made. ``told`` is brought back: plain values, or records of ours.

    ``words`` stand in those of the check in place of others, and ``environment`` changes its variables. Unless it
    ``is_ready``, there is nothing that the check could look at, and it does not.
    """

    told: Mapping[str, Any]
    words: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str | None] = field(default_factory=dict)
    is_ready: bool = True


class Preparation(Protocol):
    """Something to make. It is a frozen record, and can be pickled."""

    def prepared(self, site: TaskSite, stop: Stop) -> AbstractContextManager[Prepared]:
        """Make it, and have it stand while the check looks. Raises BiopsyError if nothing can be concluded."""


@dataclass(frozen=True, kw_only=True)
class PreparedTask:
    """A task for another machine, before which something is made there; None as a check: only this is made.

    ``models`` are sent besides the files of the check, with the weights beside them. ``written`` are files that it
    writes, such as the ``candidate`` if it is no model. ``back`` are files that come back, if they are there after the
    check. ``original`` is as in ``Task``.
    """

    check: CommandCheck | None
    candidate: Path
    preparation: Preparation
    models: Sequence[Path] = ()
    written: Sequence[Path] = ()
    back: Sequence[Path] = ()
    original: tuple[Mismatch, ...] = ()


def require_names(check: CommandCheck, model: Path) -> None:
    """Raise UsageError for a check that names neither the candidate nor the model, wherever they stand."""
    if not (check.names_candidate or check.names_file(model)):
        raise errors.UsageError(
            "the check names neither the candidate nor the model, which stand elsewhere on other machines",
            next_steps=["write {} in the check where it goes"],
        )


def require_weights_beside(model: Path, weights: Path | None) -> None:
    """Raise UsageError for a model whose external weights are in another folder: those beside it are sent."""
    from biopsy.model.external import files_referred_to

    if weights is None or weights.resolve() == model.parent.resolve():
        return
    if files_referred_to(model.read_bytes(), weights):
        raise errors.UsageError(
            f"the weights of {model} stand in another folder, and other machines are sent those that stand beside it",
            next_steps=[f"copy the model to {weights}"],
        )
