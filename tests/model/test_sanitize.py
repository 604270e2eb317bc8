"""Fixed shapes, folded constants, nothing unused, sorted nodes: and nothing else changed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from biopsy import errors
from biopsy.model import folding, sanitize
from biopsy.model.tensor_type import TensorType
from biopsy.processes.own_process import install_line

FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
SHIPPED = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data").rglob("*.onnx"))


def tensor(name: str, shape=(2, 3), elem: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, shape)


def ints(name: str, *values: int, scalar: bool = False) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values[0] if scalar else values, np.int64), name)


def floats(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape), name)


def model_of(nodes, inputs, outputs, weights=(), functions=(), domains=(), **more) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(weights), **more)
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=9)


def flattening(symbol: str = "N") -> onnx.ModelProto:
    """Reshape to (batch, rest), with the batch computed from the input's shape: Shape, Gather, Unsqueeze, Concat."""
    return model_of(
        [
            helper.make_node("Shape", ["x"], ["dims"]),
            helper.make_node("Gather", ["dims", "zero"], ["batch"]),
            helper.make_node("Unsqueeze", ["batch", "axes"], ["batch1"]),
            helper.make_node("Concat", ["batch1", "rest"], ["to"], axis=0),
            helper.make_node("Reshape", ["x", "to"], ["flat"], name="flatten"),
            helper.make_node("Relu", ["flat"], ["y"]),
        ],
        [tensor("x", [symbol, 3, 4])],
        [tensor("y", [symbol, None])],
        [ints("zero", 0, scalar=True), ints("axes", 0), ints("rest", -1)],
    )


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def shape_of(model: onnx.ModelProto, name: str) -> list[int | str | None] | None:
    for info in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if info.name == name:
            kind = info.type.tensor_type
            if not kind.HasField("shape"):
                return None
            return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in kind.shape.dim]
    raise AssertionError(name)


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    onnx.checker.check_model(model)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, dict(feeds))


