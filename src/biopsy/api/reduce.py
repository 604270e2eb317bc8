"""Reducing a failing model to the smallest part that still fails.

found = biopsy.reduce("model.onnx", fails, output="reduced.onnx")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from os import PathLike
from pathlib import Path
from typing import Literal, get_args

from biopsy import errors, events
from biopsy.api.arguments import (
    Function,
    Model,
    check_of,
    index_of,
    options_of,
    require_check,
    require_choice,
    require_own_files,
)
from biopsy.api.inputs import GivenInputs, feeds_of, require_shapes
from biopsy.api.searching import GivenOptions
from biopsy.checks.command_line import NO_WORDS, parse
from biopsy.checks.judge import Rules
from biopsy.isolation.cleanup import temporary_folder
from biopsy.reduction.job import Border, RecordingOptions, ReductionJob
from biopsy.reduction.job_run import run_job
from biopsy.reduction.problem import Cut
from biopsy.reduction.result import Reduction, Target
from biopsy.reduction.schedule import Mode, Passes
from biopsy.reduction.values import Values
from biopsy.session.budget import Budget
from biopsy.session.flakiness import Repeating
from biopsy.session.pool import Parallelism


def reduce(
    model: Model,
    check: Function | Sequence[str],
    output: str | PathLike[str] = "reduced.onnx",
    *,
    takes: Literal["path", "model"] = "path",
    mode: Mode = "minimal",
    inputs: GivenInputs = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    values: Values = "auto",
    min_good: str | PathLike[str] | None = None,
    passes: Passes | None = None,
    border: Border | None = None,
    rules: Rules | None = None,
    repeating: Repeating | None = None,
    budget: Budget | None = None,
    parallelism: Parallelism | None = None,
    journal: str | PathLike[str] | None = None,
    allow_vacuous_check: bool = False,
    listener: events.Listener = events.ignore,
) -> Reduction:
    """Find the smallest part of ``model`` that still fails ``check``, and write it to ``output``.

    ``check`` is called with each candidate, a ``pathlib.Path`` or, with ``takes="model"``, an ``onnx.ModelProto``. It
    returns True if the model fails and False if it passes. An exception is a failure too, of which type and message
    must be those that the original raises; ``biopsy.EngineFailure`` counts by engine, stage and kind. Or ``check`` is
    a command, a list of words in which ``{}`` stands for the candidate's path.

    ``inputs`` are those of ``run``: feeds, tensor name -> array, of which every one is recorded: cuts that look like
    shapes are frozen with their values. ``input_shapes`` freezes dynamic inputs. ``values`` says
    whether candidates may compute other values than the original. ``min_good`` is where to write the passing model
    closest in size.

    ``passes`` says what is tried besides removing nodes, and what not; ``border`` what becomes of cut tensors, inputs
    and outputs; ``rules`` which failures count as the same; ``repeating`` how often a candidate must pass if the
    failure is flaky; ``budget`` what the search may cost: it ends with the best result by then, and ``stopped`` of what
    is returned says so. ``parallelism`` says how many checks run at once, in threads, or where its executor runs them:
    another machine must see the folder of temporary files, and get ``check`` by pickle. The result is the same for any
    number.

    ``journal`` is a file from which an interrupted reduction goes on; it is removed at the end. A ``check`` that fails
    on a model of one Identity node too says nothing: that is a CheckError, unless ``allow_vacuous_check``.
    ``listener`` is called with each event of ``biopsy.events``.

    Raises OriginalPasses if the original does not fail, CheckError if the check cannot be run or contradicts itself,
    ModelError for a damaged model, UsageError for an argument that cannot be used, such as an unknown ``mode``, and for
    a path that cannot be read or written, Interrupted on Ctrl-C with the best result written.

    >>> import biopsy, onnx                                                              # doctest: +SKIP
    >>> def has_mul(model: onnx.ModelProto) -> bool:
    ...     return any(node.op_type == "Mul" for node in model.graph.node)
    >>> biopsy.reduce("model.onnx", has_mul, "reduced.onnx", takes="model").nodes        # doctest: +SKIP
    ("Mul 'onnx_graphsurgeon_node_3'",)
    """
    for name, value, known in (("takes", takes, ("path", "model")), ("mode", mode, get_args(Mode)),
                               ("values", values, get_args(Values))):  # fmt: skip
        require_choice(name, value, known)
    require_check(check)
    if not isinstance(output, str | PathLike):
        raise errors.UsageError(f"output={output!r}: it is a path")
    require_own_files(model, output=output, min_good=min_good, journal=journal)
    require_shapes("input_shapes", input_shapes)
    feeds = feeds_of(inputs)
    asked = GivenOptions(
        rules=rules, repeating=repeating, budget=budget, parallelism=parallelism, journal=journal, inputs=feeds
    )
    with temporary_folder("biopsy-") as folder:
        candidate = folder / "candidate.onnx"
        job = ReductionJob(
            target=Target(Path(output), None if min_good is None else Path(min_good)),
            mode=mode,
            search=asked.search(candidate, "reduction"),
            recording=RecordingOptions(samples=None if feeds is None else lambda: feeds),
            border=_border(border),
            input_shapes=dict(input_shapes or {}),
            values=values,
            command=NO_WORDS if callable(check) else parse(check),
            passes=_passes(passes),
            allow_vacuous_check=allow_vacuous_check,
        )
        with closing(check_of(check, candidate, takes, asked.jobs)) as made:
            return run_job(index_of(model), made, job, listener)


def _border(given: Border | None) -> Border:
    border = options_of("border", given, Border)
    require_choice("cut", border.cut, get_args(Cut))
    return border


def _passes(given: Passes | None) -> Passes:
    """The passes, their names in tuples. Raises UsageError for a name that stands alone."""
    passes = options_of("passes", given, Passes)
    _require_names("skip", passes.skip)
    _require_names("only", passes.only)
    return Passes(
        simplify=passes.simplify, anonymize=passes.anonymize, skip=tuple(passes.skip), only=tuple(passes.only)
    )


def _require_names(name: str, names: object) -> None:
    if isinstance(names, str):
        raise errors.UsageError(f"{name}={names!r}: it is a tuple of names", next_steps=[f"{name}=({names!r},)"])
