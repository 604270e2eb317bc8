"""What people install: this project as a source distribution and as a wheel, built as pip builds them."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

from support.pages import ROOT

RUBBISH = (
    ".venv/lib/big.py",
    ".hypothesis/examples/1",
    "benchmarks/__pycache__/one.cpython-311.pyc",
    "biopsy-demo/model.onnx",
    "build/lib/biopsy/old.py",
    "dist/biopsy-0.0.1.tar.gz",
    "docs/reference/__pycache__/generate.cpython-311.pyc",
    "notes.txt",
    "alias/polygraphy_is_biopsy.egg-info/PKG-INFO",
    "tests/__pycache__/conftest.cpython-311.pyc",
)
"""What stands in the folder of somebody who works on the project, and is nobody else's business."""

OWN_DOT_NAMES = {".ci", ".github", ".dockerignore", ".pre-commit-config.yaml"}
"""What belongs to the project although its name begins with a dot."""

_BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_{}(sys.argv[1]))"


def skip_without_setuptools() -> None:
    """Skip the test if what is installed cannot read our pyproject.toml."""
    if Version(version("setuptools")) < Version("77"):
        pytest.skip("setuptools 77 or newer builds the distributions")


def own_files() -> list[str]:
    """The files of the project: those that git knows; without git, all that stand in an unpacked distribution."""
    with contextlib.suppress(FileNotFoundError):
        done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
        if done.returncode == 0 and (ROOT / ".git").exists():
            return sorted(name for name in done.stdout.split("\0") if name and (ROOT / name).is_file())
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if not _is_product(path))


def _is_product(path: Path) -> bool:
    if path.name in ("PKG-INFO", "setup.cfg") or (path.parts[0].startswith(".") and path.parts[0] not in OWN_DOT_NAMES):
        return True
    made = ("__pycache__", "build", "dist", "site", "biopsy-demo")
    return any(part in made or part.endswith(".egg-info") for part in path.parts)


def copy_of_the_project(folder: Path) -> Path:
    """A copy to build from, since building leaves things behind."""
    for name in own_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def built(what: str, source: Path, folder: Path) -> Path:
    """The ``wheel`` or ``sdist`` of a project, without network: the setuptools that is installed builds it."""
    folder.mkdir(exist_ok=True)
    words = [sys.executable, "-c", _BUILD.format(what), str(folder)]
    done = subprocess.run(words, cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]
