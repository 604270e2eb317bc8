"""Batches keep to the limit, every tensor is recorded once, and what batches disagree on is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create
from biopsy.model.extract import mark_outputs
from biopsy.tensors.recording import (
    AppendableStore,
    Batch,
    Disagreement,
    Request,
    plan,
    record,
    results_of,
    tensor_sizes,
    with_shapes_as_outputs,
)
from biopsy.tensors.results import Array, Feed
from support.models import info, model

sized = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.none() | st.integers(0, 50), max_size=20)


def request_of(sizes: dict[str, int | None], own: Sequence[str] = (), limit: int = 100) -> Request:
    return Request(runner=0, names=list(sizes), sizes=sizes, own=own, iterations=1, limit=limit)


@given(sized, st.integers(1, 120), st.data())
def test_every_tensor_is_in_one_batch_and_no_batch_is_over_the_limit(
    sizes: dict[str, int | None], limit: int, data: st.DataObject
) -> None:
    own = data.draw(st.lists(st.sampled_from(sorted(sizes)), unique=True)) if sizes else []
    batches, shared = plan(request_of(sizes, own, limit))
    assert sorted(name for batch in batches for name in batch) == sorted(sizes)
    for batch in batches:
        total = sum(sizes[name] or 0 for name in {*batch, *shared})
        alone = [name for name in batch if name not in shared]
        assert total <= limit or len(alone) == 1
        assert len(alone) == 1 or None not in [sizes[name] for name in alone]


def test_the_models_own_outputs_are_in_every_batch_as_far_as_they_are_small() -> None:
    sizes: dict[str, int | None] = {"big": 90, "y": 10, "a": 40, "b": 40, "c": 40}
    assert plan(request_of(sizes, ["big", "y"])) == ([["y", "big"], ["a", "b"], ["c"]], ["y"])


def test_what_is_there_already_is_not_planned_again() -> None:
    batches, _ = plan(request_of({"y": 10, "a": 40, "b": 40}, ["y"]), frozenset({"y", "a"}))
    assert batches == [["b"]]


# Recording


def run_recording(
    path: Path, values: dict[str, Array], limit: int, wobble: str = "", stop_after: int = 99
) -> tuple[list[Batch], list[Disagreement], int]:
    """Record ``values``; the tensor ``wobble`` is greater by 1 each time it is asked for."""
    asked = 0

    def run(names: Sequence[str]) -> Iterator[dict[str, Array]]:
        nonlocal asked
        asked += 1
        if asked > stop_after:
            raise errors.EngineFailure("stop", engine="e", stage="run", kind="Stop")
        for iteration in range(2):
            yield {name: values[name] + iteration + (asked if name == wobble else 0) for name in names}

    sizes: dict[str, int | None] = {name: array.nbytes for name, array in values.items()}
    asked_for = Request(runner=0, names=list(values), sizes=sizes, own=["y"], iterations=2, limit=limit)
    batches: list[Batch] = []
    differing: list[Disagreement] = []
    with AppendableStore(path, {"model": "m"}, []) as file:
        earlier = record(file, asked_for, run, batches.append, differing.append)
        result = results_of(file, list(values), 0, "r", 2)
        for number, iteration in enumerate(result.iterations):
            for name, array in values.items():
                if name != wobble:
                    np.testing.assert_array_equal(iteration.outputs[name], array + number)
        file.finish({0: result})
    return batches, differing, earlier


VALUES = {"y": np.zeros(2), **{f"t{number}": np.full(100, float(number)) for number in range(10)}}


def test_tensors_are_recorded_in_batches(tmp_path: Path) -> None:
    batches, differing, earlier = run_recording(tmp_path / "f.safetensors", VALUES, 2000)
    assert [(batch.number, batch.count, batch.tensors) for batch in batches] == [
        (1, 5, 3), (2, 5, 2), (3, 5, 2), (4, 5, 2), (5, 5, 2),
    ]  # fmt: skip
    assert (differing, earlier) == ([], 0)


def test_a_recording_goes_on_after_its_last_batch_even_with_another_limit(tmp_path: Path) -> None:
    with pytest.raises(errors.EngineFailure):
        run_recording(tmp_path / "f.safetensors", VALUES, 2000, stop_after=2)
    batches, _, earlier = run_recording(tmp_path / "f.safetensors", VALUES, 10_000)
    assert earlier == 5
    assert [batch.tensors for batch in batches] == [6]


def test_what_batches_do_not_agree_on_is_told_each_time(tmp_path: Path) -> None:
    _, differing, _ = run_recording(tmp_path / "f.safetensors", VALUES, 2000, wobble="y")
    assert {(found.name, found.iteration) for found in differing} == {("y", 0), ("y", 1)}
    assert [found.batch for found in differing] == [2, 2, 3, 3, 4, 4, 5, 5]


# Sizes


def open_model(custom: bool = False) -> onnx.ModelProto:
    """x [N, 3] -> Neg -> NonZero, whose size depends on values."""
    nodes = [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("NonZero", ["n"], ["y"])]
    if custom:
        nodes.insert(0, helper.make_node("Gelu", ["x"], ["g"], domain="com.microsoft"))
    made = model(nodes, [info("x", ("N", 3))], [info("y", (2, None), onnx.TensorProto.INT64)])
    if custom:
        made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


def run_onnxruntime(model: bytes, feed: Feed) -> dict[str, Array]:
    return create("onnxrt:threads=1").build(ModelInput(model, Path())).run(feed)


def no_run(model: bytes, feed: Feed) -> dict[str, Array]:
    raise AssertionError("inference is enough")


def test_sizes_follow_from_the_shapes_of_the_inputs() -> None:
    made = model([helper.make_node("Neg", ["x"], ["n"])], [info("x", ("N", 3))], [info("n", ("N", 3))])
    feeds = [{"x": np.zeros((rows, 3), np.float32)} for rows in (5, 7, 7)]
    assert tensor_sizes(made.SerializeToString(), feeds, no_run, 100) == {"n": 7 * 3 * 4}


def test_what_cannot_be_inferred_is_measured_by_shapes_alone() -> None:
    data = mark_outputs(open_model(custom=True).SerializeToString(), "all")
    feed = {"x": np.array([[1, 0, 2]] * 4, np.float32)}
    sizes = tensor_sizes(data, [feed], run_onnxruntime, 100)
    assert sizes == {"y": 2 * 8 * 8, "g": 4 * 3 * 8, "n": 4 * 3 * 4}  # of "g" nobody knows the type


def test_what_cannot_be_measured_is_unknown() -> None:
    def fails(model: bytes, feed: Feed) -> dict[str, Array]:
        raise errors.EngineFailure("no", engine="e", stage="build", kind="No")

    sizes = tensor_sizes(open_model().SerializeToString(), [{"x": np.ones((4, 3), np.float32)}], fails, 100)
    assert sizes == {"y": None}


def test_shapes_as_outputs_have_names_of_their_own() -> None:
    made = model([helper.make_node("Neg", ["shape 0"], ["y"])], [info("shape 0", (2, 3))], [info("y", (2, 3))])
    data, shape_of = with_shapes_as_outputs(made.SerializeToString(), ["y", "shape 0"])
    assert shape_of == {"shape 1": "y", "shape 2": "shape 0"}
    outputs = run_onnxruntime(data, {"shape 0": np.zeros((2, 3), np.float32)})
    assert {name: value.tolist() for name, value in outputs.items()} == {"shape 1": [2, 3], "shape 2": [2, 3]}
