"""Packages that are installed: nothing gets out of their environment, and nobody else's settings or words get in."""

import io
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.cli.app import main
from biopsy.processes.environments.interpreter import Interpreter, interpreter_of
from biopsy.processes.environments.prepared import prepared
from support.package_index import PackageIndex, only_index, wheel


@pytest.fixture(scope="module")
def here() -> Interpreter:
    return interpreter_of()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    with only_index(tmp_path, monkeypatch) as running:
        yield running


def test_no_variable_has_packages_installed_elsewhere_or_built(
    index: PackageIndex, here: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add("bolt", "1.0")
    for name, value in {
        "PIP_TARGET": str(tmp_path / "target"),
        "PIP_USER": "1",
        "PIP_NO_BINARY": ":all:",
        "UV_TARGET": str(tmp_path / "target"),
        "UV_SYSTEM_PYTHON": "1",
        "UV_NO_BINARY": "1",
        "UV_PYTHON": "/nowhere",
        "UV_PROJECT_ENVIRONMENT": str(tmp_path / "target"),
        "VIRTUAL_ENV": str(tmp_path / "target"),
        "PYTHONHOME": "",
        "PYTHONSTARTUP": str(tmp_path / "evil.py"),
    }.items():
        monkeypatch.setenv(name, value)
    with prepared(["bolt==1.0"], python=here) as environment:
        script = "import bolt; print(bolt.__file__)"
        printed = subprocess.check_output([environment.python, "-I", "-c", script], text=True)
    assert printed.startswith(str(tmp_path / "cache"))
    assert not (tmp_path / "target").exists()


def test_a_wheel_that_reaches_out_of_its_folder_writes_nothing_there(
    index: PackageIndex, here: Interpreter, tmp_path: Path
) -> None:
    body = io.BytesIO(wheel("bolt", "1.0", {"bolt/__init__.py": ""}))
    with zipfile.ZipFile(body, "a") as archive:
        archive.writestr("../" * 12 + str(tmp_path / "evil").lstrip("/"), "evil")
    index.add_file("bolt", "bolt-1.0-py3-none-any.whl", body.getvalue())
    with suppress(errors.CannotInstall), prepared(["bolt==1.0"], python=here):
        pass
    assert not (tmp_path / "evil").exists()


def test_words_of_an_index_and_of_a_package_stay_in_one_line(
    index: PackageIndex, here: Interpreter, capsys: pytest.CaptureFixture[str]
) -> None:
    index.add("bolt", "1.0", yanked="\x1b[2J\nerror: \u202e all is well")
    index.add("nut", "1.0", "raise ImportError('\\x1b[2J\\nerror: all is well')")
    for name in ("bolt", "nut"):
        with pytest.raises(errors.CannotInstall) as caught, prepared([f"{name}==1.0"], python=here):
            pass
        assert caught.value.message.isprintable()


def test_a_file_that_is_not_what_the_index_has_promised_is_refused(index: PackageIndex, here: Interpreter) -> None:
    name = index.add("bolt", "1.0")
    index.bodies[name] = wheel("bolt", "1.0", {"bolt/__init__.py": "EVIL = 1"})
    with pytest.raises(errors.CannotInstall), prepared(["bolt==1.0"], python=here):
        pass


def test_a_link_among_the_environments_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIOPSY_CACHE_DIR", str(tmp_path))
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "work").touch()
    folder = tmp_path / "environments"
    folder.mkdir(mode=0o700)
    (folder / "bolt-0123456789abcdef").symlink_to(tmp_path / "precious")
    (folder / "bolt-0123456789abcdef.lock").touch()
    assert main(["cache", "clear"]) == 0
    assert (tmp_path / "precious" / "work").exists()
