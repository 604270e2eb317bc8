"""A folder that somebody prepared: what stands at the names that biopsy uses is neither followed, trusted nor removed.

Every attack aims at a victim's file, such as a shell profile, and the victim is looked at afterwards.
"""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

import biopsy
from biopsy import errors
from biopsy.checks import outcome
from biopsy.checks.outcome import Artifacts, Outcome
from biopsy.cli.progress import EventLog
from biopsy.processes import cleanup, reaper, writing
from biopsy.processes.writing import require_writable, write_whole
from biopsy.tensors.files import write_feeds
from biopsy.tensors.recording import AppendableStore
from support.command_line import BIN, Ran, typed, wait_until
from support.models import chain, info, model, save, weight
from support.scripts import NAMES

PROFILE = b"export EDITOR=vi\n"
CANDIDATE = "polygraphy_debug.onnx"
FINDS_N3 = "sys.exit('n3' in names)"


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A home with a shell profile and nothing else, before and after."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".profile").write_bytes(PROFILE)
    yield home / ".profile"
    assert [path.name for path in home.iterdir()] == [".profile"]
    assert (home / ".profile").read_bytes() == PROFILE


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The prepared folder, which the commands run in."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def checked_by(code: str = FINDS_N3) -> list[str]:
    Path("check.py").write_text(NAMES + code)
    return ["--check", sys.executable, "-I", "-S", "check.py", "{}"]


def reduce(*words: str, code: str = FINDS_N3) -> Ran:
    if not Path("m.onnx").exists():
        save(chain(6), Path("m.onnx"))
    return typed("debug", "reduce", "m.onnx", "-o", "r.onnx", *words, *checked_by(code))


# Locks


def as_link(place: Path, victim: Path) -> None:
    place.symlink_to(victim)


def as_dangling_link(place: Path, victim: Path) -> None:
    place.symlink_to(victim.with_name(".bashrc"))


def as_hard_link(place: Path, victim: Path) -> None:
    place.hardlink_to(victim)


def as_pipe(place: Path, victim: Path) -> None:
    os.mkfifo(place)


def as_folder(place: Path, victim: Path) -> None:
    place.mkdir()


Planted = Callable[[Path, Path], None]
PLANTED = pytest.mark.parametrize(
    "planted", [as_link, as_dangling_link, as_hard_link, as_pipe, as_folder], ids=lambda planted: planted.__name__
)
REDUCE = ("debug", "reduce", "m.onnx", "-o", "r.onnx")
PRECISION = ("debug", "precision", "m.onnx", "-o", "r.onnx")


@PLANTED
@pytest.mark.parametrize("command", [REDUCE, PRECISION], ids=["reduce", "precision"])
def test_what_stands_at_the_lock_is_told_and_left_as_it_is(
    command: tuple[str, ...], planted: Planted, here: Path, victim: Path
) -> None:
    save(chain(3), here / "m.onnx")
    planted(here / f".{CANDIDATE}.lock", victim)
    before = os.lstat(here / f".{CANDIDATE}.lock")
    ran = typed(*command, *checked_by())
    assert ran.status == 2, ran.told
    assert f".{CANDIDATE}.lock is in the way: " in ran.told
    assert f"  next  ls -ld -- .{CANDIDATE}.lock    shows what it is" in ran.told
    assert "--iter-artifact OTHER" in ran.told
    assert os.path.samestat(before, os.lstat(here / f".{CANDIDATE}.lock"))


@PLANTED
def test_so_it_is_with_the_lock_of_an_engines_file(planted: Planted, here: Path, victim: Path) -> None:
    save(chain(3), here / "m.onnx")
    planted(here / ".polygraphy_debug.ort.lock", victim)
    ran = typed("debug", "build", "m.onnx", "--onnxrt", "--until", "1", "--check", "build")
    assert ran.status == 2, ran.told
    assert ".polygraphy_debug.ort.lock is in the way: " in ran.told


