"""An engine that ends the process it runs in: the command that the user typed is left to tell of it."""

import json
import os
import pty
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from onnx import helper

from support.command_line import BIN, is_alive, started, wait_until
from support.models import BOOL, INT64, chain, info, model, save
from support.plug_ins import install

ODD = """
import os, time
from pathlib import Path
from biopsy.engines.base import Engine, Option, Session
from biopsy.engines.registry import create

class Odd(Engine):
    name, summary, package = "odd", "does what no engine should", "odd"
    options_declared = (Option("does", "what", "nothing"),)

    @classmethod
    def version(cls):
        if os.environ.get("ODD") == "version":
            os.abort()
        return "1"

    def build(self, model):
        return OddSession(create("reference").build(model), self.options["does"])

class OddSession(Session):
    def __init__(self, inner, does):
        self._inner, self._does = inner, does

    inputs = property(lambda self: self._inner.inputs)
    outputs = property(lambda self: self._inner.outputs)

    def run(self, feed):
        if self._does == "exit":
            os._exit(0)
        if self._does == "later":
            import atexit
            atexit.register(os.abort)
        if self._does == "wait":
            Path("waiting.txt").write_text(str(os.getpid()))
            for _ in range(600):
                time.sleep(0.1)
        return self._inner.run(feed)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a chain of three Relu in ``m.onnx``, and the engine ``odd`` installed in ``site`` beside it."""
    save(chain(3), tmp_path / "m.onnx")
    install(tmp_path / "site", "odd-engine", ODD, "odd = odd_engine:Odd")
    return tmp_path


def start(folder: Path, *words: str, **more: object) -> subprocess.Popen[str]:
    variables = {"PYTHONPATH": str(folder / "site"), "ODD": "", "NO_COLOR": "1"}
    variables |= more.pop("environment", {})  # type: ignore[arg-type]
    more = {"stderr": subprocess.PIPE, **more}
    return started(*words, folder=folder, variables=variables, **more)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


NUMBERS = ["SIGSEGV", "SIGKILL", *(pytest.param(name, marks=pytest.mark.slow) for name in ("SIGABRT", "SIGFPE"))]


@pytest.mark.parametrize("number", NUMBERS)
def test_run_tells_which_engine_ended_by_which_signal(number: str, folder: Path) -> None:
    engine = f"fake:crash.Relu=run,signal={number}"
    status, out, err = ended(
        start(folder, "run", "m.onnx", "--reference", "--engine", engine, "--save-outputs", "out.npz")
    )
    assert status == 1
    told = f"error: {engine} ended with {number} while it ran the model"
    assert err.splitlines() == [
        told + ": the system may have run out of memory" * (number == "SIGKILL"),
        "warning: out.npz is not written: the outputs of the other engines are lost",
    ]
    assert out.startswith("reference  1 iteration")
    assert f"FAILED | {engine} crashes when it runs the model ({number})" in out.splitlines()
    assert {path.name for path in folder.iterdir()} == {"m.onnx", "site"}


def test_a_signal_that_somebody_has_sent_to_the_fork_says_nothing_of_the_model(folder: Path) -> None:
    status, _, err = ended(start(folder, "run", "m.onnx", "--engine", "fake:crash.Relu=run,signal=SIGTERM"))
    assert status == 4
    assert err.startswith("error: biopsy ended with SIGTERM before its work was done")


def test_a_crash_is_in_the_report_as_any_failure_is(folder: Path) -> None:
    engine = "fake:crash.Relu=run"
    status, out, _ = ended(start(folder, "run", "m.onnx", "--onnxrt", "--engine", engine, "--report", "report.json"))
    told = json.loads((folder / "report.json").read_text())
    assert status == 1
    assert f"FAILED | {told['verdict']['text']}" in out.splitlines()
    assert (told["verdict"]["kind"], told["run"]["reasons"]) == (
        "fails",
        [f"{engine} crashes when it runs the model (SIGSEGV)"],
    )
    assert [(one["label"], one["failure"]["kind"], one["failure"]["stage"]) for one in told["run"]["engines"]] == [
        (engine, "SIGSEGV", "run")
    ]


def test_the_stage_is_that_of_the_engine_that_was_asked_for(folder: Path) -> None:
    """``fake`` has another engine built and run inside."""
    status, _, err = ended(start(folder, "run", "m.onnx", "--engine", "fake:crash.Relu=build"))
    assert (status, err) == (1, "error: fake:crash.Relu=build ended with SIGSEGV while it built the model\n")


