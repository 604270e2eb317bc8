"""Errors for names in options that a model does not have, with the most similar name that it has.

A candidate of a reduction lacks most names of the original, so inside a check unknown names are ignored. They were
verified with the original.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from biopsy import errors
from biopsy.processes.reaper import VERDICT_VARIABLE
from biopsy.text import did_you_mean, first_of

_inside: ContextVar[bool] = ContextVar("inside_a_check", default=False)


@contextmanager
def inside_a_check() -> Iterator[None]:
    """Ignore unknown names within this context: a function is called with candidates of a reduction."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def may_lack_names() -> bool:
    """Whether the model may be a candidate of a reduction, which lacks names of the original."""
    return _inside.get() or bool(os.environ.get(VERDICT_VARIABLE))


def require_known(
    option: str, what: str, given: Iterable[str], known: Collection[str], shown: Collection[str] | None = None
) -> None:
    """Raise DoesNotFit if ``option`` names an unknown ``what`` ("output" or "input"); inside a check, do nothing.

    "" stands for all. An item of a sequence, such as ``boxes[0]``, is known if its length, ``boxes[#]``, is. ``shown``
    are the names that the error lists, by default all known ones.
    """
    unknown = [name for name in given if name and name not in known and f"{name.rpartition('[')[0]}[#]" not in known]
    if not unknown or may_lack_names():
        return
    shown = known if shown is None else shown
    names = f"the names here: {listed(shown)}" if shown else f"there is no {what} at all"
    steps = [*did_you_mean(unknown[0], known), names]
    raise errors.DoesNotFit(f"{option}: there is no {what} {unknown[0]!r}", next_steps=steps)


def no_such_input(option: str, name: str, inputs: Collection[str]) -> errors.DoesNotFit:
    """The error to raise if ``option`` names an input that the model does not have."""
    names = f"its inputs are: {listed(inputs)}" if inputs else "it has no input at all"
    return errors.DoesNotFit(
        f"{option}: the model has no input {name!r}", next_steps=[*did_you_mean(name, inputs), names]
    )


def listed(names: Collection[str], most: int = 5) -> str:
    """The names for a message, at most ``most`` of them."""
    return first_of(list(map(repr, names)), most) or "nothing"
