"""``biopsy surgeon prune``, ``weight-strip`` and ``weight-reconstruct`` as they are typed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from biopsy.cli.app import main
from biopsy.model import stripping
from support.models import info, model

Node = helper.make_node


def random(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.random.default_rng(len(name)).standard_normal(shape, np.float32), name)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """m.onnx in the current folder: Conv, Flatten, MatMul, a transposed weight in Gemm, Add; weights beside it."""
    monkeypatch.chdir(tmp_path)
    nodes = [
        Node("Conv", ["x", "kernel", "bias"], ["c"], pads=[1, 1, 1, 1]),
        Node("Flatten", ["c"], ["f"]),
        Node("MatMul", ["f", "matrix"], ["m"]),
        Node("Transpose", ["turned"], ["t"], perm=[1, 0]),
        Node("Gemm", ["m", "t", "offset"], ["g"]),
        Node("Add", ["g", "added"], ["y"]),
    ]
    weights = [
        random("kernel", 8, 4, 3, 3), random("bias", 8), random("matrix", 512, 16),
        random("turned", 12, 16), random("offset", 12), random("added", 12),
    ]  # fmt: skip
    made = model(nodes, [info("x", ["N", 4, 8, 8])], [info("y", ["N", 12])], weights)
    onnx.save(made, "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=512)
    return tmp_path


def values(path: str) -> dict[str, np.ndarray]:
    return {weight.name: numpy_helper.to_array(weight) for weight in onnx.load(path).graph.initializer}


def result(path: str) -> np.ndarray:
    x = np.random.default_rng(1).random((2, 4, 8, 8), np.float32)
    return ort.InferenceSession(path).run(None, {"x": x})[0]


def biopsy(*words: str) -> int:
    return main(["surgeon", *words])


@pytest.mark.parametrize("option", [(), ("--save-external-data",), ("--save-external-data", "./other.bin")])
def test_pruned_weights_keep_the_larger_half_and_the_rest_stays(folder: Path, capsys, option) -> None:
    assert biopsy("prune", "m.onnx", "-o", "p.onnx", *option) == 0
    assert "3 weights pruned to 2:4 sparsity, written to p.onnx" in capsys.readouterr().out
    before, after = values("m.onnx"), values("p.onnx")
    for name in ("kernel", "matrix", "turned"):
        assert np.count_nonzero(after[name]) == after[name].size // 2
        assert np.array_equal(after[name], np.where(after[name] == 0, 0, before[name]))
    assert all(np.array_equal(before[name], after[name]) for name in ("bias", "offset", "added"))
    assert result("p.onnx").shape == (2, 12)


def test_pruning_over_the_model_itself_is_as_good(folder: Path) -> None:
    assert biopsy("prune", "m.onnx", "-o", "p.onnx") == 0
    assert biopsy("prune", "m.onnx", "-o", "m.onnx") == 0
    assert np.array_equal(result("m.onnx"), result("p.onnx"))


def test_weights_that_cannot_be_sparse_are_named(folder: Path, capsys) -> None:
    made = model([Node("MatMul", ["x", "w"], ["y"])], [info("x", [2, 6])], [info("y", [2, 2])], [random("w", 6, 2)])
    onnx.save(made, "odd.onnx")
    assert biopsy("prune", "odd.onnx", "-o", "p.onnx") == 0
    told = capsys.readouterr()
    assert "0 weights pruned" in told.out
    assert "'w' stays as it was: dimension 0 has 6 elements, no multiple of 4" in told.out + told.err


def test_stripped_weights_are_gone_and_come_back_with_other_values(folder: Path, capsys) -> None:
    assert biopsy("weight-strip", "m.onnx", "-o", "s.onnx") == 0
    assert "5 weights stripped, 34.8 kB" in capsys.readouterr().out
    stripped = onnx.load("s.onnx", load_external_data=False)
    assert (folder / "s.onnx").stat().st_size < 1000
    assert stripped.doc_string == "TRT_WEIGHTLESS"
    assert {weight.name for weight in stripped.graph.initializer if stripping.is_stripped(weight)} == {
        "kernel", "bias", "matrix", "turned", "offset",
    }  # fmt: skip
    assert {weight.doc_string for weight in stripped.graph.initializer} == {"TRT_WEIGHTLESS/", ""}
    assert biopsy("weight-reconstruct", "s.onnx", "-o", "r.onnx") == 0
    assert "random values for 5 weights" in capsys.readouterr().out
    made = onnx.load("r.onnx")
    assert "TRT_WEIGHTLESS" not in str(made)
    assert 0.9 < values("r.onnx")["matrix"].std() < 1.1
    assert np.array_equal(values("r.onnx")["added"], values("m.onnx")["added"])
    assert result("r.onnx").shape == (2, 12)
    assert biopsy("weight-reconstruct", "s.onnx", "-o", "again.onnx", "--save-external-data") == 0
    assert np.array_equal(result("again.onnx"), result("r.onnx"))


def test_sparse_weights_come_back_sparse(folder: Path, capsys) -> None:
    for words in (
        ("prune", "m.onnx", "-o", "p.onnx"),
        ("weight-strip", "p.onnx", "-o", "s.onnx"),
        ("weight-reconstruct", "s.onnx", "-o", "r.onnx"),
    ):
        assert biopsy(*words) == 0
    assert [weight.doc_string for weight in onnx.load("s.onnx").graph.initializer].count(
        "TRT_WEIGHTLESS/SPARSE_2_4"
    ) == 3
    found = values("r.onnx")
    assert all(np.count_nonzero(found[name]) == found[name].size // 2 for name in ("kernel", "matrix", "turned"))


def test_what_the_list_excludes_keeps_its_values_and_wrong_names_are_told(folder: Path, capsys) -> None:
    (folder / "keep.txt").write_text("matrix \nkernel\nnone\n")
    assert biopsy("weight-strip", "m.onnx", "-o", "s.onnx", "--exclude-list", "keep.txt") == 0
    assert "--exclude-list names 'none'" in capsys.readouterr().err
    found = [weight.name for weight in onnx.load("s.onnx").graph.initializer if stripping.is_stripped(weight)]
    assert found == ["bias", "turned", "offset"]


@pytest.mark.parametrize("command", ["prune", "weight-strip"])
def test_missing_weights_are_told_and_nothing_is_written(folder: Path, capsys, command: str) -> None:
    (folder / "w.bin").unlink()
    (folder / "o.onnx").write_bytes(b"mine")
    assert biopsy(command, "m.onnx", "-o", "o.onnx") == 4
    assert "are missing" in capsys.readouterr().err
    assert (folder / "o.onnx").read_bytes() == b"mine"


def test_missing_weights_can_be_ignored(folder: Path, capsys) -> None:
    (folder / "w.bin").unlink()
    assert biopsy("weight-strip", "m.onnx", "-o", "s.onnx", "--ignore-external-data") == 0
    assert biopsy("weight-reconstruct", "s.onnx", "-o", "r.onnx") == 0
    assert result("r.onnx").shape == (2, 12)
    assert biopsy("prune", "m.onnx", "-o", "p.onnx", "--ignore-external-data", "--save-external-data") == 2


def test_more_than_8_gib_are_not_made_up(folder: Path, capsys) -> None:
    made = onnx.load("m.onnx", load_external_data=False)
    huge = made.graph.initializer[0]
    stripping.strip(made, folder)
    huge.dims[0] = 1 << 40
    onnx.save(made, "huge.onnx")
    assert biopsy("weight-reconstruct", "huge.onnx", "-o", "r.onnx", "--save-external-data") == 4
    assert "its values are not made up" in capsys.readouterr().err
    assert not (folder / "r.onnx").exists()


@settings(max_examples=30, deadline=None)
@given(
    dims=st.lists(st.integers(1, 6), min_size=2, max_size=2),
    elem=st.sampled_from([1, 10, 11, 16, 3, 7, 17, 22]),
    plain=st.booleans(),
)
def test_a_weight_of_any_type_is_stripped_and_made_up_again(dims: list[int], elem: int, plain: bool) -> None:
    array = np.ones(dims).astype(helper.tensor_dtype_to_np_dtype(elem))
    weight = helper.make_tensor("w", elem, dims, array.ravel()) if plain else numpy_helper.from_array(array, "w")
    made = model([Node("MatMul", ["x", "w"], ["y"])], [info("x", None, elem)], [info("y", None, elem)], [weight])
    before = made.SerializeToString()
    assert stripping.strip(made, Path()).names == ("w",)
    assert stripping.strip(made, Path()).names == ()
    (refilling,) = stripping.refillings(made)
    refilling.weight.raw_data = refilling.values()
    stripping.unmark(made, [refilling.weight])
    assert numpy_helper.to_array(made.graph.initializer[0]).shape == tuple(dims)
    again = onnx.ModelProto.FromString(before)
    for one in (made, again):
        del one.graph.initializer[:]
    assert made == again
