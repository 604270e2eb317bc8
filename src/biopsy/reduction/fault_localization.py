"""Which nodes a check itself points at, if it can be made to look inside.

A check that compares tensors says which outputs are wrong. With every tensor of the original marked as an output it
says which tensors are, and the node that computes a wrong one from right ones is where the error begins. That takes
one check. It is only a guess, since observing a model can change it, and what is guessed is checked like anything else.

Who looks at every tensor at once must hold every tensor at once. Where these are many, one part of the model after the
other is looked at, each fed as any candidate is, until a wrong tensor is found. Only if there is none in any part, the
whole is looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from biopsy import errors, events
from biopsy.model.index import ModelIndex
from biopsy.reduction.candidate import Candidate
from biopsy.reduction.driver import Driver
from biopsy.session.stage import LOOK
from biopsy.session.trial import Trial

_MOST_ELEMENTS = 1 << 28
"""Elements of all tensors together: more would not fit where one check has to hold them all."""

_MOST_AT_ONCE = 1 << 23
"""Elements of the tensors of one part: as much memory as loading an engine takes."""

MOST_SUSPECTS = 16


def suspected(driver: Driver) -> tuple[int, ...]:
    """The nodes where errors begin, in the order of the model; none if the check cannot tell.

    It costs one check, or one for each part of a model whose tensors are great; none if every tensor is marked anyway
    or outputs are no matter of the check.
    """
    problem, reference = driver.problem, driver.reference
    if reference is None or not reference.outputs or not driver.check.automatic:
        return ()
    if not (problem.may_cut_inputs and problem.may_cut_outputs) or problem.elements > _MOST_ELEMENTS:
        return ()
    try:
        return origins(problem.index, _wrong_in_parts(driver) or _wrong(driver, _looks(driver, [problem.whole])))
    except errors.CheckChanged:
        raise
    except errors.CheckError as error:  # it was no question about a candidate, but perhaps golden values are damaged
        told = f"with every tensor marked as an output, {error.message}"
        driver.listener(events.Remark(told, warning=True))
        return ()


def _wrong_in_parts(driver: Driver) -> set[int]:
    problem = driver.problem
    if problem.elements <= _MOST_AT_ONCE:
        return set()
    return _wrong(driver, _looks(driver, problem.runs_of_nodes(_MOST_AT_ONCE)))


def _looks(driver: Driver, candidates: Iterable[Candidate]) -> Iterator[Trial]:
    check = driver.check.glance()
    return (replace(driver.marked(each, LOOK, "which tensors are wrong"), check=check) for each in candidates)


def _wrong(driver: Driver, looks: Iterator[Trial]) -> set[int]:
    """The tensors that the first of these checks to find any calls wrong; the next ones run at the same time."""
    ids = driver.problem.index.ids
    begun: deque[Trial] = deque()
    while True:
        for look in islice(looks, driver.oracle.jobs - len(begun)):
            begun.append(look)
            driver.oracle.ahead(iter(begun))
        if not begun:
            return set()
        judged = driver.oracle.again(begun.popleft())
        wrong = {ids[name] for name in judged.evidence.verdict.outputs if name in ids}
        if wrong:
            driver.oracle.abandon_all()
            return wrong


def origins(index: ModelIndex, wrong: Collection[int]) -> tuple[int, ...]:
    """Nodes that write a wrong tensor and read none, in the order of the model, at most ``MOST_SUSPECTS``."""
    producers = sorted({index.producer[tensor] for tensor in wrong if tensor in index.producer})
    found = [node for node in producers if not any(tensor in wrong for tensor in index.node_reads[node])]
    return tuple(found[:MOST_SUSPECTS])
