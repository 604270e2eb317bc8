"""``biopsy.hunt``: which distinct bugs of engines are in many models."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from os import PathLike, fspath
from pathlib import Path

from biopsy import errors, events
from biopsy.api.running import require_seconds, require_whole
from biopsy.hunting.hunt import hunt as run_hunt
from biopsy.hunting.records import Hunt
from biopsy.hunting.sweep import HuntQuestion, limits_of
from biopsy.session.machines import OtherMachines


def hunt(
    models: str | PathLike[str] | Sequence[str | PathLike[str]],
    engines: str | Sequence[str],
    *,
    directory: str | PathLike[str] = "hunt",
    slower: float | None = None,
    larger: float | None = None,
    per_bug: float = 60.0,
    max_time: float | None = None,
    model_timeout: float = 60.0,
    model_memory: int | None = None,
    seed: int = 1,
    jobs: int | None = None,
    executor: OtherMachines | None = None,
    fresh: bool = False,
    listener: events.Listener = events.ignore,
) -> Hunt:
    """Try many models in several engines, and find the distinct bugs in what they make of them.

    ``models`` are folders, which are searched to their bottom, files, and patterns such as ``zoo/*/model.onnx``;
    inputs that lie beside a model are used. ``engines`` are specs. ``directory`` keeps what is found: the same call
    goes on where an earlier one ended, and tries only what is new, unless ``fresh``.

    With ``slower``, a model that takes at least this many times as long in the last engine as in the first has a bug,
    too; with ``larger``, one that needs this many times as much memory. ``per_bug`` is how many seconds the diagnosis
    of each bug may take, 0 for none; ``max_time`` limits everything, ``model_timeout`` each model in all engines, in
    seconds, ``model_memory`` in bytes. ``seed`` is that of made-up inputs. ``jobs`` models are tried at once, by
    default one per processor, or as many as an ``executor`` has room for: a ``RayExecutor``, on whose machines they are
    tried.

    The result has ``bugs``, the worst first, ``models``, and the ``status`` of the command; ``stopped`` says what ended
    it early.

    Raises UsageError if there are no models, or ``directory`` is of another hunt, EngineMissing, CheckError.

    >>> found = biopsy.hunt("models", ["onnxrt:release=1.20.1", "onnxrt"], per_bug=30)
    >>> [(bug.kind, bug.text, len(bug.models)) for bug in found.bugs]
    """
    for kind, limit in limits_of(slower, larger).items():
        if not 1 < limit < inf:
            raise errors.UsageError(f"{kind}={limit!r} must be a number above 1, such as 1.3")
    if per_bug:
        require_seconds(per_bug=per_bug)
    require_seconds(max_time=max_time, model_timeout=model_timeout)
    require_whole(jobs=jobs, model_memory=model_memory)
    specs = (engines,) if isinstance(engines, str) else tuple(dict.fromkeys(engines))
    places = [models] if isinstance(models, str | PathLike) else models
    for name, given in (("models", places), ("engines", specs)):
        if not given:
            raise errors.UsageError(f"{name}={given!r}: name at least one")
    question = HuntQuestion(
        places=[fspath(place) for place in places],
        engines=specs,
        folder=Path(directory),
        seconds=model_timeout,
        memory=model_memory,
        per_bug=per_bug,
        max_time=max_time,
        seed=seed,
        jobs=jobs,
        limits=limits_of(slower, larger),
        fresh=fresh,
    )
    return run_hunt(question, listener, executor)
