"""Long texts are left out of JSON, and what remains is parsed to the same tree."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from biopsy import errors
from biopsy.tensors import polygraphy_json
from biopsy.tensors.container import SteadyFile
from biopsy.tensors.polygraphy_json import LONG, Skeleton, skeleton_of

TEXT = "A" * LONG


def skeleton(path: Path, text: str | bytes) -> Skeleton:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return skeleton_of(SteadyFile(path))


def completed(found: Skeleton) -> Any:
    """The tree with every text in its place."""

    def texts_back(tree: dict[str, Any]) -> dict[str, Any]:
        text = found.left_out.get(tree["array"]) if isinstance(tree.get("array"), str) else None
        if text is None:
            return tree
        with text.opened() as read:
            return tree | {"array": json.loads(b'"' + read(0, text.size) + b'"')}

    return found.parsed(texts_back)


@pytest.mark.parametrize(
    "text",
    [
        '{"array": "TEXT"}',
        '{"array":"TEXT"}',
        '{"array" \t\r\n:\n "TEXT" }',
        '[{"array": "TEXT", "a": {"array": "TEXT"}}, {"array": "TEXT"}]',
        '{"array": "TEXT", "array": "TEXT"}',
        '{"a\\"array": 1, "array": "TEXT\\u00e9"}',
        '\ufeff{"array": "TEXT"}',
    ],
)
def test_long_texts_are_left_out(tmp_path: Path, text: str) -> None:
    text = text.replace("TEXT", TEXT)
    found = skeleton(tmp_path / "f", text)
    assert TEXT.encode() not in found.text
    assert len(found.left_out) == text.count(TEXT)
    assert completed(found) == json.loads(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        '{"array": "short"}',
        '{"other": "TEXT"}',
        '{"TEXT": 1}',
        '["array", "TEXT"]',
        '{"x": "array", "y": "TEXT"}',
        '{"my\\"array": "TEXT"}',
        '{"array": "TEXT\\"more"}',
        '{"array": "TEXT\\\\"}',
        '{"arr\\u0061y": "TEXT"}',
        '{"array": ["TEXT"]}',
        '{"x": "\\"array\\": \\"TEXT"}',
    ],
)
def test_all_else_stays_as_it_stands(tmp_path: Path, text: str) -> None:
    text = text.replace("TEXT", TEXT)
    found = skeleton(tmp_path / "f", text)
    assert found.text == text.encode() and not found.left_out


def test_other_encodings_stay_as_they_stand(tmp_path: Path) -> None:
    for encoding in ("utf-16", "utf-16-be", "utf-32"):
        data = f'{{"array": "{TEXT}"}}'.encode(encoding)
        assert skeleton(tmp_path / "f", data).text == data


def test_nobody_can_write_a_mark_beforehand(tmp_path: Path) -> None:
    text = f'{{"array": "{TEXT}"}}'
    first, second = (skeleton(tmp_path / "f", text) for _ in range(2))
    assert not first.left_out.keys() & second.left_out.keys()


@pytest.mark.parametrize(
    ("text", "place"), [('{"array": "TEXT", "b": 1 x}', LONG + 21), ('{"é": x, "array": "TEXT"}', 7)]
)
def test_an_error_is_told_with_its_place_in_the_file(tmp_path: Path, text: str, place: int) -> None:
    with pytest.raises(errors.DataError, match=f"at byte {place}$"):
        skeleton(tmp_path / "f", text.replace("TEXT", TEXT)).parsed(dict)


def test_a_file_that_ends_within_a_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(errors.DataError, match="cut short: the text that begins at byte 11 has no end"):
        skeleton(tmp_path / "f", f'{{"array": "{TEXT}')


KEYS = st.sampled_from(["array", "a", '"array"', "array\\", ": "])
TREES = st.recursive(
    st.integers() | st.sampled_from(["array", TEXT, f'{TEXT}"', f"{TEXT}\\", f'"array": "{TEXT}', "\\", "é" * 600]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=150)
@given(
    tree=TREES,
    indent=st.sampled_from([None, 0, 4]),
    ascii_only=st.booleans(),
    piece=st.sampled_from([9, 64, 1000, 1 << 16]),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(b'"\\{}:,A\0\xff')), max_size=2),
    cut=st.none() | st.integers(0, 5000),
)
def test_the_completed_skeleton_is_the_tree_of_the_whole_file_or_both_are_no_json(
    tree: Any, indent: int | None, ascii_only: bool, piece: int, flips: list[tuple[int, int]], cut: int | None
) -> None:
    data = bytearray(json.dumps(tree, indent=indent, ensure_ascii=ascii_only).encode())
    for position, byte in flips:
        data[position % len(data)] = byte
    data = data[:cut]
    try:
        expected = json.loads(data)
    except ValueError:
        expected = ValueError
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(polygraphy_json, "_PIECE", piece)
        try:
            found = completed(skeleton(Path(folder) / "f", bytes(data)))
        except (errors.DataError, ValueError):
            found = ValueError
    assert found == expected
