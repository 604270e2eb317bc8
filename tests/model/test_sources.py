"""Where nodes come from when a pass has dropped what was noted: looked up in the original, and never guessed."""

import random
from collections.abc import Iterator

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from biopsy.model.index import index_bytes
from biopsy.model.sources import CodePlace, NodeSource, group_name, places_of, sources_of
from biopsy.reduction.passes.common import copied
from support.bodied import bodied
from support.exporters import exported
from support.models import chain, info, model


def noted(made: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which each node of the graph is of a module of its own, and told by its documentation as well."""
    made = copied(made)
    for number, node in enumerate(made.graph.node):
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', 'module{number}', 'op']")
        node.doc_string = str(number)
    return made


def sources(made: onnx.ModelProto, original: onnx.ModelProto) -> tuple[NodeSource | None, ...]:
    return sources_of(index_bytes(made.SerializeToString()), index_bytes(original.SerializeToString()))


class Mangled:
    """A model after passes that take away, make anew and rename; ``changed`` are nodes that the original has not."""

    def __init__(self, original: onnx.ModelProto, draw: random.Random) -> None:
        self.model = copied(original)
        self.changed: set[int] = set()
        self._draw = draw
        for action in (self._forget, self._unname, self._rename, self._replace, self._remove, self._freeze):
            for node in self._some():
                action(node)

    def _some(self) -> Iterator[onnx.NodeProto]:
        yield from [node for node in self.model.graph.node if self._draw.random() < 0.4]

    def _forget(self, node: onnx.NodeProto) -> None:
        node.ClearField("metadata_props")

    def _unname(self, node: onnx.NodeProto) -> None:
        node.name = ""

    def _rename(self, node: onnx.NodeProto) -> None:
        """Name a node like any other, as tools do that count: the name says nothing then."""
        if not node.metadata_props:
            node.name = self._draw.choice([each.name for each in self.model.graph.node])

    def _replace(self, node: onnx.NodeProto) -> None:
        if not node.metadata_props and len(node.output) == 1:
            node.op_type, node.domain = "Fused", "com.example"
            self.changed.add(int(node.doc_string))

    def _remove(self, node: onnx.NodeProto) -> None:
        self.model.graph.node.remove(node)

    def _freeze(self, node: onnx.NodeProto) -> None:
        if not node.metadata_props and len(node.output) == 1:
            frozen = helper.make_node("Constant", [], list(node.output), name="frozen", value_float=1.0)
            frozen.doc_string = node.doc_string
            node.CopyFrom(frozen)
            self.changed.add(int(node.doc_string))


@given(seed=st.integers(0, 10_000))
def test_a_source_is_that_of_the_same_node_or_of_the_node_in_whose_place_it_is_or_none(seed: int) -> None:
    original = noted(bodied(seed % 50))
    mangled = Mangled(original, random.Random(seed))
    for node, source in zip(mangled.model.graph.node, sources(mangled.model, original), strict=True):
        if source is None:
            continue
        number = int(node.doc_string)
        assert source.scopes == (f"module{number}",)
        if number in mangled.changed:
            assert source.stands_for is not None
            assert f"in place of {source.stands_for}" in str(source)


@given(seed=st.integers(0, 10_000))
def test_a_node_that_only_lost_what_was_noted_has_the_source_of_the_original(seed: int) -> None:
    original, draw = noted(bodied(seed % 50)), random.Random(seed)
    made = copied(original)
    for node in list(made.graph.node):
        if draw.random() < 0.5:
            made.graph.node.remove(node)
            continue
        node.ClearField("metadata_props")
        if draw.random() < 0.5:
            node.name = ""
    for node, source in zip(made.graph.node, sources(made, original), strict=True):
        assert source is not None
        assert (source.scopes, source.stands_for) == ((f"module{node.doc_string}",), None)


def test_a_node_whose_output_was_renamed_is_found_by_its_name_and_what_it_reads() -> None:
    original, made = noted(chain(3)), chain(3)
    made.graph.node[2].output[0] = made.graph.output[0].name = "renamed"
    assert [source and source.scopes[0] for source in sources(made, original)] == ["module0", "module1", "module2"]
    made.graph.node[2].input[0] = "t0"  # of another node that happens to have the name, nothing is said
    assert sources(made, original)[2] is None


def two(names: tuple[str, str], outputs: tuple[str, str]) -> onnx.ModelProto:
    nodes = [helper.make_node("Neg", ["x"], [out], name=name) for name, out in zip(names, outputs, strict=True)]
    return model(nodes, [info("x")], [info(out) for out in outputs])


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(two(("a", "a"), ("new", "newer")), id="a name that two nodes have"),
        pytest.param(two(("b", "a"), ("y", "z")), id="a name and an output that are of two nodes"),
        pytest.param(two(("c", "d"), ("new", "newer")), id="another name and another output"),
    ],
)
def test_an_ambiguous_node_has_no_source(made: onnx.ModelProto) -> None:
    assert sources(made, noted(two(("a", "b"), ("y", "z")))) == (None, None)


def test_a_node_of_another_domain_only_stands_in_its_place() -> None:
    original, made = noted(chain(1)), chain(1)
    made.graph.node[0].domain = "com.example"
    (source,) = sources(made, original)
    assert source is not None
    assert str(source) == f"in place of {original.graph.node[0].op_type} 'n0', module module0"
    assert source.as_tree()["stands_for"] == source.stands_for


def of_export() -> tuple[NodeSource | None, ...]:
    return sources_of(index_bytes(exported("pytorch").SerializeToString()))


def test_nodes_of_one_line_are_one_place() -> None:
    assert places_of(of_export()) == [
        CodePlace(text="model.py:11 in Attention.forward: y = self.query(x)", nodes=(0,)),
        CodePlace(text="model.py:12 in Attention.forward: return scaled(torch.softmax(y, -1), x)", nodes=(1, 2)),
        CodePlace(text="model.py:25 in Model.forward: return self.blocks(x).sigmoid()", nodes=(3,)),
    ]


def test_a_group_is_named_by_its_innermost_module_and_its_operators() -> None:
    gemm, softmax, mul, sigmoid = of_export()
    assert group_name([gemm, softmax]) == "module blocks.0: aten.linear.default, aten.softmax.int"
    assert group_name([softmax, mul]) == "module blocks.0: aten.softmax.int, aten.mul.Tensor"
    assert group_name([mul, sigmoid]) == "class Model: aten.mul.Tensor, aten.sigmoid.default"
    assert group_name([mul, softmax, None]).endswith(": aten.mul.Tensor, aten.softmax.int, and 1 more node")
    assert group_name([mul, None]) == group_name([None]) == group_name([]) == ""
