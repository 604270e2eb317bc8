"""Environments: whole or not there, from the cache, and one clear line for each way in which they cannot be made."""

import subprocess
from pathlib import Path

import pytest

from biopsy import errors, events
from biopsy.processes.environments.cache import Cache
from biopsy.processes.environments.interpreter import Interpreter, interpreter_of
from biopsy.processes.environments.prepared import prepared
from support.package_index import PackageIndex


@pytest.fixture(scope="module")
def here() -> Interpreter:
    return interpreter_of()


def refused(requirements: list[str], here: Interpreter) -> errors.CannotInstall:
    with pytest.raises(errors.CannotInstall) as caught, prepared(requirements, python=here):
        pass
    assert not Cache.of_user().entries(), "nothing is left"
    return caught.value


def test_an_environment_holds_what_was_asked_for_and_what_that_needs(index: PackageIndex, here: Interpreter) -> None:
    index.add("bolt", "1.0", "import nut; SIZE = nut.SIZE", needs=["nut<3"])
    for version in ("1.0", "2.0", "3.0"):
        index.add("nut", version, f"SIZE = {version}")
    with prepared(["Bolt==1.0"], python=here) as environment:
        assert environment.packages == {"bolt": "1.0", "nut": "2.0"}
        assert environment.packages["nut"] == "2.0"
        printed = subprocess.check_output([environment.python, "-I", "-c", "import bolt; print(bolt.SIZE)"], text=True)
    assert printed == "2.0\n"


def test_the_second_time_it_comes_from_the_cache_and_no_index_is_asked(index: PackageIndex, here: Interpreter) -> None:
    index.add("bolt", "1.0")
    heard: list[events.Event] = []
    for _ in range(2):
        with prepared(["bolt==1.0"], python=here, listener=heard.append):
            asked = len(index.asked)
    assert len(index.asked) == asked
    assert [type(event) for event in heard] == [
        events.InstallationStarted,
        events.InstallationDone,
        events.InstallationDone,
    ]
    assert [event.cached for event in heard if isinstance(event, events.InstallationDone)] == [False, True]


def test_the_order_and_the_spelling_of_requirements_make_no_other_environment(
    index: PackageIndex, here: Interpreter
) -> None:
    index.add("bolt", "1.0")
    index.add("nut", "1.0")
    with (
        prepared(["bolt==1.0", "nut<2"], python=here) as first,
        prepared(["nut <2", "bolt== 1.0"], python=here) as second,
    ):
        assert first.python == second.python


def test_a_release_that_is_not_there_is_told_with_its_neighbours(index: PackageIndex, here: Interpreter) -> None:
    for version in ("1.0", "1.2", "1.3"):
        index.add("bolt", version)
    error = refused(["bolt==1.1"], here)
    assert (error.kind, error.summary) == ("no such release", "there is no release bolt==1.1 with a wheel")
    assert error.next_steps == ("bolt==1.0", "bolt==1.2")


def test_a_package_that_nobody_has_is_told_with_the_index(index: PackageIndex, here: Interpreter) -> None:
    error = refused(["nothing==1"], here)
    assert (error.kind, error.message) == ("no such release", f"there is no package 'nothing' in {index.address}")


def test_wheels_for_another_python_are_none(index: PackageIndex, here: Interpreter) -> None:
    index.add("bolt", "1.0", tag=here.tags[0].replace("cp3", "cp2"))
    index.add("nut", "1.0", requires_python="<3.5")
    assert refused(["bolt==1.0"], here).kind == "no wheel"
    assert refused(["nut==1.0"], here).kind == "no wheel"


def test_a_source_archive_is_no_wheel_and_nothing_of_it_is_run(
    index: PackageIndex, here: Interpreter, tmp_path: Path
) -> None:
    index.add_file("bolt", "bolt-1.0.tar.gz", b"")
    index.add("nut", "1.0", needs=["bolt"])
    assert refused(["bolt==1.0"], here).kind == "no such release"
    assert refused(["nut==1.0"], here).kind == "no wheel"


def test_a_yanked_release_is_refused_with_the_reason(index: PackageIndex, here: Interpreter) -> None:
    index.add("bolt", "1.0", yanked="breaks nuts")
    index.add("bolt", "1.1")
    error = refused(["bolt==1.0"], here)
    assert (error.kind, error.summary) == ("yanked", "bolt==1.0 was yanked by its authors: breaks nuts")
    assert error.next_steps == ("bolt==1.1",)


def test_requirements_that_contradict_each_other_are_a_conflict(index: PackageIndex, here: Interpreter) -> None:
    index.add("bolt", "1.0", needs=["nut<2"])
    index.add("nut", "1.0")
    index.add("nut", "2.0")
    error = refused(["bolt==1.0", "nut==2.0"], here)
    assert (error.kind, error.summary) == ("conflict", "bolt==1.0 and nut==2.0 cannot be installed together")
    assert "nut<2" in " ".join(error.details)