class TestFreezeInputs:
    def test_a_symbol_gets_its_size_wherever_it_stands(self) -> None:
        body = helper.make_graph(
            [helper.make_node("Relu", ["x"], ["b"])], "body", [], [tensor("b", ["N", 3])], value_info=[]
        )
        model = model_of(
            [
                helper.make_node("If", ["flag"], ["t"], then_branch=body, else_branch=body),
                helper.make_node("Add", ["t", "z"], ["y"]),
            ],
            [tensor("x", ["N", 3]), tensor("z", ["N", 3]), tensor("flag", [], BOOL)],
            [tensor("y", ["N", 3])],
            value_info=[tensor("t", ["N", "M"])],
        )
        assert sanitize.freeze_inputs(model, {"x": (5, 3)}) == ()
        assert [shape_of(model, name) for name in "xzyt"] == [[5, 3], [5, 3], [5, 3], [5, "M"]]
        for attribute in model.graph.node[0].attribute:
            assert attribute.g.output[0].type.tensor_type.shape.dim[0].dim_value == 5

    def test_a_symbol_with_two_sizes_is_fixed_only_where_it_was_asked_for(self) -> None:
        model = model_of(
            [helper.make_node("Add", ["x", "z"], ["y"])],
            [tensor("x", ["N", 3]), tensor("z", ["N", 3])], [tensor("y", ["N", 3])],
        )  # fmt: skip
        assert sanitize.freeze_inputs(model, {"x": (5, 3), "z": (1, 3)}) == ("N",)
        assert [shape_of(model, name) for name in "xzy"] == [[5, 3], [1, 3], ["N", 3]]

    def test_another_size_than_the_declared_one_makes_declared_shapes_behind_it_stale(self) -> None:
        model = model_of(
            [helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Neg", ["t"], ["y"])],
            [tensor("x", [2, 3])], [tensor("y", [2, 3])], value_info=[tensor("t", [2, 3])],
        )  # fmt: skip
        sanitize.freeze_inputs(model, {"x": (7, 3)})
        assert [shape_of(model, name) for name in "xty"] == [[7, 3], None, [None, None]]
        sanitize.refresh_shapes(model)
        assert [shape_of(model, name) for name in "xty"] == [[7, 3], [7, 3], [7, 3]]

    @pytest.mark.parametrize("name", ["gone", "y", "w"])
    def test_what_is_no_input_is_refused(self, name: str) -> None:
        model = model_of([helper.make_node("Mul", ["x", "w"], ["y"])], [tensor("x")], [tensor("y")], [floats("w", 3)])
        with pytest.raises(errors.UsageError, match=f"'{name}'"):
            sanitize.freeze_inputs(model, {name: (1,)})

    def test_an_input_that_is_no_tensor_is_refused(self) -> None:
        sequence = helper.make_tensor_sequence_value_info("s", FLOAT, None)
        model = model_of([helper.make_node("SequenceLength", ["s"], ["y"])], [sequence], [tensor("y", [], 7)])
        with pytest.raises(errors.UsageError, match="not a tensor"):
            sanitize.freeze_inputs(model, {"s": (1,)})


class TestRefreshShapes:
    def test_shapes_are_written_without_touching_nodes_or_weights(self) -> None:
        model = flattening()
        nodes, weights = str(model.graph.node), str(model.graph.initializer)
        sanitize.freeze_inputs(model, {"x": (2, 3, 4)})
        sanitize.refresh_shapes(model)
        assert shape_of(model, "to") == [2]
        assert shape_of(model, "flat") == [2, 12]
        assert shape_of(model, "y") == [2, 12]
        assert (str(model.graph.node), str(model.graph.initializer)) == (nodes, weights)

    def test_what_inference_cannot_tell_keeps_its_declaration(self) -> None:
        model = model_of(
            [helper.make_node("Odd", ["x"], ["o"], domain="odd"), helper.make_node("Relu", ["o"], ["y"])],
            [tensor("x")], [tensor("y", None)], value_info=[tensor("o", [4, 5])], domains=["odd"],
        )  # fmt: skip
        sanitize.refresh_shapes(model)
        assert shape_of(model, "o") == [4, 5]
        assert shape_of(model, "y") == [4, 5]

    def test_doing_it_twice_changes_nothing(self) -> None:
        model = flattening()
        sanitize.refresh_shapes(model)
        once = model.SerializeToString(deterministic=True)
        sanitize.refresh_shapes(model)
        assert model.SerializeToString(deterministic=True) == once


class TestInferByRunning:
    def test_the_types_that_a_run_shows_are_written(self) -> None:
        model = flattening()
        seen = []

        def run_once(data: bytes) -> dict[str, TensorType]:
            seen.append([info.name for info in onnx.ModelProto.FromString(data).graph.output])
            return {"x": TensorType(1, (2, 3, 4)), "flat": TensorType(1, (2, 12)), "y": TensorType(1, (2, 12))}

        sanitize.infer_by_running(model, run_once)
        assert seen == [["y", "dims", "batch", "batch1", "to", "flat"]]
        assert [shape_of(model, name) for name in ("x", "flat", "y")] == [[2, 3, 4], [2, 12], [2, 12]]
        assert [info.name for info in model.graph.output] == ["y"]


class TestFoldConstants:
    def test_shape_operations_on_frozen_inputs_fold_away(self) -> None:
        model = flattening()
        x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
        (before,) = run(model, {"x": x})
        sanitize.freeze_inputs(model, {"x": (2, 3, 4)})
        sanitize.refresh_shapes(model)
        folding.fold_constants(model, Path())
        assert operators(model) == ["Reshape", "Relu"]
        (after,) = run(model, {"x": x})
        np.testing.assert_array_equal(after, before)

    def test_shape_operations_on_symbolic_inputs_stay(self) -> None:
        model = flattening()
        folding.fold_constants(model, Path())
        assert "Shape" in operators(model)
        run(model, {"x": np.ones((5, 3, 4), np.float32)})

    def test_chains_of_constants_fold_and_leave_nothing_behind(self) -> None:
        model = model_of(
            [
                helper.make_node("Constant", [], ["c"], value=floats("", 3)),
                helper.make_node("Add", ["c", "w"], ["s"]),
                helper.make_node("Sqrt", ["s"], ["r"]),
                helper.make_node("Mul", ["x", "r"], ["y"]),
            ],
            [tensor("x")], [tensor("y")], [floats("w", 3)],
        )  # fmt: skip
        feeds = {"x": np.ones((2, 3), np.float32)}
        before = run(model, feeds)
        folding.fold_constants(model, Path())
        assert operators(model) == ["Mul"]
        assert [weight.name for weight in model.graph.initializer] == ["r"]
        np.testing.assert_allclose(run(model, feeds), before, rtol=1e-6)

    def test_names_functions_and_everything_else_stay_as_they_are(self) -> None:
        function = helper.make_function(
            "mine", "Twice", ["p"], ["q"], [helper.make_node("Add", ["p", "p"], ["q"])], [helper.make_opsetid("", 17)]
        )
        model = model_of(
            [
                helper.make_node("Twice", ["x"], ["t"], domain="mine"),
                helper.make_node("Relu", ["t"], ["u"]),
                helper.make_node("Neg", ["u"], ["y"], name="same"),
            ],
            [tensor("x")], [tensor("y")], functions=[function], domains=["mine"],
        )  # fmt: skip
        model.metadata_props.add(key="k", value="v")
        model.producer_name = "torch"
        before = model.SerializeToString(deterministic=True)
        folding.fold_constants(model, Path())
        assert str(model) == str(onnx.ModelProto.FromString(before))

    @pytest.mark.parametrize("domain", [None, "ai.onnx"])
    def test_operators_that_the_optimizer_would_replace_stay(self, domain: str | None) -> None:
        model = model_of(
            [
                helper.make_node("Dropout", ["x"], ["d"], domain=domain),
                helper.make_node("SequenceConstruct", ["d", "d"], ["s"], domain=domain),
                helper.make_node("SequenceAt", ["s", "zero"], ["y"], domain=domain),
            ],
            [tensor("x")], [tensor("y")], [ints("zero", 0, scalar=True)],
        )  # fmt: skip
        before = str(model)
        folding.fold_constants(model, Path())
        assert str(model) == before

    def test_sparse_initializers_survive(self) -> None:
        sparse = helper.make_sparse_tensor(
            helper.make_tensor("w", FLOAT, [1], [2.0]), helper.make_tensor("i", 7, [1], [1]), [3]
        )
        model = model_of([helper.make_node("Mul", ["x", "w"], ["y"])], [tensor("x")], [tensor("y")])
        model.graph.sparse_initializer.append(sparse)
        folding.fold_constants(model, Path())
        assert model.graph.sparse_initializer[0].values.name == "w"

    def test_large_weights_are_neither_folded_nor_read(self, tmp_path: Path) -> None:
        model = model_of(
            [helper.make_node("Neg", ["w"], ["n"]), helper.make_node("Add", ["x", "n"], ["y"])],
            [tensor("x", [100, 100])], [tensor("y", [100, 100])], [floats("w", 100, 100)],
        )  # fmt: skip
        onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin")
        model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
        folding.fold_constants(model, tmp_path)
        assert operators(model) == ["Neg", "Add"]
        assert model.graph.initializer[0].data_location == TensorProto.EXTERNAL

    def test_small_external_weights_are_folded(self, tmp_path: Path) -> None:
        model = model_of(
            [helper.make_node("Neg", ["w"], ["n"]), helper.make_node("Add", ["x", "n"], ["y"])],
            [tensor("x")], [tensor("y")], [floats("w", 3)],
        )  # fmt: skip
        onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
        model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
        folding.fold_constants(model, tmp_path)
        assert operators(model) == ["Add"]
        np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[0]), [0, -1, -2])

    def test_external_data_outside_the_folder_is_refused(self, tmp_path: Path) -> None:
        model = model_of([helper.make_node("Neg", ["w"], ["y"])], [], [tensor("y")], [floats("w", 3)])
        weight = model.graph.initializer[0]
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="../w.bin")
        with pytest.raises(errors.ModelError, match="may not be read"):
            folding.fold_constants(model, tmp_path)

    def test_without_onnxscript_it_tells_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "onnxscript", None)
        with pytest.raises(errors.BiopsyError, match="not installed") as caught:
            folding.fold_constants(flattening(), Path())
        assert caught.value.next_steps == (install_line("biopsy[surgeon]"),)

    @pytest.mark.slow
    def test_every_model_that_onnx_ships_folds_to_a_valid_model(self) -> None:
        for path in SHIPPED:
            model = onnx.load(path)
            ends = [info.name for info in (*model.graph.input, *model.graph.output)]
            try:
                onnx.checker.check_model(model)
            except onnx.checker.ValidationError:
                continue
            folding.fold_constants(model, path.parent)
            onnx.checker.check_model(model)
            assert [info.name for info in (*model.graph.input, *model.graph.output)] == ends, path


