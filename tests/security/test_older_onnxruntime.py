"""The versions of ONNX Runtime that do read what a model names, for real: each in an environment of its own.

First it is shown that the version itself gives away what stands elsewhere, then that biopsy with it does not. Skipped
where pip cannot install them.
"""

import os
import subprocess
import venv
from pathlib import Path

import numpy as np
import onnx
import pytest

import biopsy
from security.test_commands_and_untrusted_weights import at
from security.test_external_locations import SECRET, in_attribute, in_function, in_initializer
from support.command_line import Ran, typed
from support.models import save

pytestmark = pytest.mark.slow

SOURCES = Path(biopsy.__file__).parent.parent
_NEEDED = ["onnx", "numpy", "safetensors", "rich"]

RUN_ALONE = """
import sys, ctypes, numpy as np, onnxruntime as ort, onnx
secret = (np.arange(4, dtype=np.float32) + 31337).tobytes()
buffer = ctypes.create_string_buffer(secret, 16)
model = onnx.load(sys.argv[1], load_external_data=False)
for tensor in model.graph.initializer:
    for entry in tensor.external_data:
        entry.value = entry.value.replace("ADDRESS", str(ctypes.addressof(buffer)))
onnx.save(model, sys.argv[1])
options = ort.SessionOptions()
options.log_severity_level = 4
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
(y,) = session.run(None, {"x": np.zeros((2, 2), np.float32)})
sys.exit(0 if y.tobytes() == secret else 1)
"""

BIOPSY = "import sys; from biopsy.cli.app import main; sys.exit(main())"


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


def python_with(version: str, made: dict[str, Path], folders: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has this version of ONNX Runtime."""
    if version not in made:
        folder = folders.mktemp("environment")
        venv.create(folder, with_pip=True, symlinks=os.name != "nt")
        python = folder / "bin" / "python"
        words = [
            python,
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            f"onnxruntime=={version}",
            *_NEEDED,
        ]
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            pytest.skip(f"onnxruntime {version} cannot be installed here: {done.stderr.strip()[-200:]}")
        made[version] = python
    return made[version]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.bin").write_bytes(SECRET.tobytes())
    made = tmp_path / "model"
    made.mkdir()
    monkeypatch.chdir(made)
    np.savez("inputs.npz", x=np.zeros((2, 2), np.float32))
    return made


def absolute(folder: Path) -> onnx.TensorProto:
    return at(str(folder.parent / "outside" / "secret.bin"))


def upwards(folder: Path) -> onnx.TensorProto:
    return at("../outside/secret.bin")


def linked(folder: Path) -> onnx.TensorProto:
    (folder / "w.bin").symlink_to("../outside/secret.bin")
    return at("w.bin")


def address(folder: Path) -> onnx.TensorProto:
    return at("*/_ORT_MEM_ADDR_/*", "ADDRESS")


WAYS = [
    *(("1.23.2", way, in_initializer) for way in (absolute, upwards, linked)),
    *(("1.23.2", way, in_attribute) for way in (absolute, upwards, linked)),
    *(("1.23.2", way, in_function) for way in (absolute, upwards, linked)),
    ("1.22.1", address, in_initializer),
]

COMMANDS = {
    "run": ["run", "bad.onnx", "--onnxrt", "--load-inputs", "inputs.npz", "--save-outputs", "out.npz"],
    "reduce": ["debug", "reduce", "bad.onnx", "-o", "out.onnx", "--load-inputs", "inputs.npz", "--check", "false"],
    "layers": ["debug", "layers", "bad.onnx", "--suspect", "onnxrt", "--load-inputs", "inputs.npz"],
    "extract": ["surgeon", "extract", "bad.onnx", "-o", "out.onnx", "--outputs", "y:auto"],
}


def typed_with(python: Path, words: list[str]) -> Ran:
    return typed(*words, program=[python, "-c", BIOPSY], variables={"PYTHONPATH": str(SOURCES), "NO_COLOR": "1"})


@pytest.mark.parametrize(("version", "way", "place"), WAYS)
def test_a_version_that_gives_it_away_does_not_through_biopsy(
    version: str,
    way: object,
    place: object,
    folder: Path,
    environments: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    python = python_with(version, environments, tmp_path_factory)
    save(place(way(folder)), folder / "bad.onnx")  # type: ignore[operator]
    alone = subprocess.run([python, "-c", RUN_ALONE, "bad.onnx"], capture_output=True, text=True, check=False)
    assert alone.returncode == 0, alone.stderr
    for name, words in COMMANDS.items():
        done = typed_with(python, words)
        assert done.status == 4, (name, done)
        assert "may not be read from" in done.told, (name, done)
        assert "31337" not in done.told
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                assert SECRET.tobytes() not in path.read_bytes(), (name, path)


@pytest.mark.parametrize("version", ["1.23.2", "1.22.1"])
def test_weights_in_the_folder_are_read_with_that_version(
    version: str, folder: Path, environments: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Or nothing above would show anything."""
    python = python_with(version, environments, tmp_path_factory)
    (folder / "w.bin").write_bytes(SECRET.tobytes())
    save(in_initializer(at("w.bin")), folder / "fine.onnx")
    done = typed_with(
        python, ["run", "fine.onnx", "--onnxrt", "--load-inputs", "inputs.npz", "--save-outputs", "out.npz"]
    )
    assert done.status == 0, done
    assert SECRET.tobytes() in (folder / "out.npz").read_bytes()
