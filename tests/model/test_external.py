"""Weights in other files: found safely, and checked before they are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from biopsy import errors
from biopsy.model import external
from biopsy.model.index import index_bytes
from support.scaling import WEIGHT, external_model


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
