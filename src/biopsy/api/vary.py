"""Asking what may vary in a small failing model, and what must be as it is.

found = biopsy.vary("reduced.onnx", fails, values="free")
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from os import PathLike
from typing import Literal, get_args

from biopsy import events
from biopsy.api.arguments import Folder, Function, Model, check_of, index_of, require_check, require_choice
from biopsy.api.searching import GivenOptions
from biopsy.checks.command_line import parse
from biopsy.checks.judge import Rules
from biopsy.engines.feeding import Inputs
from biopsy.isolation.cleanup import temporary_folder
from biopsy.reduction.values import Values
from biopsy.session.budget import Budget
from biopsy.session.flakiness import Repeating
from biopsy.session.pool import Parallelism
from biopsy.tensors.results import Feed
from biopsy.variation.job import USUAL_BUDGET, VariationJob
from biopsy.variation.result import Variation
from biopsy.variation.vary import vary as found_out


def vary(
    model: Model,
    check: Function | Sequence[str],
    *,
    takes: Literal["path", "model"] = "path",
    inputs: Sequence[Feed] | None = None,
    values: Values = "auto",
    rules: Rules | None = None,
    repeating: Repeating | None = None,
    budget: Budget | None = None,
    parallelism: Parallelism | None = None,
    journal: str | PathLike[str] | None = None,
    allow_vacuous_check: bool = False,
    folder: Folder = None,
    listener: events.Listener = events.ignore,
) -> Variation:
    """Find out which attributes, sizes, types, weights and inputs of ``model`` may be others, and it still fails.

    ``check`` is as for ``reduce``: a function that is given each candidate and returns True if it fails, or a command.
    Each feature of the model is changed in several ways. It is ``free`` if changes of different kinds still fail in the
    same way and none passes, ``fixed`` if some pass: then ``text`` says what it must be, as far as that was tried.

    ``inputs`` are fed to the model by a check that is ``biopsy run``, and then varied too. ``values="free"`` says that
    the check does not compare with recorded values, so that changed values do not fail by themselves; with "auto"
    that is concluded from the words of a command, or from a failure that is no comparison. If it is not so, nothing is
    varied, and ``kept`` says why. ``budget`` is 60 checks or 5 minutes if none is given. ``folder`` is where external
    weights stand. ``rules``, ``repeating``, ``parallelism``, ``journal``, ``allow_vacuous_check`` and ``listener`` are
    as for ``reduce``.

    Raises OriginalPasses if the model does not fail, CheckError if the check cannot be run or fails on anything,
    ModelError for a damaged model, UsageError for an argument that cannot be used, Interrupted on Ctrl-C.
    """
    for name, value, known in (("takes", takes, ("path", "model")), ("values", values, get_args(Values))):
        require_choice(name, value, known)
    require_check(check)
    asked = GivenOptions(
        rules=rules,
        repeating=repeating,
        budget=budget or USUAL_BUDGET,
        parallelism=parallelism,
        journal=journal,
        inputs=inputs,
    )
    compares = None if callable(check) else parse(check).compares_recorded
    with temporary_folder("biopsy-") as place:
        candidate = place / "candidate.onnx"
        job = VariationJob(
            search=asked.search(candidate, "explanation"),
            inputs=None if inputs is None else Inputs(given=inputs),
            values_free=_is_free(values, compares),
            allow_vacuous_check=allow_vacuous_check,
        )
        with closing(check_of(check, candidate, takes, asked.jobs)) as made:
            return found_out(index_of(model, folder), made, job, listener)


def _is_free(values: Values, compares_recorded: bool | None) -> bool | None:
    """What is said, else what the check's own words tell; None to conclude it from the failure."""
    if values != "auto":
        return values == "free"
    return None if compares_recorded is None else not compares_recorded
