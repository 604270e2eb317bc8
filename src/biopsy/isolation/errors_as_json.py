"""Errors as JSON carries them from a child process to the one that started it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from biopsy import errors


def as_json(error: Exception) -> dict[str, Any]:
    """An error as JSON, of which ``from_json`` makes it again; what nobody foresaw becomes a BiopsyError."""
    if not isinstance(error, errors.BiopsyError):
        error = errors.BiopsyError(f"{type(error).__name__}: {error}")
    tree = {"error": type(error).__name__, "message": error.message, "next_steps": list(error.next_steps)}
    if isinstance(error, errors.EngineFailure):
        tree |= {"engine": error.engine, "stage": error.stage, "kind": error.kind}
    return tree


def from_json(tree: Mapping[str, Any]) -> errors.BiopsyError:
    """The error that ``as_json`` has made this of."""
    message, steps = tree["message"], tree["next_steps"]
    if tree["error"] == "EngineFailure":
        return errors.EngineFailure(
            message, engine=tree["engine"], stage=tree["stage"], kind=tree["kind"], next_steps=steps
        )
    error_class = getattr(errors, tree["error"], errors.BiopsyError)
    error: errors.BiopsyError = error_class(message, next_steps=steps)
    return error