def test_a_lock_that_lists_other_paths_has_nothing_removed_or_moved(here: Path, victim: Path) -> None:
    """As earlier versions wrote it: whatever it says, nobody believes it."""
    mine = here / "sub" / CANDIDATE
    mine.parent.mkdir()
    mine.write_bytes(b"mine")
    import hashlib

    told = {"places": {str(mine): [hashlib.blake2b(b"mine", digest_size=16).hexdigest()]}, "aside": str(victim)}
    (here / f".{CANDIDATE}.lock").write_text(json.dumps(told))
    ran = reduce()
    assert ran.status == 0, ran.told
    assert mine.read_bytes() == b"mine"
    assert not (here / f".{CANDIDATE}.lock").exists()


def test_a_lock_holds_nothing_while_candidates_are_written(here: Path) -> None:
    seen = "open('seen.txt', 'a').write(repr(open('.polygraphy_debug.onnx.lock').read()) + chr(10))\n"
    assert reduce(code=seen + FINDS_N3).status == 0
    assert set((here / "seen.txt").read_text().split()) == {"''"}


def test_the_numbered_places_of_candidates_are_used_only_where_nothing_stands(here: Path, victim: Path) -> None:
    for number in (1, 2):
        (here / f"polygraphy_debug.{number}.onnx").symlink_to(victim.with_name(".bashrc"))
    assert reduce("--jobs", "3").status == 0
    assert all((here / f"polygraphy_debug.{number}.onnx").is_symlink() for number in (1, 2))


@pytest.mark.parametrize(
    "planted",
    [as_link, *(pytest.param(made, marks=pytest.mark.slow) for made in (as_dangling_link, as_hard_link)), as_pipe],
    ids=lambda made: made.__name__,
)
def test_what_stands_where_candidates_are_written_is_back_at_the_end(
    planted: Planted, here: Path, victim: Path
) -> None:
    planted(here / CANDIDATE, victim)
    before = os.lstat(here / CANDIDATE)
    ran = reduce()
    assert ran.status == 0, ran.told
    assert os.path.samestat(before, os.lstat(here / CANDIDATE))


# Weights that are copied


def model_elsewhere(folder: Path) -> Path:
    """A model whose weights are in a folder of their own, so that a check that knows the candidate's place by itself
    needs copies of them beside it."""
    folder.mkdir()
    made = model(
        [helper.make_node("Relu", ["x"], ["r"], name="n1"), helper.make_node("Add", ["r", "w"], ["y"], name="n3")],
        [info("x", (400,))],
        [info("y", (400,))],
        [weight("w", *range(400))],
    )
    onnx.save(made, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=10)
    return folder / "m.onnx"


def with_copied_weights(path: Path, code: str) -> list[str]:
    Path("check.py").write_text(NAMES.replace("sys.argv[1]", repr(CANDIDATE)) + code)
    return ["debug", "reduce", str(path), "-o", "r.onnx", "--check", sys.executable, "-I", "-S", "check.py"]


SEES_COPIES = r"""
import re
copies = re.search(rb'\.polygraphy_debug\.weights[.0-9]*/w\.bin', data)
if b'n3' in data and len(open(copies[0], 'rb').read()) != 1600: sys.exit(0)
"""


@pytest.mark.parametrize(
    "planted",
    [
        as_link,
        *(pytest.param(made, marks=pytest.mark.slow) for made in (as_dangling_link, as_hard_link, as_pipe)),
        "as_link_to_a_folder",
    ],
)
def test_weights_are_not_copied_into_what_stands_there(
    planted: Planted | str, here: Path, victim: Path, tmp_path: Path
) -> None:
    wanted = here / ".polygraphy_debug.weights"
    if callable(planted):
        planted(wanted, victim)
    else:
        wanted.symlink_to(victim.parent)
    before = os.lstat(wanted)
    ran = typed(*with_copied_weights(model_elsewhere(tmp_path / "model"), SEES_COPIES + FINDS_N3))
    assert ran.status == 0, ran.told
    assert os.path.samestat(before, os.lstat(wanted))
    assert {path.name for path in here.iterdir()} == {wanted.name, "check.py", "r.onnx"}