def test_a_wheel_that_crashes_on_import_is_told_by_the_signal(index: PackageIndex, here: Interpreter) -> None:
    index.add("bolt", "1.0", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    error = refused(["bolt==1.0"], here)
    assert (error.kind, error.message) == ("import fails", "the import of bolt 1.0 ended its process with SIGSEGV")


def test_a_wheel_that_cannot_be_imported_is_told_with_the_error(index: PackageIndex, here: Interpreter) -> None:
    index.add("bolt", "1.0", "import washer.round")
    error = refused(["bolt==1.0"], here)
    assert error.kind == "import fails"
    assert error.message == "bolt 1.0 cannot be imported: ModuleNotFoundError: No module named 'washer'"
    assert error.next_steps == ("--with washer",)


def test_a_wheel_that_exits_on_import_is_not_taken_for_working(index: PackageIndex, here: Interpreter) -> None:
    index.add("bolt", "1.0", "import os; os._exit(0)")
    assert refused(["bolt==1.0"], here).kind == "import fails"


COMPILED_FOR_NUMPY_1 = """
import numpy
if numpy.VERSION >= 2:
    print("A module that was compiled using NumPy 1.x cannot be run in\\nNumPy 2.1.0 as it may crash.")
    raise ImportError("numpy.core.multiarray failed to import")
"""


def test_what_an_old_release_is_known_to_need_is_added(index: PackageIndex, here: Interpreter) -> None:
    index.add("bolt", "1.0", COMPILED_FOR_NUMPY_1, needs=["numpy"])
    index.add("numpy", "1.9", "VERSION = 1")
    index.add("numpy", "2.1", "VERSION = 2")
    for _ in range(2):
        with prepared(["bolt==1.0"], python=here) as environment:
            assert environment.added == ("numpy<2",)
            assert environment.packages == {"bolt": "1.0", "numpy": "1.9"}


def test_nothing_is_added_that_the_user_has_decided_on(index: PackageIndex, here: Interpreter) -> None:
    index.add("bolt", "1.0", COMPILED_FOR_NUMPY_1, needs=["numpy"])
    index.add("numpy", "1.9", "VERSION = 1")
    index.add("numpy", "2.1", "VERSION = 2")
    error = refused(["bolt==1.0", "numpy>=2"], here)
    assert error.kind == "import fails"
    assert error.next_steps == ("--with 'numpy<2'",)


def test_an_index_that_cannot_be_reached_is_told(
    index: PackageIndex, here: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://somebody:secret@127.0.0.1:9/simple")
    error = refused(["bolt==1.0"], here)
    assert error.kind == "network"
    assert error.summary.startswith("the package index http://127.0.0.1:9/simple cannot be asked: ")
    assert "Connection refused" in error.summary


def test_files_that_cannot_be_fetched_are_told(index: PackageIndex, here: Interpreter) -> None:
    name = index.add("bolt", "1.0")
    index.bodies.pop(name)
    assert refused(["bolt==1.0"], here).kind == "network"


@pytest.mark.parametrize("text", ["", "bolt @ file:///tmp/bolt.whl", "git+https://example.org/bolt", "-e .", "./bolt"])
def test_what_is_no_requirement_on_an_index_is_wrong_usage(text: str, here: Interpreter) -> None:
    with pytest.raises(errors.UsageError), prepared([text], python=here):
        pass


def test_modules_of_the_user_do_not_get_in(
    index: PackageIndex, here: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nut.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    index.add("bolt", "1.0", "import nut", needs=["nut"])
    index.add("nut", "1.0")
    with prepared(["bolt"], python=here) as environment:
        assert environment.variables["PYTHONPATH"] is None


@pytest.mark.slow
def test_an_environment_of_pip_is_as_one_of_uv(
    index: PackageIndex, here: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("biopsy.processes.environments.interpreter.uv_program", lambda: None)
    index.add("bolt", "1.0", needs=["nut<2"])
    index.add("nut", "1.0")
    index.add("nut", "2.0")
    heard: list[events.Event] = []
    with prepared(["bolt==1.0"], python=here, listener=heard.append) as environment:
        assert environment.packages.items() >= {"bolt": "1.0", "nut": "1.0"}.items()
    assert heard[0] == events.InstallationStarted(requirements=("bolt==1.0",), python=here.version, installer="pip")
    with pytest.raises(errors.CannotInstall) as caught, prepared(["bolt==1.0", "nut==2.0"], python=here):
        pass
    assert caught.value.kind == "conflict"


def test_a_package_that_prints_a_lot_without_an_end_of_line_is_installed(
    index: PackageIndex, here: Interpreter
) -> None:
    index.add("bolt", "1.0", "print('x' * 3_000_000, end='')")
    with prepared(["bolt==1.0"], python=here) as environment:
        assert environment.packages.get("bolt") == "1.0"


@pytest.mark.parametrize("with_uv", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_build_with_a_name_of_its_own_is_not_taken_for_the_release(
    index: PackageIndex, here: Interpreter, with_uv: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_uv:
        monkeypatch.setattr("biopsy.processes.environments.interpreter.uv_program", lambda: None)
    index.add("bolt", "1.0")
    index.add("bolt", "1.0+cpu")
    with prepared(["bolt==1.0"], python=here) as environment:
        assert environment.packages.get("bolt") == "1.0"


def test_a_build_is_the_release_where_there_is_no_other(index: PackageIndex, here: Interpreter) -> None:
    index.add("bolt", "1.0+cpu")
    with prepared(["bolt==1.0"], python=here) as environment:
        assert environment.packages.get("bolt") == "1.0+cpu"


def test_the_same_number_from_another_index_is_another_environment(
    index: PackageIndex, here: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place() -> Path:
        with prepared(["bolt==1.0"], python=here) as environment:
            return environment.python

    index.add("bolt", "1.0")
    first = place()
    with PackageIndex() as other:
        other.add("bolt", "1.0", "other = True")
        monkeypatch.setenv("UV_DEFAULT_INDEX", other.address)
        second = place()
        monkeypatch.setenv("UV_DEFAULT_INDEX", other.address.replace("://", "://name:password@"))
        assert place() == second != first
