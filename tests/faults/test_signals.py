"""biopsy asked to end: by Ctrl-C, once or again and again, by SIGTERM, by a terminal that is closed."""

import signal
import subprocess
import time

import onnx
import pytest

from support.command_line import wait_until
from support.predicates import names

WAITS = """
if {when}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open('waiting.txt', 'w').close()
    time.sleep(60)
sys.exit('n0' in names and 'n2' in names)
"""


def waiting(place, when: str, **options: object) -> subprocess.Popen[str]:
    """A reduction of which one check hangs and does not end when it is asked to."""
    place.model(12)
    check = place.check(WAITS.format(when=when))
    process = place.start("m.onnx", "-o", "r.onnx", "--jobs", "1", "--check", *check, **options)
    assert wait_until((place.folder / "waiting.txt").exists)
    return process


def end(process: subprocess.Popen[str], status: int = 5) -> str:
    told, _ = process.communicate(timeout=30)
    assert "Traceback" not in told, told
    assert process.returncode == status, told
    return told


def goes_on(place) -> None:
    place_of_journal = place.folder / "r.onnx.journal"
    assert place_of_journal.exists()
    place_of_journal.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_asked_to_end_while_the_original_is_checked_nothing_is_left(place, number: signal.Signals) -> None:
    process = waiting(place, "len(names) == 12")
    time.sleep(1)  # the check begins before the journal is open
    process.send_signal(number)
    assert "before the original was checked; nothing was written" in end(process)
    assert place.files() == {"m.onnx"}


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_asked_to_end_again_and_again_the_best_so_far_is_written_once_and_whole(place, number) -> None:
    process = waiting(place, "len(names) == 3")
    for _ in range(20):
        process.send_signal(number)
        time.sleep(0.03)
    told = end(process)
    assert "r.onnx, which fails in the same way" in told
    assert "\n  resume  biopsy debug reduce m.onnx " in told
    assert {"n0", "n2"} <= set(place.nodes()) < {f"n{number}" for number in range(12)}
    goes_on(place)


def test_a_terminal_that_is_closed_does_not_end_one_that_was_told_to_ignore_that(place) -> None:
    """As nohup tells it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        place.model(6)
        process = place.start(
            "m.onnx", "-o", "r.onnx", "--check", *place.check("time.sleep(0.1); sys.exit('n2' in names)")
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    while process.poll() is None:
        process.send_signal(signal.SIGHUP)
        time.sleep(0.05)
    end(process, 0)
    assert place.nodes() == ["n2"]


@pytest.mark.slow
def test_ctrl_c_at_any_moment_leaves_nothing_but_what_it_can_go_on_with(place) -> None:
    place.model(12)
    words = [
        "m.onnx",
        "-o",
        "r.onnx",
        "--check",
        *place.check("time.sleep(0.01); sys.exit('n0' in names and 'n9' in names)"),
    ]
    started = time.monotonic()
    assert place.reduce(*words).status == 0
    whole, expected = time.monotonic() - started, (place.folder / "r.onnx").read_bytes()
    (place.folder / "r.onnx").unlink()
    for moment in (0.4, 0.55, 0.7, 0.85):
        process = place.start(*words)
        time.sleep(moment * whole)
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=30)
        assert process.returncode in {0, 5, -signal.SIGINT}, told
        assert place.everyone_has_ended()
        assert place.files() <= {"m.onnx", "r.onnx", "r.onnx.journal"}, (moment, told)
        if process.returncode == 5:
            assert "Traceback" not in told, told
        if (place.folder / "r.onnx").exists():
            assert {"n0", "n9"} <= set(names(onnx.load(place.folder / "r.onnx")))
    assert place.reduce(*words).status == 0
    assert (place.folder / "r.onnx").read_bytes() == expected
