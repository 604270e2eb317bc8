"""A child process that answers requests, and each way in which one can fail to."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from itertools import count
from pathlib import Path
from typing import TypeAlias

import pytest

from biopsy import errors
from biopsy.processes import server as module
from biopsy.processes.server import Server, ServerEndedError, Zygote, _Child
from biopsy.processes.watch import Limits
from support.command_line import is_alive, wait_until
from support.instructions import before_instruction

SOON = Limits(seconds=2)
LONG_REQUEST = {"text": "x" * (4 << 20)}
"""Far more than fits into a pipe that nobody reads."""

ANSWERS = """
import os, signal, subprocess, sys, time
from biopsy import errors
from biopsy.processes.server import Serving, serve_children

def main():
    if len(sys.argv) == 1:
        serve_children(main, 2)
    serving = Serving()
    print("this is not an answer", flush=True)
    return serving.serve(answer)

def answer(request, note):
    note("looking")
    task = request["task"]
    if task == "refuse":
        raise errors.EngineFailure("no", engine="e", stage="build", kind="Refused", next_steps=["another"])
    if task == "defect":
        raise KeyError("nobody foresaw this")
    if task == "crash":
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if task == "sleep":
        time.sleep(600)
    if task == "exit":
        os._exit(7)
    if task == "kill" and os.getppid() == request["victim"]:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)
    if task == "hang":
        sleeper = subprocess.Popen(["sleep", "600"])
        with open(request["pids"], "w") as pids:
            pids.write(f"{os.getpid()} {sleeper.pid}\\n")
        time.sleep(600)
    if task == "print without end":
        while True:
            print("y" * 1000)
    if task == "print much":
        for _ in range(20_000):
            print("y" * 1000)
    if task == "grow":
        block = bytearray(300 << 20)
        time.sleep(600)
    if task == "interrupt":
        os.kill(request["parent"], signal.SIGINT)
        time.sleep(600)
    place = {"parent": os.getppid(), "folder": os.getcwd()}
    return {"pid": os.getpid(), "length": len(request.get("text", "")), **place}
"""

RAW = """
import os, sys, time

def main():
    for line in sys.stdin.buffer:
        ANSWER
    return 0
"""
"""A child of which it is up to the test what it says on its stdout."""

INSTANT_ANSWER = r"""sys.stdout.buffer.write(b'{"answer": {}}\n'); sys.stdout.flush()"""


Make: TypeAlias = Callable[[], Server]


@pytest.fixture(params=["started", "forked"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server whose child is a process of its own, or a fork of one that has imported what children need."""
    if request.param == "forked":
        server = request.getfixturevalue("forking")()
    else:
        server = Server(request.getfixturevalue("child_module")(ANSWERS), "a word")
    yield server
    server.close()


@pytest.fixture
def forking(child_module: Callable[[str], str]) -> Iterator[Make]:
    """Makes servers whose children are forks of one process, if they can be."""
    name = child_module(ANSWERS)
    zygote = Zygote(module=name)
    assert wait_until(lambda: is_a_fork(Server(name, "a word", zygote=zygote)), 60)
    yield lambda: Server(name, "a word", zygote=zygote)
    zygote.close()


def is_a_fork(server: Server) -> bool:
    with closing(server):
        return parent_of_child(server) != os.getpid()


def parent_of_child(server: Server) -> int:
    return int(server.ask({"task": ""})["parent"])


def test_children_are_forks_of_one_process_from_the_third_on_at_the_latest(forking: Make) -> None:
    with closing(forking()) as first, closing(forking()) as second:
        assert parent_of_child(first) == parent_of_child(second) != os.getpid()
        assert first.ask({"task": ""})["pid"] != second.ask({"task": ""})["pid"]