class TestCleanUp:
    def test_what_nobody_uses_goes_and_the_rest_stays_as_it_was(self) -> None:
        model = model_of(
            [
                helper.make_node("Relu", ["x"], ["t"]),
                helper.make_node("Mul", ["t", "unused"], ["dead1"]),
                helper.make_node("Neg", ["dead1"], ["dead2"]),
                helper.make_node("Add", ["t", "w"], ["y"]),
            ],
            [tensor("x"), tensor("spare")], [tensor("y")], [floats("w", 3), floats("unused", 3)],
            value_info=[tensor("t"), tensor("dead1")],
        )  # fmt: skip
        sanitize.clean_up(model)
        assert operators(model) == ["Relu", "Add"]
        assert [weight.name for weight in model.graph.initializer] == ["w"]
        assert [info.name for info in model.graph.value_info] == ["t"]
        assert [info.name for info in model.graph.input] == ["x", "spare"]

    def test_what_bodies_capture_is_used_and_dead_nodes_in_bodies_go(self) -> None:
        body = helper.make_graph(
            [helper.make_node("Mul", ["t", "w"], ["b"]), helper.make_node("Add", ["lonely", "w"], ["dead"])],
            "body", [], [tensor("b")],
        )  # fmt: skip
        model = model_of(
            [
                helper.make_node("Relu", ["x"], ["t"]),
                helper.make_node("Neg", ["x"], ["lonely"]),
                helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=body),
            ],
            [tensor("x"), tensor("flag", [], BOOL)], [tensor("y")], [floats("w", 3)],
        )  # fmt: skip
        sanitize.clean_up(model)
        assert operators(model) == ["Relu", "If"]
        assert [node.op_type for node in model.graph.node[1].attribute[0].g.node] == ["Mul"]
        assert [weight.name for weight in model.graph.initializer] == ["w"]
        run(model, {"x": np.ones((2, 3), np.float32), "flag": np.array(True)})

    def test_functions_that_nobody_calls_go(self) -> None:
        def function(name: str, node: onnx.NodeProto) -> onnx.FunctionProto:
            return helper.make_function("mine", name, ["p"], ["q"], [node], [helper.make_opsetid("", 17)])

        model = model_of(
            [helper.make_node("Used", ["x"], ["y"], domain="mine")], [tensor("x")], [tensor("y")],
            functions=[
                function("Used", helper.make_node("Within", ["p"], ["q"], domain="mine")),
                function("Within", helper.make_node("Relu", ["p"], ["q"])),
                function("Unused", helper.make_node("Within", ["p"], ["q"], domain="mine")),
            ],
            domains=["mine"],
        )  # fmt: skip
        sanitize.clean_up(model)
        assert [entry.name for entry in model.functions] == ["Used", "Within"]

    def test_the_default_of_an_input_stays(self) -> None:
        model = model_of(
            [helper.make_node("Relu", ["x"], ["y"])], [tensor("x"), tensor("w", [3])], [tensor("y")], [floats("w", 3)]
        )
        before = model.SerializeToString(deterministic=True)
        sanitize.clean_up(model)
        assert model.SerializeToString(deterministic=True) == before

    def test_parameters_of_a_quantization_annotation_stay_with_their_tensor(self) -> None:
        model = model_of([helper.make_node("Relu", ["x"], ["y"])], [tensor("x")], [tensor("y")], [floats("scale", 1)])
        note = model.graph.quantization_annotation.add(tensor_name="y")
        note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
        sanitize.clean_up(model)
        assert len(model.graph.initializer) == 1


