"""The list of what goes with a process, and who goes through it once that process has been killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy.processes import cleanup, reaper
from support.command_line import is_alive, wait_until

PYTHON = [sys.executable, "-P", "-c"]

REGISTERS_FROM_THREADS = """
import os, signal, sys, threading
from pathlib import Path
from biopsy.processes import cleanup

folder, threads, each = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

def work(number):
    for turn in range(each):
        path = folder / f"{number}-{turn}"
        entry = ("folder", "", str(path))
        cleanup.register(*entry)
        path.mkdir()
        if turn % 2:
            path.rmdir()
            cleanup.unregister(*entry)
            path.mkdir()  # it is ours no more

workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("threads", [1, 2, 4, 8, 16, 32])
def test_nothing_that_was_registered_or_struck_is_lost_however_many_threads_do_so(threads: int, tmp_path: Path) -> None:
    each = 960 // threads
    ended = subprocess.run([*PYTHON, REGISTERS_FROM_THREADS, str(tmp_path), str(threads), str(each)], check=False)
    assert ended.returncode == -signal.SIGKILL
    struck = {f"{number}-{turn}" for number in range(threads) for turn in range(1, each, 2)}
    assert wait_until(lambda: {path.name for path in tmp_path.iterdir()} == struck)


@pytest.fixture
def watcher() -> Iterator[cleanup._Watcher]:
    watcher = cleanup._Watcher()
    yield watcher
    watcher.leave()


_PARTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@given(changes=st.lists(st.tuples(st.booleans(), st.tuples(st.sampled_from(["new", "folder"]), _PARTS)), max_size=40))
def test_the_list_holds_what_was_added_and_not_removed(changes: list[tuple[bool, tuple[str, str]]]) -> None:
    listed, expected = cleanup._List(), []
    try:
        for is_added, entry in changes:
            if is_added:
                listed.add(entry)
                expected.append(entry)
            else:
                listed.remove(entry)
                if entry in expected:
                    expected.remove(entry)
            assert sorted(reaper.entries_of(listed.descriptor)) == sorted(expected)
            assert os.pread(listed.descriptor, 1, 0) == (b"1" if expected else b"0")
    finally:
        os.close(listed.descriptor)


def test_the_longest_path_fits_and_what_is_no_path_is_refused(watcher: cleanup._Watcher) -> None:
    longest = "/" + "\n" * 4094
    watcher.register("file", "18446744073709551615:18446744073709551615", longest, longest)
    for nonsense in ("/a\0/home", "x" * reaper.SLOT):
        with pytest.raises(OSError, match="no path is like this"):
            watcher.register("new", nonsense)


