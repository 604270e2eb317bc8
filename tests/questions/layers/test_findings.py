"""What follows from findings: verdicts, suspects and their order."""

import math
from dataclasses import replace

import pytest

from biopsy import errors
from biopsy.questions.layers.findings import (
    Failure,
    LayerFinding,
    LayerFindings,
    LayerGroup,
    LayerNode,
    LayerOrigins,
    MarkingEffect,
    Rate,
    Suspect,
    TensorError,
    Verdict,
    failure_of,
)

CRASH = Failure("run", "SIGSEGV", "segmentation fault\nat 0x0")


def error(ratio: float = 0.0, tensor: str = "t") -> TensorError:
    return TensorError(
        tensor=tensor,
        sample=0,
        passed=ratio <= 1,
        reason=None,
        absolute=ratio * 1e-5,
        relative=0.0,
        tolerance_ratio=ratio,
        worst=None,
    )


def layer(number: int = 0, **found: object) -> LayerFinding:
    node = LayerNode(
        number=number,
        name=f"n{number}",
        op_type="Neg",
        label=f"Neg 'n{number}'",
        inputs=(f"t{number}",),
        outputs=(f"t{number + 1}",),
    )
    return LayerFinding(node=node, **found)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ({"introduced": error(2), "propagated": error(2)}, "introduces"),
        ({"introduced": error(0), "propagated": error(2)}, "propagates"),
        ({"introduced": error(0), "propagated": error(0)}, "right"),
        ({"introduced": error(0)}, "right"),
        ({"propagated": error(0)}, "right"),
        ({"propagated": error(2)}, "unknown"),
        ({}, "unknown"),
        ({"failure": CRASH}, "fails"),
        ({"failure": CRASH, "is_accused": False}, "unknown"),
        ({"failure": CRASH, "is_accused": False, "propagated": error(0)}, "right"),
    ],
)
def test_the_verdict_on_a_layer(found: dict[str, object], verdict: Verdict) -> None:
    assert layer(**found).verdict == verdict
    assert layer(**found).is_suspect is (verdict in ("introduces", "fails"))


def test_suspects_are_failures_first_and_then_by_the_tolerance_ratio() -> None:
    group = LayerGroup(
        nodes=(4, 5),
        labels=("a", "b"),
        inputs=("t4",),
        outputs=("t6",),
        error=error(7),
        failure=None,
        hides=True,
    )
    findings = LayerFindings(
        layers=[
            layer(0, introduced=error(3)),
            layer(1, introduced=error(math.inf)),
            layer(2, introduced=error(0)),
            layer(3, failure=CRASH),
        ],
        groups=[group],
    )
    assert [suspect.nodes for suspect in findings.suspects] == [(3,), (1,), (4, 5), (0,)]


def test_the_first_wrong_tensor_is_taken_from_the_whole_model_where_that_was_measured() -> None:
    findings = LayerFindings(
        layers=[
            layer(0, introduced=error(9), propagated=error(0)),
            layer(1, introduced=error(0), propagated=error(2, "t2")),
        ]
    )
    assert findings.first_wrong is not None
    assert (findings.first_wrong[0].number, findings.first_wrong[1].tensor) == (1, "t2")


def test_an_error_is_masked_if_the_rest_of_the_model_is_known_to_hide_it() -> None:
    wrong = [layer(introduced=error(2))]
    assert LayerFindings(layers=wrong, outputs=[error(0)], hidden=[(0,)]).is_masked
    assert not LayerFindings(layers=wrong, outputs=[error(0)]).is_masked
    assert not LayerFindings(layers=wrong, outputs=[error(2)]).is_masked
    assert not LayerFindings(layers=wrong, failure=CRASH).is_masked
    assert not LayerFindings(layers=[layer(introduced=error(0))], outputs=[error(0)]).is_masked


def test_a_value_that_the_rest_never_gets_is_wrong_only_as_an_output() -> None:
    findings = LayerFindings(layers=[layer(introduced=error(2))], outputs=[error(0)], unread=[(0,)])
    assert [suspect.nodes for suspect in findings.wrong_if_marked] == [(0,)]
    assert not findings.is_masked


def test_an_error_that_marking_brings_to_the_outputs_is_none_of_the_model() -> None:
    wrong = [layer(0, introduced=error(2)), layer(1, introduced=error(2))]
    effect = MarkingEffect("appears", "y", tuple(wrong[0].node.outputs))
    findings = LayerFindings(layers=wrong, outputs=[error(0)], marking_effects=[effect], hidden=[(0,), (1,)])
    assert [suspect.nodes for suspect in findings.wrong_if_marked] == [(0,)]
    assert findings.is_masked
    assert not replace(findings, layers=wrong[:1], hidden=[(0,)]).is_masked


def test_it_passes_only_if_all_was_measured_and_nothing_is_wrong() -> None:
    right = [layer(introduced=error(0))]
    assert LayerFindings(layers=right, outputs=[error(0)]).passed
    interrupted = LayerFindings(layers=right, outputs=[error(0)], complete=False)
    assert interrupted.nothing_wrong and not interrupted.passed
    assert not LayerFindings(layers=right, outputs=[error(2)]).nothing_wrong
    assert not LayerFindings(layers=right, failure=CRASH).nothing_wrong


def test_a_failure_is_told_in_one_line() -> None:
    assert CRASH.text == "cannot run: SIGSEGV: segmentation fault"
    assert Rate(4, 10).text == "in 4 of 10 runs"


def test_what_is_no_failure_of_an_engine_counts_as_one_of_loading() -> None:
    failed = errors.EngineFailure("no kernel", engine="e", stage="build", kind="NotImplemented")
    assert failure_of(failed) == Failure("build", "NotImplemented", "no kernel")
    assert failure_of(errors.ModelError("broken")) == Failure("load", "ModelError", "broken")


@pytest.mark.parametrize(
    ("labels", "origins", "name"),
    [
        (["Add 'a'"], LayerOrigins(name="module norm: aten.add.Tensor"), "Add 'a'"),
        (["Add 'a'", "Mul 'b'"], LayerOrigins(), "Add 'a' -> Mul 'b'"),
        (["Add 'a'", "Mul 'b'", "Div 'c'"], LayerOrigins(), "Add 'a' -> ... -> Div 'c' (3 layers)"),
        (["Add 'a'", "Mul 'b'"], LayerOrigins(name="module norm"), "module norm (2 layers)"),
    ],
)
def test_a_suspect_is_named_by_its_label_by_what_its_layers_are_together_or_by_its_ends(
    labels: list[str], origins: LayerOrigins, name: str
) -> None:
    suspect = Suspect(nodes=(), labels=tuple(labels), inputs=(), outputs=(), error=None, failure=None, origins=origins)
    assert suspect.name == name
