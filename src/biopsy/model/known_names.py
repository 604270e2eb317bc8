"""Names that a person gave and a model may not have: an error that names the nearest, or nothing for a part of it.

A candidate of a reduction lacks most names of the original, and what was said of those does not matter for it. So
inside a check, names that are unknown are passed over: that they are right is for whoever runs the original to see.
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
    """Where a function is called with the candidates of a reduction."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def may_lack_names() -> bool:
    """Whether the model at hand may be a part of the one that was meant."""
    return _inside.get() or bool(os.environ.get(VERDICT_VARIABLE))


def require_known(
    option: str, what: str, given: Iterable[str], known: Collection[str], shown: Collection[str] | None = None
) -> None:
    """Raise DoesNotFit if ``option`` speaks of ``what`` ("output", "input") by a name that is not ``known``.

    "" stands for all. An item of a sequence, such as ``boxes[0]``, is known by the length of it, ``boxes[#]``. Does
    nothing where names may be lacking. ``shown``: the names that the error lists, if not all that are known.
    """
    unknown = [name for name in given if name and name not in known and f"{name.rpartition('[')[0]}[#]" not in known]
    if not unknown or may_lack_names():
        return
    shown = known if shown is None else shown
    told = f"the names here: {listed(shown)}" if shown else f"there is no {what} at all"
    steps = [*did_you_mean(unknown[0], known), told]
    raise errors.DoesNotFit(f"{option}: there is no {what} {unknown[0]!r}", next_steps=steps)


def no_such_input(option: str, name: str, inputs: Collection[str]) -> errors.DoesNotFit:
    """What to raise if ``option`` gives a shape to an input that the model does not have."""
    told = f"its inputs are: {listed(inputs)}" if inputs else "it has no input at all"
    return errors.DoesNotFit(
        f"{option}: the model has no input {name!r}", next_steps=[*did_you_mean(name, inputs), told]
    )


def listed(names: Collection[str], most: int = 5) -> str:
    """Names for a message, at most so many of them."""
    return first_of(list(map(repr, names)), most) or "nothing"
