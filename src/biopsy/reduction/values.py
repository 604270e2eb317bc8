"""Whether candidates may compute other values than the original did.

A cut that is fed or frozen with recorded values leaves every value behind it as it was. A bypass does not: against
golden values such a candidate fails by itself, a false REPRODUCES, and the search would be led astray. So passes that
change values run only where the check does not compare with recorded values.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Literal

from biopsy import events
from biopsy.checks.outcome import Outcome
from biopsy.reduction.candidate import Candidate, Proposal
from biopsy.reduction.order import neighbourhood_order
from biopsy.reduction.trials import Trial

if TYPE_CHECKING:
    import onnx

    from biopsy.reduction.driver import Driver

Values = Literal["auto", "keep", "free"]
"""``keep`` the recorded values, be ``free`` to change them, or find out."""

_CHANGING = ("Cos", "Atan", "Softplus", "Erf", "Tanh")
"""Operators that change nearly every number and make none infinite; one that the model lacks tells a check nothing."""

_FLOATS = frozenset({1, 10, 11})

_MOST_CANDIDATES = 5


def may_change_values(driver: Driver, values: Values, compares_recorded: bool | None) -> bool:
    """Decide for a driver whose original has been checked.

    ``compares_recorded`` is what the check's own words tell: True if it loads golden values, False if it computes its
    reference anew for each candidate or looks at no values at all, None if its words tell nothing. Then a failure that
    is no comparison (a signal; a load, build or run error) is free. Last, a passing candidate that computes outputs of
    the original is checked with those outputs changed: if it passes all the same, the check does not compare with
    recorded values. If that cannot be tried, values are kept.
    """
    if values != "auto":
        return values == "free"
    if compares_recorded is not None:
        return not compares_recorded
    reference = driver.reference
    if reference is not None and (reference.status < 0 or reference.stage in {"load", "build", "run"}):
        return True
    return _probe(driver)


def _probe(driver: Driver) -> bool:
    for candidate in islice(_candidates(driver), _MOST_CANDIDATES):
        changed = _with_changed_outputs(driver, candidate)
        doing = "a part of the model that computes its outputs"
        if (
            changed is None
            or driver.judge_candidate(Proposal(candidate, doing), "values").outcome is not Outcome.PASSES
        ):
            continue
        judged = driver.trials.judge(Trial([changed], candidate.size, "values", "the same with its outputs changed"))
        if judged.outcome is not Outcome.PASSES:
            reason = f"a passing candidate with its outputs changed {judged.outcome.value}"
            driver.listener(events.Remark(f"values     kept: {reason}"))
        return judged.outcome is Outcome.PASSES
    driver.listener(events.Remark("values     kept: no passing candidate was met to see if the check compares values"))
    return False


def _candidates(driver: Driver) -> Iterator[Candidate]:
    """Candidates that compute an output of the original: those known to pass, the nodes of the outputs, the last ones.

    A check may look at the original's outputs alone, so what computes none of them may pass whatever its values are.
    """
    problem = driver.problem
    outputs = [tensor for tensor in problem.index.outputs if tensor in problem.index.producer]
    for candidate in sorted(driver.passing, key=lambda passing: passing.size):
        if not problem.subset(candidate).written.isdisjoint(outputs):
            yield candidate
    order = neighbourhood_order(problem.index, problem.whole.nodes)
    tries = [[problem.index.producer[tensor]] for tensor in outputs]
    tries += [order[-count:] for count in (2, 4, 8) if count < len(order)]
    for nodes in tries:
        closed = problem.closed(Candidate(tuple(sorted(nodes))))
        if closed is not None and not problem.subset(closed).written.isdisjoint(outputs):
            yield closed


def _with_changed_outputs(driver: Driver, candidate: Candidate) -> bytes | None:
    """A candidate, each float output handed through one more operator; None if that cannot be done."""
    from biopsy.model.load import parse

    index = driver.problem.index
    captured = {index.names[tensor] for tensor in index.captured}
    model = parse(b"".join(driver.parts(candidate)), None)
    floats = [info.name for info in model.graph.output if info.type.tensor_type.elem_type in _FLOATS]
    if not floats or not captured.isdisjoint(floats):
        return None
    taken = {node.op_type for node in index.nodes}
    operator = next((name for name in _CHANGING if name not in taken), _CHANGING[0])
    for name in floats:
        _hand_through(model.graph, name, operator)
    return model.SerializeToString()


def _hand_through(graph: onnx.GraphProto, name: str, operator: str) -> None:
    """Compute an output under another name, and the output itself from that."""
    before = f"{name}__before_change"
    for node in graph.node:
        for names in (node.input, node.output):
            for place, found in enumerate(names):
                if found == name:
                    names[place] = before
    graph.node.add(op_type=operator, input=[before], output=[name], name=f"{name}__changed")
