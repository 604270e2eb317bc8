"""Polygraphy's JSON is read tensor by tensor, and what is read is what a parse of the whole file gives."""

import base64
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from biopsy import errors
from biopsy.tensors import polygraphy_json
from biopsy.tensors.files import merge_feeds, read_feeds, read_results, write_feeds, write_results
from biopsy.tensors.results import Array, Feed, Iteration, RunnerResult, TensorForm, form_of
from support.decoding import decoded_from_now_on

BIG = np.random.default_rng(0).random((30, 40), np.float32)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Array]:
    """The tensors that have been decoded so far."""
    return decoded_from_now_on(monkeypatch)


# Nothing is decoded that nobody asks for


def test_of_fifty_tensors_the_one_that_is_needed_is_decoded(tmp_path: Path, decoded: list[Array]) -> None:
    outputs = {f"t{number}": BIG + number for number in range(50)}
    write_results(tmp_path / "f.json", [RunnerResult("r", (Iteration(outputs, 0.5),))])
    (result,) = read_results(tmp_path / "f.json")
    tensors = result.iterations[0].outputs
    assert list(tensors) == list(outputs) and "t7" in tensors and "u" not in tensors and len(tensors) == 50
    assert not decoded
    np.testing.assert_array_equal(tensors["t7"], outputs["t7"])
    assert len(decoded) == 1


def test_an_array_that_somebody_has_is_not_decoded_again(tmp_path: Path, decoded: list[Array]) -> None:
    write_feeds(tmp_path / "f.json", [{"x": BIG}])
    (feed,) = read_feeds(tmp_path / "f.json")
    held = feed["x"]
    assert feed["x"] is held and not held.flags.writeable
    assert len(decoded) == 1


@pytest.mark.parametrize(
    "array",
    [BIG, BIG.astype(">f4"), BIG.astype(ml_dtypes.bfloat16), np.float64(3), np.zeros((0, 3)), np.array(["a", "b\0"])],
    ids=str,
)
def test_type_and_shape_are_known_without_the_values(tmp_path: Path, decoded: list[Array], array: Array) -> None:
    write_feeds(tmp_path / "f.json", [{"x": array}])
    (feed,) = read_feeds(tmp_path / "f.json")
    form = form_of(feed, "x")
    assert not decoded
    assert form == TensorForm(feed["x"].dtype, feed["x"].shape) and form.nbytes == feed["x"].nbytes


def test_older_texts_have_types_and_shapes_too(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.savez(stream, BIG)
    zipped = {"array": base64.b64encode(stream.getvalue()).decode(), "polygraphy_class": "ndarray"}
    (tmp_path / "f.json").write_text(json.dumps({"x": zipped}))
    (feed,) = read_feeds(tmp_path / "f.json")
    assert form_of(feed, "x") == TensorForm(BIG.dtype, BIG.shape)


def test_a_backslash_before_each_slash_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    write_feeds(path, [{"x": BIG}])
    text = path.read_text()
    assert "/" in text
    path.write_text(text.replace("/", "\\/"))
    (feed,) = read_feeds(path)
    assert form_of(feed, "x") == TensorForm(BIG.dtype, BIG.shape)
    np.testing.assert_array_equal(feed["x"], BIG)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="nothing tells which files are open")
def test_no_file_is_kept_open(tmp_path: Path) -> None:
    write_feeds(tmp_path / "folder", [{"x": BIG + number} for number in range(20)])
    before = len(list(Path("/proc/self/fd").iterdir()))
    feeds = read_feeds(tmp_path / "folder")
    assert [feed["x"][0, 0] for feed in feeds] == [(BIG + number)[0, 0] for number in range(20)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# What is damaged, or changed


def one_tensor(path: Path, damage: Mapping[str, str]) -> Feed:
    """A tensor's file with some of its text exchanged, and the feed in it."""
    write_feeds(path, [{"fine": BIG}, {"x": np.zeros((30, 40))}])
    text = path.read_text()
    for old, new in damage.items():
        assert old in text
        text = new.join(text.rsplit(old, 1))
    path.write_text(text)
    return read_feeds(path)[1]


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        ({"AAA": "A=A"}, "base64"),
        ({"k05VTVB": "k05VTVC"}, "no .npy data"),
        ({"AAA": "AAAA"}, "not a multiple of 4"),
        ({"k05VTVBZ": "k05VTVBZAAAA"}, "header"),
        ({'"polygraphy_class"': '"biopsy_dtype": "int9", "polygraphy_class"'}, "int9"),
    ],
)
def test_a_damaged_tensor_is_told_with_file_iteration_and_name(
    tmp_path: Path, damage: Mapping[str, str], match: str
) -> None:
    feed = one_tensor(tmp_path / "f.json", damage)
    with pytest.raises(errors.DataError, match=match) as caught:
        feed["x"]
    assert caught.value.message.startswith(f"cannot read {tmp_path / 'f.json'}: iteration 1: tensor 'x': ")


def test_more_values_than_the_shape_has_are_damage(tmp_path: Path) -> None:
    header, data = polygraphy_json.npz.encode(BIG)
    text = base64.b64encode(header + bytes(data) + bytes(4)).decode()
    (tmp_path / "f.json").write_text(json.dumps({"x": {"array": text, "polygraphy_class": "ndarray"}}))
    (feed,) = read_feeds(tmp_path / "f.json")
    with pytest.raises(errors.DataError, match="claims 4800 bytes, but 4804 are there"):
        feed["x"]


