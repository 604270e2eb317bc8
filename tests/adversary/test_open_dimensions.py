"""Open dimensions: what a model declares of them is all that is known of a custom operator's tensors."""

from pathlib import Path

import onnx
import pytest
from onnx import helper

import biopsy
from biopsy.cli.app import main
from support.bug import skip_without_it
from support.models import info, model
from support.predicates import connected, has, names


def custom_chain(batch: int | str | None, symbols: bool = False) -> onnx.ModelProto:
    """x -> my.First -> my.Second -> my.Third -> y; ``symbols``: another one for each tensor, as exporters write."""
    tensors = ["x", "a", "b", "y"]
    kinds = ["First", "Second", "Third"]
    nodes = [
        helper.make_node(kind, [tensors[place]], [tensors[place + 1]], name=kind, domain="my")
        for place, kind in enumerate(kinds)
    ]
    infos = [info(name, (f"unk__{place}" if symbols else batch, 4)) for place, name in enumerate(tensors)]
    return model(nodes, infos[:1], infos[3:], value_info=infos[1:3], domains=["my"])


def reduced(original: onnx.ModelProto, fails: object, folder: Path, **options: object) -> onnx.ModelProto:
    biopsy.reduce(original, fails, folder / "r.onnx", takes="model", **options)
    result = onnx.load(folder / "r.onnx")
    onnx.checker.check_model(result)
    return result


@pytest.mark.parametrize("batch", [2, "N", None])
@pytest.mark.parametrize("kind", ["First", "Second", "Third"])
def test_one_custom_node_is_left_whether_or_not_the_batch_is_open(
    tmp_path: Path, batch: int | str | None, kind: str
) -> None:
    result = reduced(custom_chain(batch), has(kind), tmp_path)
    assert names(result) == [kind]
    declared = {entry.name: entry for entry in (*result.graph.input, *result.graph.output)}
    original = custom_chain(batch)
    for entry in (*original.graph.input, *original.graph.output, *original.graph.value_info):
        if entry.name in declared:
            assert declared[entry.name] == entry


def test_a_custom_node_is_bypassed_where_the_declared_symbols_agree(tmp_path: Path) -> None:
    result = reduced(custom_chain("N"), connected("First", "Third"), tmp_path, values="free")
    assert names(result) == ["First", "Third"]


def test_a_node_is_bypassed_where_symbols_differ_but_inference_without_them_agrees(tmp_path: Path) -> None:
    """Exporters give a new symbol to every dimension that they cannot tell."""
    made = custom_chain(None, symbols=True)
    for node, kind in zip(made.graph.node, ("Relu", "Neg", "Abs"), strict=True):
        node.op_type, node.domain = kind, ""
    result = reduced(made, connected("First", "Third"), tmp_path, values="free")
    assert names(result) == ["First", "Third"]


def test_the_original_with_open_dimensions_is_checked_as_it_is(tmp_path: Path) -> None:
    seen: list[onnx.ModelProto] = []

    def fails(candidate: onnx.ModelProto) -> bool:
        seen.append(candidate)
        return has("Second")(candidate)

    made = custom_chain("N")
    made.graph.value_info[0].doc_string = "declared"
    reduced(made, fails, tmp_path)
    assert seen[0] == made


def test_a_size_that_only_inference_knows_is_filled_in(tmp_path: Path) -> None:
    made = custom_chain(2)
    made.graph.node[0].op_type, made.graph.node[0].domain = "Relu", ""
    made.graph.value_info[0].CopyFrom(info("a", (None, "C")))
    result = reduced(made, has("Second"), tmp_path)
    (entry,) = result.graph.input
    assert [dim.dim_value for dim in entry.type.tensor_type.shape.dim] == [2, 4]


def test_input_shapes_that_are_given_reach_through_custom_operators_to_the_outputs(tmp_path: Path) -> None:
    result = reduced(custom_chain("N"), has("Third"), tmp_path, input_shapes={"x": (5, 4)})
    assert names(result) == ["Third"]
    for entry in (*result.graph.input, *result.graph.output):
        assert [dim.dim_value for dim in entry.type.tensor_type.shape.dim] == [5, 4]


def normalizing() -> onnx.ModelProto:
    """Two layers before and behind a normalization that onnxruntime gets wrong where the batch N is 8."""
    return onnx.parser.parse_model(
        """
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[N,8] x) => (float[N,8] y)
        <float two = {2}, float eps = {0.00001}, int64[1] last = {-1}, float[8] gain = {1, 1, 1, 1, 1, 1, 1, 1}>
        {
            [tanh] a = Tanh (x)
            [mean] m = ReduceMean <keepdims = 1> (a, last)
            [sub] c = Sub (a, m)
            [pow] p = Pow (c, two)
            [mean2] v = ReduceMean <keepdims = 0> (p, last)
            [add] e = Add (v, eps)
            [sqrt] s = Sqrt (e)
            [div] d = Div (c, s)
            [mul] n = Mul (d, gain)
            [neg] y = Neg (n)
        }
        """
    )


@pytest.mark.slow
def test_the_check_gives_every_candidate_the_sizes_that_it_gives_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--input-shapes names x alone: a candidate without x would be run with N=1, where nothing is wrong."""
    skip_without_it()
    monkeypatch.chdir(tmp_path)
    onnx.save(normalizing(), "m.onnx")
    check = ["run", "{}", "--engine", "onnxrt:optimization=none", "--onnxrt", "--atol", "1e-3"]
    words = ["debug", "reduce", "m.onnx", "-o", "r.onnx", "--jobs", "1"]
    assert main([*words, "--check", "biopsy", *check, "--input-shapes", "x:[8,8]"]) == 0
    assert names(onnx.load("r.onnx")) == ["pow", "mean2", "add", "sqrt", "div", "mul"]
    assert "sizes      N=8 in every candidate" in capsys.readouterr().out
    assert main(["run", "r.onnx", *check[2:], "--input-symbols", "N=8"]) == 1


def test_sizes_that_other_input_shapes_refute_are_those_of_a_run(tmp_path: Path) -> None:
    """onnx cannot infer the shape of com.microsoft.Gelu, which onnxruntime can run."""
    made = onnx.parser.parse_model(
        """
        <ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[2,4] x) => (float[2,4] y) {
            [relu] a = Relu (x)
            [gelu] b = com.microsoft.Gelu (a)
            [neg] y = Neg (b)
        }
        """
    )
    result = reduced(made, has("neg"), tmp_path, input_shapes={"x": (6, 4)})
    assert [dim.dim_value for dim in result.graph.output[0].type.tensor_type.shape.dim] == [6, 4]
