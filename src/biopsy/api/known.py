"""Asking which known bugs a piece looks like.

found = biopsy.known("piece.onnx", "onnxrt", stage="build")
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Literal

from biopsy import events
from biopsy.api.arguments import Model, model_file, require_check, require_choice, require_seconds
from biopsy.checks.command import CommandCheck
from biopsy.known_failures.asking import seen_by, seen_in
from biopsy.known_failures.lookup import KnownLookup, look_up


def known(
    piece: Model,
    engine: str = "",
    *,
    release: str = "",
    stage: Literal["", "load", "build", "run", "compare"] = "",
    kind: str = "",
    check: Sequence[str] | None = None,
    check_timeout: float | None = None,
    folders: Sequence[str | PathLike[str]] = (),
    listener: events.Listener = events.ignore,
) -> KnownLookup:
    """Look up a small failing model among the bugs that biopsy knows, those of the user, and those in ``folders``.

    ``engine`` is the one that fails, ``release`` its version (the installed one), ``stage`` and ``kind`` say how it
    fails; "" is not known. ``check`` is a command, a list of words in which ``{}`` stands for the model's path: it is
    run once, for at most ``check_timeout`` seconds, and what is not said is taken from it. ``matches`` of the result
    are the bugs that have something of the piece, the best first; ``best`` is the first that it looks like, None if it
    looks like none. A match is no proof.

    Raises UsageError for what cannot be used, ModelError for a model that cannot be read or is too large for a piece,
    UnknownEngine; OriginalPasses if the piece passes the check, CheckError if that cannot be run.
    """
    require_choice("stage", stage, ("", "load", "build", "run", "compare"))
    require_seconds(check_timeout=check_timeout)
    seen = seen_in(engine, release=release, stage=stage, kind=kind, is_checked=check is not None)
    with model_file(piece, None) as (path, _):
        if check is not None:
            require_check(check)
            seen = seen_by(CommandCheck(check, str(path), check_timeout), path, seen)
        return look_up(path, seen, [Path(folder) for folder in folders], listener)
