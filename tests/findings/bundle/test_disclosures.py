"""Every member of an archive is looked through for words that it may not tell, archives inside too."""

import getpass
import io
import socket
import zipfile
from pathlib import Path

import numpy as np
import pytest

from biopsy.findings.bundle import disclosures
from biopsy.findings.bundle.disclosures import words_of_machine

WORDS = {"secret": "a name", "xy": "a short name"}


def archive(folder: Path, **members: bytes) -> Path:
    path = folder / "bundle.zip"
    with zipfile.ZipFile(path, "w") as stream:
        for name, data in members.items():
            stream.writestr(name.replace("_dot_", "."), data)
    return path


def found(folder: Path, **members: bytes) -> list[str]:
    return disclosures.disclosures(archive(folder, **members), WORDS)


@pytest.mark.parametrize("text", [b"a secret word", b"'secret'", b"secret", b"/secret/", b"\x00secret\x00"])
def test_a_word_is_found_wherever_it_stands_alone(tmp_path: Path, text: bytes) -> None:
    assert found(tmp_path, ISSUE_dot_md=text) == ["ISSUE.md holds 'secret', a name"]
    assert found(tmp_path, model_dot_onnx=text) == ["model.onnx holds 'secret', a name"]


@pytest.mark.parametrize("text", [b"secretary", b"a_secret_layer", b"SECRET", b"xy"])
def test_a_part_of_another_word_and_what_any_text_holds_are_no_words(tmp_path: Path, text: bytes) -> None:
    assert found(tmp_path, ISSUE_dot_md=text) == []


def test_names_of_members_and_of_tensors_in_them_count(tmp_path: Path) -> None:
    tensors = io.BytesIO()
    np.savez(tensors, secret=np.zeros(2))
    assert found(tmp_path, secret=b"") == ["secret holds 'secret', a name"]
    told = found(tmp_path, inputs_dot_npz=tensors.getvalue())
    assert "inputs.npz/secret.npy holds 'secret', a name" in told


def test_paths_and_names_of_user_and_machine_are_such_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "bobuser")
    monkeypatch.setattr(socket, "gethostname", lambda: "bobs-machine")
    words = words_of_machine(tmp_path / "model.onnx")
    assert {"bobuser", "bobs-machine", str(tmp_path), str(Path.cwd())} <= words.keys()


def test_a_user_whose_name_stands_in_any_bundle_is_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "numpy")
    assert "numpy" not in words_of_machine(tmp_path / "model.onnx")
