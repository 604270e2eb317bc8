"""Building one model again and again, each time in a process of its own: a crash, or a variable of the environment, is
that of one build.

Where the engine allows it, the model is read and the engine loaded once, and each build is a fork of that process;
otherwise, and where the environment differs, each build starts a process. Both sides of the protocol stand here: a JSON
object a line; what a build found is in a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from biopsy import errors
from biopsy.engines.base import LayerRecord, ModelInput
from biopsy.engines.errors_as_json import rebuilt, told
from biopsy.engines.registry import create, find_class, parse_spec
from biopsy.isolation.cleanup import temporary_folder
from biopsy.isolation.death import kill, printed_tail, what_happened
from biopsy.isolation.interpreter import own_python

_RUNS_OF_A_PROFILE = 3


@dataclass(frozen=True)
class Order:
    """What to build: an engine with its settings, in which environment, and where to save the result, if anywhere."""

    engine: str
    environment: Mapping[str, str] = field(default_factory=dict)
    save_to: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Built:
    """What came of a build: its layers as far as the engine tells them, or how it failed."""

    version: str = ""
    seconds: float = 0.0
    layers: tuple[LayerRecord, ...] = ()
    remarks: tuple[str, ...] = ()
    failure: errors.EngineFailure | None = None


class Builder:
    """Builds a model that is a file. ``timeout`` is in seconds for one build. Use it in a ``with``."""

    def __init__(self, model: ModelInput, timeout: float | None = None) -> None:
        assert model.path is not None
        self._model = model
        self._timeout = timeout
        self._stack = contextlib.ExitStack()
        self._scratch = self._stack.enter_context(temporary_folder("biopsy-build-"))
        self._kept: _Process | None = None

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._kept is not None:
            self._kept.close()
        self._stack.close()

    def build(self, order: Order) -> Built:
        """Build once. A failure of the engine, its crash and its taking too long are in the result.

        Raises what else is wrong: EngineMissing, UsageError, ModelError.
        """
        report = self._scratch / "report.json"
        report.unlink(missing_ok=True)
        forked = not order.environment and hasattr(os, "fork") and find_class(parse_spec(order.engine).name).forks_warm
        request = {
            "engine": order.engine,
            "save_to": None if order.save_to is None else str(order.save_to),
            "report": str(report),
            "fork": forked,
        }
        process = self._process(order, forked=forked)
        started, status = time.monotonic(), None
        try:
            status = process.ask(request, self._timeout)
        finally:
            if not forked or status is None or process.ended:
                process.close()
                self._kept = None if process is self._kept else self._kept
        seconds = time.monotonic() - started
        return _built(order, status, _read(report), process.printed(), seconds)

    def _process(self, order: Order, *, forked: bool) -> _Process:
        if not forked:
            return _Process(self._model, self._scratch, order.environment, "")
        if self._kept is None:
            self._kept = _Process(self._model, self._scratch, {}, order.engine)
        return self._kept


class _Process:
    """The client's end of a process that builds; ``warm`` is the engine that it loads before it is asked."""

    def __init__(self, model: ModelInput, scratch: Path, environment: Mapping[str, str], warm: str) -> None:
        import tempfile

        self._printed: IO[bytes] = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 -- close() does
        self._tail = ""
        self._process = subprocess.Popen(
            own_python(__name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self._send({"model": str(model.path), "folder": str(model.folder), "warm": warm})

    @property
    def ended(self) -> bool:
        """Whether it is there no more."""
        return self._process.poll() is not None

    def ask(self, request: Mapping[str, Any], timeout: float | None) -> int | None:
        """The exit status of one build, negative for a signal; None if it took too long and was ended."""
        late = threading.Event()

        def end() -> None:
            late.set()
            kill(self._process)

        timer = threading.Timer(timeout, end) if timeout is not None else None
        if timer is not None:
            timer.start()
        try:
            self._send(request)
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
        finally:
            if timer is not None:
                timer.cancel()
        if late.is_set():
            return None
        try:
            return int(json.loads(line)["status"])
        except (ValueError, KeyError, TypeError):
            return self._process.wait()  # it has died, or is about to

    def printed(self) -> str:
        """The end of what the engine printed."""
        if not self._printed.closed:
            self._tail = printed_tail(self._printed)
        return self._tail

    def close(self) -> None:
        """End it and what it has started."""
        self.printed()
        kill(self._process)
        for stream in (self._process.stdin, self._process.stdout, self._printed):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]

    def _send(self, tree: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: that is noticed when its answer is read
            self._process.stdin.write(json.dumps(tree).encode() + b"\n")
            self._process.stdin.flush()


def _read(report: Path) -> dict[str, Any]:
    try:
        found = json.loads(report.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _built(order: Order, status: int | None, found: dict[str, Any], printed: str, seconds: float) -> Built:
    failure: errors.BiopsyError
    if status is not None and "error" in found:
        failure = rebuilt(found)
    elif status is None or status < 0 or "layers" not in found:
        failure = what_happened(order.engine, "build" if found else None, status, printed)
    else:
        layers = tuple(LayerRecord(**{**layer, "nodes": tuple(layer["nodes"])}) for layer in found["layers"])
        return Built(version=found["version"], seconds=found["seconds"], layers=layers, remarks=tuple(found["remarks"]))
    if not isinstance(failure, errors.EngineFailure):
        raise failure
    return Built(failure=failure, seconds=seconds)


# The child's side


def main() -> int:
    """Do what the requests on stdin say, one after the other, until there are no more."""
    from biopsy.model.load import read_bytes

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an engine prints is no answer
    given = json.loads(sys.stdin.buffer.readline())
    model: ModelInput | errors.BiopsyError
    try:
        path = Path(given["model"])
        model = ModelInput(read_bytes(path), Path(given["folder"]), path)
        if given["warm"]:
            with contextlib.suppress(Exception):  # what is wrong with it is told when something is built
                create(given["warm"]).warm_up()
    except errors.BiopsyError as error:
        model = error
    for line in sys.stdin.buffer:
        request = json.loads(line)
        status = _in_fork(request, model) if request["fork"] else _done(request, model)
        answers.write(json.dumps({"status": status}).encode() + b"\n")
        answers.flush()
    return 0


def _in_fork(request: Mapping[str, Any], model: ModelInput | errors.BiopsyError) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(_done(request, model))
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _done(request: Mapping[str, Any], model: ModelInput | errors.BiopsyError) -> int:
    try:
        if isinstance(model, errors.BiopsyError):
            raise model
        tree = _build(request, model)
    except errors.BiopsyError as error:
        tree = told(error)
    except Exception as error:
        tree = told(errors.BiopsyError(f"{type(error).__name__}: {error}"))
    Path(request["report"]).write_text(json.dumps(tree), encoding="utf-8")
    return 0


def _build(request: Mapping[str, Any], model: ModelInput) -> dict[str, Any]:
    engine = create(request["engine"])
    engine.version()  # imports its package
    Path(request["report"]).write_text('{"stage": "build"}', encoding="utf-8")
    started = time.monotonic()
    session = engine.build(model)
    seconds = time.monotonic() - started
    remarks = list(session.remarks)
    if request["save_to"] is not None:
        session.save(Path(request["save_to"]))
    if engine.options.get("profile"):
        remarks += _profiled(session)
    layers = []
    if engine.capabilities.layers:
        try:
            layers = [asdict(layer) for layer in session.layers()]
        except errors.BiopsyError as error:
            remarks.append(f"{engine.name} does not tell its layers: {error.message}")
    return {"version": type(engine).version(), "seconds": seconds, "layers": layers, "remarks": remarks}


def _profiled(session: Any) -> list[str]:
    """Run with made-up inputs, so that there are times to tell; what goes wrong is a remark."""
    from biopsy.engines.feeding import Inputs, feeds_for
    from biopsy.engines.runner import run_session

    try:
        feeds = feeds_for(session.inputs, Inputs(iterations=_RUNS_OF_A_PROFILE)).feeds
        run_session(session, feeds, runner="profile")
    except errors.BiopsyError as error:
        return [f"no times were measured: {error.message}"]
    return []
