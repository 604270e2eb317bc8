"""The reference evaluator, and what it computes when everything is to be float64."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from benchmarks.models import control_flow, transformer
from biopsy import errors
from biopsy.cli.app import main
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create
from support.models import BOOL, FLOAT, INT64, chain, info, model, save, weight

Arrays = Mapping[str, np.ndarray]
LONG = np.longdouble


def run(made: onnx.ModelProto, feed: Arrays, spec: str = "reference:float64") -> Arrays:
    return create(spec).build(ModelInput(made.SerializeToString(), Path())).run(feed)


def values(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def is_exact(found: np.ndarray, exact: np.ndarray) -> None:
    """Float64's own rounding is allowed, a hundred times over; that of float32 is a hundred thousand times larger."""
    assert found.dtype == np.float64
    scale = np.abs(exact).max()
    assert np.abs(found - exact).max() <= 100 * np.finfo(np.float64).eps * scale


# What is computed


@pytest.mark.parametrize("inputs", [["n", "", "x"], ["n", "always", "x"]])
def test_a_loop_without_a_condition_runs_as_often_as_it_says(inputs: list[str]):
    """Onnx 1.17 to 1.23 take a missing condition as false, and give the loop's first values."""
    nodes = [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Add", ["v", "v"], ["w"])]
    scalars = [info("i", (), INT64), info("c", (), BOOL)]
    body = helper.make_graph(nodes, "body", [*scalars, info("v", (1,))], [info("d", (), BOOL), info("w", (1,))])
    weights = [weight("n", 3, shape=(), dtype="int64"), weight("always", True, shape=(), dtype="bool")]
    made = model([helper.make_node("Loop", inputs, ["y"], body=body)], [info("x", (1,))], [info("y", (1,))], weights)
    assert run(made, {"x": np.ones(1, np.float32)}, "reference")["y"].tolist() == [8]


def test_a_chain_of_nodes_is_computed_in_float64():
    x, w = values(4, 4), values(4, 4, seed=2)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Tanh", ["a"], ["y"])]
    made = model(nodes, [info("x", (4, 4))], [info("y", (4, 4))], [numpy_helper.from_array(w, "w")])
    is_exact(run(made, {"x": x})["y"], np.tanh(x.astype(LONG) @ w.astype(LONG)))


def test_without_the_switch_it_is_the_type_of_the_model():
    assert run(chain(2), {"t0": values(2, 2)}, "reference")["t2"].dtype == np.float32


def test_constants_in_nodes_take_part():
    nodes = [
        helper.make_node("Constant", [], ["a"], value=weight("", 0.1, shape=())),
        helper.make_node("Constant", [], ["b"], value_floats=[0.1, 0.3]),
        helper.make_node("ConstantOfShape", ["s"], ["c"], value=weight("", 0.7, shape=(1,))),
        helper.make_node("Sum", ["x", "a", "b", "c"], ["y"]),
    ]
    made = model(nodes, [info("x", (2,))], [info("y", (2,))], [weight("s", 2, dtype="int64")])
    x = values(2)
    single = [LONG(np.float32(value)) for value in (0.1, 0.1, 0.3, 0.7)]
    is_exact(run(made, {"x": x})["y"], x + single[0] + np.array(single[1:3]) + single[3])


@pytest.mark.parametrize("elem", [1, 10, 16])
def test_a_cast_to_a_narrower_type_rounds_nothing(elem: int):
    nodes = [helper.make_node("Cast", ["x"], ["h"], to=elem), helper.make_node("Cast", ["h"], ["y"], to=FLOAT)]
    x = np.array([1 / 3, 1e30, 1e-30], np.float32)
    assert run(model(nodes, [info("x", (3,))], [info("y", (3,))]), {"x": x})["y"].tolist() == x.astype("f8").tolist()


def test_casts_to_integers_and_booleans_are_as_ever():
    nodes = [helper.make_node("Cast", ["x"], ["i"], to=INT64), helper.make_node("Cast", ["x"], ["b"], to=BOOL)]
    found = run(
        model(nodes, [info("x", (2,))], [info("i", (2,), INT64), info("b", (2,), BOOL)]),
        {"x": np.array([1.7, 0], "f4")},
    )
    assert (found["i"].tolist(), found["b"].tolist()) == ([1, 0], [True, False])


@pytest.mark.parametrize(("elem", "dtype"), [(10, np.dtype(np.float16)), (16, np.dtype(ml_dtypes.bfloat16))])
def test_a_model_of_halves_is_computed_in_float64_from_the_same_values(elem: int, dtype: np.dtype[Any]):
    x, w = values(3).astype(dtype), values(3, seed=2).astype(dtype)
    made = model(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        [info("x", (3,), elem)],
        [info("y", (3,), elem)],
        [numpy_helper.from_array(w, "w")],
    )
    is_exact(run(made, {"x": x})["y"], x.astype(LONG) * w.astype(LONG))


def test_layer_normalization_is_computed_in_float64():
    x, scale, bias = values(3, 8), values(8, seed=2), values(8, seed=3)
    node = helper.make_node("LayerNormalization", ["x", "s", "b"], ["y", "mean", "inverse"])
    weights = [numpy_helper.from_array(scale, "s"), numpy_helper.from_array(bias, "b")]
    found = run(model([node], [info("x", (3, 8))], [info("y"), info("mean"), info("inverse")], weights), {"x": x})
    wide = x.astype(LONG)
    mean = wide.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt(((wide - mean) ** 2).mean(-1, keepdims=True) + LONG(np.float32(1e-5)))
    is_exact(found["y"], (wide - mean) * inverse * scale + bias)
    is_exact(found["mean"], mean)
    is_exact(found["inverse"], inverse)


@pytest.mark.parametrize(
    ("op", "direct"),
    [
        ("Erf", lambda x: np.vectorize(math.erf)(x.astype(np.float64))),
        ("Gelu", lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x.astype(np.float64) / math.sqrt(2)))),
        ("Celu", lambda x: np.where(x > 0, x, np.expm1(x))),
        ("Softmax", lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
        ("HardSwish", lambda x: x * np.clip(x * LONG(np.float32(1 / 6)) + LONG(0.5), 0, 1)),
    ],
)
def test_operators_that_onnx_computes_in_float32_or_as_functions_too(op: str, direct: Callable[..., np.ndarray]):
    x = values(4, 5)
    made = model([helper.make_node(op, ["x"], ["y"])], [info("x", (4, 5))], [info("y", (4, 5))], opset=20)
    is_exact(run(made, {"x": x})["y"], direct(x.astype(LONG)))


