"""What stands where candidates are written, and is not ours, is still there at the end, whatever happens between."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from biopsy.session.workspace import Claim
from faults.conftest import Place
from support.command_line import BIN, wait_until
from support.models import chain, save

CANDIDATE = "polygraphy_debug.onnx"
MINE = b"a model that is not ours"
NEEDS_TWO = "sys.exit('n3' in names and 'n9' in names)"
WAITS = "open('begun.txt', 'w').close(); time.sleep(60)" + "\n"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "here", tmp_path / "temporary")
    made.folder.mkdir()
    made.temporary.mkdir()
    yield made
    assert made.everyone_has_ended()


def words(place: Place, code: str = NEEDS_TWO) -> list[str]:
    place.model()
    return ["m.onnx", "-o", "r.onnx", "--check", *place.check(code)]


def killed(place: Place, code: str) -> None:
    """Begin a reduction, and kill it while its check looks at a candidate."""
    process = place.start(*words(place, code))
    assert wait_until((place.folder / "begun.txt").exists)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert wait_until(lambda: not place.processes())
    (place.folder / "begun.txt").unlink()


def without_journal(place: Place) -> set[str]:
    """The files that stand there but for the journals, which are for whoever goes on."""
    return {name for name in place.files() if "r.onnx.journal" not in name}


def test_a_strangers_file_is_told_of_and_put_back(here: Place) -> None:
    (here.folder / CANDIDATE).write_bytes(MINE)
    ran = here.reduce(*words(here))
    assert ran.status == 0, ran.told
    assert "already exists: moved to" in ran.told
    assert (here.folder / CANDIDATE).read_bytes() == MINE
    assert here.files() == {"m.onnx", "r.onnx", CANDIDATE}


def test_a_link_is_put_back_as_a_link_also_when_there_is_nothing_to_reduce(here: Place) -> None:
    (here.folder / "mine.onnx").write_bytes(MINE)
    (here.folder / CANDIDATE).symlink_to("mine.onnx")
    assert here.reduce(*words(here, "sys.exit(0)")).status == 3
    assert (here.folder / CANDIDATE).readlink() == Path("mine.onnx")
    assert (here.folder / "mine.onnx").read_bytes() == MINE


def test_a_strangers_file_outlives_kill_9_and_is_put_back(here: Place) -> None:
    (here.folder / CANDIDATE).write_bytes(MINE)
    killed(here, WAITS + NEEDS_TWO)
    assert (here.folder / CANDIDATE).read_bytes() == MINE
    assert without_journal(here) == {"m.onnx", CANDIDATE}
    ran = here.reduce(*words(here))
    assert ran.status == 0, ran.told
    assert (here.folder / CANDIDATE).read_bytes() == MINE
    assert here.files() == {"m.onnx", "r.onnx", CANDIDATE}


def test_a_killed_reduction_leaves_no_candidate(here: Place) -> None:
    killed(here, WAITS + NEEDS_TWO)
    assert without_journal(here) == {"m.onnx"}
    ran = here.reduce(*words(here))
    assert ran.status == 0, ran.told
    assert "already exists: moved to" not in ran.told
    assert here.files() == {"m.onnx", "r.onnx"}


def test_a_reduction_that_begins_at_once_waits_for_who_cleans_up(here: Place) -> None:
    process = here.start(*words(here, WAITS + NEEDS_TWO))
    assert wait_until((here.folder / "begun.txt").exists)
    here.check(NEEDS_TWO)
    process.kill()
    ran = here.reduce("--fresh", *words(here))
    process.communicate()
    assert ran.status == 0, ran.told
    assert "already exists: moved to" not in ran.told
    assert without_journal(here) == {"m.onnx", "r.onnx"}


def test_what_a_person_puts_there_while_a_candidate_is_checked_outlives_kill_9(here: Place) -> None:
    process = here.start(*words(here, WAITS + NEEDS_TWO))
    assert wait_until((here.folder / "begun.txt").exists)
    (here.folder / "mine.txt").write_bytes(MINE)
    (here.folder / "mine.txt").replace(here.folder / CANDIDATE)
    process.kill()
    process.communicate()
    assert wait_until(lambda: not here.processes())
    assert (here.folder / CANDIDATE).read_bytes() == MINE


@pytest.mark.slow
def test_where_nobody_could_clean_up_a_candidate_is_somebodys_file(here: Place) -> None:
    """The shell that does so was killed as well."""
    process = here.start(*words(here, WAITS + NEEDS_TWO))
    assert wait_until((here.folder / "begun.txt").exists)
    for pid in here.processes():
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    left = (here.folder / CANDIDATE).read_bytes()
    ran = here.reduce("--fresh", *words(here))
    assert ran.status == 0, ran.told
    assert "already exists: moved to" in ran.told
    assert (here.folder / CANDIDATE).read_bytes() == left
    assert without_journal(here) == {"m.onnx", "r.onnx", CANDIDATE}


@pytest.mark.slow
def test_a_candidate_that_was_to_stay_is_a_file_like_any_other_for_the_next_reduction(here: Place) -> None:
    assert here.reduce("--no-remove-intermediate", *words(here)).status == 0
    kept = (here.folder / CANDIDATE).read_bytes()
    ran = here.reduce(*words(here))
    assert "already exists: moved to" in ran.told
    assert (here.folder / CANDIDATE).read_bytes() == kept
    assert here.files() == {"m.onnx", "r.onnx", CANDIDATE}


def test_the_script_of_a_check_is_no_place_for_candidates(here: Place) -> None:
    check = words(here)
    before = (here.folder / "check.py").read_bytes()
    ran = here.reduce("m.onnx", "-o", "r.onnx", "--iter-artifact", "check.py", *check[3:])
    assert ran.status == 2
    assert "it would be lost" in ran.told
    assert (here.folder / "check.py").read_bytes() == before


def test_a_search_for_precision_puts_it_back_too(here: Place) -> None:
    here.model()
    (here.folder / CANDIDATE).write_bytes(MINE)
    line = [str(BIN / "biopsy"), "debug", "precision", "m.onnx", "--check", *here.check("sys.exit(0)")]
    done = subprocess.run(line, cwd=here.folder, env=here.environment, capture_output=True, text=True, timeout=60)
    assert "already exists: moved to" in done.stdout
    assert (here.folder / CANDIDATE).read_bytes() == MINE


BUILD = ("build", "m.onnx", "--onnxrt", "--until", "2", "--check", "build")
PRECISION = ("precision", "m.onnx", "--engine", "onnxrt", "--check", "biopsy", "run", "{}", "--onnxrt")


@pytest.mark.slow
@pytest.mark.parametrize("words", [BUILD, PRECISION], ids=["build", "precision"])
def test_so_do_those_who_have_engines_built_there(here: Place, words: tuple[str, ...]) -> None:
    name = "polygraphy_debug.ort"
    save(chain(3, ["Softplus"]), here.folder / "m.onnx")
    (here.folder / name).write_bytes(MINE)
    line = [str(BIN / "biopsy"), "debug", *words]
    done = subprocess.run(line, cwd=here.folder, env=here.environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "already exists: moved to" in done.stdout
    assert (here.folder / name).read_bytes() == MINE
    assert here.files() == {"m.onnx", name}


def test_where_the_last_candidate_is_to_stay_a_strangers_file_stays_aside_and_is_told_at_the_end(here: Place) -> None:
    (here.folder / CANDIDATE).write_bytes(MINE)
    ran = here.reduce("--no-remove-intermediate", *words(here))
    assert f"{CANDIDATE} holds the last candidate: what stood there before is still polygraphy_debug.aside" in ran.told
    assert (here.folder / "polygraphy_debug.aside.onnx").read_bytes() == MINE
    assert (here.folder / CANDIDATE).read_bytes() != MINE
    assert here.files() == {"m.onnx", "r.onnx", CANDIDATE, "polygraphy_debug.aside.onnx"}


@pytest.mark.parametrize("look", [1, 2])
def test_a_lock_that_is_removed_while_it_is_looked_at_is_made_anew(
    look: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever had the lock removes its file when it is let go: at the worst just when the next one looks at it."""
    lock = tmp_path / f".{CANDIDATE}.lock"
    lstat = Path.lstat
    looks = []

    def vanishes(path: Path) -> os.stat_result:
        if path == lock:
            looks.append(path)
            if len(looks) == look:
                lock.unlink()
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", vanishes)
    Claim(tmp_path / CANDIDATE).release()
    assert looks