class TestSortNodes:
    def test_each_node_stands_behind_what_it_reads_and_free_ones_keep_their_order(self) -> None:
        model = model_of(
            [
                helper.make_node("Add", ["b", "c"], ["y"]),
                helper.make_node("Neg", ["a"], ["c"]),
                helper.make_node("Relu", ["a"], ["b"]),
                helper.make_node("Abs", ["x"], ["a"]),
            ],
            [tensor("x")], [tensor("y")],
        )  # fmt: skip
        sanitize.sort_nodes(model)
        assert operators(model) == ["Abs", "Neg", "Relu", "Add"]
        run(model, {"x": np.ones((2, 3), np.float32)})

    def test_captures_of_bodies_count_and_bodies_are_sorted(self) -> None:
        body = helper.make_graph(
            [helper.make_node("Neg", ["i"], ["b"]), helper.make_node("Relu", ["a"], ["i"])], "body", [], [tensor("b")]
        )
        model = model_of(
            [
                helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=body),
                helper.make_node("Abs", ["x"], ["a"]),
            ],
            [tensor("x"), tensor("flag", [], BOOL)], [tensor("y")],
        )  # fmt: skip
        sanitize.sort_nodes(model)
        assert operators(model) == ["Abs", "If"]
        assert [node.op_type for node in model.graph.node[1].attribute[0].g.node] == ["Relu", "Neg"]
        run(model, {"x": np.ones((2, 3), np.float32), "flag": np.array(True)})

    def test_a_sorted_model_is_unchanged(self) -> None:
        model = flattening()
        before = model.SerializeToString(deterministic=True)
        sanitize.sort_nodes(model)
        assert model.SerializeToString(deterministic=True) == before

    @pytest.mark.parametrize(("name", "said"), [("loop1", "Add 'loop1'"), ("", r"Add that computes \['a'\]")])
    def test_a_cycle_is_an_error_that_names_a_node_on_it(self, name: str, said: str) -> None:
        model = model_of(
            [
                helper.make_node("Relu", ["b"], ["y"]),
                helper.make_node("Add", ["x", "a"], ["a"], name=name),
                helper.make_node("Neg", ["a"], ["b"]),
            ],
            [tensor("x")], [tensor("y")],
        )  # fmt: skip
        with pytest.raises(errors.ModelError, match=said):
            sanitize.sort_nodes(model)


