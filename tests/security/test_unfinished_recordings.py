"""Unfinished recordings that somebody planted: their values are never taken for what an engine gave.

What a recording is of, digests and versions, anybody can work out. So it is the key of the user that tells.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from biopsy import errors
from biopsy.cli.app import main
from biopsy.processes.own_files import user_key
from biopsy.tensors.files import read_results
from biopsy.tensors.recording import AppendableStore, Place
from support.models import chain, save

IDENTITY = {"model": "a"}
PLACES: list[Place] = [(0, 0, name) for name in "abc"]
RECORD = ["run", "m.onnx", "--onnxrt", "--reference", "--record-memory", "100MB", "--save-outputs", "o.safetensors"]
DATA, LINES = Path(".o.safetensors.recording"), Path(".o.safetensors.recording.json")
RM = f"rm -- {DATA} {LINES}"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the current one, and a state folder in which there is no key yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def killed(words: list[str], *, by: Path | None = None, value: float | None = None) -> None:
    """A recording that was killed when the first engine had been recorded; ``value`` in place of what engines give."""
    code = (
        "import os, signal, numpy as np; from biopsy.tensors.recording import AppendableStore\n"
        "keep, add = AppendableStore.commit, AppendableStore.append\n"
        f"def append(self, place, array):\n    add(self, place, np.full_like(array, {value}) if {value} else array)\n"
        "def commit(self):\n    keep(self)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "AppendableStore.commit, AppendableStore.append = commit, append\n"
        f"from biopsy.cli.app import main; main({words!r})"
    )
    environment = {**os.environ, **({} if by is None else {"XDG_STATE_HOME": str(by)})}
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.DEVNULL)
    assert done.returncode == -signal.SIGKILL
    assert DATA.exists()


def test_values_that_somebody_else_planted_are_refused_and_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(chain(2), Path("m.onnx"))
    killed(RECORD, by=tmp_path / "mallory", value=7)
    before = DATA.read_bytes(), LINES.read_bytes()
    assert main(RECORD) == 2
    told = capsys.readouterr()
    assert "PASSED" not in told.out
    assert "nothing shows that you made it" in told.err
    assert RM in told.err
    assert (DATA.read_bytes(), LINES.read_bytes()) == before
    assert not Path("o.safetensors").exists()
    for path in (DATA, LINES):
        path.unlink()
    assert main(RECORD) == 0
    results = read_results("o.safetensors")
    assert not any(np.all(array == 7) for one in results for array in one.iterations[0].outputs.values())


def test_a_recording_of_ones_own_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    save(chain(2), Path("m.onnx"))
    killed(RECORD)
    assert main(RECORD) == 0
    assert "of them by an earlier run" in capsys.readouterr().out
    assert not DATA.exists()
    assert not LINES.exists()


def begun() -> None:
    with AppendableStore(Path("o.safetensors"), IDENTITY, PLACES) as file:
        for number in (0, 1):
            file.append(PLACES[number], np.full(5, number + 1.0))
            file.commit()


def opened() -> AppendableStore:
    return AppendableStore(Path("o.safetensors"), IDENTITY, PLACES)


def swapped(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[2], lines[1]]


def doubled(lines: list[bytes]) -> list[bytes]:
    return [*lines, lines[-1]]


def one_left_out(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[2]]


def other_identity(lines: list[bytes]) -> list[bytes]:
    return [lines[0].replace(b'"a"', b'"b"'), *lines[1:]]


def other_place(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[2].replace(b'"b"', b'"c"')]


def added(lines: list[bytes]) -> list[bytes]:
    return [*lines, b'{"tensors":[[0,0,"c","<f8",[5],0,40]]}\n']


def added_with_a_seal(lines: list[bytes]) -> list[bytes]:
    return [*lines, b'{"tensors":[[0,0,"c","<f8",[5],0,40]]' + lines[-1][-44:]]


def of_an_older_version(lines: list[bytes]) -> list[bytes]:
    trees = [json.loads(line) for line in lines]
    trees[0]["recording"] = 1
    return [json.dumps({key: value for key, value in tree.items() if key != "seal"}).encode() + b"\n" for tree in trees]


def what_cannot_be(lines: list[bytes]) -> list[bytes]:
    return [b'{"recording":2,"identity":{"model":"a"},"room":-100}\n', b"[" * 100_000 + b"\n"]


@pytest.mark.parametrize(
    "change",
    [swapped, doubled, one_left_out, other_identity, other_place, added, added_with_a_seal, of_an_older_version,
     what_cannot_be],
)  # fmt: skip
def test_no_line_can_be_changed_moved_or_added(change: Callable[[list[bytes]], list[bytes]]) -> None:
    begun()
    lines = LINES.read_bytes().splitlines(keepends=True)
    changed = b"".join(change(lines))
    LINES.write_bytes(changed)
    with pytest.raises(errors.UsageError, match="nothing shows that you made it") as caught:
        opened()
    assert caught.value.next_steps[0].startswith(RM)
    assert LINES.read_bytes() == changed


def test_a_recording_of_which_values_are_missing_is_refused() -> None:
    begun()
    os.truncate(DATA, DATA.stat().st_size - 8)
    with pytest.raises(errors.UsageError, match="some of it is missing"):
        opened()


# The key


def test_the_key_is_made_once_and_for_its_user_alone(tmp_path: Path) -> None:
    key = user_key()
    assert key is not None
    assert len(key) == 32
    assert user_key() == key
    place = tmp_path / "state" / "biopsy" / "key"
    assert place.read_bytes() == key
    assert (place.stat().st_mode & 0o777, place.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_processes_that_begin_together_have_the_same_key() -> None:
    code = "from biopsy.processes.own_files import user_key; print(user_key().hex())"
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(3)]
    assert len({one.communicate()[0] for one in both}) == 1


def as_link(key: Path, other: Path) -> None:
    key.symlink_to(other)


def as_hard_link(key: Path, other: Path) -> None:
    key.hardlink_to(other)


def as_pipe(key: Path, other: Path) -> None:
    os.mkfifo(key)


def as_folder(key: Path, other: Path) -> None:
    key.mkdir()


def short(key: Path, other: Path) -> None:
    key.write_bytes(bytes(31))


def long(key: Path, other: Path) -> None:
    key.write_bytes(bytes(33))


def readable_by_all(key: Path, other: Path) -> None:
    shutil.copy(other, key)
    key.chmod(0o644)


def of_another_user(key: Path, other: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    shutil.copy(other, key)
    os.chown(key, 12345, 12345)


def in_a_folder_for_all(key: Path, other: Path) -> None:
    shutil.copy(other, key)
    key.parent.chmod(0o777)


@pytest.mark.parametrize(
    "planted",
    [as_link, as_hard_link, as_pipe, as_folder, short, long, readable_by_all, of_another_user, in_a_folder_for_all],
)
def test_what_is_no_key_of_ours_is_not_used(planted: Callable[[Path, Path], None], tmp_path: Path) -> None:
    folder, other = tmp_path / "state" / "biopsy", tmp_path / "other"
    folder.mkdir(parents=True, mode=0o700)
    other.write_bytes(bytes(range(32)))
    other.chmod(0o600)
    planted(folder / "key", other)
    before = os.lstat(folder / "key")
    assert user_key() is None
    after = os.lstat(folder / "key")
    assert (before.st_ino, before.st_size, before.st_mode) == (after.st_ino, after.st_size, after.st_mode)
    assert other.read_bytes() == bytes(range(32))


def no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("XDG_STATE_HOME", "HOME", "USERPROFILE"):
        monkeypatch.delenv(name, raising=False)


def a_home_that_is_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "home").write_bytes(b"")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def relative_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", ".")
    monkeypatch.setenv("HOME", ".")


def no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"")


@pytest.mark.parametrize("missing", [no_home, a_home_that_is_no_folder, relative_names, no_folder])
def test_without_a_key_every_recording_starts_anew(
    missing: Callable[[pytest.MonkeyPatch, Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    missing(monkeypatch, tmp_path)
    save(chain(2), Path("m.onnx"))
    killed(RECORD)
    assert main(RECORD) == 0
    assert "by an earlier run" not in capsys.readouterr().out
    assert sorted(path.name for path in Path().iterdir()) == ["m.onnx", "o.safetensors"]


def test_no_home_is_made_for_a_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    assert user_key() is None
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "nowhere").mkdir()
    assert user_key() == (tmp_path / "nowhere/.local/state/biopsy/key").read_bytes()


def test_without_a_key_nothing_that_has_seals_is_touched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun()
    before = DATA.read_bytes(), LINES.read_bytes()
    no_home(monkeypatch, tmp_path)
    with pytest.raises(errors.UsageError, match="nothing shows that you made it"):
        opened()
    assert (DATA.read_bytes(), LINES.read_bytes()) == before
