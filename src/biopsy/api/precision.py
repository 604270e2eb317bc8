"""Asking which layers of a model need a high precision.

found = biopsy.precision("model.onnx", fails, "mixed.onnx", low="fp16")
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import closing
from os import PathLike
from pathlib import Path
from typing import Literal, get_args

from biopsy import errors, events
from biopsy.api.arguments import (
    Folder,
    Function,
    Model,
    check_of,
    index_of,
    require_check,
    require_choice,
    require_own_files,
)
from biopsy.api.inputs import GivenInputs, feeds_of
from biopsy.api.searching import GivenOptions
from biopsy.checks.judge import Rules
from biopsy.engines.casting import casts_told, in_declared_types
from biopsy.isolation.cleanup import temporary_folder
from biopsy.mixed_precision.cost import Cost
from biopsy.mixed_precision.formats import Form
from biopsy.mixed_precision.job import PrecisionJob
from biopsy.mixed_precision.job_run import run_job
from biopsy.mixed_precision.precisions import High, Low, Precisions, mixed_models
from biopsy.mixed_precision.result import PrecisionResult, PrecisionTarget
from biopsy.mixed_precision.search import Direction, Mode
from biopsy.model.index import ModelIndex
from biopsy.session.budget import Budget
from biopsy.session.flakiness import Repeating
from biopsy.session.pool import Parallelism
from biopsy.tensors.results import Feed


def precision(
    model: Model,
    check: Function | Sequence[str],
    output: str | PathLike[str] | None = None,
    *,
    low: Low = "fp16",
    high: High = "float32",
    form: Form = "emulate",
    takes: Literal["path", "model"] = "path",
    mode: Mode = "minimal",
    direction: Direction = "forward",
    cost: Cost = "count",
    inputs: GivenInputs = None,
    rules: Rules | None = None,
    repeating: Repeating | None = None,
    budget: Budget | None = None,
    parallelism: Parallelism | None = None,
    journal: str | PathLike[str] | None = None,
    folder: Folder = None,
    listener: events.Listener = events.ignore,
) -> PrecisionResult:
    """Find the layers of ``model`` that must be computed in the precision ``high`` so that ``check`` passes.

    ``check`` is that of ``reduce``: a function that returns True if a candidate fails and False if it passes, or a
    command. A candidate with which it does anything else than pass is ruled out. ``output`` is where to write the model
    in which only the layers that need it are high; None writes none. ``form="emulate"`` rounds by Casts around float32
    arithmetic, ``"native"`` gives low layers low types. int8 needs ``inputs``, feeds that it is calibrated with.

    ``mode``, ``direction`` and ``cost`` are like the options of ``biopsy debug precision``; ``rules``, ``repeating``,
    ``budget``, ``parallelism``, ``journal`` and ``listener`` those of ``reduce``. ``high`` of the result has the layers
    that must be high.

    Raises HighPrecisionFails if the check fails with every layer high, CheckError if the check cannot be run or the
    result does not pass again, ModelError for a damaged model, UsageError for an argument that cannot be used,
    Interrupted on Ctrl-C with the best model written.
    """
    _require_choices(
        low=(low, get_args(Low)), high=(high, get_args(High)), form=(form, get_args(Form)), mode=(mode, get_args(Mode)),
        takes=(takes, ("path", "model")), direction=(direction, get_args(Direction)), cost=(cost, get_args(Cost)),
    )  # fmt: skip
    require_check(check)
    precisions = Precisions(low=low, high=high, form=form)
    require_own_files(model, output=output, journal=journal)
    _require_sense(precisions, inputs)
    given = feeds_of(inputs)
    asked = GivenOptions(
        rules=rules, repeating=repeating, budget=budget, parallelism=parallelism, journal=journal, inputs=given
    )
    index = index_of(model, folder)
    feeds = _calibration(index, given)
    with temporary_folder("biopsy-") as place:
        candidate = place / "candidate.onnx"
        job = PrecisionJob(
            target=PrecisionTarget(output=None if output is None else Path(output)),
            mode=mode,
            direction=direction,
            cost=cost,
            search=asked.search(candidate, "search"),
        )
        with closing(check_of(check, candidate, takes, asked.jobs)) as made:
            return run_job(index, lambda where: mixed_models(index, where, precisions, feeds), made, job, listener)


def _require_choices(**given: tuple[str, Sequence[str]]) -> None:
    for name, (value, known) in given.items():
        require_choice(name, value, known)


def _require_sense(precisions: Precisions, inputs: GivenInputs) -> None:
    """Raise UsageError for arguments that would have no effect, or lack one that they need."""
    precisions.require_possible()
    is_int8 = precisions.low == "int8"
    if is_int8 and not inputs:
        raise errors.UsageError("low='int8' is calibrated with inputs, and there are none", next_steps=["inputs=[...]"])
    if is_int8 and precisions.form == "native":
        raise errors.UsageError("form='native' has no effect with low='int8', which has a form of its own")
    if not is_int8 and inputs is not None:
        raise errors.UsageError(f"inputs have no effect with low={precisions.low!r}: only int8 is calibrated")


def _calibration(index: ModelIndex, inputs: Sequence[Feed] | None) -> Sequence[Feed]:
    feeds, changes = in_declared_types(inputs or (), index.declared_type)
    if changes:
        warnings.warn(casts_told(changes), UserWarning, stacklevel=3)
    return feeds