def test_bodies_of_loops_are_computed_in_float64():
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["d"]),
            helper.make_node("Mul", ["v", "w"], ["scaled"]),
            helper.make_node("Cast", ["scaled"], ["half"], to=10),
            helper.make_node("Cast", ["half"], ["back"], to=FLOAT),
            helper.make_node("Add", ["back", "x"], ["next"]),
        ],
        "body",
        [info("i", (), INT64), info("c", (), BOOL), info("v", (3,))],
        [info("d", (), BOOL), info("next", (3,))],
        [weight("w", 0.3, shape=())],
    )
    made = model(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)],
        [info("x", (3,))],
        [info("y", (3,))],
        [weight("n", 20, shape=(), dtype="int64")],
    )
    x = values(3)
    exact = x.astype(LONG)
    for _ in range(20):
        exact = exact * LONG(np.float32(0.3)) + x
    is_exact(run(made, {"x": x})["y"], exact)


def test_branches_of_an_if_are_computed_in_float64():
    def branch(op: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, ["x"], ["y"])], op, [], [info("y", (3,))])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("Exp"), else_branch=branch("Sin"))
    made = model([node], [info("x", (3,)), info("c", (), BOOL)], [info("y", (3,))])
    x = values(3)
    is_exact(run(made, {"x": x, "c": np.array(True)})["y"], np.exp(x.astype(LONG)))
    is_exact(run(made, {"x": x, "c": np.array(False)})["y"], np.sin(x.astype(LONG)))


