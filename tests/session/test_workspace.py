"""Where candidates stand, so that they find external weights without copying them."""

from pathlib import Path

import onnx
import pytest
from onnx import helper

from biopsy import errors
from biopsy.model.index import index_file
from biopsy.model.slice import Boundary, Subset, candidate_bytes
from biopsy.session.workspace import Workspace, workspace
from support.models import chain, info, model, save, weight


def external_model(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    made = model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [info("x", (400,))],
        [info("y", (400,))],
        [weight("w", *range(400))],
    )
    onnx.save(made, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=10)
    return folder / "m.onnx"


def weights_seen_from(path: Path, place: Workspace) -> list[float]:
    """What onnx itself reads as the weight of a candidate written where the workspace says."""
    data = candidate_bytes(Subset(index_file(path), (0,)), Boundary(infos={}, frozen={}, places=place.places))
    place.candidate.write_bytes(data)
    found = onnx.load(place.candidate)
    place.candidate.unlink()
    return onnx.numpy_helper.to_array(found.graph.initializer[0]).tolist()


def test_without_external_weights_a_candidate_stands_where_the_user_says(tmp_path: Path) -> None:
    index = index_file(save(chain(2), tmp_path / "m.onnx"))
    place = workspace(index, tmp_path / "here.onnx", may_move=True)
    assert (place.candidate, place.places, place.copied) == (tmp_path / "here.onnx", {}, None)
    place.leave()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx"]


@pytest.mark.parametrize("folder", [".", "sub/deeper"], ids=["the same folder", "a parent"])
def test_from_the_same_folder_or_a_parent_weights_are_referred_to(tmp_path: Path, folder: str) -> None:
    path = external_model(tmp_path / folder)
    place = workspace(index_file(path), tmp_path / "c.onnx", may_move=False)
    assert place.copied is None
    assert place.candidate == tmp_path / "c.onnx"
    assert weights_seen_from(path, place) == list(range(400))


def test_from_elsewhere_the_candidate_moves_to_the_weights_if_the_check_is_told_its_path(tmp_path: Path) -> None:
    path = external_model(tmp_path / "model")
    (tmp_path / "elsewhere").mkdir()
    place = workspace(index_file(path), tmp_path / "elsewhere" / "c.onnx", may_move=True)
    assert place.candidate.parent == tmp_path / "model"
    assert place.candidate.name not in {"c.onnx", "m.onnx"}
    assert weights_seen_from(path, place) == list(range(400))


def test_else_weights_are_copied_once_and_removed_at_the_end(tmp_path: Path) -> None:
    path = external_model(tmp_path / "model")
    (tmp_path / "elsewhere").mkdir()
    place = workspace(index_file(path), tmp_path / "elsewhere" / "c.onnx", may_move=False)
    assert place.candidate == tmp_path / "elsewhere" / "c.onnx"
    assert weights_seen_from(path, place) == list(range(400))
    place.leave()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd"])
def test_weights_outside_of_the_models_folder_are_refused(tmp_path: Path, location: str) -> None:
    path = external_model(tmp_path / "model")
    made = onnx.load(path, load_external_data=False)
    made.graph.initializer[0].external_data[0].value = location
    save(made, path)
    with pytest.raises(errors.ModelError, match="'w'"):
        workspace(index_file(path), tmp_path / "c.onnx", may_move=False)


def test_a_file_of_weights_that_is_too_short_is_named(tmp_path: Path) -> None:
    path = external_model(tmp_path)
    (tmp_path / "w.bin").write_bytes(b"short")
    with pytest.raises(errors.ModelError, match=r"w\.bin, which has only 5"):
        workspace(index_file(path), tmp_path / "c.onnx", may_move=False)
