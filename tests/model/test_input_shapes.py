"""Inputs of other shapes: what was declared stays unless they refute it, and then what follows is inferred."""

import pytest
from onnx import helper

from biopsy import errors
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.infer import override_input_shapes
from support.models import INT64, info, model


def custom(*declared: tuple[object, ...], x: tuple[object, ...] = ("N", 4)) -> ModelIndex:
    """x -> my.Odd -> t0 -> my.Odd -> t1 ..., the last an output, with these shapes."""
    nodes = [
        helper.make_node("Odd", ["x" if number == 0 else f"t{number - 1}"], [f"t{number}"], domain="my")
        for number in range(len(declared))
    ]
    infos = [info(f"t{number}", shape) for number, shape in enumerate(declared)]
    made = model(nodes, [info("x", x), info("z", ("N", 7))], infos[-1:], value_info=infos[:-1], domains=["my"])
    return index_bytes(made.SerializeToString())


def shape(index: ModelIndex, name: str) -> str:
    return str(index.tensor_type(index.ids[name]))


def test_without_other_shapes_nothing_changes() -> None:
    index = custom(("N", 4), (None, "M"))
    before = dict(index.infos)
    override_input_shapes(index, {})
    assert index.infos == before


def test_a_symbol_gets_its_size_in_all_that_is_computed_from_it_and_others_stay() -> None:
    index = custom(("N", 4), ("N", "M"), (None, 9))
    override_input_shapes(index, {"x": (5, 4)})
    assert [shape(index, name) for name in ("x", "t0", "t1", "t2", "z")] == [
        "float32[5,4]",
        "float32[5,4]",
        "float32[5,M]",
        "float32[?,9]",
        "float32[N,7]",
    ]


def test_refuted_shapes_are_inferred_anew_also_of_outputs() -> None:
    made = model(
        [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Transpose", ["r"], ["y"]),
         helper.make_node("Shape", ["r"], ["s"])],
        [info("x", (2, 3))],
        [info("y", (3, 2)), info("s", (2,), INT64)],
        value_info=[info("r", (2, 3))],
    )  # fmt: skip
    index = index_bytes(made.SerializeToString())
    override_input_shapes(index, {"x": (5, 4)})
    assert [shape(index, name) for name in ("r", "y", "s")] == ["float32[5,4]", "float32[4,5]", "int64[2]"]


def test_a_size_that_may_have_changed_unseen_is_left_open() -> None:
    index = custom((2, 4), x=(2, 4))
    override_input_shapes(index, {"x": (3, 4)})
    assert shape(index, "t0") == "float32[?,?]"


def test_a_symbol_with_two_sizes_is_no_size() -> None:
    index = custom(("N", 4))
    override_input_shapes(index, {"x": (5, 4), "z": (6, 7)})
    assert shape(index, "t0") == "float32[?,4]"


def test_a_name_that_is_no_input_is_refused_with_those_that_are() -> None:
    with pytest.raises(errors.UsageError, match="no input 'q'") as refused:
        override_input_shapes(custom(("N", 4)), {"q": (1,)})
    assert list(refused.value.next_steps) == ["its inputs are: 'x', 'z'"]
