"""How a check ends: by itself, by a signal, in another way than it did for the original."""

import signal

import pytest

SIGNALS = [signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGKILL]


@pytest.mark.parametrize(
    "number", [signal.SIGSEGV, *(pytest.param(one, marks=pytest.mark.slow) for one in SIGNALS[1:])]
)
def test_an_original_that_crashes_is_reduced_to_what_crashes(place, number: signal.Signals) -> None:
    place.model()
    check = place.check(f"if 'n5' in names: os.kill(os.getpid(), {int(number)})")
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--check", *check)
    assert ran.status == 0, ran.told
    assert place.nodes() == ["n5"]
    assert f"signal {number.name}" in ran.told
    assert "also met" not in ran.told


@pytest.mark.parametrize(
    ("number", "original"),
    [
        (signal.SIGABRT, 1),
        (signal.SIGKILL, signal.SIGBUS),
        pytest.param(signal.SIGSEGV, signal.SIGABRT, marks=pytest.mark.slow),
        pytest.param(signal.SIGFPE, 1, marks=pytest.mark.slow),
    ],
)
def test_a_candidate_that_crashes_for_another_reason_does_not_lead_astray(place, number, original) -> None:
    """Whatever lacks n9 crashes, and would be the smaller one."""
    place.model()
    fails = "sys.exit(1)" if original == 1 else f"os.kill(os.getpid(), {int(original)})"
    check = place.check(
        f"if 'n5' in names: {fails}\nif 'n9' not in names and len(names) > 1: os.kill(os.getpid(), {int(number)})"
    )
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--keep-other", "others", "--check", *check)
    assert ran.status == 0, ran.told
    assert place.nodes() == ["n5"]
    assert f"x signal {number.name}, as in others/other_failure_1.onnx" in ran.told
    assert "n9" not in place.nodes("others/other_failure_1.onnx")


def test_a_crash_deep_in_a_script_counts_as_the_scripts_own_status(place) -> None:
    """A shell says 128 + the signal."""
    place.model()
    inner = place.check("if 'n5' in names: os.kill(os.getpid(), signal.SIGSEGV)", "inner.py")
    (place.folder / "check.sh").write_text(f'{" ".join(inner[:-1])} "$1"; exit $?\n')
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--check", "sh", "check.sh", "{}")
    assert (ran.status, place.nodes()) == (0, ["n5"])
    assert "exit status 139" in ran.told


def test_statuses_that_say_that_nothing_was_run_stop_the_search(place) -> None:
    place.model()
    for status in (126, 127):
        check = place.check(f"sys.exit(1 if len(names) == 12 else {status})")
        ran = place.reduce("m.onnx", "-o", "r.onnx", "--check", *check)
        assert ran.status == 4
        assert f"could not be run: exit status {status}" in ran.told
    assert place.files() == {"m.onnx"}


def test_a_check_that_cannot_say_is_passed_over(place) -> None:
    place.model()
    check = place.check("sys.exit(1 if 'n5' in names and len(names) != 6 else 125 if 'n5' in names else 0)")
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--check", *check)
    assert (ran.status, place.nodes()) == (0, ["n5"])


def test_a_check_that_ends_by_the_signal_that_asks_it_to_is_a_crash_like_others(place) -> None:
    place.model()
    check = place.check("if 'n5' in names: os.kill(os.getpid(), signal.SIGTERM)")
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--check", *check)
    assert (ran.status, place.nodes()) == (0, ["n5"])
    assert "signal SIGTERM" in ran.told
