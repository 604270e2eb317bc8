"""The arguments of the Python API's searches: what a check is given, how often it is run, and how many run at once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Union, get_args, get_origin

from biopsy import errors
from biopsy.api.running import Function, require_check, require_choice, require_seconds, require_whole, rules_of
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Check, Form, FunctionCheck
from biopsy.checks.warm import command_check
from biopsy.processes.cleanup import temporary_folder
from biopsy.session.checked_search import Repeating, SearchOptions, digest_of_feeds
from biopsy.session.files import Resume
from biopsy.session.machines import OtherMachines
from biopsy.session.pool import Parallelism, Workers
from biopsy.session.trial import Budget
from biopsy.tensors.results import Feed

_FORM_OF: dict[str, Form] = {
    **dict.fromkeys(("Path", "PurePath", "PosixPath", "PathLike"), "path"),
    **dict.fromkeys(("Any", "object", ""), "path"),
    "ModelProto": "model",
    "bytes": "bytes",
    "str": "str",
}
"""What a function is given, by the last name of its parameter's annotation; "" is none."""


def form_of(check: Function, takes: Form | None) -> Form:
    """What ``check`` is given: ``takes``, else what its parameter is annotated with, else the path.

    Annotations that are texts are read by their last names, and not evaluated. Raises UsageError if ``takes``
    contradicts the annotation, if the annotation is nothing that a check is given, or if the function does not take one
    argument.
    """
    name = getattr(check, "__qualname__", repr(check))
    if takes is not None:
        require_choice("takes", takes, get_args(Form))
    try:
        signature = inspect.signature(check)
    except (TypeError, ValueError):  # some built-in functions have none
        return takes or "path"
    try:
        bound = signature.bind(None)
    except TypeError as error:
        raise errors.UsageError(f"check={name}: it is called with one argument, the candidate: {error}") from error
    parameter = next((signature.parameters[name] for name in bound.arguments), None)
    if parameter is None:
        return takes or "path"
    annotation = "" if parameter.annotation is parameter.empty else parameter.annotation
    forms = [_FORM_OF.get(each) for each in _last_names(annotation)]
    known = [form for form in forms if form is not None]
    if takes is None and not known:
        raise errors.UsageError(
            f"check={name}: {parameter.name!r} is annotated as {_shown(annotation)}, which a check is never given",
            next_steps=[f"takes={form!r}" for form in get_args(Form)],
        )
    if (
        takes is not None
        and annotation
        and known
        and takes not in known
        and _last_names(annotation)[0] not in ("Any", "object", "")
    ):
        raise errors.UsageError(
            f"takes={takes!r} contradicts the annotation of {parameter.name!r}, which is {_shown(annotation)}",
            next_steps=[f"takes={known[0]!r}, or leave it out: the annotation says it"],
        )
    return takes or ("path" if "path" in known else known[0])


def _last_names(annotation: object) -> list[str]:
    """The last names in an annotation: ``ModelProto`` of ``onnx.ModelProto``, and each of a union."""
    if isinstance(annotation, str):
        return [each.rpartition(".")[2] for each in re.findall(r"[\w.]+", re.sub(r"\[.*\]", "", annotation))] or [""]
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return [getattr(get_origin(part) or part, "__name__", str(part)) for part in parts]


def _shown(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__qualname__", str(annotation))


@contextmanager
def searching(
    check: Function | Sequence[str],
    takes: Form | None,
    search: str,
    *,
    rules: Rules | None,
    repeat: int | None,
    confidence: float,
    budget: Budget,
    jobs: int | None,
    executor: Executor | Workers | None,
    check_timeout: float | None,
    journal: str | PathLike[str] | None,
    inputs: Sequence[Feed] | None,
) -> Iterator[tuple[SearchOptions, Check]]:
    """The options of a search and its check, which is closed at the end.

    ``search`` is its name in messages, such as "reduction". ``jobs`` of None are as many as ``executor`` has room for
    if it says so, else one. Raises UsageError for an argument that cannot be used.
    """
    require_check(check)
    require_whole(jobs=jobs, repeat=repeat, max_checks=budget.checks)
    require_seconds(max_time=budget.seconds, check_timeout=check_timeout)
    if not 0 < confidence < 1:
        raise errors.UsageError(f"confidence={confidence!r}: it is above 0 and below 1")
    if jobs is None:
        jobs = executor.room if isinstance(executor, OtherMachines) else 1
    about = {} if journal is None else {"inputs": digest_of_feeds(inputs or ())}
    with temporary_folder("biopsy-") as place:
        candidate = place / "candidate.onnx"
        options = SearchOptions(
            rules=rules_of(rules),
            candidate=candidate,
            parallelism=Parallelism(jobs=jobs, executor=executor),
            budget=budget,
            repeating=Repeating(repeat=repeat, confidence=confidence),
            resume=Resume(journal=None if journal is None else Path(journal), about=about, search=search),
        )
        if callable(check):
            if check_timeout is not None:
                raise errors.UsageError("check_timeout has no effect on a function: only a command can be ended")
            candidate_check: Check = FunctionCheck(check, takes=form_of(check, takes))
        else:
            if takes is not None:
                raise errors.UsageError(f"takes={takes!r} is about a function, and check is a command, given a path")
            candidate_check = command_check(check, str(candidate), check_timeout, jobs=jobs)
        with closing(candidate_check):
            yield options, candidate_check
