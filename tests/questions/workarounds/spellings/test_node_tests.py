"""Every spelling at every node of the models that onnx ships as its own tests: the outputs stay what onnx expects."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from biopsy.questions.workarounds.spellings.table import barriers, spellings
from questions.workarounds.spellings.proving import run
from support.node_tests import NodeTest, node_tests

pytestmark = pytest.mark.slow


def _runs(made: onnx.ModelProto, test: NodeTest) -> list[np.ndarray] | None:
    try:
        return run(made, test.inputs)
    except Exception:  # an operator or a type that this engine does not have
        return None


@pytest.mark.filterwarnings("ignore")
def test_the_outputs_of_onnx_own_tests_stay() -> None:
    wrong, seen = [], set()
    for test in node_tests():
        if not test.complete or "_expanded" in test.name or not _is_right(_runs(test.model, test), test):
            continue
        places = range(len(test.model.graph.node))
        for patch in (*spellings(test.model, places), *barriers(test.model, places)):
            seen.add(patch.name)
            why = _objection(patch.applied(test.model), test)
            if why:
                wrong.append(f"{test.name}: {patch.name}: {why}")
    assert not wrong, "\n".join(wrong)
    assert len(seen) > 60


def _objection(made: onnx.ModelProto | None, test: NodeTest) -> str:
    if made is None:
        return "not applied"
    try:
        onnx.checker.check_model(made, full_check=True)
    except Exception as error:
        return f"refused: {error}"
    try:
        found = run(made, test.inputs)
    except Exception as error:
        return "" if "NOT_IMPLEMENTED" in str(error) else f"does not run: {error}"
    return "" if _is_right(found, test) else "other outputs"


def _is_right(found: list[np.ndarray] | None, test: NodeTest) -> bool:
    if found is None:
        return False
    pairs = zip(found, test.expected.values(), strict=True)
    return all(
        one.shape == other.shape
        and (
            np.allclose(one, other, rtol=max(test.rtol, 1e-3), atol=max(test.atol, 1e-4), equal_nan=True)
            if one.dtype.kind in "fc"
            else np.array_equal(one, other)
        )
        for one, other in pairs
    )
