"""Errors as JSON carries them from a process that an engine works in to the one that started it."""

from __future__ import annotations

from typing import Any

from biopsy import errors


def told(error: errors.BiopsyError) -> dict[str, Any]:
    """An error as JSON, of which ``rebuilt`` makes it again."""
    tree = {"error": type(error).__name__, "message": error.message, "next_steps": list(error.next_steps)}
    if isinstance(error, errors.EngineFailure):
        tree |= {"engine": error.engine, "stage": error.stage, "kind": error.kind}
    return tree


def rebuilt(tree: dict[str, Any]) -> errors.BiopsyError:
    """The error that ``told`` has made this of."""
    message, steps = tree["message"], tree["next_steps"]
    if tree["error"] == "EngineFailure":
        return errors.EngineFailure(
            message, engine=tree["engine"], stage=tree["stage"], kind=tree["kind"], next_steps=steps
        )
    error_class = getattr(errors, tree["error"], errors.BiopsyError)
    error: errors.BiopsyError = error_class(message, next_steps=steps)
    return error
