"""Where nothing stands at a path: the files that were probably meant."""

from pathlib import Path

import pytest

from biopsy.processes.reading import files_meant, similar_files


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("models", "empty", "-x y"):
        (tmp_path / name).mkdir()
    for name in ("model.onnx", "b.onnx", "model.json", ".model.onnx", "models/resnet50.onnx"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("meant", "lines"),
    [
        ("modle.onnx", ["did you mean 'model.onnx'?"]),
        ("model", ["did you mean 'model.onnx'?"]),
        ("Model.ONNX", ["did you mean 'model.onnx'?"]),
        ("models/resnet5.onnx", ["did you mean 'models/resnet50.onnx'?"]),
        ("modles/resnet50.onnx", ["did you mean 'models/resnet50.onnx'?", "there is no folder modles"]),
        ("quite/else.onnx", ["there is no folder quite"]),
        ("something-else.onnx", ["models there: b.onnx, model.onnx"]),
        ("empty/m.onnx", ["find empty -name '*.onnx'    there are no models in that folder itself"]),
        ("-x y/m.onnx", ["find './-x y' -name '*.onnx'    there are no models in that folder itself"]),
    ],
)
def test_the_nearest_file_of_the_kind_is_named(meant: str, lines: list[str]):
    assert files_meant(Path(meant), (".onnx",), "models") == lines


def test_files_of_another_kind_are_not_meant():
    assert similar_files(Path("modle.npz"), (".npz",)) == []