def test_an_engine_that_ends_the_process_without_a_signal_has_not_passed(folder: Path) -> None:
    status, out, err = ended(start(folder, "run", "m.onnx", "--engine", "odd:does=exit"))
    assert (status, out.splitlines()[0]) == (1, "FAILED | odd:does=exit failed to run the model")
    assert err == "error: odd:does=exit ended the process with exit status 0 while it ran the model\n"


def test_what_crashes_after_the_work_is_done_spoils_nothing(folder: Path) -> None:
    status, out, err = ended(start(folder, "run", "m.onnx", "--engine", "odd:does=later"))
    assert (status, err) == (0, "")
    assert "PASSED" in out


def test_a_package_that_crashes_when_it_is_loaded_is_named(folder: Path) -> None:
    status, _, err = ended(start(folder, "doctor", environment={"ODD": "version"}))
    assert (status, err) == (1, "error: odd ended with SIGABRT while its package was loaded\n")


@pytest.mark.slow
def test_a_check_ends_with_the_signal_as_it_always_did(folder: Path) -> None:
    """Whoever runs it sees the signal, which says more than a status; a warm check and a cold one end alike."""
    told = folder / "verdict.json"
    process = start(
        folder, "run", "m.onnx", "--engine", "fake:crash.Relu=run", environment={"BIOPSY_VERDICT": str(told)}
    )
    assert ended(process)[0] == -signal.SIGSEGV
    for more in ([], ["--cold-checks"]):
        words = ["debug", "reduce", "m.onnx", "-o", f"r{len(more)}.onnx", *more]
        status, out, _ = ended(
            start(folder, *words, "--check", "biopsy", "run", "{}", "--engine", "fake:crash.Relu=run")
        )
        assert status == 0
        assert "the original: crashes when it runs · SIGSEGV · fake" in out
        assert "1 of 3 nodes" in out


@pytest.mark.slow
def test_an_engine_that_ends_a_check_without_a_signal_has_not_passed(folder: Path) -> None:
    words = ["debug", "reduce", "m.onnx", "-o", "r.onnx", "--mode", "bisect", "--allow-vacuous-check"]
    status, out, _ = ended(start(folder, *words, "--check", "biopsy", "run", "{}", "--engine", "odd:does=exit"))
    assert status == 0
    assert "the original: run · exit status 0 · odd" in out


# Ending and stopping it


