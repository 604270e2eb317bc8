"""An engine in a process of its own, which runs one model after the other: a crash, a hang or a leak there costs this
process nothing.

The process stays, since starting one costs more than most small models do. When a model kills it, that run fails, and
the next one starts a new process.

Both sides of the protocol stand here: the parent writes one JSON request per line; the child answers with lines that
say which stage it has come to, and with one that ends the request.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.errors_as_json import rebuilt, told
from biopsy.engines.registry import create
from biopsy.filesystem.write import write_whole
from biopsy.isolation.death import kill, printed_tail, what_happened
from biopsy.isolation.interpreter import own_python
from biopsy.model.load import read_bytes
from biopsy.model.outputs import mark_outputs
from biopsy.tensors.results import Array


class Worker:
    """Runs models in ``engine`` (a spec such as ``onnxrt:optimization=none``). Use it in a ``with``.

    ``scratch`` is a folder for transient files; nothing stays there. ``timeout`` is in seconds per run.
    """

    def __init__(self, engine: str, scratch: Path, timeout: float | None = None) -> None:
        self.engine = engine
        self.remarks: tuple[str, ...] = ()
        """What the session that ran last said about its values."""
        self._scratch = scratch
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._printed: IO[bytes] | None = None
        self._numbers = itertools.count()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self) -> None:
        """Begin to import the engine now, so that the first run need not wait for it."""
        if self._process is None:
            self._send({"engine": self.engine})

    def version(self) -> str:
        """The version of the engine's package. Raises EngineMissing if it cannot be imported."""
        version: str = self._ask({"engine": self.engine, "wants": "version"})["version"]
        return version

    def run(self, model: ModelInput, feeds: Path, outputs: Sequence[str] | None = None) -> list[dict[str, Array]]:
        """The outputs of a model for every feed of a file, each a view of a mapped file that has no name any more.

        A model with a path is read from there. ``outputs`` are marked first, as ``mark_outputs`` does.

        Raises what the engine raises (EngineFailure, EngineMissing, CannotCompare, ModelError, DataError, UsageError);
        EngineFailure also if it died by a signal, which is then the ``kind``, or took too long (``kind`` "Timeout").
        """
        output = self._new_path(".safetensors")
        try:
            with self._request(model) as request:
                marked = None if outputs is None else list(outputs)
                answer = self._ask({**request, "feeds": str(feeds), "output": str(output), "outputs": marked})
            self.remarks = tuple(answer["remarks"])
            return _mapped(output)
        finally:
            _remove(output)

    def build(self, model: ModelInput) -> None:
        """Build a model and do no more. Raises what the engine raises, as ``run`` does."""
        with self._request(model) as request:
            self._ask({**request, "wants": "build"})

    def refusals(self, model: ModelInput) -> dict[int, str] | None:
        """What ``Engine.refusals`` says. Raises as ``run`` does."""
        with self._request(model) as request:
            found = self._ask({**request, "wants": "refusals"})["refusals"]
        return None if found is None else {int(number): reason for number, reason in found.items()}

    def _new_path(self, ending: str) -> Path:
        return self._scratch / f"{id(self):x}-{next(self._numbers)}{ending}"

    @contextlib.contextmanager
    def _request(self, model: ModelInput) -> Iterator[dict[str, Any]]:
        """What a request says of a model; one without a path has a file while it is asked about."""
        path = model.path or self._new_path(".onnx")
        try:
            if model.path is None:
                write_whole(path, [model.data])
            yield {"engine": self.engine, "model": str(path), "folder": str(model.folder)}
        finally:
            if model.path is None:
                _remove(path)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                kill(process)
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
        if self._printed is not None:
            self._printed.close()
            self._printed = None

    def _send(self, request: dict[str, Any]) -> subprocess.Popen[bytes]:
        if self._process is None:
            import tempfile

            self._printed = tempfile.TemporaryFile(dir=self._scratch)  # noqa: SIM115 -- close() does
            self._process = subprocess.Popen(
                own_python(__name__),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._printed,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: that is noticed when its answer is read
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        return self._process

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request. Raises what went wrong."""
        process = self._send(request)
        late = threading.Event()

        def end() -> None:
            late.set()
            kill(process)

        timer = threading.Timer(self._timeout, end) if self._timeout is not None else None
        if timer is not None:
            timer.start()
        try:
            answer, stage = _answer(process)
        finally:
            if timer is not None:
                timer.cancel()
        if answer is None:
            raise self._death(process, stage, timed_out=late.is_set())
        if "error" in answer:
            raise rebuilt(answer)
        return answer

    def _death(
        self, process: subprocess.Popen[bytes], stage: errors.Stage | None, *, timed_out: bool
    ) -> errors.BiopsyError:
        status = process.wait()
        printed = printed_tail(self._printed) if self._printed is not None else ""
        self.close()
        return what_happened(self.engine, stage, None if timed_out else status, printed)


def _answer(process: subprocess.Popen[bytes]) -> tuple[dict[str, Any] | None, errors.Stage | None]:
    """The line that ends a request, None if the child died before; and the stage it had come to, None before all."""
    stage: errors.Stage | None = None
    assert process.stdout is not None
    for line in process.stdout:
        try:
            said = json.loads(line)
        except ValueError:
            break  # cut short by its death
        if "stage" not in said or "error" in said:
            return said, stage
        stage = said["stage"]
    return None, stage


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _mapped(path: Path) -> list[dict[str, Array]]:
    from biopsy.tensors.files import read_results

    return [dict(iteration.outputs) for iteration in read_results(path)[0].iterations]


# The child's side


def main() -> int:
    """Do what the requests on stdin say, one after the other, until there are no more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an engine prints is no answer

    def say(tree: dict[str, Any]) -> None:
        answers.write(json.dumps(tree).encode() + b"\n")
        answers.flush()

    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "model" not in request and "wants" not in request:
            _warm_up(request["engine"])
            continue
        try:
            say(_told(request, say) if "wants" in request else _serve(request, say))
        except errors.BiopsyError as error:
            say(told(error))
        except Exception as error:
            say(told(errors.BiopsyError(f"{type(error).__name__}: {error}")))
    return 0


def _warm_up(engine: str) -> None:
    """Import the engine's package. What goes wrong is told when a model is to be run."""
    with contextlib.suppress(Exception):
        type(create(engine)).version()


def _told(request: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The answer to what needs no run."""
    engine = create(request["engine"])
    if request["wants"] == "version":
        return {"version": type(engine).version()}
    path = Path(request["model"])
    model = ModelInput(read_bytes(path), Path(request["folder"]), path)
    engine.version()  # imports its package
    say({"stage": "build"})
    if request["wants"] == "refusals":
        found = engine.refusals(model)
        return {"refusals": None if found is None else dict(found)}
    engine.build(model)
    return {"built": True}


def _serve(request: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    from biopsy.engines.runner import run_session
    from biopsy.tensors import files
    from biopsy.tensors.results import release

    path = Path(request["model"])
    model = ModelInput(read_bytes(path), Path(request["folder"]), path)
    if request["outputs"] is not None:
        model = ModelInput(mark_outputs(model.data, request["outputs"]), model.folder)
    engine = create(request["engine"])
    files.keep(Path(request["feeds"]))
    feeds = files.read_feeds(Path(request["feeds"]))
    engine.version()  # imports its package
    say({"stage": "build"})
    session = engine.build(model)
    del model
    say({"stage": "run"})
    result = run_session(session, feeds, runner=engine.label)
    files.write_results(Path(request["output"]), [result])
    for feed in feeds:
        release(*(feed[name] for name in session.inputs if name in feed))
    return {"remarks": list(session.remarks)}
