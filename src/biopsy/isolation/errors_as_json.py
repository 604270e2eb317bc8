"""Errors as JSON carries them from a child process to the one that started it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from biopsy import errors


def as_json(error: Exception) -> dict[str, Any]:
    """An error as JSON, of which ``from_json`` makes it again; what nobody foresaw becomes a BiopsyError.

    A class that takes more than JSON says of it, or that stands elsewhere than in ``errors``, becomes the nearest one
    above it that does not.
    """
    if not isinstance(error, errors.BiopsyError):
        error = errors.BiopsyError(f"{type(error).__name__}: {error}")
    tree = {
        "error": _nearest(type(error)).__name__,
        "message": error.summary,
        "details": list(error.details),
        "kept": error.kept,
        "next_steps": list(error.next_steps),
    }
    if isinstance(error, errors.EngineFailure):
        tree |= {"engine": error.engine, "stage": error.stage, "kind": error.kind}
    if isinstance(error, errors.CannotInstall):
        tree |= {"kind": error.kind}
    return tree


def from_json(tree: Mapping[str, Any]) -> errors.BiopsyError:
    """The error that ``as_json`` has made this of."""
    named = getattr(errors, tree["error"], None)
    error_class: type[errors.BiopsyError] = errors.BiopsyError
    if isinstance(named, type) and issubclass(named, errors.BiopsyError):
        error_class = _nearest(named)
    message, kept, steps = tree["message"], tree["kept"], tree["next_steps"]
    if error_class is errors.EngineFailure:
        failure = errors.EngineFailure(
            message, engine=tree["engine"], stage=tree["stage"], kind=tree["kind"], next_steps=steps
        )
        failure.kept = kept
        return failure
    if error_class is errors.CannotInstall:
        return errors.CannotInstall(message, kind=tree["kind"], details=tree["details"], kept=kept, next_steps=steps)
    if error_class is errors.Interrupted:
        return errors.Interrupted(message, kept=kept, next_steps=steps)
    return error_class(message, details=tree["details"], kept=kept, next_steps=steps)


def _nearest(error_class: type[errors.BiopsyError]) -> type[errors.BiopsyError]:
    """The class itself or the first above it that ``from_json`` can make."""
    for each in error_class.__mro__:
        stands_in_errors = getattr(errors, each.__name__, None) is each
        if stands_in_errors and issubclass(each, errors.BiopsyError) and _can_be_made(each):
            return each
    return errors.BiopsyError


def _can_be_made(error_class: type[errors.BiopsyError]) -> bool:
    takes_only_what_all_take = error_class.__init__ is errors.BiopsyError.__init__
    return takes_only_what_all_take or error_class in {errors.EngineFailure, errors.CannotInstall, errors.Interrupted}
