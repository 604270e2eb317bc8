"""What a machine that died has left is removed; what anybody still uses, or is not ours, stays."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy.processes.own_files import claimed_folder, remove_abandoned

PREFIX = "biopsy-host-"
HOLDS = """
import sys
from pathlib import Path
from biopsy.processes import cleanup
from biopsy.processes.own_files import claimed_folder
cleanup.register = lambda *entry: None  # as on a machine that dies with all its processes
with claimed_folder("biopsy-host-", Path(sys.argv[1])) as folder:
    (folder / "sent").write_text("weights")
    print(folder, flush=True)
    input()
"""


def held(parent: Path) -> tuple["subprocess.Popen[str]", Path]:
    """A process that uses a folder."""
    words = [sys.executable, "-c", HOLDS, str(parent)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def ended(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_it_is_there_only_while_it_is_used(tmp_path: Path) -> None:
    with claimed_folder(PREFIX, tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert remove_abandoned(PREFIX, tmp_path) == []
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_has_left_is_removed_and_not_before(tmp_path: Path) -> None:
    process, folder = held(tmp_path)
    assert remove_abandoned(PREFIX, tmp_path) == []
    ended(process)
    assert (folder / "sent").is_file()
    assert remove_abandoned(PREFIX, tmp_path) == [folder]
    assert not folder.exists()


def test_a_link_is_not_followed_neither_as_the_folder_nor_in_it(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "mine" / "kept").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "mine")
    left = tmp_path / f"{PREFIX}left"
    left.mkdir(mode=0o700)
    (left / "link").symlink_to(tmp_path / "mine")
    assert remove_abandoned(PREFIX, tmp_path) == [left]
    assert (tmp_path / "mine" / "kept").is_file()
    assert (tmp_path / f"{PREFIX}link").is_symlink()


def test_what_others_may_read_was_not_made_by_us(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}open").mkdir()
    (tmp_path / f"{PREFIX}open").chmod(0o755)
    (tmp_path / f"{PREFIX}file").touch()
    assert remove_abandoned(PREFIX, tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_stays(tmp_path: Path) -> None:
    theirs = tmp_path / f"{PREFIX}theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, 65534, 65534)
    assert remove_abandoned(PREFIX, tmp_path) == []
    assert theirs.is_dir()


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    assert remove_abandoned(PREFIX, tmp_path / "none") == []


@given(st.lists(st.tuples(st.sampled_from([PREFIX, "biopsy-", "other-"]), st.booleans()), max_size=8))
def test_just_those_that_nobody_claims_go(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[str, bool]]
) -> None:
    parent = tmp_path_factory.mktemp("p")
    stay, go = [], []
    with ExitStack() as stack:
        for number, (prefix, is_used) in enumerate(made):
            if is_used:
                stay.append(stack.enter_context(claimed_folder(prefix, parent)))
            else:
                path = parent / f"{prefix}{number}"
                path.mkdir(mode=0o700)
                (go if prefix == PREFIX else stay).append(path)
        assert sorted(remove_abandoned(PREFIX, parent)) == sorted(go)
        assert sorted(parent.iterdir()) == sorted(stay)
