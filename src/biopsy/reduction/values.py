"""Whether candidates may compute other values than the original did.

A cut that is fed or frozen with recorded values leaves every value behind it as it was. A bypass does not: against
golden values such a candidate fails by itself, a false REPRODUCES, and the search would be led astray. So passes that
change values run only where the check does not compare with recorded values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import chain, islice
from typing import TYPE_CHECKING, Literal, TypeAlias

from biopsy import errors, events
from biopsy.checks.outcome import Outcome
from biopsy.checks.signature import Signature
from biopsy.model.load import parse
from biopsy.model.node_order import neighbourhood_order
from biopsy.reduction.candidate import Candidate, Proposal
from biopsy.reduction.change import ChangeSearch, NamedModelPass
from biopsy.reduction.changed_outputs import KINDS, with_changed_outputs
from biopsy.reduction.constant_outputs import FILLINGS, constant_outputs
from biopsy.reduction.driver import Driver
from biopsy.session.stage import VALUES
from biopsy.session.trial import Trial

if TYPE_CHECKING:
    import onnx

Values = Literal["auto", "keep", "free"]
"""``keep`` the recorded values, be ``free`` to change them, or find out."""

_MOST_CANDIDATES = 5

_Try: TypeAlias = tuple[Trial | None, str]
"""A model that the check should pass, in words; None if it cannot be made, and then why."""


def may_change_values(driver: Driver, values: Values, compares_recorded: bool | None) -> bool:
    """Decide for a driver whose original has been checked.

    ``compares_recorded`` is what the check's own words tell: True if it loads golden values, False if it computes its
    reference anew for each candidate or looks at no values at all, None if its words tell nothing. Then a failure that
    is no comparison (a signal; a load, build or run error) is free. Last, a passing candidate that computes the outputs
    of the original is checked with those outputs changed in several ways, and models that give constants for whatever
    the nodes that are left compute: only if the check passes all of them, it does not compare with recorded values. If
    any cannot be tried, values are kept.
    """
    if values != "auto":
        return values == "free"
    if compares_recorded is not None:
        return not compares_recorded
    if driver.reference is not None and is_no_comparison(driver.reference):
        return True
    return _probe(driver)


def is_no_comparison(failure: Signature) -> bool:
    """Whether a failure is one that no values decide: a signal, or an error in the stages load, build or run."""
    return failure.status < 0 or failure.stage in {"load", "build", "run"}


def asks_whether_values_may_change(model: onnx.ModelProto) -> ChangeSearch:
    """A pass that proposes nothing, and has it found out whether values may change, which it says it depends on."""
    yield []


FOUND_OUT = NamedModelPass(
    name="values", summary="whether values may change, for who wants to know it", search=asks_whether_values_may_change
)


def _probe(driver: Driver) -> bool:
    try:
        return _passes_with_other_values(driver)
    except errors.ModelError as error:  # a protobuf object cannot hold every model that bytes can
        driver.listener(events.Remark(f"values     kept: {error.summary}"))
        return False


def _passes_with_other_values(driver: Driver) -> bool:
    for candidate in islice(_candidates(driver), _MOST_CANDIDATES):
        changed = _changed(driver, candidate)
        description = "a part of the model that computes its outputs"
        if not changed:
            continue
        judged = driver.judge_candidate(Proposal(candidate, description), VALUES)
        if judged.outcome is Outcome.PASSES:
            status = judged.evidence.status
            return _passes_all(driver, chain(_with_changed_outputs(candidate, changed), _constants(driver)), status)
    driver.listener(
        events.Remark("values     kept: no passing candidate had all outputs of the original, to change their values")
    )
    return False


def _constants(driver: Driver) -> Iterator[_Try]:
    """Models that give any constants for what the nodes that are left compute; ends with None if one cannot be made.

    The check may compare tensors inside the model with golden values, and not the original's outputs.
    """
    assert driver.best is not None
    model = parse(b"".join(driver.parts(driver.best)), None)
    infos = driver.problem.infos_of_written(driver.best)
    for kind, filling in FILLINGS.items():
        made = constant_outputs(model, infos, filling)
        if made is None:
            yield None, "of some tensors no values can be made to try the check with"
            return
        description = f"constants, {kind}, for what its nodes compute"
        trial = _trial(made.SerializeToString(), driver.best.size, description)
        yield trial, f"constants, {kind}, for what is computed"


def _with_changed_outputs(candidate: Candidate, changed: Mapping[str, bytes]) -> Iterator[_Try]:
    """A candidate with its outputs changed, in every way."""
    for kind, data in changed.items():
        trial = _trial(data, candidate.size, f"the same, its outputs {kind}")
        yield trial, f"a passing candidate, its outputs {kind}"


def _trial(data: bytes, size: int, description: str) -> Trial:
    return Trial(parts=[data], size=size, stage=VALUES, description=description)


def _passes_all(driver: Driver, tries: Iterable[_Try], status: int) -> bool:
    """Whether the check passes every model with this exit status; if not, the remark says what came instead."""
    obstacles, descriptions = list[str](), deque[str]()

    def made() -> Iterator[Trial]:
        for trial, description in tries:
            if trial is None:
                obstacles.append(description)
                return
            descriptions.append(description)
            yield trial

    with closing(driver.oracle.in_turn(made())) as answers:
        for judged in answers:
            description = descriptions.popleft()
            if judged.outcome is not Outcome.PASSES or judged.evidence.status != status:
                said = judged.outcome.value if judged.outcome is not Outcome.PASSES else judged.reason
                driver.listener(events.Remark(f"values     kept: {description}: {said}"))
                return False
    for obstacle in obstacles:
        driver.listener(events.Remark(f"values     kept: {obstacle}"))
    return not obstacles


def _candidates(driver: Driver) -> Iterator[Candidate]:
    """Candidates that compute the outputs of the original: those known to pass, the nodes of the outputs, the last.

    A check may look at the original's outputs alone, or at one of them, so what does not compute all of them may pass
    whatever its values are.
    """
    problem = driver.problem
    outputs = [tensor for tensor in problem.index.outputs if tensor in problem.index.producer]
    order = neighbourhood_order(problem.index, problem.whole.nodes)
    tries = [sorted({problem.index.producer[tensor] for tensor in outputs})]
    tries += [order[-count:] for count in (2, 4, 8) if count < len(order)]
    made = (problem.closed(Candidate(tuple(sorted(nodes)))) for nodes in tries if nodes)
    known = sorted(driver.passing, key=lambda passing: passing.size)
    for candidate in chain(known, (each for each in made if each is not None)):
        if problem.subset(candidate).written.issuperset(outputs):
            yield candidate


def _changed(driver: Driver, candidate: Candidate) -> dict[str, bytes]:
    """A candidate once for each kind of change of its outputs; empty if any cannot be made."""
    model = parse(b"".join(driver.parts(candidate)), None)
    made = {kind: with_changed_outputs(model, kind) for kind in KINDS}
    return {} if None in made.values() else {kind: each.SerializeToString() for kind, each in made.items() if each}