def test_a_fork_works_in_the_current_folder(forking: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(forking()) as server:
        assert server.ask({"task": ""})["folder"] == str(tmp_path)


def test_where_the_environment_has_changed_a_child_is_no_fork(forking: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert not is_a_fork(forking())
    monkeypatch.undo()


def test_as_many_children_as_wanted_run_at_once(forking: Make) -> None:
    with ExitStack() as running:
        servers = [running.enter_context(closing(forking())) for _ in range(10)]
        assert len({server.ask({"task": ""})["pid"] for server in servers}) == 10


def test_a_fork_dies_with_the_process_that_it_is_of_and_another_one_answers_in_its_place(forking: Make) -> None:
    with closing(forking()) as server:
        fork = server.ask({"task": ""})
        other = server.ask({"task": "kill", "victim": fork["parent"]})
        assert other["parent"] == os.getpid()
        assert not is_alive(fork["pid"])
    assert wait_until(lambda: is_a_fork(forking()), 60)


def test_where_no_fork_can_be_made_a_child_is_started(forking: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, real = len(list(Path("/proc/self/fd").iterdir())), os.open

    def refused(path: str, *how: int) -> int:
        if path == ".":
            raise OSError(errno.EMFILE, "too many")
        return real(path, *how)

    with monkeypatch.context() as patches:
        patches.setattr(os, "open", refused)
        assert not is_a_fork(forking())
    assert len(list(Path("/proc/self/fd").iterdir())) == opened
    assert is_a_fork(forking())


def test_the_process_that_is_forked_ends_when_no_fork_has_been_needed_for_a_while(forking: Make) -> None:
    with closing(forking()) as server:
        parent = parent_of_child(server)
        time.sleep(2.5)
        assert is_alive(parent)
    assert wait_until(lambda: not is_alive(parent), 60)
    assert not is_a_fork(forking())


@pytest.fixture
def saying(child_module: Callable[[str], str]) -> Iterator[Callable[[str], Server]]:
    """A server whose child does this with each request."""
    servers: list[Server] = []

    def start(code: str) -> Server:
        servers.append(Server(child_module(RAW.replace("ANSWER", code))))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def ended(server: Server, request: dict[str, object], limits: Limits | None = None) -> ServerEndedError:
    with pytest.raises(ServerEndedError) as caught:
        server.ask(request, limits)
    return caught.value


def test_one_process_answers_one_request_after_the_other(server: Server) -> None:
    assert server.ask({"task": ""})["pid"] == server.ask({"task": ""})["pid"]


def test_a_request_may_be_long(server: Server) -> None:
    assert server.ask({"task": "", **LONG_REQUEST})["length"] == len(LONG_REQUEST["text"])


def test_what_the_child_raises_is_raised_here_and_it_stays(server: Server) -> None:
    pid = server.ask({"task": ""})["pid"]
    with pytest.raises(errors.EngineFailure) as caught:
        server.ask({"task": "refuse"})
    assert (caught.value.stage, caught.value.kind, caught.value.next_steps) == ("build", "Refused", ("another",))
    with pytest.raises(errors.BiopsyError, match="KeyError: 'nobody foresaw this'"):
        server.ask({"task": "defect"})
    assert server.ask({"task": ""})["pid"] == pid


def test_a_crash_is_told_with_how_far_it_came_and_what_it_printed_and_the_next_request_has_a_new_process(
    server: Server,
) -> None:
    pid = server.ask({"task": ""})["pid"]
    error = ended(server, {"task": "crash"})
    assert (error.ended.cause, error.ended.status, error.note) == ("itself", -signal.SIGSEGV, "looking")
    assert error.ended.output == b"this is not an answer\nlast words\n"
    assert server.ask({"task": ""})["pid"] != pid


def test_an_exit_without_an_answer_is_told_with_its_status(server: Server) -> None:
    assert ended(server, {"task": "exit"}).ended.status == 7


def test_a_child_that_ends_before_it_reads_a_long_request(child_module: Callable[[str], str]) -> None:
    error = ended(Server(child_module("import os\ndef main(): os._exit(7)")), LONG_REQUEST)
    assert (error.ended.cause, error.ended.status, error.note) == ("itself", 7, None)


@pytest.mark.slow
def test_a_child_that_never_reads_a_long_request_is_ended_at_the_limit(child_module: Callable[[str], str]) -> None:
    error = ended(Server(child_module("import time\ndef main(): time.sleep(600)")), LONG_REQUEST, SOON)
    assert (error.ended.cause, error.note) == ("time", None)


def test_a_hang_is_ended_at_the_limit_with_what_the_child_started(server: Server, tmp_path: Path) -> None:
    pids: list[int] = []
    for seconds in (2, 10, 60, 300):  # a loaded machine may need more to come as far as that
        server.ask({"task": ""})
        error = ended(server, {"task": "hang", "pids": str(tmp_path / "pids")}, Limits(seconds=seconds))
        assert error.ended.cause == "time"
        with suppress(OSError):
            pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        if len(pids) == 2:
            break
    assert error.note == "looking"
    assert wait_until(lambda: not any(map(is_alive, pids)), 60)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_child_that_takes_too_much_memory_is_ended(server: Server) -> None:
    assert ended(server, {"task": "grow"}, Limits(seconds=60, memory=200 << 20)).ended.cause == "memory"


def test_a_child_that_prints_without_end_is_ended_at_the_limit_and_little_of_it_is_kept(server: Server) -> None:
    error = ended(server, {"task": "print without end"}, SOON)
    assert error.ended.cause == "time"
    assert len(error.ended.output) < 1 << 18


def test_a_child_may_print_more_than_a_pipe_holds(server: Server) -> None:
    assert "pid" in server.ask({"task": "print much"})


@pytest.mark.parametrize(
    "line", ["garbage", "[1]", "3", '{"answer": 3}', '{"reply": {}}', '{"note": 1}', "", "[" * 100_000, r"\xff\xfe"]
)
def test_what_is_no_answer_ends_the_child(saying: Callable[[str], Server], line: str) -> None:
    error = ended(saying(f"sys.stdout.buffer.write(b'{line}' + b'\\n'); sys.stdout.flush()"), {})
    assert error.ended.cause == "answer"


@pytest.mark.slow
def test_an_answer_without_end_ends_the_child(saying: Callable[[str], Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_ANSWER", 1 << 20)
    error = ended(saying("while True: sys.stdout.buffer.write(b'x' * 1000)"), {})
    assert error.ended.cause == "answer"


@pytest.mark.slow
def test_garbage_that_never_stops_ends_the_child(saying: Callable[[str], Server]) -> None:
    assert ended(saying("while True: sys.stdout.buffer.write(b'x\\n' * 1000)"), {}).ended.cause == "answer"


def test_an_answer_that_death_cuts_short_is_a_death(saying: Callable[[str], Server]) -> None:
    error = ended(saying("os.write(1, b'{\"answer\": {'); os._exit(9)"), {})
    assert (error.ended.cause, error.ended.status) == ("itself", 9)


@pytest.mark.slow
def test_a_child_that_closes_its_answers_and_lives_on_is_ended(saying: Callable[[str], Server]) -> None:
    assert ended(saying("os.close(1); time.sleep(600)"), {}).ended.cause == "answer"


@pytest.mark.slow
def test_a_daemon_that_keeps_the_streams_of_a_dead_child_holds_nobody_up(
    saying: Callable[[str], Server], tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    daemon = f"""if not os.fork():
            os.setsid()
            open({str(pid_file)!r}, "w").write(str(os.getpid()))
            time.sleep(600)
        while not (os.path.exists({str(pid_file)!r}) and os.path.getsize({str(pid_file)!r})): time.sleep(0.01)
        os._exit(9)"""
    try:
        assert ended(saying(daemon), {}).ended.status == 9
    finally:
        with suppress(OSError):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)


def test_an_interrupt_ends_the_child_and_its_answer_is_never_taken_for_another(
    child_module: Callable[[str], str],
) -> None:
    code = (
        "import os\n"
        "from biopsy.processes.server import Server\n"
        f"server = Server({child_module(ANSWERS)!r}, 'a word')\n"
        "try:\n"
        f"    server.ask({{'task': 'interrupt', 'parent': os.getpid()}})\n"
        "except KeyboardInterrupt:\n"
        "    print('pid' in server.ask({'task': ''}))\n"
        "server.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)], ids=["every fourth", "each"])
def test_an_interrupt_at_any_instruction_of_taking_an_answer_leaves_nothing_locked(
    step: int, child_module: Callable[[str], str]
) -> None:
    module, interrupted = child_module(RAW.replace("ANSWER", INSTANT_ANSWER)), []

    def interrupt() -> None:
        raise KeyboardInterrupt

    def ask(instruction: int) -> None:
        server = Server(module)
        try:
            with before_instruction(instruction, _Child._is_over, interrupt):
                server.ask({})
        except KeyboardInterrupt:
            interrupted.append(instruction)
        assert server.ask({}) == {}
        server.close()

    for instruction in count(step=step):
        thread = threading.Thread(target=ask, args=(instruction,), daemon=True)
        thread.start()
        thread.join(120)
        assert not thread.is_alive(), f"it waits for ever after an interrupt before instruction {instruction}"
        if instruction not in interrupted:
            break
    assert len(interrupted) * step > 10


def test_a_child_ends_with_the_server_and_may_not_even_have_been_asked(server: Server) -> None:
    pid = server.ask({"task": ""})["pid"]
    server.close()
    assert not is_alive(pid)
    server.start()
    server.close()


@pytest.mark.skipif(not Path("/bin/sh").exists(), reason="a shell is what cleans up")
def test_a_child_that_hangs_ends_with_a_parent_that_is_killed(
    child_module: Callable[[str], str], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    code = (
        "from biopsy.processes.server import Server\n"
        f"Server({child_module(ANSWERS)!r}, 'a word').ask({{'task': 'hang', 'pids': {str(pids)!r}}})\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        assert wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"), 60)
    finally:
        parent.kill()
        parent.wait()
    assert wait_until(lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()), 60)
