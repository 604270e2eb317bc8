"""A model is written so that it finds its weights: inside, where they stood, or in one file beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from biopsy import errors
from biopsy.model import external, weights_file
from support.scaling import WEIGHT, external_model, scaling_model


def run(path: Path) -> np.ndarray:
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": WEIGHT})[0]


def test_a_model_beside_its_weights_keeps_its_references(tmp_path: Path) -> None:
    weights_file.save_with_weights(external_model(tmp_path), tmp_path / "m.onnx", tmp_path, None)
    assert (tmp_path / "m.onnx").stat().st_size < 1000
    np.testing.assert_array_equal(run(tmp_path / "m.onnx"), WEIGHT * WEIGHT + 1)


def test_a_model_elsewhere_gets_its_weights_inside(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    weights_file.save_with_weights(external_model(tmp_path), tmp_path / "out" / "m.onnx", tmp_path, None)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["m.onnx"]
    np.testing.assert_array_equal(run(tmp_path / "out" / "m.onnx"), WEIGHT * WEIGHT + 1)


@pytest.mark.parametrize("make", [external_model, lambda _: scaling_model()])
def test_large_initializers_go_into_the_requested_file(tmp_path: Path, make) -> None:
    (tmp_path / "out").mkdir()
    weights_file.save_with_weights(make(tmp_path), tmp_path / "out" / "m.onnx", tmp_path, "m.weights")
    assert (tmp_path / "out" / "m.weights").read_bytes() == WEIGHT.tobytes()
    saved = onnx.load(tmp_path / "out" / "m.onnx", load_external_data=False)
    assert [external.is_external(weight) for weight in saved.graph.initializer] == [True, False]
    np.testing.assert_array_equal(run(tmp_path / "out" / "m.onnx"), WEIGHT * WEIGHT + 1)


def test_values_in_typed_fields_move_too(tmp_path: Path) -> None:
    model = scaling_model()
    model.graph.initializer[0].ClearField("raw_data")
    model.graph.initializer[0].float_data.extend(WEIGHT.tolist())
    weights_file.save_with_weights(model, tmp_path / "m.onnx", tmp_path, "m.weights")
    np.testing.assert_array_equal(run(tmp_path / "m.onnx"), WEIGHT * WEIGHT + 1)


def test_the_file_that_the_weights_are_read_from_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match="overwritten"):
        weights_file.save_with_weights(external_model(tmp_path), tmp_path / "m.onnx", tmp_path, "w.bin")
    assert (tmp_path / "w.bin").read_bytes() == WEIGHT.tobytes()


@pytest.mark.parametrize("name", ["../w", "a/b", "", "m.onnx", "/tmp/w"])
def test_the_file_for_the_weights_is_a_plain_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(errors.UsageError, match="file name"):
        weights_file.save_with_weights(scaling_model(), tmp_path / "m.onnx", tmp_path, name)


def test_too_many_weights_for_one_file_are_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_file, "MOST_INLINE", 1000)
    (tmp_path / "out").mkdir()
    with pytest.raises(errors.UsageError, match="too much") as caught:
        weights_file.save_with_weights(external_model(tmp_path), tmp_path / "out" / "m.onnx", tmp_path, None)
    assert "--save-external-data" in caught.value.next_steps[0]
    assert not list((tmp_path / "out").iterdir())


def test_missing_weights_leave_nothing_behind(tmp_path: Path) -> None:
    model = external_model(tmp_path, location="gone.bin")
    (tmp_path / "out").mkdir()
    for name in (None, "m.weights"):
        with pytest.raises(errors.ModelError, match="missing"):
            weights_file.save_with_weights(model, tmp_path / "out" / "m.onnx", tmp_path, name)
    assert not list((tmp_path / "out").iterdir())
