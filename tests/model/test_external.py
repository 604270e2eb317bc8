"""Weights in other files: found safely, checked before they are read, and moved along with a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from biopsy import errors
from biopsy.model import external
from biopsy.model.index import index_bytes

WEIGHT = np.arange(512, dtype=np.float32)


def scaling_model() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["scaled"]), helper.make_node("Add", ["scaled", "b"], ["y"])],
        "scaling",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [512])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [512])],
        [numpy_helper.from_array(WEIGHT, "w"), numpy_helper.from_array(np.ones(1, np.float32), "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def external_model(
    folder: Path, location: str = "w.bin", offset: int = 0, length: int | None = 2048
) -> onnx.ModelProto:
    model = scaling_model()
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": str(offset)} | ({} if length is None else {"length": str(length)})
    for key, value in entries.items():
        weight.external_data.add(key=key, value=value)
    (folder / "w.bin").write_bytes(bytes(offset if offset > 0 else 0) + WEIGHT.tobytes())
    return model


def run(path: Path) -> np.ndarray:
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": WEIGHT})[0]


class TestResolve:
    def test_a_name_in_a_folder_below_is_found(self, tmp_path: Path) -> None:
        assert external.resolve(tmp_path, "data/w.bin", "w") == tmp_path.resolve() / "data" / "w.bin"

    @pytest.mark.parametrize(
        "location", ["", "/etc/passwd", "../w.bin", "data/../../w.bin", "..\\w.bin", "C:\\w.bin", "C:w.bin", "a\0b"]
    )
    def test_a_path_out_of_the_folder_is_refused_naming_tensor_and_file(self, tmp_path: Path, location: str) -> None:
        with pytest.raises(errors.ModelError) as caught:
            external.resolve(tmp_path, location, "secret")
        assert "'secret'" in caught.value.message
        assert repr(location) in caught.value.message

    def test_a_link_out_of_the_folder_is_refused(self, tmp_path: Path) -> None:
        folder = tmp_path / "model"
        folder.mkdir()
        (tmp_path / "private").write_text("x")
        (folder / "w.bin").symlink_to(tmp_path / "private")
        with pytest.raises(errors.ModelError, match="link"):
            external.resolve(folder, "w.bin", "w")

    def test_a_link_within_the_folder_is_refused_as_onnx_does(self, tmp_path: Path) -> None:
        (tmp_path / "real.bin").write_text("x")
        (tmp_path / "w.bin").symlink_to(tmp_path / "real.bin")
        with pytest.raises(errors.ModelError, match="symbolic link"):
            external.resolve(tmp_path, "w.bin", "w")

    def test_the_folder_itself_may_be_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "real" / "w.bin").write_text("x")
        (tmp_path / "folder").symlink_to(tmp_path / "real")
        assert external.resolve(tmp_path / "folder", "w.bin") == tmp_path.resolve() / "real" / "w.bin"


class TestPlace:
    @pytest.mark.parametrize(
        ("entries", "said"),
        [
            ({"location": ""}, "has no location"),
            ({"location": "w.bin", "offset": "ten"}, "no proper offset or length"),
            ({"location": "w.bin", "offset": "1_000"}, "no proper offset or length"),
            ({"location": "w.bin", "length": "-1"}, "no proper offset or length"),
            ({"location": "w.bin", "length": "9" * 5000}, "no proper offset or length"),
            ({"location": "w.bin", "more": ("location", "x.bin")}, "names its location twice"),
            ({"location": "w.bin", "offset": "0", "more": ("offset", "0")}, "names its offset twice"),
        ],
    )
    def test_what_says_no_one_place_is_refused_alike_by_every_reader(
        self, tmp_path: Path, entries: dict, said: str
    ) -> None:
        model = external_model(tmp_path)
        weight = model.graph.initializer[0]
        weight.ClearField("external_data")
        for key, value in (value if key == "more" else (key, value) for key, value in entries.items()):
            weight.external_data.add(key=key, value=value)
        data = model.SerializeToString()
        for read in (external.require_safe, external.require_safe_locations, index_bytes):
            with pytest.raises(errors.ModelError, match=f"the external data of tensor 'w' .*{said}"):
                read(data, tmp_path)


class TestLoadInto:
    @pytest.mark.parametrize(("offset", "length"), [(0, 2048), (64, 2048), (0, None)])
    def test_the_values_are_those_of_the_file(self, tmp_path: Path, offset: int, length: int | None) -> None:
        model = external_model(tmp_path, offset=offset, length=length)
        external.load_into(model, tmp_path)
        np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[0]), WEIGHT)
        assert not list(external.external_tensors(model))

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"location": "gone.bin"}, "there is no file"),
            ({"offset": 8, "length": 4}, "needs 2048 bytes"),
            ({"offset": -1}, "no proper offset"),
        ],
    )
    def test_what_cannot_be_right_is_refused_before_reading(self, tmp_path: Path, changes: dict, said: str) -> None:
        model = external_model(tmp_path, **changes)
        with pytest.raises(errors.ModelError, match=said) as caught:
            external.load_into(model, tmp_path)
        assert "'w'" in caught.value.message

    def test_a_file_that_is_too_short_is_refused(self, tmp_path: Path) -> None:
        model = external_model(tmp_path)
        (tmp_path / "w.bin").write_bytes(b"short")
        with pytest.raises(errors.ModelError, match="only 5"):
            external.load_into(model, tmp_path)

    def test_an_offset_that_is_no_number_is_refused(self, tmp_path: Path) -> None:
        model = external_model(tmp_path)
        model.graph.initializer[0].external_data[1].value = "ten"
        with pytest.raises(errors.ModelError, match="no proper offset"):
            external.load_into(model, tmp_path)

    def test_nothing_is_loaded_when_one_of_two_is_missing(self, tmp_path: Path) -> None:
        model = external_model(tmp_path)
        second = model.graph.initializer.add()
        second.CopyFrom(model.graph.initializer[0])
        second.name = "other"
        second.external_data[0].value = "gone.bin"
        before = model.SerializeToString(deterministic=True)
        with pytest.raises(errors.ModelError, match="'other'"):
            external.load_into(model, tmp_path)
        assert model.SerializeToString(deterministic=True) == before


class TestByteSize:
    @pytest.mark.parametrize(
        ("elem", "dims", "expected"),
        [(1, [2, 3], 24), (22, [3], 2), (25, [5], 2), (9, [], 1), (15, [2], 32), (16, [0, 4], 0)],
    )
    def test_it_follows_from_type_and_shape(self, elem: int, dims: list[int], expected: int) -> None:
        assert external.byte_size(TensorProto(data_type=elem, dims=dims)) == expected

    @pytest.mark.parametrize("tensor", [TensorProto(data_type=1, dims=[-1]), TensorProto(data_type=99)])
    def test_what_has_no_size_is_refused(self, tensor: TensorProto) -> None:
        with pytest.raises(errors.ModelError, match="size cannot be told"):
            external.byte_size(tensor)

    def test_it_agrees_with_onnx_for_every_type(self) -> None:
        for elem in TensorProto.DataType.values():
            if elem in {0, 8, 27, 28}:
                continue
            dtype = helper.tensor_dtype_to_np_dtype(elem)
            tensor = numpy_helper.from_array(np.zeros(7, dtype))
            assert len(external.raw_values(tensor)) == external.byte_size(tensor), elem


class TestSaveWithWeights:
    def test_beside_its_weights_a_model_goes_on_referring_to_them(self, tmp_path: Path) -> None:
        external.save_with_weights(external_model(tmp_path), tmp_path / "m.onnx", tmp_path, None)
        assert (tmp_path / "m.onnx").stat().st_size < 1000
        np.testing.assert_array_equal(run(tmp_path / "m.onnx"), WEIGHT * WEIGHT + 1)

    def test_elsewhere_the_weights_come_inside(self, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        external.save_with_weights(external_model(tmp_path), tmp_path / "out" / "m.onnx", tmp_path, None)
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["m.onnx"]
        np.testing.assert_array_equal(run(tmp_path / "out" / "m.onnx"), WEIGHT * WEIGHT + 1)

    @pytest.mark.parametrize("make", [external_model, lambda _: scaling_model()])
    def test_large_initializers_go_into_the_file_that_is_asked_for(self, tmp_path: Path, make) -> None:
        (tmp_path / "out").mkdir()
        external.save_with_weights(make(tmp_path), tmp_path / "out" / "m.onnx", tmp_path, "m.weights")
        assert (tmp_path / "out" / "m.weights").read_bytes() == WEIGHT.tobytes()
        saved = onnx.load(tmp_path / "out" / "m.onnx", load_external_data=False)
        assert [external.is_external(weight) for weight in saved.graph.initializer] == [True, False]
        np.testing.assert_array_equal(run(tmp_path / "out" / "m.onnx"), WEIGHT * WEIGHT + 1)

    def test_values_that_stand_in_a_typed_field_move_too(self, tmp_path: Path) -> None:
        model = scaling_model()
        model.graph.initializer[0].ClearField("raw_data")
        model.graph.initializer[0].float_data.extend(WEIGHT.tolist())
        external.save_with_weights(model, tmp_path / "m.onnx", tmp_path, "m.weights")
        np.testing.assert_array_equal(run(tmp_path / "m.onnx"), WEIGHT * WEIGHT + 1)

    def test_the_file_that_the_weights_are_read_from_is_not_overwritten(self, tmp_path: Path) -> None:
        with pytest.raises(errors.UsageError, match="overwritten"):
            external.save_with_weights(external_model(tmp_path), tmp_path / "m.onnx", tmp_path, "w.bin")
        assert (tmp_path / "w.bin").read_bytes() == WEIGHT.tobytes()

    @pytest.mark.parametrize("name", ["../w", "a/b", "", "m.onnx", "/tmp/w"])
    def test_the_file_for_the_weights_is_a_plain_name(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(errors.UsageError, match="file name"):
            external.save_with_weights(scaling_model(), tmp_path / "m.onnx", tmp_path, name)

    def test_too_many_weights_for_one_file_are_refused_with_the_way_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(external, "MOST_INLINE", 1000)
        (tmp_path / "out").mkdir()
        with pytest.raises(errors.UsageError, match="too much") as caught:
            external.save_with_weights(external_model(tmp_path), tmp_path / "out" / "m.onnx", tmp_path, None)
        assert "--save-external-data" in caught.value.next_steps[0]
        assert not list((tmp_path / "out").iterdir())

    def test_missing_weights_leave_nothing_behind(self, tmp_path: Path) -> None:
        model = external_model(tmp_path, location="gone.bin")
        (tmp_path / "out").mkdir()
        for name in (None, "m.weights"):
            with pytest.raises(errors.ModelError, match="missing"):
                external.save_with_weights(model, tmp_path / "out" / "m.onnx", tmp_path, name)
        assert not list((tmp_path / "out").iterdir())
