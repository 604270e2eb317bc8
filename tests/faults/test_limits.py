"""Checks that use too much: memory, output, and what they print in it."""

import os
import threading
import time
from pathlib import Path

import pytest

BOMB = "block = bytearray(400 << 20); time.sleep(60)"
LARGE = 1 << 30


def test_an_original_that_needs_too_much_memory_is_reduced_to_what_does(place) -> None:
    place.model(6)
    check = place.check(f"if 'n3' in names: {BOMB}")
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--check-memory", "100MB", "--jobs", "1", "--check", *check)
    assert (ran.status, place.nodes()) == (0, ["n3"]), ran.told
    assert "more memory than --check-memory allows" in ran.told


def test_a_candidate_that_needs_too_much_memory_is_another_failure_and_named(place) -> None:
    place.model(6)
    bomb = f"subprocess.run([sys.executable, '-I', '-S', '-c', 'import time; {BOMB}'])"  # a child counts too
    check = place.check(f"if 'n3' in names: sys.exit(1)\nif 'n5' not in names and len(names) > 1: {bomb}")
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--check-memory", "100MB", "--check", *check)
    assert (ran.status, place.nodes()) == (0, ["n3"]), ran.told
    assert "x more memory than --check-memory allows" in ran.told


def floods(size: int) -> str:
    """Print so many bytes between a first and a last line."""
    return f"""
out = sys.stdout.buffer
out.write(b'the first line\\n')
block = b'\\xff\\xfe\\x80' + b'y\\n' * (1 << 19)
for _ in range({size} >> 20): out.write(block)
out.write(b'\\nthe last line \\xff\\xfe\\n')
out.flush()
sys.exit(0)
"""


def most_memory(pid: int, into: list[int]) -> None:
    """Watch the resident bytes of a process until it ends."""
    while True:
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return
        if not pages:
            return
        into.append(pages * os.sysconf("SC_PAGE_SIZE"))
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("size", [24 << 20, pytest.param(LARGE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("regex", ["the last line", pytest.param("the first line", marks=pytest.mark.slow)])
def test_any_amount_of_output_takes_bounded_memory_and_its_ends_are_searched(place, size: int, regex: str) -> None:
    place.model(3)
    silent = place.check("if 'n1' in names: print('the first line the last line')\n", "silent.py")
    loud = place.check(f"if 'n1' not in names: sys.exit(0)\n{floods(size)}", "loud.py")
    peaks = []
    for name, check in (("silent", silent), ("loud", loud)):
        seen: list[int] = []
        words = ["m.onnx", "-o", f"{name}.onnx", "--fail-regex", regex, "--jobs", "1", "--events", f"{name}.txt"]
        with (place.folder / f"{name}.out.txt").open("wb") as out:
            process = place.start(*words, "--check", *check, stdout=out)
        watch = threading.Thread(target=most_memory, args=(process.pid, seen))
        watch.start()
        assert process.wait(300) == 0, (place.folder / f"{name}.out.txt").read_text(errors="replace")[-2000:]
        watch.join()
        peaks.append(max(seen))
        assert place.nodes(f"{name}.onnx") == ["n1"]
    assert peaks[1] - peaks[0] < 200 << 20, peaks
    written = sum(path.stat().st_size for path in place.folder.iterdir())
    assert written < 2 << 20, {path.name: path.stat().st_size for path in place.folder.iterdir()}


@pytest.mark.slow
def test_output_without_end_is_read_until_the_timeout(place) -> None:
    place.model(3)
    check = place.check("while 'n1' in names: print('y' * 1000)")
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--check-timeout", "0.5", "--hide-fail-output", "--check", *check)
    assert (ran.status, place.nodes()) == (0, ["n1"]), ran.told[-2000:]


@pytest.mark.parametrize("option", ["--show-output", pytest.param("-v", marks=pytest.mark.slow)])
def test_output_of_any_bytes_is_shown_and_written_down_as_text(place, option: str) -> None:
    place.model(3)
    odd = r"bytes(range(256)) + b'\xf0\x9f\x98 \xed\xa0\x80 \r\x1b[2J\n'"
    check = place.check(f"sys.stdout.buffer.write({odd}); sys.exit('n1' in names)")
    ran = place.reduce("m.onnx", "-o", "r.onnx", option, "--events", "e.txt", "--check", *check)
    assert (ran.status, place.nodes()) == (0, ["n1"]), ran.told
    assert place.told("e.txt")


def test_a_regular_expression_finds_what_stands_among_bytes_that_are_no_text(place) -> None:
    place.model(3)
    check = place.check(r"sys.stdout.buffer.write(b'\xff\xfe' + (b'bad value' if 'n1' in names else b'') + b'\x80')")
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--fail-regex", "bad v.lue", "--check", *check)
    assert (ran.status, place.nodes()) == (0, ["n1"]), ran.told


def test_a_verdict_file_that_is_a_flood_or_a_folder_stops_the_search_and_is_named(place) -> None:
    place.model(3)
    for write in ("open(path, 'w').write('x' * (2 << 20))", "os.mkdir(path)"):
        check = place.check(f"path = os.environ['BIOPSY_VERDICT']\n{write}\nsys.exit('n1' in names)")
        ran = place.reduce("m.onnx", "-o", "r.onnx", "--check", *check)
        assert ran.status == 4
        assert "verdict" in ran.told
    assert place.files() == {"m.onnx"}