def test_copied_weights_go_with_a_killed_process_but_not_what_stands_there_since(here: Path, tmp_path: Path) -> None:
    code = SEES_COPIES + "open('begun.txt', 'w').close(); time.sleep(60)"
    for mine in (False, True):
        words = with_copied_weights(model_elsewhere(tmp_path / f"model{mine}"), code)
        process = subprocess.Popen([BIN / "biopsy", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert wait_until((here / "begun.txt").exists)
        copied = here / ".polygraphy_debug.weights"
        if mine:
            copied.rename(tmp_path / "moved away")
            copied.mkdir()
            (copied / "thesis.txt").write_bytes(b"mine")
        process.kill()
        process.wait()
        assert wait_until(lambda: not (here / f".{CANDIDATE}.lock").exists())
        assert copied.exists() is mine
        (here / "begun.txt").unlink()
    assert (copied / "thesis.txt").read_bytes() == b"mine"


# What is written


@pytest.mark.parametrize("planted", [as_link, as_dangling_link, as_hard_link], ids=lambda planted: planted.__name__)
def test_a_file_that_is_written_replaces_what_stands_there(planted: Planted, here: Path, victim: Path) -> None:
    planted(here / "f", victim)
    require_writable(here / "f")
    write_whole(here / "f", [b"ours"])
    assert not (here / "f").is_symlink()
    assert (here / "f").read_bytes() == b"ours"


def test_a_link_to_a_pipe_or_a_device_is_replaced_too(here: Path) -> None:
    os.mkfifo(here / "pipe")
    for target in (here / "pipe", Path("/dev/null")):
        (here / "f").unlink(missing_ok=True)
        (here / "f").symlink_to(target)
        require_writable(here / "f")
        write_whole(here / "f", [b"ours"])
        assert (here / "f").read_bytes() == b"ours"


def test_what_the_system_itself_links_is_written_to(here: Path) -> None:
    save(chain(3), here / "m.onnx")
    line = f"{BIN}/biopsy surgeon extract m.onnx --outputs t2 -o /dev/fd/3 3>&1 >told.txt | cat > piped.onnx"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert onnx.load(here / "piped.onnx").graph.node, done.stderr


def test_a_pipe_that_nobody_reads_is_told_and_not_waited_for(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_PATIENCE", 0.2)
    monkeypatch.setattr(writing, "_unread", set())
    os.mkfifo(here / "f")
    with pytest.raises(errors.UsageError, match="it is a pipe, and nobody reads from it"):
        write_whole(here / "f", [b"ours"])


def test_after_one_pipe_that_nobody_reads_the_next_is_hardly_waited_for(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_PATIENCE", 3600.0)
    monkeypatch.setattr(writing, "_unread", {here / "f"})
    os.mkfifo(here / "g")
    with pytest.raises(errors.UsageError, match="it is a pipe, and nobody reads from it"):
        write_whole(here / "g", [b"ours"])


@pytest.fixture
def guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody knows the names of temporary files beforehand, which are random."""
    monkeypatch.setattr(os, "urandom", bytes)


@pytest.mark.parametrize("planted", [as_link, as_dangling_link, as_hard_link], ids=lambda planted: planted.__name__)
@pytest.mark.parametrize("act", [lambda path: write_whole(path, [b"ours"]), require_writable], ids=["write", "probe"])
@pytest.mark.usefixtures("guessed")
def test_what_stands_at_the_name_of_a_temporary_file_is_not_written_into(
    act: Callable[[Path], None], planted: Planted, here: Path, victim: Path
) -> None:
    planted(here / ".f.00000000.part", victim)
    before = os.lstat(here / ".f.00000000.part")
    with pytest.raises(errors.UsageError, match=r"cannot write .*f: File exists"):
        act(here / "f")
    assert [path.name for path in here.iterdir()] == [".f.00000000.part"]
    assert os.path.samestat(before, os.lstat(here / ".f.00000000.part"))


@pytest.mark.usefixtures("guessed")
def test_nor_is_a_folder_of_iterations_made_in_what_stands_there(here: Path, victim: Path) -> None:
    import numpy as np

    (here / f".saved.{bytes(8).hex()}").symlink_to(victim.parent)
    with pytest.raises(errors.UsageError, match=r"cannot write .*saved: File exists"):
        write_feeds(here / "saved", [{"x": np.ones(2)}])
    assert (here / f".saved.{bytes(8).hex()}").is_symlink()


@pytest.mark.parametrize("planted", [as_link, as_dangling_link, as_hard_link], ids=lambda planted: planted.__name__)
def test_events_are_not_written_into_what_stands_there(planted: Planted, here: Path, victim: Path) -> None:
    planted(here / "events.jsonl", victim)
    with EventLog(here / "events.jsonl") as log:
        log.write(biopsy.events.Remark("ours"))
        assert "ours" in (here / "events.jsonl").read_text()


def test_artifacts_are_not_sorted_into_a_link_at_the_usual_name(here: Path, victim: Path) -> None:
    outcome.DEFAULT_FOLDER.symlink_to(victim.parent)
    (here / "a.json").write_text("{}")
    with pytest.raises(errors.UsageError, match="polygraphy_artifacts is a symbolic link"):
        Artifacts((Path("a.json"),)).sort(Outcome.PASSES, 0, "")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("biopsy-demo", ["demo", "--force"]),
        (
            "polygraphy_capability_dumps",
            ["inspect", "capability", "m.onnx", "--engine", "onnxrt", "--with-partitioning"],
        ),
    ],
)
def test_no_command_writes_into_a_link_at_the_name_of_its_own_folder(
    here: Path, victim: Path, name: str, words: list[str]
) -> None:
    save(chain(2), here / "m.onnx")
    (victim.parent.parent / "empty").mkdir()
    (here / name).symlink_to(victim.parent.parent / "empty")
    done = typed(*words)
    assert done.status == 2
    assert f"the default folder {name} is a symbolic link, which is not followed" in done.told
    assert not list((victim.parent.parent / "empty").iterdir())


def test_nor_into_a_link_below_the_folder_that_was_named(here: Path, victim: Path) -> None:
    (here / "sorted").mkdir()
    (here / "sorted" / "good").symlink_to(victim.parent)
    (here / "a.json").write_text("{}")
    with pytest.raises(errors.UsageError, match="good is a symbolic link"):
        Artifacts((Path("a.json"),), Path("sorted")).sort(Outcome.PASSES, 0, "")


@PLANTED
@pytest.mark.parametrize("name", [".f.safetensors.recording", ".f.safetensors.recording.json"])
def test_an_unfinished_recording_must_be_a_file_of_ours(name: str, planted: Planted, here: Path, victim: Path) -> None:
    planted(here / name, victim)
    with pytest.raises(errors.UsageError, match=f"{name} is in the way: "):
        AppendableStore(here / "f.safetensors", {"model": "a"}, [])


# Who cleans up


def test_only_the_very_file_that_was_listed_is_removed(here: Path) -> None:
    ours, other = here / "ours\n with a line", here / "other"
    ours.write_bytes(b"ours")
    known = reaper.identity(ours.lstat())
    other.write_bytes(b"somebody's")
    reaper.clean_up([("file", known, str(other), str(other)), ("folder", known, str(here))])
    assert other.exists()
    other.unlink()
    other.symlink_to(ours)
    reaper.clean_up([("file", known, str(other), str(other))])
    assert ours.exists()
    reaper.clean_up([("file", known, str(here / "temporary"), str(ours))])
    assert not ours.exists()


def test_nothing_is_touched_while_somebody_else_has_the_lock(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setattr(reaper, "_PATIENCE", 0.1)
    for name in ("lock", "candidate", "aside"):
        (here / name).write_bytes(b"")
    held = os.open(here / "lock", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    candidate, aside = (reaper.identity((here / name).lstat()) for name in ("candidate", "aside"))
    entries = [
        ("lock", str(here / "lock")),
        ("file", candidate, str(here / ".t.part"), str(here / "candidate")),
        ("back", aside, str(here / "aside"), str(here / "back")),
    ]
    reaper.clean_up(entries)
    assert sorted(path.name for path in here.iterdir()) == ["aside", "candidate", "lock"]
    os.close(held)
    reaper.clean_up(entries)
    assert [path.name for path in here.iterdir()] == ["back"]


@PLANTED
def test_who_cleans_up_follows_no_lock(planted: Planted, here: Path, victim: Path) -> None:
    planted(here / "lock", victim)
    (here / "candidate").write_bytes(b"")
    known = reaper.identity((here / "candidate").lstat())
    place = str(here / "candidate")
    reaper.clean_up([("lock", str(here / "lock")), ("file", known, place + ".part", place)])
    assert sorted(path.name for path in here.iterdir()) == ["candidate", "lock"]


# Modes


def quick(names: Iterable[str], *chosen: str) -> list[Any]:
    """All of the names as parameters; only the chosen ones run with the quick tests."""
    return [pytest.param(name, marks=[] if name in chosen else [pytest.mark.slow]) for name in names]


COMMANDS = {
    "reduce": lambda: [
        "debug", "reduce", "m.onnx", "-o", "r.onnx", "--min-good", "g.onnx", "--save-debug-replay", "replay.json",
        "--iter-info", "info.json", "--iter-inputs", "inputs.json", "--events", "events.jsonl",
        "--no-remove-intermediate", *checked_by("open('log', 'w').close()\n" + FINDS_N3),
    ],
    "a reduction that stops": lambda: [
        "debug", "reduce", "m.onnx", "-o", "r.onnx", "--max-checks", "2", *checked_by()
    ],
    "run": lambda: [
        "run", "m.onnx", "--onnxrt", "--save-outputs", "o.json", "--save-inputs", "i.npz", "--report", "report.json",
        "--save-engine", "e.onnx",
    ],
    "run with a limit": lambda: [
        "run", "m.onnx", "--onnxrt", "--record-memory", "1G", "--save-outputs", "o.safetensors",
    ],
    "a folder of outputs": lambda: ["run", "m.onnx", "--onnxrt", "--save-outputs", "saved"],
    "sanitize": lambda: ["surgeon", "sanitize", "m.onnx", "-o", "s.onnx", "--save-external-data"],
    "extract": lambda: ["surgeon", "extract", "m.onnx", "--outputs", "t2", "-o", "x.onnx"],
    "precision": lambda: [
        "debug", "precision", "m.onnx", "-o", "p.onnx", "--report", "p.json", "--list", "l.txt",
        *checked_by("sys.exit(0)"),
    ],
    "build": lambda: [
        "debug", "build", "m.onnx", "--onnxrt", "--until", "1", "--artifacts", "polygraphy_debug.ort",
        "--save-tactics", "t.json", "--check", "true",
    ],
    "layers": lambda: ["debug", "layers", "m.onnx", "--suspect", "onnxrt", "--report", "y.json", "--csv", "y.csv"],
    "flags": lambda: ["debug", "flags", "m.onnx", "-o", "flags.json", "--engine", "onnxrt", "--check", "false"],
}  # fmt: skip


def files_below(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize("name", quick(COMMANDS, "run", "reduce", "sanitize"))
@pytest.mark.usefixtures("usual_umask")
def test_what_is_made_of_a_private_model_is_private(name: str, here: Path) -> None:
    save(chain(6, ["Softplus"]), here / "m.onnx").chmod(0o600)
    words = COMMANDS[name]()
    before = files_below(here)
    ran = typed(*words)
    assert ran.status in {0, 1, 5}, ran.told
    made = {path: mode for path, mode in files_below(here).items() if path not in before}
    assert made, ran.told
    assert not {path: oct(mode) for path, mode in made.items() if mode & 0o077}


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o444])
@pytest.mark.usefixtures("usual_umask")
def test_a_result_gives_others_as_much_as_the_model(mode: int, here: Path) -> None:
    save(chain(6), here / "m.onnx").chmod(mode)
    assert typed(*COMMANDS["sanitize"]()).status == 0
    assert stat.S_IMODE((here / "s.onnx").stat().st_mode) == mode | 0o600


@pytest.mark.usefixtures("usual_umask")
def test_inputs_and_weights_are_as_private_as_the_model(here: Path) -> None:
    path = model_elsewhere(here / "model")
    (here / "model" / "w.bin").chmod(0o600)
    assert typed("surgeon", "sanitize", str(path), "-o", "s.onnx").status == 0
    assert typed("debug", "reduce", str(path), "-o", "r.onnx", *checked_by()).status == 0
    save(chain(3), here / "m.onnx")
    assert typed("run", "m.onnx", "--onnxrt", "--save-inputs", "i.json", "--save-outputs", "o.json").status == 0
    (here / "i.json").chmod(0o600)
    assert typed("data", "to-input", "i.json", "o.json", "-o", "merged.json").status == 0
    for name in ("s.onnx", "r.onnx", "merged.json"):
        assert stat.S_IMODE((here / name).stat().st_mode) == 0o600, name
    assert stat.S_IMODE((here / "o.json").stat().st_mode) == 0o644


PRIVATE_WEIGHTS = {
    "fold": "surgeon sanitize M -o out.onnx --fold-constants",
    "move": "surgeon sanitize M -o model/out.onnx --save-external-data out.data",
    "engine": "run M --engine onnxrt:optimization=none --build-only --save-engine out.onnx",
    "outputs": "run M --onnxrt --onnx-outputs mark all --save-outputs out.npz",
    "recorded": "run M --onnxrt --onnx-outputs mark all --save-outputs out.safetensors --record-memory 1MB",
    "report": "run M --onnxrt --reference --report out.json",
    "layers": "debug layers M --suspect onnxrt --report out.json --events out.jsonl",
    "repeat": "debug repeat --until 2 --save-report out.json --check biopsy run M --onnxrt",
}


@pytest.mark.parametrize("name", quick(PRIVATE_WEIGHTS, "fold"))
@pytest.mark.usefixtures("usual_umask")
def test_what_is_made_of_private_weights_is_private_though_the_model_is_not(name: str, here: Path) -> None:
    """As onnx.save leaves them: the model can be read by all, its weights by nobody else."""
    path = model_elsewhere(here / "model")
    (here / "model" / "w.bin").chmod(0o600)
    path.chmod(0o600 if name == "repeat" else 0o644)
    before = files_below(here)
    ran = typed(*(str(path) if word == "M" else word for word in PRIVATE_WEIGHTS[name].split()))
    made = {path: mode for path, mode in files_below(here).items() if path not in before}
    assert made, ran.told
    assert not {path: oct(mode) for path, mode in made.items() if mode & 0o077}, ran.told


@pytest.mark.usefixtures("usual_umask")
def test_from_python_the_umask_is_back_afterwards(here: Path) -> None:
    save(chain(6), here / "m.onnx").chmod(0o600)
    seen = []

    def fails(candidate: Path) -> bool:
        seen.append(stat.S_IMODE(candidate.stat().st_mode))
        return b"n3" in candidate.read_bytes()

    threads = [
        threading.Thread(target=lambda n=number: biopsy.reduce(here / "m.onnx", fails, here / f"r{n}.onnx"))
        for number in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {0o600}
    assert {stat.S_IMODE((here / f"r{number}.onnx").stat().st_mode) for number in range(3)} == {0o600}
    (here / "afterwards").touch()
    assert stat.S_IMODE((here / "afterwards").stat().st_mode) == 0o644


# Killed at any moment


def test_a_killed_writer_leaves_no_temporary_file(here: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from biopsy.processes.writing import write_whole\n"
        "from biopsy.processes import cleanup\n"
        "cleanup.register('group', '999999999', '1')\n"
        "def parts():\n    yield b'a'; Path('begun').touch(); time.sleep(60)\n"
        "write_whole(Path('f'), parts())"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    assert wait_until((here / "begun").exists)
    assert [path.name for path in here.iterdir() if path.name.endswith(".part")]
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: [path.name for path in here.iterdir()] == ["begun"])


def test_a_candidate_costs_who_watches_four_entries_and_no_process(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates come by the thousand: what makes sure that they go is an entry when one comes, or goes."""
    writing.write_whole(here / "c.onnx", [b"first"], transient=True)
    changes: list[tuple[str, ...]] = []
    for name in ("register", "unregister"):
        change = getattr(cleanup, name)
        monkeypatch.setattr(cleanup, name, lambda *entry, change=change: (changes.append(entry), change(*entry)))
    monkeypatch.setattr(subprocess, "Popen", None)
    for _ in range(20):
        writing.write_whole(here / "c.onnx", [b"model"], transient=True)
    assert len(changes) == 80
    monkeypatch.undo()
    cleanup.keep(here / "c.onnx")
