"""Files of the catalogue: anybody may have written them, and each that cannot be used is told in one line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from biopsy import errors
from biopsy.questions.known_failures.catalogue import catalogue_of, read_entry, users_folder, value_in
from biopsy.questions.known_failures.lookup import SeenFailure, entry_text, look_up, new_file, write_entry
from biopsy.questions.known_failures.pattern import FailurePattern
from support.known_pieces import there_and_back
from support.models import save

NODES = "Cast(Cast(x, to=float16), to=float32)"
SEEN = SeenFailure(engine="openvino", release="2026.4.1-22982-e213a", stage="compare", kind="mismatch")


def tree(**changed: Any) -> dict[str, Any]:
    """An entry; what is None is left out."""
    told = {
        "biopsy_known": "2",
        "title": "a title",
        "issue": "https://github.com/owner/name/issues/7",
        "engine": "openvino",
        "package": "openvino",
        "fails": ">=2025.0",
        "signatures": [{"stage": "compare", "kinds": ["mismatch"]}],
        "patterns": [{"nodes": NODES, "where": ["x.type == float32"]}],
    }
    return {key: value for key, value in {**told, **changed}.items() if value is not None}


def written(text: str | bytes, folder: Path) -> Path:
    path = folder / "entry.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(text: str | bytes, folder: Path) -> str:
    path = written(text, folder)
    with pytest.raises(errors.DataError) as refused:
        read_entry(path)
    assert refused.value.message.startswith(f"{path}: ")
    assert "\n" not in refused.value.message and len(refused.value.message) < 400
    return refused.value.message.removeprefix(f"{path}: ")


def test_an_entry_is_read(tmp_path: Path) -> None:
    entry = read_entry(written(yaml.safe_dump(tree()), tmp_path))
    assert (entry.name, entry.reference) == ("entry", "owner/name#7")
    [pattern] = entry.patterns
    assert isinstance(pattern, FailurePattern)
    assert (pattern.text, pattern.conditions) == (NODES, ("x.type == float32",))
    assert entry.release_kind("2026.1.0") == "fails"
    assert entry.release_kind("2024.1.0") == "unknown"


def test_a_new_entry_can_be_read_as_it_is_written_and_recognises_its_piece(tmp_path: Path) -> None:
    piece = save(there_and_back(), tmp_path / "piece.onnx")
    write_entry(tmp_path / "new.yaml", entry_text(look_up(piece, SEEN), title='it: "has" #signs'))
    entry = read_entry(tmp_path / "new.yaml")
    assert entry.title == 'it: "has" #signs'
    assert (entry.fails, entry.mended, entry.package) == ("==2026.4.1", "", "openvino")
    assert [str(one) for one in entry.signatures] == ["compare · mismatch"]
    assert [match.grade for match in look_up(piece, SEEN, [tmp_path]).matches] == ["matches", "matches"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"title": None}, "there is no key 'title'"),
        ({"patterns": None}, "there is no key 'patterns'"),
        ({"patterns": []}, "patterns: there is none"),
        ({"patterns": "x"}, "patterns: a list is wanted"),
        ({"titel": "x"}, "the key 'titel' is not known (did you mean 'title'?)"),
        ({"biopsy_known": "1"}, "biopsy_known is '1', not '2'"),
        ({"title": ["x"]}, "title: a text is wanted"),
        ({"title": "x" * 3000}, "title: it has more than 2,000 characters"),
        ({"engine": "on nx"}, "engine: 'on nx' is not a name"),
        ({"issue": "javascript:alert(1)"}, "issue: 'javascript:alert(1)' is not an address"),
        ({"fails": "1.20 to 1.25"}, "fails: '1.20 to 1.25' are not releases"),
        ({"signatures": [{"stage": "import"}]}, "stage: 'import' is none of load, build, run, compare"),
        ({"signatures": [{"stages": "run"}]}, "signatures: the key 'stages' is not known"),
        ({"workarounds": [{"engine": "onnxrt"}]}, "workarounds: there is no key 'text'"),
        ({"conditions": ["x"] * 51}, "conditions: there are more than 50"),
        ({"patterns": [{"fingerprint": "k1-0"}]}, "the fingerprint 'k1-0' is of another form than k2"),
        ({"patterns": [{"fingerprint": "k2-0", "nodes": NODES}]}, "each has the key 'nodes', or the key 'fingerprint'"),
        ({"patterns": [{"where": ["x.rank == 1"]}]}, "each has the key 'nodes', or the key 'fingerprint'"),
        ({"patterns": [{"fingerprint": "k2-0", "where": ["x.rank == 1"]}]}, "a fingerprint stands alone"),
        ({"patterns": [{"nodes": "Relu"}]}, "no operator is looked for: Relu"),
        ({"patterns": [{"nodes": "Relu(x"}]}, "not understood: Relu(x"),
        (
            {"patterns": [{"nodes": "Relu(x)", "where": ["y.rank == 1"]}]},
            "the condition 'y.rank == 1' is not understood",
        ),
        ({"patterns": [{"nodes": "Relu(x)", "where": ["x.colour == 1"]}]}, "is not understood"),
        ({"patterns": [{"nodes": "Relu(x)", "where": ["__import__('os')"]}]}, "is not understood"),
        ({"patterns": [{"nodes": "Relu(x)", "where": ["x.rank == f()"]}]}, "is not understood"),
    ],
)
def test_what_is_wrong_is_said(changed: dict[str, Any], told: str, tmp_path: Path) -> None:
    assert told in refusal(yaml.safe_dump(tree(**changed)), tmp_path)


BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "keys with values are wanted"),
        ("- 1\n", "keys with values are wanted"),
        ("just words", "keys with values are wanted"),
        ("a: b: c", "line 1: "),
        ("a: [", "line "),
        (BOMB, "line 1: anchors and aliases"),
        ("a: !!python/object/apply:os.system [true]", "line 1: tags (!) are not allowed"),
        ("title: x\ntitle: y\n", "line 1: the key 'title' is given twice"),
        ("[" * 1000, "nested more than 8 deep"),
        ("a:\n" + "- b\n" * 30_000, "more than 20,000 parts"),
        (b"\xff\xfe\x00", "it is not UTF-8 text"),
        (b"a: \x00", "characters are not allowed"),
        ("? [a, b]\n: c\n", ""),
        ("---\na: b\n---\nc: d\n", "line 3: "),
        ("x" * (2 << 20), "it is larger than 1 MiB"),
    ],
)
def test_what_is_no_plain_yaml_is_refused_in_one_line(text: str | bytes, told: str, tmp_path: Path) -> None:
    assert told in refusal(text, tmp_path)


def test_plain_values_stay_the_texts_that_they_are() -> None:
    assert value_in("a: 1.20\nb: no\nc: 0x10\nd: 2020-01-01\ne: ~\n") == {
        "a": "1.20", "b": "no", "c": "0x10", "d": "2020-01-01", "e": "~",
    }  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60) | st.text(alphabet="ab: -[]{}&*!|>'\"\n#?", max_size=60).map(str.encode))
def test_no_bytes_do_more_than_being_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = written(data, tmp_path_factory.mktemp("files"))
    with pytest.raises(errors.DataError):
        read_entry(path)


def test_links_pipes_and_folders_are_not_read(no_list_of_the_user: Path, tmp_path: Path) -> None:
    no_list_of_the_user.mkdir(parents=True)
    real = written(yaml.safe_dump(tree()), tmp_path)
    (no_list_of_the_user / "link.yaml").symlink_to(real)
    os.mkfifo(no_list_of_the_user / "pipe.yaml")
    (no_list_of_the_user / "folder.yaml").mkdir()
    found = catalogue_of()
    assert [line.rpartition("/")[2] for line in found.broken] == [
        "folder.yaml: it is not a plain file",
        "link.yaml: it is a symbolic link",
        "pipe.yaml: it is not a plain file",
    ]


def test_the_users_folder_is_never_below_the_current_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BIOPSY_KNOWN_DIR", "relative")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert users_folder() == tmp_path / ".config" / "biopsy" / "known"
    monkeypatch.setenv("HOME", "here")
    assert users_folder() is None


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "x\n"])
def test_a_name_that_would_leave_the_folder_is_refused(name: str) -> None:
    with pytest.raises(errors.UsageError, match="a name has only letters"):
        new_file(name)


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    path = written("mine", tmp_path)
    with pytest.raises(errors.UsageError, match="is there already"):
        write_entry(path, "yours")
    assert path.read_text() == "mine"


def test_an_entry_needs_an_engine(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match="which engine fails is not known"):
        entry_text(look_up(save(there_and_back(), tmp_path / "piece.onnx"), SeenFailure()))
