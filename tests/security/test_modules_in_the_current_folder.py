"""Nothing is imported from the current folder, which somebody else may have filled, however biopsy is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from processes.environments.conftest import index as index
from support.models import chain, save
from support.package_index import PackageIndex

BIN = Path(sys.executable).parent
OURS = {"numpy", "onnx", "onnxruntime", "openvino", "tensorrt", "tensorrt_rtx", "rich", "rich_argparse", "safetensors"}
THEIRS = {
    "ml_dtypes",
    "google",
    "onnxscript",
    "sympy",
    "flatbuffers",
    "packaging",
    "typing_extensions",
    "yaml",
    "torch",
    "jinja2",
    "markupsafe",
    "fast_sugiyama",
    "shtab",
}
BY_PYTHON_ITSELF = {"sitecustomize", "usercustomize"}
BARE = {
    "_abc", "_bisect", "_bootlocale", "_bz2", "_codecs", "_collections", "_collections_abc", "_compression",
    "_frozen_importlib", "_frozen_importlib_external", "_functools", "_heapq", "_imp", "_io", "_locale", "_lzma",
    "_operator", "_random", "_sha512", "_signal", "_sitebuiltins", "_sre", "_stat", "_struct", "_thread", "_typing",
    "_warnings", "_weakref", "_weakrefset", "abc", "atexit", "binascii", "bisect", "builtins", "bz2", "codecs",
    "collections", "contextlib", "copyreg", "encodings", "enum", "errno", "fnmatch", "functools", "genericpath",
    "heapq", "importlib", "io", "ipaddress", "itertools", "keyword", "linecache", "lzma", "marshal", "math", "ntpath",
    "operator", "os", "pathlib", "pkgutil", "posix", "posixpath", "random", "re", "reprlib", "runpy", "shutil", "site",
    "sre_compile", "sre_constants", "sre_parse", "stat", "struct", "sys", "tempfile", "threading", "time", "types",
    "typing", "urllib", "warnings", "weakref", "zipfile", "zipimport", "zlib",
}  # fmt: skip
"""What Python 3.8 to 3.13 import on their way to the first line of ``-c``, of ``-m`` and of a file."""

STARTS = {"the command": [str(BIN / "biopsy")], "python -m": [sys.executable, "-m", "biopsy"]}
RUN = ("biopsy", "run", "{}")
REFUSES = ("--engine", "fake:refuse.n1=build")
SCRIPT = (sys.executable, "../own/check.py", "{}")
REDUCE = ("debug", "reduce", "m.onnx", "-o", "w.onnx")
SETTINGS = (sys.executable, "../own/settings.py", "{engine}", "{}")

OWN = {
    "check.py": f"#!{sys.executable}\nimport sys\nimport neighbour\nsys.exit(neighbour.fails(sys.argv[1]))\n",
    "neighbour.py": "def fails(path):\n    with open(path, 'rb') as model:\n        return b'n1' in model.read()\n",
    "settings.py": "import sys\nsys.exit('optimization=none' not in sys.argv[1])\n",
}

COMMANDS = {
    "nothing": (0, ()),
    "help": (0, ("run", "--help")),
    "doctor": (0, ("doctor",)),
    "completion": (0, ("completion", "bash")),
    "onnxrt": (0, ("run", "m.onnx", "--onnxrt", "--reference", "--openvino", "--save-outputs", "o.npz")),
    "json": (0, ("run", "m.onnx", "--onnxrt", "--save-inputs", "i.json", "--report", "r.json")),
    "page": (0, ("run", "m.onnx", "--onnxrt", "--reference", "--report", "r.html")),
    "inspect": (0, ("inspect", "model", "m.onnx", "--mode=full")),
    "lint": (0, ("check", "lint", "m.onnx")),
    "convert": (0, ("convert", "m.onnx", "--fp-to-fp16", "-o", "c.onnx")),
    "sanitize": (0, ("surgeon", "sanitize", "m.onnx", "-o", "s.onnx", "--fold-constants")),
    "extract": (0, ("surgeon", "extract", "m.onnx", "-o", "e.onnx", "--outputs", "t1")),
    "known": (0, ("debug", "known", "m.onnx")),
    "warm": (0, (*REDUCE, "--check", *RUN, *REFUSES)),
    "cold": (0, ("debug", "repeat", "--until", "1", "--check", *RUN[:2], "m.onnx", "--openvino")),
    "script": (0, (*REDUCE, "--check", *SCRIPT)),
    "cold script": (0, (*REDUCE, "--cold-checks", "--check", *SCRIPT)),
    "script by its first line": (0, (*REDUCE, "--check", "../own/check.py", "{}")),
    "bundle": (0, (*REDUCE, "--bundle", "b.zip", "--check", *RUN, *REFUSES)),
    "diagnose": (1, ("diagnose", "m.onnx", *REFUSES, "--dir", "found")),
    "layers": (0, ("debug", "layers", "m.onnx", "--suspect", "openvino")),
    "build": (0, ("debug", "build", "m.onnx", "--until", "1", "--onnxrt", "--check", *RUN[:2], "m.onnx", "--onnxrt")),
    "settings": (0, ("debug", "flags", "m.onnx", "--engine", "onnxrt", "--check", *SETTINGS)),
    "capability": (0, ("inspect", "capability", "m.onnx", "--openvino")),
    "transform": (3, ("debug", "transform", "m.onnx", "--by", "onnxruntime")),
    "machine of a cluster": (0, (*REDUCE, "--on", "ray", "--check", *RUN, *REFUSES)),
    "another interpreter": (0, ("run", "m.onnx", "--engine", f"onnxrt:python={sys.executable}")),
}


STARTS_AS_OTHERS_DO = ("diagnose", "help", "page", "inspect", "convert", "sanitize", "extract", "known", "cold script")
MUST_BE_SAFE = ("warm", "layers", "build", "settings", "capability", "transform")
"""Commands that start an interpreter for modules of ours."""

SLOW = {*STARTS_AS_OTHERS_DO, *MUST_BE_SAFE}
"""What takes long and is typed in this folder elsewhere, or starts as another command does."""
MARKS = {"machine of a cluster": [pytest.mark.ray], **{name: [pytest.mark.slow] for name in SLOW}}
TYPED = [
    *(pytest.param("the command", command, marks=MARKS.get(command, [])) for command in COMMANDS),
    *(("python -m", command) for command in ("nothing", "onnxrt", "json", "warm")),
    pytest.param("python -m", "layers", marks=pytest.mark.slow),
]

NOTES = """
import json, os, sys
with open(os.environ["NOTES"], "a") as notes:
    notes.write(json.dumps([sys.flags.safe_path, sys.orig_argv]) + "\\n")