def test_functions_of_the_model_are_computed_in_float64():
    nodes = [helper.make_node("Exp", ["a"], ["e"]), helper.make_node("Erf", ["e"], ["b"])]
    function = helper.make_function("own", "Twice", ["a"], ["b"], nodes, [helper.make_opsetid("", 17)])
    made = model(
        [helper.make_node("Twice", ["x"], ["y"], domain="own")],
        [info("x", (3,))],
        [info("y", (3,))],
        functions=[function],
        domains=["own"],
    )
    x = values(3)
    is_exact(run(made, {"x": x})["y"], np.vectorize(math.erf)(np.exp(x.astype(np.float64))))


def test_tensors_in_sequences_become_float64():
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        helper.make_node("ConcatFromSequence", ["s"], ["c"], axis=0),
        helper.make_node("Exp", ["c"], ["y"]),
    ]
    x = values(2)
    is_exact(run(model(nodes, [info("x", (2,))], [info("y", (4,))]), {"x": x})["y"], np.exp(np.tile(x, 2).astype(LONG)))


def test_an_operator_that_stays_in_float32_is_named():
    node = helper.make_node("GridSample", ["x", "g"], ["y"], mode="linear")
    made = model([node], [info("x", (1, 1, 4, 4)), info("g", (1, 2, 2, 2))], [info("y", (1, 1, 2, 2))], opset=20)
    told = create("reference:float64").build(ModelInput(made.SerializeToString(), Path())).remarks
    assert told == ("onnx computes GridSample in float32 inside, in spite of float64",)


# Whole models, against the same computed directly by NumPy

DIRECT: dict[str, Callable[..., np.ndarray]] = {
    "MatMul": np.matmul,
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Sqrt": np.sqrt,
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Erf": np.vectorize(math.erf, otypes=[LONG]),
    "Transpose": np.transpose,
    "ReduceMean": lambda x: x.mean(-1, keepdims=True),
    "Softmax": lambda x: (
        np.exp(x - x.max(-1, keepdims=True)) / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)
    ),
}


def directly(made: onnx.ModelProto, feed: Arrays, dtype: type) -> Arrays:
    known = {one.name: numpy_helper.to_array(one).astype(dtype) for one in made.graph.initializer}
    known |= {name: value.astype(dtype) for name, value in feed.items()}
    for node in made.graph.node:
        known[node.output[0]] = DIRECT[node.op_type](*(known[name] for name in node.input)).astype(dtype)
    return known


def test_a_transformer_of_400_nodes_is_computed_in_float64():
    made = transformer(400)
    feed = {"x": values(16, 16)}
    found, exact = run(made, feed), directly(made, feed, LONG)
    single = directly(made, feed, np.float32)
    for output in made.graph.output:
        scale = np.abs(exact[output.name]).max()
        error = np.abs(found[output.name] - exact[output.name]).max() / scale
        assert error < 1e-13
        assert np.abs(single[output.name] - exact[output.name]).max() / scale > 1e6 * error


def test_control_flow_inside_a_network_agrees_with_float32_but_for_its_rounding():
    made = control_flow(64)
    feed = {"x": values(16, 16)}
    wide, plain = run(made, feed), run(made, feed, "reference")
    for name, value in wide.items():
        assert value.dtype == np.float64
        assert 0 < np.abs(value - plain[name]).max() < 1e-5 * np.abs(value).max()