def test_a_file_that_was_written_anew_is_told_and_gives_no_values(tmp_path: Path) -> None:
    write_feeds(tmp_path / "f.json", [{"x": BIG}])
    (feed,) = read_feeds(tmp_path / "f.json")
    write_feeds(tmp_path / "f.json", [{"x": BIG + 1}])
    with pytest.raises(errors.DataError, match=r"tensor 'x': .*was changed while it was read"):
        feed["x"]


# The same as a parse of the whole


def whole(data: bytes) -> list[dict[str, Array]]:
    """What a file of inputs holds, in the plainest way. Raises whatever comes if it is damaged."""

    def decode(tree: dict[str, Any]) -> Any:
        if tree.get("polygraphy_class") != "ndarray":
            return tree
        stream = io.BytesIO(base64.b64decode(tree["array"], validate=True))
        array = np.load(stream, allow_pickle=False)
        if stream.read():
            raise ValueError("there is more")
        return array

    tree = json.loads(data, object_hook=decode)
    feeds = tree if isinstance(tree, list) else [tree]
    if not feeds or not all(isinstance(feed, dict) for feed in feeds):
        raise ValueError
    if not all(isinstance(array, np.ndarray) for feed in feeds for array in feed.values()):
        raise ValueError
    return feeds


def lazy(data: bytes, folder: Path) -> list[dict[str, Array]]:
    (folder / "f.json").write_bytes(data)
    return [dict(feed) for feed in read_feeds(folder / "f.json")]


ARRAYS = st.builds(
    lambda dtype, shape: np.arange(np.prod(shape)).astype(dtype).reshape(shape),
    st.sampled_from(["f4", "i8", "u1", "?"]),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
)
FEEDS = st.lists(st.dictionaries(st.text(max_size=5) | st.just("array"), ARRAYS, max_size=3), min_size=1, max_size=3)


@pytest.fixture
def short_texts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Even short texts are left in the file, and read in small pieces."""
    monkeypatch.setattr(polygraphy_json, "LONG", 8)
    monkeypatch.setattr(polygraphy_json, "_PIECE", 100)
    monkeypatch.setattr(polygraphy_json.npz, "_PIECE", 10)
    monkeypatch.setattr(polygraphy_json.npz, "_BEGINNING", 140)
    monkeypatch.setattr(polygraphy_json, "_SKELETON_PIECE", 16)
    return None


@pytest.mark.usefixtures("short_texts")
@settings(deadline=None, max_examples=150)
@given(
    feeds=FEEDS,
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=3)), max_size=2),
    cut=st.none() | st.integers(1, 3000),
    indent=st.sampled_from([None, 4]),
)
def test_every_value_is_that_of_the_whole_file_or_both_are_refused(
    feeds: list[dict[str, Array]], changes: list[tuple[int, bytes]], cut: int | None, indent: int | None
) -> None:
    def tree(array: Array) -> dict[str, str]:
        stream = io.BytesIO()
        np.save(stream, array)
        return {"array": base64.b64encode(stream.getvalue()).decode(), "polygraphy_class": "ndarray"}

    data = bytearray(json.dumps(feeds, default=tree, indent=indent).encode())
    for position, change in changes:
        at = position % len(data)
        data[at : at + len(change)] = change
    data = data[:cut]
    try:
        expected = whole(bytes(data))
    except Exception:
        expected = None
    with TemporaryDirectory() as folder:
        try:
            found = lazy(bytes(data), Path(folder))
        except errors.DataError:
            found = None
    if found is None:
        assert expected is None or changes  # NumPy takes more types
        return
    assert expected is not None
    assert [list(feed) for feed in found] == [list(feed) for feed in expected]
    for one, other in zip(found, expected, strict=True):
        for name in one:
            assert one[name].dtype == other[name].dtype.newbyteorder("=")
            np.testing.assert_array_equal(one[name], other[name])


# Copying


def test_merging_copies_text_and_decodes_nothing(tmp_path: Path, decoded: list[Array]) -> None:
    inputs = {"x": BIG, "b": BIG.astype(ml_dtypes.bfloat16)}
    write_feeds(tmp_path / "in.json", [inputs])
    write_results(tmp_path / "out.json", [RunnerResult("r", (Iteration({"y": BIG + 1, "x": BIG + 2}),) * 2)])
    files = [read_feeds(tmp_path / name) for name in ("in.json", "out.json")]
    write_feeds(tmp_path / "merged.json", merge_feeds(files))
    assert not decoded
    write_feeds(tmp_path / "anew.json", [dict(feed) for feed in merge_feeds(files)])
    assert (tmp_path / "merged.json").read_bytes() == (tmp_path / "anew.json").read_bytes()


def test_what_would_be_written_in_another_way_is_decoded(tmp_path: Path, decoded: list[Array]) -> None:
    path = tmp_path / "f.json"
    feed = {"x": BIG, "s": np.array(["text"])}
    write_feeds(path, [feed])
    path.write_text(path.read_text().replace("/", "\\/"))
    write_feeds(tmp_path / "g.json", read_feeds(path))
    assert decoded
    write_feeds(path, [feed])
    assert path.read_bytes() == (tmp_path / "g.json").read_bytes()


@pytest.mark.parametrize("damage", [{"AAA": "A=A"}, {"AAA": "A!A"}, {"k05VTVB": "k05V"}, {"AAA": "AAAA"}])
def test_a_damaged_tensor_is_not_copied(tmp_path: Path, damage: Mapping[str, str]) -> None:
    feed = one_tensor(tmp_path / "f.json", damage)
    with pytest.raises(errors.DataError, match=r"^cannot read .*f\.json: iteration 1: tensor 'x'"):
        write_feeds(tmp_path / "g.json", [feed])
    assert not (tmp_path / "g.json").exists()
