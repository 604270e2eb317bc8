"""What people install: what is in it, what is not, and what it says about itself."""

from __future__ import annotations

import email
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

import pytest

from biopsy.questions.known_failures.catalogue import OWN_FOLDER
from support.distributions import RUBBISH, built, copy_of_the_project, own_files, skip_without_setuptools
from support.pages import ROOT, links

OF_GIT = {".gitignore"}
MADE_BY_SETUPTOOLS = ("PKG-INFO", "setup.cfg", "src/biopsy.egg-info/")


@dataclass(frozen=True)
class Distributions:
    """The source distribution, the wheel that was built from it, and the wheel of the alias."""

    source: Path
    wheel: Path
    alias: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Built in a folder in which somebody works."""
    skip_without_setuptools()
    place = tmp_path_factory.mktemp("with a space")
    project = copy_of_the_project(place / "project")
    for name in RUBBISH:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("rubbish")
    source = built("sdist", project, place)
    with tarfile.open(source) as archive:
        archive.extractall(place, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(place)
    unpacked = place / source.name.removesuffix(".tar.gz")
    return Distributions(source, built("wheel", unpacked, place), built("wheel", unpacked / "alias", place))


def in_the_source(made: Distributions) -> set[str]:
    with tarfile.open(made.source) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def in_the_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


@pytest.mark.slow
def test_the_types_of_the_package_are_announced_in_both(made: Distributions) -> None:
    assert "src/biopsy/py.typed" in in_the_source(made)
    assert "biopsy/py.typed" in in_the_wheel(made.wheel)


def test_files_of_data_are_in_both(made: Distributions) -> None:
    source = ROOT / "src" / "biopsy"
    files = {
        f"biopsy/{file.relative_to(source)}"
        for file in (*OWN_FOLDER.glob("*.yaml"), *source.rglob("*.toml"), *source.rglob("*.txt"))
    }
    assert len(files) > 1 and files <= in_the_wheel(made.wheel)
    assert {f"src/{name}" for name in files} <= in_the_source(made)


def test_the_source_distribution_holds_every_file_of_the_project_and_nothing_else(made: Distributions) -> None:
    ours = set(own_files()) - OF_GIT
    found = {name for name in in_the_source(made) if not name.startswith(MADE_BY_SETUPTOOLS)}
    assert {"Makefile", "LICENSE", "SECURITY.md", "alias/pyproject.toml", "benchmarks/RESULTS.md"} <= found
    assert {"tests/conftest.py", "tests/support/pages.py", "docs/reference/generate.py"} <= found
    assert found == ours


def test_the_wheel_holds_the_package_and_nothing_else(made: Distributions) -> None:
    package = {name.removeprefix("src/") for name in own_files() if name.startswith("src/")}
    found = in_the_wheel(made.wheel)
    assert {name for name in found if ".dist-info/" not in name} == package
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in found)


def test_the_wheel_of_the_alias_holds_a_command_and_three_small_modules(made: Distributions) -> None:
    found = in_the_wheel(made.alias)
    modules = {f"polygraphy/{name}.py" for name in ("__init__", "comparator", "json")}
    assert {name for name in found if ".dist-info/" not in name} == modules
    assert any(name.endswith("/entry_points.txt") for name in found)


def test_a_package_index_is_shown_no_link_that_leads_nowhere_from_there(made: Distributions, tmp_path: Path) -> None:
    for wheel in (made.wheel, made.alias):
        told = metadata(wheel)
        assert told["Description-Content-Type"] == "text/markdown"
        page = tmp_path / "page.md"
        page.write_text(str(told.get_payload()), encoding="utf-8")
        assert page.stat().st_size > 500
        assert [link for link in links(page) if not link.startswith("https://")] == []


def test_a_package_index_is_told_what_the_readme_begins_with() -> None:
    readme, page = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/package.md"))
    introduction = page.partition("\n## ")[0].rpartition("\n\n")[0]
    assert introduction.count("\n") > 5
    assert introduction in readme


def test_the_platforms_that_are_named_are_those_that_it_is_made_for(made: Distributions) -> None:
    named = [
        value for value in metadata(made.wheel).get_all("Classifier") or [] if value.startswith("Operating System")
    ]
    assert named == ["Operating System :: POSIX :: Linux", "Operating System :: MacOS"]


def environment_with(source: Path, folder: Path) -> Path:
    """A fresh environment with what a source distribution builds; what it depends on is what is installed here."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install", "--quiet"]
    for project in (source, source / "alias"):
        words = [*pip, "--no-index", "--no-deps", "--no-build-isolation", str(project)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=_with_our_packages())
        assert done.returncode == 0, done.stdout + done.stderr
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return python


def _with_our_packages() -> dict[str, str]:
    """Without isolation a build runs in the environment that is installed into, which has no setuptools yet."""
    return {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}


@pytest.mark.slow
def test_a_source_distribution_builds_and_tests_itself(made: Distributions, tmp_path: Path) -> None:
    with tarfile.open(made.source) as archive:
        archive.extractall(tmp_path, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(tmp_path)
    source = tmp_path / made.source.name.removesuffix(".tar.gz")
    python = environment_with(source, tmp_path / "an environment")
    told = subprocess.run([python, "-c", "import biopsy; print(biopsy.__file__)"], capture_output=True, text=True)
    assert "an environment" in told.stdout, told.stderr

    def tests(*words: str) -> None:
        done = subprocess.run([python, "-m", "pytest", *words], cwd=source, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]

    tests("--collect-only")
    tests("tests/test_public_api.py", "tests/cli/test_app.py", "tests/model/test_external.py", "tests/packaging")
    tests("tests/docs", "-k", "not what_a_page_shows or package or dependencies")
