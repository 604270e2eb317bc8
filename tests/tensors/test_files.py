"""Every format gives back what was written, of any type, shape and name; and says clearly what it cannot read."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from biopsy import errors
from biopsy.tensors import npz
from biopsy.tensors.files import (
    merge_feeds,
    read_feeds,
    read_results,
    require_writable,
    write_feeds,
    write_results,
)
from biopsy.tensors.results import Array, Iteration, RunnerResult, release

FORMATS = (".json", ".npz", ".safetensors", "")
EXTENDED = ("bfloat16", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn", "int4", "uint4", "int2")

names = st.text(st.characters(codec=None), max_size=12) | st.sampled_from(
    [
        "",
        "a/b",
        "x:0",
        "#1",
        "0/x",
        "__metadata__",
        "biopsy.json",
        "x.npy",
        "../up",
        "a\\b",
        "nul\0",
        "\udcff",
        "polygraphy_class",
    ]
)
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
plain_dtypes = (
    hnp.integer_dtypes(endianness="?")
    | hnp.unsigned_integer_dtypes(endianness="?")
    | hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64))
    | hnp.complex_number_dtypes(endianness="?")
    | hnp.boolean_dtypes()
    | hnp.unicode_string_dtypes(min_len=1, max_len=5)
)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    if draw(st.booleans()):
        return draw(hnp.arrays(draw(plain_dtypes), draw(shapes)))
    small = draw(hnp.arrays(np.int8, draw(shapes), elements=st.integers(-2, 1)))
    return small.astype(getattr(ml_dtypes, draw(st.sampled_from(EXTENDED))))


feeds_lists = st.lists(st.dictionaries(names, arrays(), max_size=4), min_size=1, max_size=3)


def assert_same(actual: Array, expected: Array) -> None:
    assert actual.dtype == expected.dtype.newbyteorder("=")
    assert actual.shape == expected.shape
    if expected.dtype.isbuiltin == 2:
        actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(actual, expected)


def assert_same_feeds(actual: list[dict[str, Array]], expected: list[dict[str, Array]]) -> None:
    assert [list(feed) for feed in actual] == [list(feed) for feed in expected]
    for one, other in zip(actual, expected, strict=True):
        for name in other:
            assert_same(one[name], other[name])


@pytest.mark.parametrize("extension", FORMATS)
@given(feeds=feeds_lists)
def test_feeds_of_any_type_shape_and_name_come_back_in_their_order(
    extension: str, feeds: list[dict[str, Array]]
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"saved{extension}"
        write_feeds(path, feeds)
        assert_same_feeds(read_feeds(path), feeds)


@pytest.mark.parametrize("extension", FORMATS)
@given(
    runs=st.lists(
        st.tuples(
            names,
            st.lists(st.tuples(st.dictionaries(names, arrays(), max_size=2), st.none() | st.floats(0, 9)), min_size=1),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_results_of_several_runners_come_back_with_names_and_times(extension: str, runs: Any) -> None:
    # In a folder the iterations of runners are told apart by name alone: that is Polygraphy's form.
    assume(extension or len({name for name, _ in runs}) == len(runs))
    results = [RunnerResult(name, tuple(Iteration(*one) for one in iterations)) for name, iterations in runs]
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"saved{extension}"
        write_results(path, results)
        read = read_results(path)
    assert [(one.runner, [it.runtime for it in one.iterations]) for one in read] == [
        (one.runner, [it.runtime for it in one.iterations]) for one in results
    ]
    for one, other in zip(read, results, strict=True):
        assert_same_feeds([dict(it.outputs) for it in one.iterations], [dict(it.outputs) for it in other.iterations])


FEED = {"x:0": np.arange(6, dtype=np.float32).reshape(2, 3), "mask": np.array(True)}


def test_one_iteration_in_npz_is_what_numpy_reads(tmp_path: Path) -> None:
    write_feeds(tmp_path / "f.npz", [FEED])
    with np.load(tmp_path / "f.npz") as loaded:
        assert loaded.files == ["x:0", "mask"]
        np.testing.assert_array_equal(loaded["x:0"], FEED["x:0"])


def test_outputs_of_one_iteration_in_npz_keep_their_names_for_numpy(tmp_path: Path) -> None:
    write_results(tmp_path / "f.npz", [RunnerResult("onnxrt", (Iteration(FEED, 0.5),))])
    with np.load(tmp_path / "f.npz") as loaded:
        np.testing.assert_array_equal(loaded["x:0"], FEED["x:0"])


def test_one_iteration_in_safetensors_is_what_its_own_package_reads(tmp_path: Path) -> None:
    write_feeds(tmp_path / "f.safetensors", [FEED])
    loaded = safetensors.numpy.load_file(tmp_path / "f.safetensors")
    assert set(loaded) == set(FEED)
    np.testing.assert_array_equal(loaded["x:0"], FEED["x:0"])


def test_files_of_other_programs_are_one_iteration_of_plain_names(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", **FEED)
    safetensors.numpy.save_file(FEED, tmp_path / "b.safetensors")
    for name in ("a.npz", "b.safetensors"):
        (feed,) = read_feeds(tmp_path / name)
        assert set(feed) == set(FEED)
        np.testing.assert_array_equal(feed["x:0"], FEED["x:0"])
    (result,) = read_results(tmp_path / "a.npz")
    assert result.runner == "a"


def test_safetensors_is_mapped_and_not_copied(tmp_path: Path) -> None:
    write_feeds(tmp_path / "f.safetensors", [{"odd": np.zeros(3, np.uint8), "x": np.ones(1000)}])
    array = read_feeds(tmp_path / "f.safetensors")[0]["x"]
    assert not array.flags.owndata
    assert not array.flags.writeable
    assert array.flags.aligned


def test_mapped_tensors_can_be_let_go_and_read_again(tmp_path: Path) -> None:
    write_feeds(tmp_path / "f.safetensors", [{"x": np.arange(100_000.0), "y": np.zeros((0, 3)), "z": np.ones(3)}])
    (feed,) = read_feeds(tmp_path / "f.safetensors")
    for _ in range(2):
        assert feed["x"].sum() == np.arange(100_000.0).sum()
        assert feed["z"].sum() == 3
        release(*feed.values(), feed["x"][::2], np.ones(3))


def test_strings_held_as_objects_are_saved_as_text(tmp_path: Path) -> None:
    words = np.array([["yes", "naïve"]], dtype=object)
    for extension in FORMATS:
        write_feeds(tmp_path / f"f{extension}", [{"words": words}])
        assert read_feeds(tmp_path / f"f{extension}")[0]["words"].tolist() == words.tolist()


def test_other_objects_are_refused_by_name_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(errors.DataError, match=r"iteration 1: tensor 'bad' holds Python objects"):
        write_feeds(tmp_path / "f.json", [FEED, {"bad": np.array([1, None], dtype=object)}])
    assert list(tmp_path.iterdir()) == []


def test_bfloat16_in_json_is_float32_for_polygraphy_and_bfloat16_for_us(tmp_path: Path) -> None:
    write_feeds(tmp_path / "f.json", [{"x": np.array([1.5, -2], ml_dtypes.bfloat16)}])
    tree = json.loads((tmp_path / "f.json").read_text())
    theirs = np.load(io.BytesIO(base64.b64decode(tree[0]["x"]["array"])))
    assert theirs.dtype == np.float32
    assert read_feeds(tmp_path / "f.json")[0]["x"].dtype == ml_dtypes.bfloat16


def test_feeds_of_a_file_of_outputs_are_those_of_its_first_runner(tmp_path: Path) -> None:
    one, two = (RunnerResult(name, (Iteration({name: np.ones(1)}),) * 2) for name in "ab")
    write_results(tmp_path / "f.json", [one, two])
    assert [list(feed) for feed in read_feeds(tmp_path / "f.json")] == [["a"], ["a"]]


def test_results_of_a_file_of_inputs_are_one_runner_named_after_it(tmp_path: Path) -> None:
    write_feeds(tmp_path / "golden.json", [FEED, FEED])
    (result,) = read_results(tmp_path / "golden.json")
    assert (result.runner, len(result.iterations)) == ("golden", 2)


def test_a_path_without_extension_is_a_folder_of_numbered_iterations(tmp_path: Path) -> None:
    write_feeds(tmp_path / "feeds", [FEED, FEED])
    assert sorted(path.name for path in (tmp_path / "feeds").iterdir()) == ["0000000000.json", "0000000001.json"]
    assert isinstance(json.loads((tmp_path / "feeds" / "0000000000.json").read_text()), dict)


def test_a_folder_that_is_not_empty_is_never_written_into(tmp_path: Path) -> None:
    write_feeds(tmp_path / "feeds", [FEED])
    with pytest.raises(errors.UsageError, match="not empty"):
        write_feeds(tmp_path / "feeds", [FEED])


def test_an_empty_folder_may_be_written(tmp_path: Path) -> None:
    (tmp_path / "feeds").mkdir()
    write_feeds(tmp_path / "feeds", [FEED])
    assert [path.name for path in tmp_path.iterdir()] == ["feeds"]


def test_the_older_form_of_polygraphys_objects_is_read(tmp_path: Path) -> None:
    mark = "polygraphy_serialized_json_type"
    header, data = npz.encode(FEED["x:0"])
    array = {"array": (header + bytes(data)).decode("latin-1"), "__polygraphy_encoded_ndarray": mark}
    zipped = io.BytesIO()
    np.savez(zipped, FEED["x:0"])
    archived = {"array": base64.b64encode(zipped.getvalue()).decode(), "__polygraphy_encoded_ndarray": mark}
    outputs = {
        "a": {"values": array, "__polygraphy_encoded_LazyArray": mark},
        "b": {"values": archived, "polygraphy_class": "LazyNumpyArray"},
        "c": array,
    }
    iteration = {"outputs": outputs, "runtime": 1, "runner_name": "r", "__polygraphy_encoded_IterationResult": mark}
    tree = {"lst": [["r", [iteration]]], "__polygraphy_encoded_RunResults": mark}
    (tmp_path / "old.json").write_text(json.dumps(tree))
    (result,) = read_results(tmp_path / "old.json")
    for name in "abc":
        np.testing.assert_array_equal(result.iterations[0].outputs[name], FEED["x:0"])


# Files that cannot be trusted


def damaged(path: Path, match: str) -> None:
    with pytest.raises(errors.DataError, match=match) as caught:
        for feed in read_feeds(path):
            dict(feed)  # a tensor that nobody asks for is not looked at
    assert str(path) in caught.value.message


def npy_with(header: str, data: bytes = b"") -> bytes:
    return npz.MAGIC + b"\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


def json_with(path: Path, data: bytes) -> Path:
    array = {"array": base64.b64encode(data).decode(), "polygraphy_class": "ndarray"}
    path.write_text(json.dumps([{"fine": array, "x": array}]))
    return path


HUGE = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000, 1000000), }"


class Trap:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("the pickle was run",))


def test_a_pickle_is_refused_and_never_run(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, np.array([Trap()], dtype=object), allow_pickle=True)
    damaged(json_with(tmp_path / "f.json", stream.getvalue()), r"iteration 0: tensor 'fine': .*pickle")
    with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
        archive.writestr("x.npy", stream.getvalue())
    damaged(tmp_path / "f.npz", r"tensor 'x': .*pickle")


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (npy_with(HUGE), "claims 8000000000000000000 bytes, but only 0"),
        (npy_with(HUGE.replace("1000000)", "-1)")), "no valid shape"),
        (npy_with(HUGE.replace("1000000, 1000000)", "0, 9999999999999999999)")), "shape|claims"),
        (npy_with(HUGE.replace("<f8", "O")), "pickle"),
        (npy_with(HUGE.replace("'<f8'", "[('a', 'O')]")), "records"),
        (npy_with(HUGE.replace("<f8", "<M8[s]")), "no ONNX tensor"),
        (npy_with(HUGE.replace("<f8", "nonsense")), "unknown type"),
        (npy_with("[" * 9000), "damaged"),
        (npy_with("__import__('os')"), "damaged"),
        (npy_with("{}"), "damaged"),
        (npz.MAGIC + b"\x01\x00\xff\xff", "damaged, or cut short"),
        (npz.MAGIC + b"\x02\x00\xff\xff\xff\xff", "damaged, or cut short"),
        (npy_with("{'descr': '|V2', 'fortran_order': False, 'shape': (1,), }", b"ab"), "bfloat16"),
        (b"", "no .npy data"),
        (b"PK\x03\x04 nothing", "npz data is damaged"),
    ],
)
def test_a_header_that_lies_is_an_error_and_no_allocation(tmp_path: Path, data: bytes, match: str) -> None:
    damaged(json_with(tmp_path / "f.json", data), match)


@pytest.mark.parametrize("extension", [".json", ".npz", ".safetensors"])
def test_a_file_cut_anywhere_is_told_as_damaged(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"f{extension}"
    write_feeds(path, [FEED, FEED])
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, 7):
        path.write_bytes(whole[:length])
        damaged(path, "empty|damaged|cut short")


@pytest.mark.parametrize("extension", [".json", ".npz", ".safetensors"])
@settings(deadline=None, max_examples=100)
@given(flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=4))
def test_changed_bytes_are_read_or_refused_and_never_crash(extension: str, flips: list[tuple[int, int]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"f{extension}"
        write_feeds(path, [FEED, {"b": np.zeros(2, ml_dtypes.bfloat16)}])
        data = bytearray(path.read_bytes())
        for position, bits in flips:
            data[position % len(data)] ^= bits
        path.write_bytes(data)
        try:
            for feed in read_feeds(path):
                dict(feed)
        except errors.DataError as error:
            assert str(path) in error.message


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "empty"),
        ("[]", "no iteration"),
        ("[3]", "iteration 0: it is not an object"),
        ('[{}, {"x": [1, 2]}]', "iteration 1: tensor 'x': it is not an array"),
        ('{"x": {"tensor": "AAAA", "polygraphy_class": "Tensor"}}', "tensor 'x': a torch.Tensor"),
        ('{"x": {"array": 3, "polygraphy_class": "ndarray"}}', "tensor 'x': its array is not text"),
        ('{"x": {"array": "?", "polygraphy_class": "ndarray"}}', "base64"),
        ('{"lst": 3, "polygraphy_class": "RunResults"}', "list of runners"),
        ('{"lst": [["r", [3]]], "polygraphy_class": "RunResults"}', "runner 'r', iteration 0"),
        ('{"lst": [], "polygraphy_class": "RunResults"}', "no iteration"),
        ('{"replay": {}, "polygraphy_class": "TacticReplayData"}', "TacticReplayData, which is neither"),
        ("[" * 100_000, "not a JSON file"),
        ("\x93", "not a JSON file"),
    ],
)
def test_json_that_is_no_file_of_tensors_is_told_as_that(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "f.json").write_bytes(text.encode("latin-1"))
    damaged(tmp_path / "f.json", match)


def test_an_index_that_is_damaged_is_told_as_that(tmp_path: Path) -> None:
    for index in (
        "[]",
        "{}",
        '{"biopsy": 1, "kind": "feeds", "runners": [{"iterations": [{"tensors": [["x", []]]}]}]}',
    ):
        with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
            archive.writestr("biopsy.json", index)
        damaged(tmp_path / "f.npz", "index is damaged")


def test_a_tensor_that_the_index_names_must_be_there(tmp_path: Path) -> None:
    tensors = {"iterations": [{"runtime": None, "tensors": [["x", "0/x", None]]}], "name": "r"}
    with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
        archive.writestr("biopsy.json", json.dumps({"biopsy": 1, "kind": "feeds", "runners": [tensors]}))
    damaged(tmp_path / "f.npz", "iteration 0: tensor 'x': it is missing")


def test_a_missing_file_is_wrong_usage_and_names_its_neighbours(tmp_path: Path) -> None:
    write_feeds(tmp_path / "inputs.json", [FEED])
    with pytest.raises(errors.UsageError, match=r"there is no file of tensors .*input\.json") as caught:
        read_feeds(tmp_path / "input.json")
    assert "inputs.json" in caught.value.next_steps[0]


@pytest.mark.parametrize("act", [read_feeds, lambda path: write_feeds(path, [FEED])])
def test_an_unknown_extension_is_wrong_usage(tmp_path: Path, act: Any) -> None:
    (tmp_path / "f.pkl").write_bytes(b"x")
    with pytest.raises(errors.UsageError, match=r"\.json, \.npz or \.safetensors"):
        act(tmp_path / "f.pkl")


def test_a_folder_without_iterations_or_with_mixed_ones_is_told_as_that(tmp_path: Path) -> None:
    damaged(tmp_path, "no iteration")
    write_feeds(tmp_path / "0.json", [FEED])
    write_results(tmp_path / "1.json", [RunnerResult("r", (Iteration(FEED),))])
    damaged(tmp_path, "both inputs and outputs")


@pytest.mark.parametrize("extension", FORMATS)
def test_nothing_to_save_is_an_error(tmp_path: Path, extension: str) -> None:
    with pytest.raises(errors.DataError, match="no iteration to save"):
        write_feeds(tmp_path / f"f{extension}", [])
    with pytest.raises(errors.DataError, match="no iteration to save"):
        write_results(tmp_path / f"f{extension}", [RunnerResult("r", ())])


@pytest.mark.parametrize("extension", FORMATS)
def test_a_path_that_cannot_be_written_is_wrong_usage(tmp_path: Path, extension: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.UsageError, match="is not a folder"):
        write_feeds(tmp_path / "file" / f"f{extension}", [FEED])


@pytest.mark.parametrize("extension", FORMATS)
def test_folders_that_are_missing_are_made(tmp_path: Path, extension: str) -> None:
    write_feeds(tmp_path / "a" / "b" / f"f{extension}", [FEED])
    assert len(read_feeds(tmp_path / "a" / "b" / f"f{extension}")) == 1


@pytest.mark.parametrize("extension", [*FORMATS, ".pkl"])
def test_a_path_can_be_tried_before_long_work(tmp_path: Path, extension: str) -> None:
    with pytest.raises(errors.UsageError):
        require_writable(Path("/dev/null") / f"f{extension}")
    for folder in (tmp_path, tmp_path / "missing") if extension in FORMATS else ():
        require_writable(folder / f"f{extension}")
    assert list(tmp_path.iterdir()) == []


# Merging


def one(value: float) -> Array:
    return np.full(2, value, np.float32)


def test_every_iteration_keeps_its_own_values() -> None:
    merged = merge_feeds([[{"x": one(0)}, {"x": one(1)}], [{"y": one(10)}, {"y": one(11)}]])
    assert [(feed["x"][0], feed["y"][0]) for feed in merged] == [(0, 10), (1, 11)]
    assert merged[0] is not merged[1]


def test_later_files_win_and_names_keep_their_first_place() -> None:
    (merged,) = merge_feeds([[{"x": one(0), "y": one(1)}], [{"z": one(2), "x": one(3)}]])
    assert list(merged) == ["x", "y", "z"]
    assert merged["x"][0] == 3


def test_one_iteration_goes_into_all_of_the_others() -> None:
    merged = merge_feeds([[{"x": one(0)}], [{"y": one(1)}, {"y": one(2)}]])
    assert [(feed["x"][0], feed["y"][0]) for feed in merged] == [(0, 1), (0, 2)]
    assert merged[0] is not merged[1]


def test_other_counts_of_iterations_are_an_error_that_says_both() -> None:
    with pytest.raises(errors.UsageError, match="one has 2 iterations, another 3"):
        merge_feeds([[{}] * 3, [{}] * 2, [{}]])


def test_there_must_be_something_to_merge() -> None:
    for files in ([], [[]], [[{}], []]):
        with pytest.raises(errors.DataError, match="nothing to merge"):
            merge_feeds(files)