RANDOM_OR_ABOUT_BITS = ("bernoulli", "random", "bitcast", "dynamicquantizelinear", "dropout", "mod_float_edge")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_test_of_onnx_for_its_operators_gives_the_same_in_float64():
    from onnx.backend.test.loader import load_model_tests

    held = 0
    for case in load_model_tests(kind="node"):
        if case.model is None or any(word in case.name for word in RANDOM_OR_ABOUT_BITS):
            continue
        for inputs, _ in case.data_sets:
            if all(isinstance(value, np.ndarray | np.generic) for value in inputs):
                held += agrees(case.name, case.model, inputs)
    assert held > 1000


def agrees(name: str, made: onnx.ModelProto, inputs: Sequence[np.ndarray]) -> bool:
    feed = {declared.name: np.asarray(value) for declared, value in zip(made.graph.input, inputs, strict=False)}
    try:
        plain = run(made, feed, "reference")
    except Exception:
        return False  # onnx itself cannot run some of its tests by the evaluator
    for output, value in run(made, feed).items():
        expected = plain[output]
        if expected.dtype.name not in {"float32", "float16", "bfloat16"}:
            np.testing.assert_array_equal(value, expected, err_msg=name)
            continue
        assert value.dtype == np.float64, name
        near = 1e-4 if expected.dtype == np.float32 else 5e-2
        np.testing.assert_allclose(value, expected.astype(np.float64), near, near, err_msg=name)
    return True


# On the command line


@pytest.mark.parametrize("words", [["--reference:float64"], ["--engine", "reference:float64"]])
def test_it_is_the_arbiter_between_two_engines(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = save(transformer(48), tmp_path / "m.onnx")
    assert main(["run", str(path), *words, "--onnxrt"]) == 0
    assert "PASSED" in capsys.readouterr().out


@pytest.mark.parametrize("outputs", [["y"], []])
def test_a_loop_without_a_body_is_a_failure_of_the_engine_to_load(outputs: list[str]) -> None:
    nodes = [helper.make_node("Loop", ["", "", "x"], outputs), helper.make_node("Neg", ["x"], ["z"])]
    made = model(nodes, [info("x")], [info(name) for name in (*outputs, "z")])
    with pytest.raises(errors.EngineFailure) as raised:
        create("reference").build(ModelInput(made.SerializeToString(), Path())).run({"x": values(2, 2)})
    assert raised.value.engine == "reference"


# What a narrower type would give


def as_tf32(exact: np.ndarray) -> np.ndarray:
    """Rounded to 11 binary digits, ties to even, by the arithmetic of float64."""
    split = exact * (2.0 ** (53 - 11) + 1)
    return split - (split - exact)


@pytest.mark.parametrize(
    ("name", "rounded"),
    [
        ("float16", lambda exact: exact.astype(np.float16)),
        ("bfloat16", lambda exact: exact.astype(ml_dtypes.bfloat16)),
        ("float32", lambda exact: exact.astype(np.float32)),
        ("tf32", as_tf32),
    ],
)
def test_values_are_rounded_where_that_is_wanted(name: str, rounded: Callable[[np.ndarray], np.ndarray]) -> None:
    made = model([helper.make_node("Mul", ["x", "w"], ["y"])], [info("x", (64,))], [info("y", (64,))],
                 [numpy_helper.from_array(values(64, seed=2), "w")])  # fmt: skip
    x, w = values(64).astype(np.float64), values(64, seed=2).astype(np.float64)
    narrow_x, narrow_w = (rounded(value).astype(np.float64) for value in (x, w))
    expected = {
        "-results": rounded(x * w).astype(np.float64),
        "-inputs": narrow_x * narrow_w,
        "": rounded(narrow_x * narrow_w).astype(np.float64),
    }
    for where, value in expected.items():
        found = run(made, {"x": values(64)}, f"reference:float64,rounded={name}{where}")["y"]
        np.testing.assert_array_equal(found, value)


def test_rounding_alone_is_not_simulated() -> None:
    with pytest.raises(errors.UsageError, match="rounded needs float64"):
        run(chain(1), {"t0": values(2, 2)}, "reference:rounded=float16")
