"""A request to end arrives once, and never nowhere."""

import signal
import subprocess
import sys
import time

import pytest

SWALLOWED = """
import signal, sys, time, weakref
from biopsy.processes import own_process as interrupts

class Watched: pass

def callback(_):
    signal.raise_signal(signal.SIGTERM)
    for _ in range(1000): pass

interrupts.is_program = True
try:
    with interrupts.interrupted_once(60.0):
        watched = Watched()
        reference = weakref.ref(watched, callback)
        del watched
        time.sleep(60)
        print("went on")
except KeyboardInterrupt:
    print("interrupted")
"""

AFTERWARDS = """
import os, signal, sys
from biopsy.processes import own_process as interrupts

interrupts.is_program = {is_program}
try:
    with interrupts.interrupted_once(60.0):
        os.kill(os.getpid(), signal.SIGTERM)
except KeyboardInterrupt:
    pass
os.kill(os.getpid(), signal.SIGTERM)
sys.exit(5)
"""


def test_one_that_a_callback_swallows_is_raised_again() -> None:
    ended = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True, timeout=120)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("interrupted\n", "", 0)


@pytest.mark.parametrize(("is_program", "status"), [(True, 5), (False, -signal.SIGTERM)])
def test_a_program_that_is_ending_is_not_ended_by_another_one(is_program: bool, status: int) -> None:
    code = AFTERWARDS.format(is_program=is_program)
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == status


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="this platform waits for signals in another way")
def test_a_wait_that_ctrl_z_stops_past_its_end_has_heard_no_signal() -> None:
    code = """
import signal
from biopsy.processes.supervised import _next_signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("waits", flush=True)
print(_next_signal(frozenset([signal.SIGUSR1]), 0.5), flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "waits\n"
        time.sleep(0.1)
        waiting.send_signal(signal.SIGSTOP)
        time.sleep(0.6)
        waiting.send_signal(signal.SIGCONT)
        assert waiting.communicate() == ("None\n", None)
