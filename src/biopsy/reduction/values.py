"""Whether candidates may compute other values than the original did.

A cut that is fed or frozen with recorded values leaves every value behind it as it was. A bypass does not: against
golden values such a candidate fails by itself, a false REPRODUCES, and the search would be led astray. So passes that
change values run only where the check does not compare with recorded values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from biopsy import events
from biopsy.checks.outcome import Outcome
from biopsy.reduction.candidate import Candidate

if TYPE_CHECKING:
    import onnx

    from biopsy.reduction.driver import Driver

Values = Literal["auto", "keep", "free"]
"""``keep`` the recorded values, be ``free`` to change them, or find out."""

_FACTOR = 1.25
"""What weights are multiplied with for the probe: more than any tolerance, less than what makes a number overflow."""

_MOST_PROBES = 2


def may_change_values(driver: Driver, values: Values, compares_recorded: bool | None) -> bool:
    """Decide for a driver whose original has been checked.

    ``compares_recorded`` is what the check's own words tell: True if it loads golden values, False if it computes its
    reference anew for each candidate or looks at no values at all, None if its words tell nothing. Then a failure that
    is no comparison (a signal; a load, build or run error) is free; and last, passing candidates are checked with
    changed weights: if they pass all the same, the check does not compare with recorded values. If that cannot be
    tried, values are kept.
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
    tried = 0
    for candidate in sorted(driver.passing, key=lambda passing: passing.size):
        changed = _with_changed_weights(driver, candidate)
        if changed is None:
            continue
        judged = driver.check_bytes([changed], candidate.size, "values", "a passing candidate with other weights")
        if judged.outcome is not Outcome.PASSES:
            driver.listener(
                events.Remark(f"values    kept: with other weights a passing candidate {judged.outcome.value}")
            )
            return False
        tried += 1
        if tried == _MOST_PROBES:
            break
    if not tried:
        driver.listener(
            events.Remark(
                "values    kept: no passing candidate has weights to change, to see if the check compares values"
            )
        )
    return tried > 0


def _with_changed_weights(driver: Driver, candidate: Candidate) -> bytes | None:
    """A candidate with every float weight that stands in the model multiplied; None if it has none."""
    from biopsy.model.load import parse

    index = driver.problem.index
    subset = driver.problem.subset(candidate)
    if not any(
        tensor in index.weights
        and index.weights[tensor].kind.elem in {1, 10, 11}
        and not index.weights[tensor].external
        for tensor in subset.read
    ):
        return None
    model = parse(b"".join(driver.parts(candidate)), None)
    changed = [_change(weight) for weight in model.graph.initializer]
    return model.SerializeToString() if any(changed) else None


def _change(weight: onnx.TensorProto) -> bool:
    import numpy as np
    from onnx import TensorProto, numpy_helper

    if weight.data_type not in {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE} or weight.external_data:
        return False
    before = numpy_helper.to_array(weight)
    after = (before * before.dtype.type(_FACTOR)).astype(before.dtype)
    if np.array_equal(before, after, equal_nan=True):
        return False
    weight.CopyFrom(numpy_helper.from_array(after, weight.name))
    return True
