"""A warm process that makes a fork for each request; what checks make of it is in tests/checks/test_warm.py."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from biopsy.processes.own_process import own_python
from biopsy.processes.warm import ForkServer, ServerGoneError
from biopsy.processes.watch import Ended, Limits
from support.command_line import is_alive, wait_until

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")

FORKS = """
import os, signal, subprocess, sys, time
from biopsy.processes.server import serve_forks

loaded = os.getpid()

def main():
    serve_forks(task)

def task(request):
    if "print" in request:
        print(request["print"], *sys.argv[1:], loaded == os.getppid())
        sys.stderr.write("and this\\n")
    if "signal" in request:
        os.kill(os.getpid(), request["signal"])
    if "raise" in request:
        raise ValueError(request["raise"])
    if "hang" in request:
        sleeper = subprocess.Popen(["sleep", "600"])
        with open(request["hang"], "w") as pids:
            pids.write(f"{os.getpid()} {sleeper.pid} {os.getppid()}\\n")
        time.sleep(600)
    return request.get("status", 0)
"""


@pytest.fixture
def server(child_module: Callable[[str], str]) -> Iterator[ForkServer]:
    server = ForkServer([*own_python(child_module(FORKS)), "its", "words"])
    yield server
    server.close()


def run(server: ForkServer, request: Mapping[str, object], seconds: float | None = None) -> Ended:
    return server.run(request, lambda: Limits(seconds=seconds))


def test_each_request_has_a_fork_of_the_same_process(server: ForkServer) -> None:
    for text in ("one", "two"):
        printed = f"{text} its words True\nand this\n".encode()
        ended = run(server, {"print": text})
        assert ended == Ended(status=0, cause="itself", output=printed, pid=ended.pid)


def test_a_status_a_signal_and_an_exception_are_those_of_a_process(server: ForkServer) -> None:
    assert run(server, {"status": 3}).status == 3
    assert run(server, {"signal": signal.SIGSEGV}).status == -signal.SIGSEGV
    assert run(server, {"raise": "something"}).status == 4
    assert run(server, {}).status == 0


def test_a_request_may_be_long(server: ForkServer) -> None:
    assert len(run(server, {"print": "x" * (1 << 20)}).output) > 1 << 20


def test_a_fork_that_hangs_is_ended_alone_with_what_it_started(server: ForkServer, tmp_path: Path) -> None:
    run(server, {})
    assert run(server, {"hang": str(tmp_path / "pids")}, seconds=2).cause == "time"
    assert run(server, {}).status == 0
    if (tmp_path / "pids").exists():
        fork, sleeper, parent = map(int, (tmp_path / "pids").read_text().split())
        assert parent == server.pid
        assert wait_until(lambda: not is_alive(fork) and not is_alive(sleeper), 60)


@pytest.mark.parametrize(
    "code",
    [
        "def main(): pass",
        "import os, signal\ndef main(): os.kill(os.getpid(), signal.SIGKILL)",
        "import time\ndef main(): time.sleep(600)",
        "import json, socket, sys\ndef main(): socket.socket(fileno=json.loads(sys.argv[1])[0]).sendall(b'garbage\\n')",
        "import json, socket, sys\ndef main(): socket.socket(fileno=json.loads(sys.argv[1])[0]).sendall(b'[1]\\n')",
        "import nothing_of_this_name",
    ],
    ids=["does not want to", "dies", "never gets warm", "says garbage", "says something else", "cannot be imported"],
)
def test_a_process_that_does_not_serve_is_told_as_gone(child_module: Callable[[str], str], code: str) -> None:
    server = ForkServer(own_python(child_module(code)), patience=2)
    with pytest.raises(ServerGoneError):
        run(server, {})
    server.kill()
    server.close()
    assert not is_alive(server.pid)


HANGING = """
import sys
from biopsy.processes.warm import ForkServer, ServerGoneError
from biopsy.processes.own_process import own_python
from biopsy.processes.watch import Limits
try:
    ForkServer(own_python("the_child")).run({"hang": sys.argv[1]}, Limits)
except ServerGoneError:
    print("gone")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends forks with who made them")
@pytest.mark.parametrize("killed", ["the server", "who asked"])
def test_forks_end_with_the_server_and_with_who_asked(
    child_module: Callable[[str], str], tmp_path: Path, killed: str
) -> None:
    child_module(FORKS)
    pids = tmp_path / "pids"
    asker = subprocess.Popen([sys.executable, "-c", HANGING, str(pids)], stdout=subprocess.PIPE)
    try:
        assert wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"), 60)
        server = int(pids.read_text().split()[-1])
        os.kill(server if killed == "the server" else asker.pid, signal.SIGKILL)
        told, _ = asker.communicate(timeout=60)
        assert told == (b"gone\n" if killed == "the server" else b"")
    finally:
        asker.kill()
        asker.communicate()
    assert wait_until(lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()), 60)


def test_requests_on_several_connections_run_at_once(child_module: Callable[[str], str], tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from biopsy.processes.watch import Stop

    server = ForkServer(own_python(child_module(FORKS)), connections=2)
    stop = Stop()
    try:
        with ThreadPoolExecutor(1) as other:
            hanging = other.submit(server.run, {"hang": str(tmp_path / "pids")}, Limits, stop)
            assert wait_until((tmp_path / "pids").exists, 60)
            assert run(server, {"status": 5}).status == 5
            assert not hanging.done()
            stop.set()
            assert hanging.result(timeout=60).cause == "stop"
    finally:
        server.close()
        stop.close()


def test_its_environment_tells_the_process_of_its_sockets(child_module: Callable[[str], str]) -> None:
    code = "import os, sys\ndef main(): open(sys.argv[1], 'w').write(os.environ['BIOPSY_FORK_CONNECTIONS'])"
    folder = Path(os.environ["PYTHONPATH"])
    server = ForkServer([*own_python(child_module(code)), str(folder / "told")], connections=3)
    with pytest.raises(ServerGoneError):
        run(server, {})
    server.close()
    assert len(json.loads((folder / "told").read_text())) == 3