def test_a_watcher_that_was_killed_is_replaced_and_the_new_one_knows_all(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, time; from pathlib import Path; from biopsy.processes import cleanup\n"
        "with cleanup.temporary_folder('before', Path(sys.argv[1])):\n"
        '    os.kill(int(os.popen(f"pgrep -P {os.getpid()} -f reaper.py").read().split()[0]), signal.SIGKILL)\n'
        "    time.sleep(0.1)\n"
        "    with cleanup.temporary_folder('after', Path(sys.argv[1])):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([*PYTHON, code, str(tmp_path)], check=False).returncode == -signal.SIGKILL
    assert wait_until(lambda: not list(tmp_path.iterdir()))


def test_a_watcher_costs_no_time_while_it_waits_and_none_is_left() -> None:
    code = (
        "import os, sys, time; from pathlib import Path; from biopsy.processes import cleanup\n"
        "cleanup.start()\n"
        "shell = int(os.popen(f'pgrep -P {os.getpid()} -f reaper.py').read().split()[0])\n"
        "ticks = lambda: sum(map(int, Path(f'/proc/{shell}/stat').read_text().split()[13:15]))\n"
        "before = ticks()\n"
        "for turn in range(20_000):\n"
        "    cleanup.register('new', f'/nowhere/{turn}')\n"
        "    cleanup.unregister('new', f'/nowhere/{turn}')\n"
        "print(shell, ticks() - before)\n"
    )
    shell, ticks = map(int, subprocess.run([*PYTHON, code], capture_output=True, check=True).stdout.split())
    assert ticks == 0
    assert wait_until(lambda: not is_alive(shell))


def test_a_number_that_was_given_to_another_process_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as somebody:
        _, number, begun = cleanup.group(somebody.pid)
        reaper.clean_up([("group", number, str(int(begun) - 1))])
        time.sleep(0.1)
        assert somebody.poll() is None
        reaper.clean_up([("group", number, begun)])
        assert somebody.wait(10) == -signal.SIGKILL


def test_a_group_whose_leader_has_gone_is_ended() -> None:
    words = ["sh", "-c", "sleep 600 & echo $!"]
    with subprocess.Popen(words, start_new_session=True, stdout=subprocess.PIPE) as leader:
        entry = cleanup.group(leader.pid)
        assert leader.stdout is not None
        member = int(leader.stdout.readline())
    assert Path(f"/proc/{member}").exists()
    reaper.clean_up([entry])
    assert wait_until(lambda: not is_alive(member))


def test_who_began_since_a_moment_is_found_and_others_are_not_looked_at() -> None:
    with subprocess.Popen(["sleep", "600"]) as before:
        moment = reaper.Moment()
        with subprocess.Popen(["sleep", "600"]) as after:
            younger = list(moment.younger())
            assert after.pid in younger
            assert before.pid not in younger
            after.kill()
        before.kill()


def test_after_a_while_or_where_numbers_began_anew_all_processes_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    everybody = os.getppid()
    moment = reaper.Moment()
    monkeypatch.setattr(reaper, "_newest_process", lambda: 3)
    assert everybody in list(moment.younger())
    monkeypatch.undo()
    later = time.monotonic() + 6
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert everybody in list(moment.younger())


def test_where_memory_has_no_files_the_list_is_a_temporary_one_without_a_name(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "del os.memfd_create, os.pidfd_open\n"
        "from biopsy.processes import cleanup\n"
        "with cleanup.temporary_folder('ours', Path(sys.argv[1])):\n"
        "    print(len(os.listdir(sys.argv[1])), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    variables = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run([*PYTHON, code, str(tmp_path)], env=variables, stdout=subprocess.PIPE, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert int(ended.stdout) == 1
    assert wait_until(lambda: not list(tmp_path.iterdir()))


@pytest.mark.parametrize("can_tell", [True, False])
def test_a_group_of_which_nobody_knows_the_start_is_ended_only_where_no_start_can_be_known(
    can_tell: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as somebody:
        if not can_tell:
            monkeypatch.setattr(reaper, "beginning", lambda pid: "")
        reaper.clean_up([("group", str(somebody.pid), "")])
        assert wait_until(lambda: somebody.poll() is not None, 0.5) is not can_tell
        somebody.kill()


def test_a_process_that_is_starting_a_program_is_waited_for(tmp_path: Path) -> None:
    """Linux shows an empty environment while a program is being loaded: a hundred starts meet that moment."""
    missed = 0
    variables = {reaper.VERDICT_VARIABLE: f"{tmp_path}/verdict.json"}
    for _ in range(100):
        moment = reaper.Moment()
        with subprocess.Popen(["/bin/sleep", "600"], env=variables) as daemon:
            reaper.end_marked([f"{reaper.VERDICT_VARIABLE}={tmp_path}/"], moment.younger)
            missed += not wait_until(lambda daemon=daemon: daemon.poll() is not None, 0.5)
            daemon.kill()
    assert not missed


def test_one_without_any_variable_is_not_waited_for_once_it_is_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = reaper.Moment()
    with subprocess.Popen(["/bin/sleep", "600"], env={}) as somebody:
        time.sleep(1.1)
        monkeypatch.setattr(time, "sleep", None)
        reaper.end_marked([f"{reaper.VERDICT_VARIABLE}={tmp_path}/"], moment.younger)
        assert somebody.poll() is None
        somebody.kill()