@contextmanager
def waiting(folder: Path, **more: object) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A run whose engine hangs, and the number of the process in which it does."""
    process = start(folder, "run", "m.onnx", "--engine", "odd:does=wait", **more)
    told = folder / "waiting.txt"
    assert wait_until(lambda: told.exists() and bool(told.read_text()))
    inner = int(told.read_text())
    assert inner != process.pid
    try:
        yield process, inner
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow), signal.SIGQUIT]
)
def test_a_signal_that_ends_it_ends_all_of_it_in_the_same_way(number: signal.Signals, folder: Path) -> None:
    with waiting(folder) as (process, inner):
        process.send_signal(number)
        assert ended(process) == (-number, "", "")
        assert not is_alive(inner)


def to_it(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)


def to_its_group(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGINT)


@pytest.mark.parametrize("send", [pytest.param(to_it, marks=pytest.mark.slow), to_its_group])
def test_an_interrupt_is_told_once(send: Callable[[subprocess.Popen[str]], None], folder: Path) -> None:
    with waiting(folder, start_new_session=True) as (process, inner):
        send(process)
        assert ended(process) == (5, "", "interrupted: nothing was left half-written\n")
        assert not is_alive(inner)


@contextmanager
def deaf(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A run whose engine is in native code for ever: a Loop of 2^62 iterations, where Python hears of no signal."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Neg", ["v"], ["w"])],
        "body",
        [info("i", (), INT64), info("c", (), BOOL), info("v")],
        [info("d", (), BOOL), info("w")],
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    save(model([loop], [info("x")], [info("y")], [helper.make_tensor("n", INT64, [], [1 << 62])]), folder / "loop.onnx")
    process = start(folder, "run", "loop.onnx", "--onnxrt", "-v", start_new_session=True)

    def is_busy() -> bool:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ticks = [int(word) for pid in children for word in Path(f"/proc/{pid}/stat").read_text().split()[13:14]]
        return max(ticks, default=0) > 150  # a second and a half of work: it is past all loading

    try:
        assert wait_until(is_busy)
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
@pytest.mark.parametrize("send", [to_it, to_its_group])
def test_an_interrupt_ends_native_code_after_three_seconds(send: Callable[..., None], folder: Path) -> None:
    with deaf(folder) as process:
        asked = time.monotonic()
        send(process)
        assert ended(process) == (5, "", "interrupted: nothing was left half-written\n")
        assert 2.5 < time.monotonic() - asked < 10
        assert {path.name for path in folder.iterdir()} == {"m.onnx", "loop.onnx", "site"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_a_second_interrupt_ends_native_code_at_once(folder: Path) -> None:
    with deaf(folder) as process:
        asked = time.monotonic()
        process.send_signal(signal.SIGINT)
        time.sleep(0.8)
        process.send_signal(signal.SIGINT)
        assert ended(process) == (5, "", "interrupted: nothing was left half-written\n")
        assert time.monotonic() - asked < 2.5


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with another")
def test_nothing_goes_on_when_it_is_killed(folder: Path) -> None:
    with waiting(folder) as (process, inner):
        process.kill()
        assert wait_until(lambda: not is_alive(inner))


def test_what_is_ignored_stays_ignored(folder: Path) -> None:
    ignoring = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    with waiting(folder, **ignoring) as (process, inner):
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert process.poll() is None
        assert is_alive(inner)


@contextmanager
def typed_at_a_terminal(folder: Path, words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """A shell with job control on a terminal in which a command was typed: its process, and our end."""
    environment = {
        **os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(folder / "site"),
        "NO_COLOR": "1", "ODD": "",
    }  # fmt: skip
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe("sh", ["sh", "-mc", f"{' '.join(words)}; echo first $?; fg; echo status $?"], environment)
    try:
        yield pid, terminal
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def read_until(terminal: int, wanted: str) -> str:
    found = ""
    while wanted not in found:
        found += os.read(terminal, 4096).decode()
    return found


def test_ctrl_z_stops_it_and_fg_goes_on_and_ctrl_c_ends_it_with_one_message(folder: Path) -> None:
    words = ["biopsy", "run", "m.onnx", "--engine", "odd:does=wait"]
    with typed_at_a_terminal(folder, words) as (_, terminal):
        told = folder / "waiting.txt"
        assert wait_until(lambda: told.exists() and bool(told.read_text()))
        inner = int(told.read_text())

        def state() -> str:
            return Path(f"/proc/{inner}/stat").read_text().rpartition(")")[2].split()[0]

        os.write(terminal, b"\x1a")
        read_until(terminal, "first ")
        # the shell brings it to the foreground at once
        assert wait_until(lambda: state() != "T")
        time.sleep(0.2)
        os.write(terminal, b"\x03")
        assert wait_until(lambda: not is_alive(inner))
        said = read_until(terminal, "status ")
        assert said.count("interrupted") == 1


def test_an_engine_that_is_asked_in_a_process_of_its_own_dies_there(folder: Path) -> None:
    status, out, err = ended(start(folder, "inspect", "capability", "m.onnx", "--engine", "fake:crash.Relu=build"))
    assert (status, err) == (1, "")
    assert "ended its process with SIGSEGV" in out


def test_what_cannot_be_saved_whole_is_not_saved(folder: Path) -> None:
    """The disk is full: what stood there before stays, and nothing else is left."""
    made = chain(3, ("Add",))
    for node in made.graph.node:
        node.input.append("w")
    made.graph.initializer.append(helper.make_tensor("w", 1, (256, 256), bytes(1 << 18), raw=True))
    save(made, folder / "m.onnx")
    (folder / "saved.onnx").write_bytes(b"before")

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))

    words = ["run", "m.onnx", "--engine", "onnxrt:optimization=none", "--build-only", "--save-engine", "saved.onnx"]
    status, _, err = ended(start(folder, *words, preexec_fn=limited))
    assert status in (1, 2), err
    assert (folder / "saved.onnx").read_bytes() == b"before"
    assert {path.name for path in folder.iterdir()} == {"m.onnx", "saved.onnx", "site"}


def test_a_crash_leaves_no_folder_of_profiles(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    temporary = tmp_path_factory.mktemp("temporary")
    words = ["run", "m.onnx", "--engine", "onnxrt:profile", "--engine", "fake:crash.Relu=run"]
    status, out, _ = ended(start(folder, *words, environment={"TMPDIR": str(temporary)}))
    assert (status, out.startswith("onnxrt:profile")) == (1, True)
    assert wait_until(lambda: not list(temporary.glob("biopsy-*")))
