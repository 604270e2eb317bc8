"""Disks that are full or may not be written to, in file systems of their own."""

import shutil
import subprocess
from pathlib import Path

import pytest

from support.command_line import BIN, Ran

NEEDS_TWO = "sys.exit('n3' in names and 'n9' in names)"
FILLS = """
if 'n3' in names and 'n9' in names and 'n5' not in names and len(names) > 1:
    with open('junk.txt', 'wb', buffering=0) as junk:
        try:
            while True: junk.write(b'x' * 512)
        except OSError: pass
"""
"""Only a pass after bisect leaves n5 out."""


def mounts(words: str) -> bool:
    found = shutil.which("unshare")
    return bool(found) and subprocess.run(["unshare", "-rm", "sh", "-c", words], capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not mounts("mount -t tmpfs none /mnt"), reason="no file system may be mounted here")


def within(place, script: str, *words: str) -> Ran:
    """Type ``biopsy debug reduce`` in file systems of its own; ``script`` mounts them, and ``run`` in it types."""
    whole = f'run() {{ "$@"; }}\nset -e\n{script}'
    command = ["unshare", "-rm", "bash", "-c", whole, "biopsy", str(BIN / "biopsy"), "debug", "reduce", *words]
    done = subprocess.run(
        command, cwd=place.folder, env=place.environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
    )  # fmt: skip
    assert "Traceback" not in done.stdout, done.stdout
    return Ran(done.returncode, done.stdout)


SMALL_DISK = """
mkdir disk && mount -t tmpfs -o size=200k none disk
cp *.onnx *.py disk && cd disk
status=0; run "$@" || status=$?
ls -la
cp -r . ../after
{then}
exit $status
"""


@pytest.mark.slow
def test_a_disk_that_is_full_keeps_the_best_result_and_it_goes_on_once_there_is_room(place) -> None:
    place.model(12)
    resumed = 'rm junk.txt; export FULL=no; run "$@" || exit 99; cp r.onnx ..'
    check = place.check(FILLS.replace("len(names) > 1:", "len(names) > 1 and not os.environ.get('FULL'):") + NEEDS_TWO)
    words = ["m.onnx", "-o", "r.onnx", "--jobs", "1", "--check", *check]
    ran = within(place, SMALL_DISK.replace("{then}", resumed), *words)
    assert ran.status == 4, ran.told
    assert "No space left" in ran.told or "full" in ran.told
    assert "r.onnx, " in ran.told  # what was kept
    assert len(place.nodes("after/r.onnx")) == 7
    assert not [path.name for path in (place.folder / "after").iterdir() if path.suffix == ".part"]
    assert not list((place.folder / "after").glob("*polygraphy_debug*"))
    assert "remembered" in ran.told
    assert {"n3", "n9"} <= set(place.nodes()) < set(place.nodes("after/r.onnx"))


def test_a_disk_that_is_full_from_the_beginning_is_named(place) -> None:
    place.model(12)
    fill = "head -c 1M /dev/zero > junk.txt || true"
    script = SMALL_DISK.replace("status=0;", f"{fill}; status=0;").replace("{then}", "")
    ran = within(place, script, "m.onnx", "-o", "r.onnx", "--check", *place.check(NEEDS_TWO))
    assert ran.status in {2, 4}, ran.told
    assert "cannot write" in ran.told
    assert {path.name for path in (place.folder / "after").iterdir()} == {"m.onnx", "check.py", "junk.txt"}


def test_a_full_disk_of_temporary_files_stops_the_search_with_what_was_found(place) -> None:
    place.model(12)
    fills = FILLS.replace("'junk.txt'", "os.environ['TMPDIR'] + '/junk.txt'")
    script = 'mount -t tmpfs -o size=100k none "$TMPDIR"\nstatus=0; run "$@" || status=$?\nexit $status'
    words = ["m.onnx", "-o", "r.onnx", "--jobs", "1", "--check", *place.check(fills + NEEDS_TWO)]
    ran = within(place, script, *words)
    assert ran.status in {0, 4}, ran.told  # a check that needs no temporary file is not disturbed
    assert {"n3", "n9"} <= set(place.nodes())
    for path in place.folder.glob("r.onnx.journal*"):
        path.unlink()


EVERYTHING = (
    "m.onnx", "-o", "r.onnx", "--min-good", "g.onnx", "--events", "e.txt", "--iter-info", "i.json", "--jobs", "1",
    "--save-debug-replay", "replay.json", "--keep-other", "others", "--artifacts", "log.txt", "--art-dir", "sorted",
)  # fmt: skip


