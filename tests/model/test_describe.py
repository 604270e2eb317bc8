"""A model as text: read from bytes, complete, and safe to show on a terminal."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from biopsy import errors
from biopsy.model.describe import description

LAYERS = ("layers",)
ATTRS = ("layers", "attrs")
FULL = ("layers", "attrs", "weights")
SHIPPED = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data").rglob("*.onnx"))


def described(path: Path, show: Collection[str] = (), folder: Path | None = None) -> str:
    return "\n".join(description(path, show, folder))


def tensor(name: str, shape=(2, 3), elem: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, shape)


def written(tmp_path: Path, nodes, inputs=(), outputs=(), weights=(), **more) -> Path:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(weights), **more)
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    return path


def attribute(tmp_path: Path, value, show=ATTRS) -> str:
    path = written(tmp_path, [helper.make_node("Odd", ["x"], ["y"], domain="odd", a=value)])
    return next(line for line in described(path, show).splitlines() if "a = " in line).strip()


class TestSummary:
    def test_it_tells_versions_inputs_outputs_and_sizes(self, tmp_path: Path) -> None:
        model = helper.make_model(
            helper.make_graph(
                [helper.make_node("Relu", ["x"], ["y"])],
                "net",
                [tensor("x", ["N", 3]), tensor("w", [5])],
                [tensor("y", ["N", None], TensorProto.FLOAT16)],
                [numpy_helper.from_array(np.zeros(5, np.float32), "w")],
            ),
            opset_imports=[helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("", 17)],
            producer_name="torch",
            producer_version="2.1",
            ir_version=3,
        )
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        assert described(tmp_path / "m.onnx").splitlines()[:2] == [
            "model      m.onnx · graph 'net' · IR version 3 · opset 17 · com.microsoft 1 · made by torch 2.1",
            "holds      1 node · 1 initializer · 0 functions · 20 bytes of weights",
        ]

    def test_types_that_are_no_tensors_are_named(self, tmp_path: Path) -> None:
        floats = helper.make_tensor_type_proto(TensorProto.FLOAT, ["N"])
        kinds = {
            "s": helper.make_sequence_type_proto(floats),
            "o": helper.make_optional_type_proto(helper.make_sequence_type_proto(floats)),
            "m": helper.make_map_type_proto(TensorProto.STRING, floats),
            "p": helper.make_sparse_tensor_type_proto(TensorProto.INT64, [2]),
        }
        path = written(tmp_path, [], [helper.make_value_info(name, kind) for name, kind in kinds.items()])
        found = described(path)
        for shown in (
            "s sequence([dtype=float32, shape=('N',)])",
            "o optional(sequence([dtype=float32, shape=('N',)]))",
            "m map(string, [dtype=float32, shape=('N',)])",
            "p sparse([dtype=int64, shape=(2,)])",
        ):
            assert shown in found

    def test_a_model_without_anything_is_described(self, tmp_path: Path) -> None:
        assert "---- 0 Graph Input(s) ----" in described(written(tmp_path, []), FULL)


class TestNodes:
    @pytest.mark.parametrize(
        ("domain", "shown"), [("", "[Op: Gelu]"), ("ai.onnx", "[Op: Gelu]"), ("com.ms", "[Op: Gelu] [Domain: com.ms]")]
    )
    def test_the_operator_carries_its_domain(self, tmp_path: Path, domain: str, shown: str) -> None:
        path = written(tmp_path, [helper.make_node("Gelu", ["x"], ["y"], domain=domain)])
        assert shown in described(path, LAYERS)

    def test_local_functions_are_shown_with_their_nodes(self, tmp_path: Path) -> None:
        function = helper.make_function(
            "mine", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])],
            [helper.make_opsetid("", 17)], ["alpha"],
        )  # fmt: skip
        model = helper.make_model(helper.make_graph([], "g", [], []), functions=[function])
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        found = described(tmp_path / "m.onnx", LAYERS)
        assert "Function mine::Twice (a) -> b attributes alpha" in found
        assert "        Node 0    |  [Op: Add]\n            {a,\n             a}\n             -> {b}" in found
        assert "1 Function(s)" in found


class TestAttributes:
    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (3, "a = 3"),
            (-1, "a = -1"),
            (0.5, "a = 0.5"),
            ("text", "a = text"),
            ([1, -2], "a = [1, -2]"),
            ([0.5, 2.0], "a = [0.5, 2.0]"),
            (["p", "q"], "a = ['p', 'q']"),
            (b"\x1b[2J\xff", "a = \\x1b[2J\\udcff"),
            (numpy_helper.from_array(np.array([1, 2], np.int64)), "a = Tensor: [dtype=int64, shape=[2]]"),
            (helper.make_tensor_type_proto(TensorProto.FLOAT, [2]), "a = [dtype=float32, shape=(2,)]"),
        ],
    )
    def test_values_are_shown_by_their_kind(self, tmp_path: Path, value, shown: str) -> None:
        assert attribute(tmp_path, value) == shown

    def test_without_attrs_none_is_shown(self, tmp_path: Path) -> None:
        path = written(tmp_path, [helper.make_node("Softmax", ["x"], ["y"], axis=1)])
        assert "axis" not in described(path, LAYERS)

    def test_a_reference_to_an_attribute_of_the_function_is_shown_as_one(self, tmp_path: Path) -> None:
        node = helper.make_node("Softmax", ["x"], ["y"])
        node.attribute.add(name="axis", ref_attr_name="outer_axis", type=onnx.AttributeProto.INT)
        assert "axis = @outer_axis" in described(written(tmp_path, [node]), ATTRS)


class TestWeights:
    @pytest.mark.parametrize(
        ("elem", "values", "shown"),
        [
            (TensorProto.FLOAT, [1.5, 2], "[1.5 2. ]"),
            (TensorProto.DOUBLE, [1.5, 2], "[1.5 2. ]"),
            (TensorProto.BOOL, [1, 0], "[ True False]"),
            (TensorProto.INT32, [-1, 2], "[-1  2]"),
            (TensorProto.INT64, [-1, 2], "[-1  2]"),
            (TensorProto.FLOAT16, [1.5, 2], "[1.5 2. ]"),
            (TensorProto.BFLOAT16, [1.5, 2], "[1.5 2. ]"),
            (TensorProto.STRING, [b"p", b"\x1bq"], '["p", "\\x1bq"]'),
            (TensorProto.UINT4, [1, 2], "1 byte"),
        ],
    )
    def test_values_in_typed_fields_are_shown(self, tmp_path: Path, elem: int, values: list, shown: str) -> None:
        weight = helper.make_tensor("w", elem, [2], values)
        assert shown in described(written(tmp_path, [], weights=[weight]), FULL)

    def test_external_weights_are_named_and_read_only_for_their_values(self, tmp_path: Path) -> None:
        weight = TensorProto(name="w", data_type=1, dims=[2], data_location=TensorProto.EXTERNAL)
        weight.external_data.add(key="location", value="w.bin")
        path = written(tmp_path, [], weights=[weight])
        assert "float32[2] · 8 bytes · in w.bin at 0 · its file is missing" in described(path, FULL)
        assert "8 bytes of weights, 8 bytes in other files" in described(path)
        (tmp_path / "w.bin").write_bytes(np.array([1, 2], np.float32).tobytes())
        assert "[1. 2.]" in described(path, FULL)
        (tmp_path / "w.bin").write_bytes(b"abc")
        assert "its file is too short" in described(path, FULL)

    def test_external_weights_outside_the_folder_are_not_read(self, tmp_path: Path) -> None:
        weight = TensorProto(name="w", data_type=1, dims=[2], data_location=TensorProto.EXTERNAL)
        weight.external_data.add(key="location", value="../../etc/passwd")
        assert "may not be read" in described(written(tmp_path, [], weights=[weight]), FULL)

    def test_the_folder_of_external_weights_can_be_given(self, tmp_path: Path) -> None:
        weight = TensorProto(name="w", data_type=1, dims=[2], data_location=TensorProto.EXTERNAL)
        weight.external_data.add(key="location", value="w.bin")
        path = written(tmp_path, [], weights=[weight])
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "w.bin").write_bytes(np.array([1, 2], np.float32).tobytes())
        assert "[1. 2.]" in described(path, FULL, tmp_path / "data")


def test_every_control_character_of_the_model_is_escaped(tmp_path: Path) -> None:
    nasty = "a\x1b[31m\n\r\u202e\x9b"
    body = helper.make_graph([helper.make_node(nasty, [nasty], [nasty])], nasty, [], [tensor(nasty, [nasty])])
    node = helper.make_node(nasty, [nasty], [nasty], name=nasty, domain=nasty, s=nasty, g=body)
    weight = helper.make_tensor(nasty, TensorProto.STRING, [1], [nasty.encode()])
    model = helper.make_model(
        helper.make_graph([node], nasty, [tensor(nasty, [nasty])], [tensor(nasty)], [weight]), producer_name=nasty
    )
    model.opset_import.add(domain=nasty, version=1)
    function = helper.make_function(nasty, nasty, [nasty], [nasty], [node], [])
    model.functions.append(function)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    found = described(path, FULL)
    assert all(char == "\n" or char.isprintable() for char in found)
    assert "a\\x1b[31m\\n\\r\\u202e\\x9b" in found


@pytest.mark.parametrize("show", [(), LAYERS, ATTRS, FULL], ids=["none", "basic", "attrs", "full"])
def test_every_model_that_onnx_ships_is_described(show: tuple[str, ...]) -> None:
    assert len(SHIPPED) > 100
    for path in SHIPPED:
        found = described(path, show)
        model = onnx.load(path, load_external_data=False)
        for value in (*model.graph.input, *model.graph.output):
            assert value.name in found, path
        for node in model.graph.node if show else ():
            assert f"{node.op_type}]" in found, path


class TestWrongFiles:
    @pytest.mark.parametrize("data", [b"\xff\xff\xff", b"hello world, this is not a model", b"\x08\x07"])
    def test_what_is_no_model_is_an_error_that_names_the_file(self, tmp_path: Path, data: bytes) -> None:
        path = tmp_path / "m.onnx"
        path.write_bytes(data)
        with pytest.raises(errors.ModelError, match=r"m\.onnx"):
            described(path)

    def test_a_model_cut_short_anywhere_gives_an_error_or_a_smaller_model(self, tmp_path: Path) -> None:
        whole = written(
            tmp_path,
            [helper.make_node("Softmax", ["x"], ["y"], axis=1)],
            [tensor("x", ["N", 2])],
            [tensor("y")],
            [numpy_helper.from_array(np.arange(10.0), "w"), helper.make_tensor("v", 1, [2], [1, 2])],
        ).read_bytes()
        cut = tmp_path / "cut.onnx"
        refused = 0
        for length in range(1, len(whole)):
            cut.write_bytes(whole[:length])
            try:
                described(cut, FULL)
            except errors.ModelError as error:
                refused += 1
                assert "cut.onnx" in error.message
        assert refused > len(whole) * 0.9

    def test_bytes_changed_anywhere_give_an_error_of_ours_or_a_description(self, tmp_path: Path) -> None:
        path = written(
            tmp_path,
            [
                helper.make_node(
                    "Softmax", ["x"], ["y"], axis=1, s="t", f=[1.0, 2.0], v=numpy_helper.from_array(np.eye(2))
                )
            ],
            [tensor("x", ["N", 2])],
            [tensor("y")],
            [numpy_helper.from_array(np.arange(10.0), "w"), helper.make_tensor("v", 7, [9], range(9))],
        )
        whole = path.read_bytes()
        for place in range(len(whole)):
            for value in (0, 1, 0x7F, 0xFF, whole[place] ^ 0x08):
                path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
                try:
                    described(path, FULL)
                except errors.ModelError as error:
                    assert "m.onnx" in error.message

    def test_graphs_nested_without_end_are_refused(self, tmp_path: Path) -> None:
        from biopsy.model.wire import string_field

        graph = b""
        for _ in range(300):
            graph = string_field(1, string_field(5, string_field(1, b"body") + string_field(6, graph)))
        path = tmp_path / "deep.onnx"
        path.write_bytes(string_field(7, graph))
        with pytest.raises(errors.ModelError, match="nested"):
            described(path, ATTRS)

    def test_a_missing_file_is_a_usage_error(self, tmp_path: Path) -> None:
        with pytest.raises(errors.UsageError, match="no model"):
            described(tmp_path / "gone.onnx")


def test_neither_onnx_nor_numpy_is_imported_for_nodes_and_attributes(tmp_path: Path) -> None:
    path = written(tmp_path, [helper.make_node("Softmax", ["x"], ["y"], axis=1)])
    code = (
        "import sys; from biopsy.cli.app import main; main(sys.argv[1:]); "
        "print(sorted({'onnx', 'numpy', 'google', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "inspect", "model", str(path), "--mode=attrs"], capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_an_endless_name_is_cut_and_its_length_shown(tmp_path: Path) -> None:
    name = "N" * 500_000
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], [name], name=name)],
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])],
    )
    (tmp_path / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    shown = described(tmp_path / "m.onnx", {"layers", "attrs"})
    assert len(shown) < 10_000
    assert "... (500000 characters)" in shown