"""
"""A sitecustomize: each interpreter writes down how it was started."""


def bare(*words: str, **options: object) -> set[str]:
    """The modules that the running Python itself imports before it comes to the first line that it was given."""
    shown = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True, **options)
    return {name.partition(".")[0] for name in shown.stdout.split()} - {"told", "__main__"}


TELLS = "import sys\nprint(*sys.modules)\n"


def of_python_m(folder: Path) -> set[str]:
    """Those that ``python -m`` itself imports before it comes to the module that it was told, which is not ours."""
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "told.py").write_text(TELLS)
    return bare("-m", "told", cwd=elsewhere)


def test_every_name_that_a_bare_interpreter_imports_is_planted(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(TELLS)
    ways = bare("-S", "-c", TELLS) | bare("-S", "told.py", cwd=tmp_path) | bare("-S", "-m", "told", cwd=tmp_path)
    assert ways <= BARE


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a model, and a module of every name that anybody might import; each leaves a mark.

    Scripts of the user stand in ``own``, beside it.
    """
    here, marks = tmp_path / "here", tmp_path / "marks"
    here.mkdir()
    marks.mkdir()
    save(chain(3, ("Relu", "Neg")), here / "m.onnx")
    own = tmp_path / "own"
    own.mkdir()
    for name, code in OWN.items():
        (own / name).write_text(code)
    (own / "check.py").chmod(0o755)
    for name in {*sys.stdlib_module_names, *BARE, *OURS, *THEIRS, *BY_PYTHON_ITSELF}:
        (here / f"{name}.py").write_text(f"open({str(marks / name)!r}, 'w').close()\n")
    for name in ("openvino", "onnx"):
        (here / f"{name}.py").rename(here / "kept")
        (here / name).mkdir()
        (here / "kept").rename(here / name / "__init__.py")
    (here / "evil-1.0.dist-info").mkdir()
    (here / "evil-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (here / "evil-1.0.dist-info" / "entry_points.txt").write_text("[biopsy.engines]\nonnxrt = json:x\nevil = json:x\n")
    yield here
    assert not sorted(mark.name for mark in marks.iterdir())


def typed(start: list[str], words: Sequence[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A line typed in the folder, by a person who has set nothing for Python."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [*start, *words],
        cwd=folder,
        env={**bare, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(("start", "command"), TYPED)
def test_nothing_is_imported_from_it(folder: Path, start: str, command: str) -> None:
    status, words = COMMANDS[command]
    for name in of_python_m(folder) if start == "python -m" else ():
        (folder / f"{name}.py").unlink(missing_ok=True)
    ended = typed(STARTS[start], words, folder)
    assert ended.returncode == status, ended.stderr + ended.stdout
    assert "evil" not in ended.stdout


@pytest.mark.parametrize("command", MUST_BE_SAFE)
def test_no_interpreter_of_ours_has_it_on_its_path_for_even_one_import(folder: Path, command: str) -> None:
    """A script of the user has its own folder there. One given ``-I`` does not look where notes are taken."""
    notes = folder.parent / "notes"
    (folder.parent / "own" / "sitecustomize.py").write_text(NOTES)
    ended = typed(STARTS["the command"], COMMANDS[command][1], folder, PYTHONPATH="../own", NOTES=str(notes))
    assert ended.returncode == COMMANDS[command][0], ended.stderr
    first, *others = [json.loads(line) for line in notes.read_text().splitlines()]
    assert Path(first[1][1]) == BIN / "biopsy"
    assert others
    assert not [words for is_safe, words in others if not is_safe and words[1] != "../own/settings.py"]


def test_a_release_that_is_installed_imports_nothing_from_it(index: PackageIndex, folder: Path) -> None:
    index.add("thing", "1.0", "def look(): pass", uploaded="2026-01-01T00:00:00Z")
    index.add("thing", "2.0", "def look(): raise SystemExit(1)", uploaded="2026-02-01T00:00:00Z")
    (folder.parent / "own" / "release.py").write_text("import thing\nthing.look()\n")
    words = ("debug", "version", "m.onnx", "--package", "thing", "--check", "{python}", "../own/release.py", "{}")
    ended = typed(STARTS["the command"], words, folder)
    assert "thing: 2.0 broke it, 1.0 is right." in ended.stdout, ended.stderr


def test_a_folder_that_the_user_names_is_imported_from_as_ever(tmp_path: Path) -> None:
    save(chain(1), tmp_path / "m.onnx")
    (tmp_path / "made.py").write_text("import numpy\nVALUE = numpy.ones((2, 2), 'float32')\n")
    (tmp_path / "load.py").write_text("from made import VALUE\ndef load_data():\n    yield {'t0': VALUE}\n")
    for start in STARTS.values():
        line = [*start, "run", "m.onnx", "--onnxrt", "--data-loader-script", "load.py"]
        assert subprocess.run(line, cwd=tmp_path, capture_output=True, timeout=120).returncode == 0