@pytest.mark.skipif(
    not mounts("mount -t tmpfs -o size=64k none /mnt && mount -o remount,size=1m /mnt"),
    reason="a file system cannot be made larger by this user",
)
@pytest.mark.parametrize(
    "room", [pytest.param(room, marks=[] if room in (24, 64) else pytest.mark.slow) for room in range(8, 136, 8)]
)
def test_however_little_room_there_is_it_says_so_and_goes_on_once_there_is_more(place, room: int) -> None:
    """``room`` is in KiB, of which the model and the check take a part."""
    place.model(12)
    writes = "try: open('log.txt', 'wb', 0).write(b'x' * 500)\nexcept OSError: pass"
    other = f"{writes}\n'n5' in names or sys.exit(7)"
    check = place.check(f"{other}\n{NEEDS_TWO}".replace("'n9'", "'n7'"))
    script = """
    mkdir disk && mount -t tmpfs -o size=ROOMk none disk
    cp *.onnx *.py disk && cd disk
    status=0; run "$@" || status=$?
    mount -o remount,size=1m .
    echo "--- more room"
    again=0; run "$@" || again=$?
    rm -f polygraphy_debug* && cp -r . ../after
    echo "again $again"
    exit $status
    """.replace("ROOM", str(room))
    ran = within(place, script, *EVERYTHING, "--check", *check)
    before, _, after = ran.told.partition("--- more room")
    assert "itself failed" not in ran.told, ran.told
    assert ran.status in {0, 2, 4}, ran.told
    assert ran.status == 0 or "No space left" in before or "full" in before, before
    assert "again 0" in after, ran.told
    assert {"n3", "n7"} <= set(place.nodes("after/r.onnx"))


@pytest.mark.slow
def test_what_is_shown_may_go_to_a_disk_that_is_full(place) -> None:
    place.model(12)
    script = 'status=0; run "$@" > /dev/full || status=$?\nexit $status'
    ran = within(place, script, "m.onnx", "-o", "r.onnx", "--check", *place.check(NEEDS_TWO))
    assert ran.status == 0, ran.told
    assert ran.told.count("cannot write to stdout any more: No space left") == 1
    assert {"n3", "n9"} <= set(place.nodes())
    both = 'status=0; run "$@" > /dev/full 2>&1 || status=$?\nexit $status'
    assert within(place, both, "m.onnx", "-o", "r.onnx", "--check", *place.check(NEEDS_TWO)).status == 0


READ_ONLY = """
mkdir locked && cp m.onnx locked && mount --bind locked locked && mount -o remount,ro,bind locked
status=0; run "$@" || status=$?
exit $status
"""


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["-o", "locked/r.onnx"], "cannot write locked/r.onnx"),
        pytest.param(
            ["-o", "r.onnx", "--iter-artifact", "locked/c.onnx"], "cannot write locked/c.onnx", marks=pytest.mark.slow
        ),
        pytest.param(
            ["-o", "r.onnx", "--min-good", "locked/g.onnx"], "cannot write locked/g.onnx", marks=pytest.mark.slow
        ),
        (["-o", "r.onnx", "--events", "locked/e.txt"], "cannot write locked/e.txt"),
        pytest.param(
            ["-o", "r.onnx", "--iter-info", "locked/i.json"], "cannot write locked/i.json", marks=pytest.mark.slow
        ),
    ],
)
def test_a_folder_that_may_not_be_written_is_told_before_anything_is_done(place, words: list[str], named: str) -> None:
    place.model(12)
    ran = within(place, READ_ONLY, "m.onnx", *words, "--check", *place.check(NEEDS_TWO))
    assert ran.status in {2, 4}, ran.told
    assert named in ran.told
    assert "Read-only" in ran.told
    assert "bisect" not in ran.told
    assert place.files() == {"m.onnx", "locked"}


@pytest.mark.slow
def test_in_a_folder_that_may_not_be_written_the_candidate_and_the_result_can_stand_elsewhere(place) -> None:
    place.model(12)
    script = READ_ONLY.replace("status=0;", "mkdir out; cp check.py out; cd locked; status=0;")
    check = place.check(NEEDS_TWO)
    check[3] = str(place.folder / "check.py")
    ran = within(place, script, "m.onnx", "-o", "../out/r.onnx", "--check", *check)
    assert ran.status == 2
    assert "cannot write polygraphy_debug.onnx" in ran.told
    assert "--iter-artifact" in ran.told
    shutil.rmtree(place.folder / "locked")
    shutil.rmtree(place.folder / "out")
    words = ["m.onnx", "-o", "../out/r.onnx", "--iter-artifact", "../out/c.onnx", "--check", *check]
    ran = within(place, script, *words)
    assert ran.status == 0, ran.told
    assert {path.name for path in Path(place.folder / "out").iterdir()} == {"r.onnx", "check.py"}


@pytest.mark.parametrize(
    "option", [["--keep-other", "locked/others"], ["--artifacts", "log.txt", "--art-dir", "locked"]]
)
def test_what_cannot_be_kept_on_the_way_is_named_and_the_best_result_is_kept(place, option: list[str]) -> None:
    place.model(12)
    check = place.check("open('log.txt', 'w').close()\nsys.exit(1 if 'n3' in names else 7 if 'n1' in names else 0)")
    ran = within(place, READ_ONLY, "m.onnx", "-o", "r.onnx", *option, "--check", *check)
    assert ran.status in {2, 4}, ran.told
    assert "locked" in ran.told
    assert "Read-only" in ran.told
    for path in place.folder.glob("r.onnx.journal*"):
        path.unlink()