def test_changes_are_listed_by_operator_the_greatest_first() -> None:
    before = Counter({"Shape": 3, "Relu": 2, "Add": 1})
    assert list(sanitize.changes(before, Counter({"Relu": 2, "Identity": 1}))) == ["-3 Shape", "-1 Add", "+1 Identity"]


def test_a_tensor_that_is_defined_twice_is_named(tmp_path: Path) -> None:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"]), onnx.helper.make_node("Tanh", ["x"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, [2])],
        [onnx.helper.make_tensor_value_info("y", 1, [2])],
    )
    with pytest.raises(errors.ModelError, match="constants cannot be folded: tensor 'y' is defined twice"):
        folding.fold_constants(onnx.helper.make_model(graph), tmp_path)


def test_strings_stay_and_the_rest_is_folded() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[2] x) => (string[2] o, float[2] y) {
        s = Constant <value_strings = ["a"]> ()  o = Concat <axis = 0> (s, s)
        c = Constant <value_floats = [1.0, 2.0]> ()  d = Add (c, c)  y = Add (x, d) }"""
    model = onnx.parser.parse_model(text)
    folding.fold_constants(model, Path())
    assert [node.op_type for node in model.graph.node] == ["Constant", "Concat", "Add"]


def joining_one_constant(times: int) -> onnx.ModelProto:
    """A Concat of a constant with itself, and a small sum of constants, to be computed beforehand."""
    nodes = [
        helper.make_node("Concat", ["w"] * times, ["c"], axis=0),
        helper.make_node("Add", ["w", "w"], ["s"]),
        helper.make_node("Add", ["c", "x"], ["d"]),
        helper.make_node("Add", ["d", "s"], ["y"]),
    ]
    return model_of(nodes, [tensor("x", [times])], [tensor("y", [times])], [floats("w", 1)])


def test_a_node_stays_if_the_optimizer_would_list_too_many_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "_MOST_USES", 1000)
    model = joining_one_constant(100)
    assert folding.fold_constants(model, Path()).startswith("not every constant is folded: ")
    assert operators(model) == ["Concat", "Add", "Add"]


def test_with_very_many_inputs_of_nodes_folding_infers_no_shapes_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model = joining_one_constant(100)
    monkeypatch.setattr(folding, "_MOST_INFERRED", 50)
    assert "the nodes have more than 50 inputs" in folding.fold_constants(model, Path())
    assert operators(model) == ["Add", "Add"]


def test_no_other_pass_begins_once_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxscript import optimizer

    fold, passes = optimizer.fold_constants, 0

    def slow(*args: Any, **options: Any) -> object:
        nonlocal passes
        passes += 1
        result = fold(*args, **options)
        options["should_fold"].__self__._until = 0.0
        return result

    monkeypatch.setattr(optimizer, "fold_constants", slow)
    assert folding.fold_constants(joining_one_constant(2), Path()).startswith("constants may be left: ")
    assert passes == 1
