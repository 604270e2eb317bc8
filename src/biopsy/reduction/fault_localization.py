"""Which nodes a check itself points at, if it can be made to look inside.

A check that compares tensors says which outputs are wrong. With every tensor of the original marked as an output it
says which tensors are, and the node that computes a wrong one from right ones is where the error begins. That takes
one check. It is only a guess, since observing a model can change it, and what is guessed is checked like anything else.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from biopsy import errors, events
from biopsy.model.index import ModelIndex
from biopsy.reduction.driver import Driver
from biopsy.session.stage import LOOK

_MOST_ELEMENTS = 1 << 28
"""Elements of all tensors together: more would not fit where one check has to hold them all."""

MOST_SUSPECTS = 16


def suspected(driver: Driver) -> tuple[int, ...]:
    """The nodes where errors begin, in the order of the model; none if the check cannot tell.

    It costs one check, or none if every tensor is marked anyway or outputs are no matter of the check.
    """
    problem, reference = driver.problem, driver.reference
    if reference is None or not reference.outputs or not driver.check.automatic:
        return ()
    if not (problem.may_cut_inputs and problem.may_cut_outputs) or problem.elements > _MOST_ELEMENTS:
        return ()
    boundary = replace(problem.everything_marked(), places=driver.workspace.places)
    trial = driver.original(LOOK, "which tensors are wrong", boundary)
    try:
        judged = driver.oracle.again(replace(trial, check=driver.check.glance()))
    except errors.CheckError as error:  # it was no question about a candidate, but perhaps golden values are damaged
        told = f"with every tensor marked as an output, {error.message}"
        driver.listener(events.Remark(told, warning=True))
        return ()
    ids = problem.index.ids
    return origins(problem.index, {ids[name] for name in judged.evidence.verdict.outputs if name in ids})


def origins(index: ModelIndex, wrong: Collection[int]) -> tuple[int, ...]:
    """Nodes that write a wrong tensor and read none, in the order of the model, at most ``MOST_SUSPECTS``."""
    producers = sorted({index.producer[tensor] for tensor in wrong if tensor in index.producer})
    found = [node for node in producers if not any(tensor in wrong for tensor in index.node_reads[node])]
    return tuple(found[:MOST_SUSPECTS])
