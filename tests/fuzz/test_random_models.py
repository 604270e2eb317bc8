"""Random models with random failures end at results that keep every rule; and the oracle sees breaches."""

from random import Random

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from fuzz.campaign import random_feeds, reduced, usable_model
from fuzz.models import random_model
from fuzz.oracle import breaches, is_valid, values_of

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
PER_TEST = 20


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, PER_TEST))
def test_the_results_of_random_reductions_keep_every_rule(first: int) -> None:
    found = [reduced(seed) for seed in range(first, first + PER_TEST)]
    assert not [str(one) for one in found if one.breaches]


def test_random_models_hold_what_real_exports_hold() -> None:
    random = Random(1)
    models = [usable_model(random) for _ in range(60)]
    operators = {node.op_type for model in models for node in model.graph.node}
    assert {"If", "Loop", "SequenceConstruct", "NonZero", "Clip", "Dropout", "First", "Twice", "Reshape"} <= operators
    assert any(dim.dim_param for model in models for dim in model.graph.input[0].type.tensor_type.shape.dim)
    assert any(model.functions for model in models)
    assert {bool(model.graph.value_info) for model in models} == {True, False}


def test_the_same_seed_gives_the_same_model() -> None:
    assert random_model(Random(7)) == random_model(Random(7))


# The oracle must be able to fail

OPEN = """
<ir_version: 9, opset_import: ["" : 18]>
agraph (float[N,3] x) => (float[N,3] y)
<float[N,3] a, float[N,3] b>
{ a = Relu (x) b = Neg (a) y = Exp (b) }
"""


def part(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 18]>\n' + text)


def has_neg(model: onnx.ModelProto) -> bool:
    return any(node.op_type == "Neg" for node in model.graph.node)


def rules(result: onnx.ModelProto, *, values_kept: bool = True) -> set[str]:
    original = onnx.parser.parse_model(OPEN)
    feeds = {"x": np.array([[1, -2, 3]], np.float32)}
    return {breach.rule for breach in breaches(original, result, has_neg, feeds, values_kept=values_kept)}


def test_the_oracle_accepts_the_smallest_piece() -> None:
    assert not rules(part("g (float[N,3] a) => (float[N,3] b) { b = Neg (a) }"))


def test_the_oracle_sees_a_result_that_does_not_fail() -> None:
    assert "fails" in rules(part("g (float[N,3] x) => (float[N,3] a) { a = Relu (x) }"))


def test_the_oracle_sees_a_node_too_many() -> None:
    assert rules(part("g (float[N,3] a) => (float[N,3] y) <float[N,3] b> { b = Neg (a) y = Exp (b) }")) == {"1-minimal"}


def test_the_oracle_sees_a_node_that_only_a_bypass_removes() -> None:
    def neg_reads_an_input(model: onnx.ModelProto) -> bool:
        inputs = {info.name for info in model.graph.input if info.name == "x"}
        return any(node.op_type == "Exp" for node in model.graph.node) and bool(inputs)

    original = onnx.parser.parse_model(OPEN)
    found = breaches(original, original, neg_reads_an_input, {"x": np.ones((1, 3), np.float32)}, values_kept=False)
    assert [breach.rule for breach in found] == ["1-minimal"]


def test_the_oracle_sees_other_values() -> None:
    result = part("g (float[N,3] a) => (float[N,3] b) { b = Neg (a) }")
    result.graph.node.insert(0, helper.make_node("Exp", ["x"], ["a"]))
    result.graph.input[0].name = "x"
    assert "values" in rules(result)


def test_the_oracle_sees_an_invalid_result() -> None:
    result = part("g (float[N,3] a) => (float[N,3] b) { b = Neg (a) }")
    result.graph.output[0].ClearField("type")
    assert "valid" in rules(result)


def test_the_oracle_sees_a_lost_shape() -> None:
    result = part("g (float[N,3] a) => (float[N,3] b) { b = Neg (a) }")
    result.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_param")
    assert "declared" in rules(result)


def test_the_oracle_knows_no_value_behind_an_operator_that_nobody_knows() -> None:
    random = Random(3)
    while True:
        model = usable_model(random)
        unknown = {name for node in model.graph.node if node.domain == "my" for name in node.output}
        if unknown:
            break
    values = values_of(model, random_feeds(model, random)[0])
    assert not unknown & values.keys()


def test_the_oracle_evaluates_what_a_frozen_constant_holds() -> None:
    model = part("g (float[N,3] a) => (float[N,3] b) { b = Add (a, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2), "w"))
    assert is_valid(model, full=True)
    assert values_of(model, {"a": np.ones((1, 3), np.float32)})["b"].tolist() == [[3, 3, 3]]
