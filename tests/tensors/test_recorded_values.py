"""Recorded values answer the same questions wherever they are: in memory, in a file, or nowhere."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from biopsy.model.tensor_type import TensorType
from biopsy.recording.reference_run import (
    StoredValues,
    ValuesInMemory,
    type_of_forms,
)
from biopsy.tensors.files import write_feeds
from biopsy.tensors.results import Feed, form_of_array

SAMPLES: list[Feed] = [
    {"x": np.ones((2, 3), np.float32), "shape": np.array([6]), "y": np.zeros(2, np.float16)},
    {"x": np.ones((4, 3), np.float32), "shape": np.array([6]), "y": np.zeros(2, np.float16), "late": np.ones(1)},
]


def in_memory(samples: list[Feed], folder: Path) -> ValuesInMemory:
    return ValuesInMemory(samples)


def stored(samples: list[Feed], folder: Path) -> ValuesInMemory:
    path = folder / "recorded.safetensors"
    write_feeds(path, samples)
    return StoredValues(path)


@pytest.fixture(params=[in_memory, stored])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> ValuesInMemory:
    make: Callable[[list[Feed], Path], ValuesInMemory] = request.param
    return make(SAMPLES, tmp_path)


def test_a_tensor_has_one_value_per_sample_in_their_order(recorded: ValuesInMemory) -> None:
    values = recorded.values("x")
    assert recorded.count == 2 and "x" in recorded
    assert values is not None and [value.shape for value in values] == [(2, 3), (4, 3)]


def test_a_tensor_that_a_sample_lacks_is_not_recorded(recorded: ValuesInMemory) -> None:
    for name in ("late", "nobody"):
        assert name not in recorded
        assert (recorded.values(name), recorded.tensor_type(name), recorded.size(name)) == (None, None, 0)


def test_the_type_is_that_of_all_samples_together(recorded: ValuesInMemory) -> None:
    assert recorded.tensor_type("x") == TensorType(1, (None, 3))
    assert recorded.tensor_type("y") == TensorType(10, (2,))


def test_the_size_is_that_of_all_samples_together(recorded: ValuesInMemory) -> None:
    assert recorded.size("x") == (6 + 12) * 4


def test_only_what_is_the_same_in_every_sample_has_a_constant_value(recorded: ValuesInMemory) -> None:
    value = recorded.constant_value("shape")
    assert value is not None and value.tolist() == [6]
    assert recorded.constant_value("x") is None and recorded.constant_value("nobody") is None


def test_where_nothing_is_recorded_nothing_is_known() -> None:
    nothing = ValuesInMemory()
    assert nothing.count == 0 and "x" not in nothing
    assert (nothing.values("x"), nothing.tensor_type("x"), nothing.size("x")) == (None, None, 0)
    assert nothing.constant_value("x") is None


def test_stored_values_tell_the_file_that_another_process_may_read(tmp_path: Path) -> None:
    values = stored(SAMPLES, tmp_path)
    assert isinstance(values, StoredValues) and values.path == tmp_path / "recorded.safetensors"


def test_values_of_different_ranks_have_a_type_without_a_shape() -> None:
    assert type_of_forms(
        [form_of_array(one) for one in [np.ones(2, np.float32), np.ones((2, 2), np.float32)]]
    ) == TensorType(1, None)


def test_strings_are_of_the_type_string_whatever_numpy_calls_them() -> None:
    for array in (np.array(["a"]), np.array([b"a"]), np.array(["a"], object)):
        assert type_of_forms([form_of_array(array)]) == TensorType(8, (1,))


def test_what_no_onnx_tensor_can_hold_has_no_type() -> None:
    assert type_of_forms([form_of_array(np.array(["2020-01-01"], "datetime64[D]"))]) is None
