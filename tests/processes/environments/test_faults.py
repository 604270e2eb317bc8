"""Environments when things go wrong from outside: kills, two at once, full disks, other people's folders."""

import datetime
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from biopsy import errors, events
from biopsy.processes.environments.cache import Cache
from biopsy.processes.environments.interpreter import Interpreter, interpreter_of
from biopsy.processes.environments.prepared import prepared
from support.package_index import PackageIndex

SCRIPT = """
import sys
from biopsy import errors
from biopsy.processes.environments.prepared import prepared
try:
    with prepared(sys.argv[1:]) as environment:
        print(environment.python, flush=True)
except errors.CannotInstall as error:
    sys.exit(f"{error.kind}: {error.message} {error.next_steps}")
"""


@pytest.fixture(scope="module")
def here() -> Interpreter:
    return interpreter_of()


def begun(*requirements: str) -> subprocess.Popen[str]:
    """A process that prepares an environment and ends."""
    words = [sys.executable, "-c", SCRIPT, *requirements]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(holds: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


def installers(index: PackageIndex) -> list[str]:
    """Processes that have our index in their environment: those that we started, and what they have started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if index.address.encode() in (path / "environ").read_bytes() and path.name != str(os.getpid()):
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return [line for line in found if line and "pip install" in line]


def test_two_at_once_install_it_once(index: PackageIndex) -> None:
    index.add("bolt", "1.0", "import time; time.sleep(0.3)")
    both = [begun("bolt==1.0"), begun("bolt==1.0")]
    printed = [process.communicate(timeout=60) for process in both]
    assert printed[0] == printed[1] and printed[0][0]
    assert index.asked.count("/simple/bolt/") == 2  # by us and by the installer: the other process asked for nothing
    assert len(Cache.of_user().entries()) == 1


def stuck_installation(index: PackageIndex) -> subprocess.Popen[str]:
    """A process whose installer waits for the rest of a wheel."""
    index.stuck.add(name := index.add("bolt", "1.0"))
    process = begun("bolt==1.0")
    wait_for(lambda: f"/files/{name}" in index.asked)
    assert [entry.record for entry in Cache.of_user().entries()] == [None]
    assert Cache.of_user().entries()[0].in_use
    return process


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_who_is_stopped_in_the_middle_leaves_no_process_and_no_file(index: PackageIndex, number: int) -> None:
    process = stuck_installation(index)
    process.send_signal(number)
    process.communicate(timeout=30)
    wait_for(lambda: not installers(index))
    wait_for(lambda: not Cache.of_user().entries())
    index.stuck.clear()
    again = begun("bolt==1.0")
    assert again.communicate(timeout=60)[0]


def test_what_nobody_could_clean_up_is_taken_for_nothing_and_goes(index: PackageIndex, here: Interpreter) -> None:
    index.add("bolt", "1.0")
    index.add("nut", "1.0")
    for name in ("bolt==1.0", "nut==1.0"):
        with prepared([name], python=here):
            pass
    cache = Cache.of_user()
    for entry in cache.entries():
        (cache.whole(entry.key) / "environment.json").unlink()
    (cache.whole(cache.entries()[0].key) / "python" / "rest").touch()
    with prepared(["bolt==1.0"], python=here) as environment:
        assert not (environment.python.parent.parent / "rest").exists()
    assert [entry.record is not None for entry in cache.entries()] == [True]


def test_a_record_that_is_cut_off_or_of_another_form_is_none(index: PackageIndex, here: Interpreter) -> None:
    index.add("bolt", "1.0")
    with prepared(["bolt==1.0"], python=here):
        pass
    cache = Cache.of_user()
    (entry,) = cache.entries()
    record = cache.whole(entry.key) / "environment.json"
    for text in ('{"form": 1', '{"form": 99}', "[]", "[" * 100_000, ""):
        record.write_text(text)
        assert cache.record(entry.key) is None


def mounts() -> bool:
    words = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs none /mnt"]
    return bool(shutil.which("unshare")) and subprocess.run(words, capture_output=True).returncode == 0


@pytest.mark.skipif(not mounts(), reason="no file system may be mounted here")
@pytest.mark.parametrize("room", ["400k", pytest.param("16k", marks=pytest.mark.slow)])
def test_a_full_disk_is_one_line_and_leaves_it_empty(index: PackageIndex, tmp_path: Path, room: str) -> None:
    index.add("bolt", "1.0", f"TEXT = '{'.' * 1_000_000}'")
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f'mount -t tmpfs -o size={room} none "$0"; BIOPSY_CACHE_DIR="$0" "$@"; echo "status $?"; find "$0" -type f'
    words = ["unshare", "-rm", "sh", "-c", script, str(disk), sys.executable, "-c", SCRIPT, "bolt==1.0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stderr.startswith(f"disk full: there is not enough space for bolt==1.0 in {disk}/environments ")
    assert done.stderr.count("\n") == 1
    assert "biopsy cache clear" in done.stderr
    assert done.stdout == "status 1\n"


@pytest.mark.slow
def test_a_limit_of_the_size_of_files_is_told_as_a_full_disk(index: PackageIndex) -> None:
    index.add("bolt", "1.0", f"TEXT = '{'.' * 1_000_000}'")
    words = ["sh", "-c", 'ulimit -f 200; exec "$0" "$@"', sys.executable, "-c", SCRIPT, "bolt==1.0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stderr.startswith("disk full: "), done.stderr
    assert not Cache.of_user().entries()


def test_what_was_not_used_for_longest_goes_when_all_are_too_large(
    index: PackageIndex, here: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bolt", "nut", "washer"):
        index.add(name, "1.0", f"TEXT = '{'.' * 300_000}'")
    cache = Cache.of_user()
    for age, name in enumerate(("nut", "bolt")):
        with prepared([name], python=here):
            pass
        record = next(cache.whole(each.key) for each in cache.entries() if each.key.startswith(name))
        os.utime(record / "environment.json", (age, age))
    size = max(entry.bytes for entry in cache.entries())
    monkeypatch.setenv("BIOPSY_CACHE_LIMIT", str(int(size * 2.5)))
    heard: list[events.Event] = []
    with prepared(["washer"], python=here, listener=heard.append):
        pass
    assert {entry.key.rpartition("-")[0] for entry in cache.entries()} == {"bolt", "washer"}
    assert [event.text for event in heard if isinstance(event, events.Remark)] == [
        "1 environment that had not been used for longest was removed: "
        f"together, environments may have {int(size * 2.5) / 1e6:.1f} MB"
    ]


def test_an_environment_that_is_open_is_not_cleared(index: PackageIndex, here: Interpreter) -> None:
    for name in ("bolt", "nut"):
        index.add(name, "1.0")
        with prepared([name], python=here):
            pass
    cache = Cache.of_user()
    with prepared(["nut"], python=here) as environment:
        cleared = cache.clear()
        assert ([entry.key[:4] for entry in cleared.gone], [entry.key[:4] for entry in cleared.in_use]) == (
            ["bolt"],
            ["nut-"],
        )
        subprocess.run([environment.python, "-I", "-c", "import nut"], check=True)
    assert not cache.clear().in_use and not cache.entries()
    assert list(cache.folder.iterdir()) == []


def test_only_what_was_not_used_for_long_is_cleared(index: PackageIndex, here: Interpreter) -> None:
    index.add("bolt", "1.0")
    with prepared(["bolt"], python=here):
        pass
    cache = Cache.of_user()
    assert not cache.clear(unused_for=datetime.timedelta(days=1)).gone
    assert len(cache.clear().gone) == 1


def test_folders_of_others_are_neither_listed_nor_cleared(index: PackageIndex) -> None:
    cache = Cache.of_user()
    for name in ("work", "bolt-0123456789abcdef"):
        (cache.folder / name).mkdir(parents=True)
    assert cache.entries() == [] and cache.clear().gone == []
    assert len(list(cache.folder.iterdir())) == 2


def test_a_folder_that_others_may_write_to_is_not_used(index: PackageIndex, here: Interpreter) -> None:
    index.add("bolt", "1.0")
    Cache.of_user().folder.mkdir(parents=True)
    Cache.of_user().folder.chmod(0o777)
    with pytest.raises(errors.CannotInstall, match="others may write there"), prepared(["bolt"], python=here):
        pass


@pytest.mark.parametrize("text", ["much", "0", "-1GB"])
def test_a_limit_that_is_no_size_is_wrong_usage(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIOPSY_CACHE_LIMIT", text)
    with pytest.raises(errors.UsageError, match="BIOPSY_CACHE_LIMIT is not a size"):
        Cache.of_user()


STRESS = """
import random, subprocess, sys, time
from biopsy import errors
from biopsy.processes.environments.cache import Cache
from biopsy.processes.environments.interpreter import interpreter_of
from biopsy.processes.environments.prepared import prepared
choice, here = random.Random(int(sys.argv[1])), interpreter_of()
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    name = choice.choice(["bolt", "nut", "washer"])
    with prepared([name], python=here) as environment:
        time.sleep(choice.random() / 10)
        subprocess.run([environment.python, "-I", "-c", f"import {name}.part"], check=True)
        if choice.random() < 0.5:
            Cache.of_user().clear()
            subprocess.run([environment.python, "-I", "-c", f"import {name}.part"], check=True)
    Cache.of_user().entries()
"""


@pytest.mark.slow
def test_many_who_install_use_and_clear_at_once_never_meet_half_an_environment(
    index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    for name in ("bolt", "nut", "washer"):
        index.add(name, "1.0", modules={f"{name}/__init__.py": "", f"{name}/part.py": ""})
    words = [sys.executable, "-c", STRESS]
    many = [subprocess.Popen([*words, str(seed), "6"], stderr=subprocess.PIPE, text=True) for seed in range(5)]
    assert [process.communicate(timeout=120)[1] for process in many] == [""] * 5
    assert not Cache.of_user().clear().stuck


@pytest.mark.slow
def test_kills_at_any_moment_never_leave_half_an_environment(index: PackageIndex, here: Interpreter) -> None:
    parts = {f"bolt/part{number}.py": "" for number in range(50)}
    index.add("bolt", "1.0", modules={"bolt/__init__.py": "from bolt import part49", **parts})
    for seed in range(12):
        process = begun("bolt==1.0")
        time.sleep(0.4 + 0.08 * seed)
        process.kill()
        process.communicate()
        with prepared(["bolt==1.0"], python=here) as environment:
            everything = "; ".join(f"import bolt.part{number}" for number in range(50))
            subprocess.run([environment.python, "-I", "-c", everything], check=True)
            time.sleep(0.02 * seed)  # for the one who cleans up after the killed one
            subprocess.run([environment.python, "-I", "-c", everything], check=True)
        Cache.of_user().clear()
    assert not installers(index)
