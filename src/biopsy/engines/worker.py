"""Runs models, one after the other, in an engine in a process of its own, whose crash, hang or leak does not matter
here.

This file has both ends of the conversation; ``processes.server`` carries the requests.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from biopsy import errors
from biopsy.engines.base import Capabilities, GivenTensors, ModelInput
from biopsy.engines.registry import PLAIN, create, find_class, parse_spec
from biopsy.model.external import files_referred_to
from biopsy.model.extract import mark_outputs
from biopsy.model.load import read_bytes
from biopsy.processes.server import Note, Request, Server, ServerEndedError, Serving, Zygote, serve_children
from biopsy.processes.watch import Limits, engine_death
from biopsy.processes.writing import write_whole
from biopsy.tensors.results import Array, Feed, release
from biopsy.text import size_text

TIMES_THE_MODEL = 64
"""An engine's memory is limited to its ``own_memory`` and this many times the bytes of its first model, with weights
and inputs."""


def memory_for(engines: Iterable[str], size: int) -> int:
    """The limit of memory, in bytes, of a process with these engines (specs), for a model of this size."""
    own = 0
    for name in {parse_spec(engine).name for engine in engines}:
        try:
            own += find_class(name).capabilities.own_memory
        except errors.BiopsyError:  # the process will raise it
            own += Capabilities().own_memory
    return own + TIMES_THE_MODEL * size


def whole_size(model: ModelInput, *others: Path) -> int:
    """The bytes of a model, of the files that its tensors are in, and of other files. Raises ModelError, OSError."""
    data = model.data or (b"" if model.path is None else read_bytes(model.path))
    files = [*files_referred_to(data, model.folder), *others]
    return len(data) + sum(file.stat().st_size for file in files if file.is_file())


_ZYGOTE = Zygote(module=__name__)

CANNOT_RUN = (errors.EngineFailure, errors.CannotCompare, errors.DataError, errors.ModelError)
"""Errors that mean that one model cannot be run, and nothing about others."""


class Worker:
    """Runs models in ``engine`` (a spec such as ``onnxrt:optimization=none``). A context manager.

    ``scratch`` is a folder for temporary files. ``timeout`` is in seconds per run. ``memory`` is the limit of its
    processes in bytes; None for one that no real model needs: see ``TIMES_THE_MODEL``.
    """

    def __init__(self, engine: str, scratch: Path, timeout: float | None = None, *, memory: int | None = None) -> None:
        self.engine = engine
        self.remarks: tuple[str, ...] = ()
        """The remarks of the last session that ran."""
        self._scratch = scratch
        self._timeout = timeout
        self._memory = memory
        self._first_size: int | None = None
        self._server = Server(__name__, engine, zygote=_ZYGOTE)
        self._numbers = itertools.count()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self) -> None:
        """Begin to import the engine, so that the first run need not wait for it."""
        self._server.start()

    def version(self) -> str:
        """The version of the engine's package. Raises EngineMissing if it cannot be imported."""
        version: str = self._ask({"wants": "version"})["version"]
        return version

    def run(self, model: ModelInput, feeds: Path, outputs: Sequence[str] | None = None) -> list[dict[str, Array]]:
        """The outputs of a model for every feed of a file, as views of a mapped file that is already deleted.

        A model with a path is read from there. ``outputs`` are first made the outputs of the model (``mark_outputs``).

        Raises what the engine raises (EngineFailure, EngineMissing, CannotCompare, ModelError, DataError, UsageError);
        EngineFailure also if it died by a signal (the ``kind``) or took too long (``kind`` "Timeout"); TooMuchMemory
        if it was ended at its memory limit.
        """
        from biopsy.tensors.files import read_results

        with self._transient(".safetensors") as output, self._request(model) as request:
            marked = None if outputs is None else list(outputs)
            files = {"feeds": str(feeds), "output": str(output)}
            self._settle_memory(model, feeds)
            answer = self._ask({**request, **files, "wants": "outputs", "outputs": marked})
            self.remarks = tuple(answer["remarks"])
            return [dict(iteration.outputs) for iteration in read_results(output)[0].iterations]

    def build(self, model: ModelInput) -> None:
        """Build a model and do no more. Raises as ``run`` does."""
        self._settle_memory(model)
        with self._request(model) as request:
            self._ask({**request, "wants": "build"})

    def refusals(self, model: ModelInput) -> dict[int, str] | None:
        """What ``Engine.refusals`` returns. Raises as ``run`` does."""
        with self._request(model) as request:
            refusals = self._ask({**request, "wants": "refusals"})["refusals"]
        return None if refusals is None else {int(number): reason for number, reason in refusals.items()}

    def tensors_given(self, model: ModelInput) -> GivenTensors | None:
        """What ``Engine.tensors_given`` returns. Raises as ``run`` does."""
        with self._request(model) as request:
            given = self._ask({**request, "wants": "tensors"})["tensors"]
        return None if given is None else GivenTensors(given["sizes"], given["refused"])

    @contextlib.contextmanager
    def _transient(self, ending: str) -> Iterator[Path]:
        """The path of a file that is removed at the end."""
        path = self._scratch / f"{id(self):x}-{next(self._numbers)}{ending}"
        try:
            yield path
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def limit(self, seconds: float | None) -> None:
        """Limit every later run to these seconds; None for no limit."""
        self._timeout = seconds

    @property
    def memory(self) -> int:
        """The memory limit of its processes, in bytes."""
        if self._memory is not None:
            return self._memory
        return memory_for([self.engine], self._first_size or 0)

    def _settle_memory(self, model: ModelInput, feeds: Path | None = None) -> None:
        """Derive the memory limit from the first model, which is the whole one: later models are parts of it."""
        if self._first_size is None and self._memory is None:
            self._first_size = whole_size(model, *([] if feeds is None else [feeds]))

    @contextlib.contextmanager
    def _request(self, model: ModelInput) -> Iterator[dict[str, Any]]:
        """The model's part of a request; a model without a path is in a temporary file meanwhile."""
        if model.path is not None:
            yield {"model": str(model.path), "folder": str(model.folder)}
            return
        with self._transient(".onnx") as path:
            write_whole(path, [model.data])
            yield {"model": str(path), "folder": str(model.folder)}

    def close(self) -> None:
        """End the process."""
        self._server.close()

    def _ask(self, request: Request) -> dict[str, Any]:
        memory = self.memory
        try:
            return self._server.ask(request, Limits(seconds=self._timeout, memory=memory))
        except ServerEndedError as error:
            if error.ended.cause == "memory":
                message = f"{self.engine} was ended at {size_text(memory)} of memory: that is its limit"
                raise errors.TooMuchMemory(message) from error
            raise engine_death(self.engine, cast("errors.Stage | None", error.note), error.ended) from error


def main() -> int:
    """Answer requests to the engine that the first argument names; without one, serve forks that do.

    This is the child's side.
    """
    if len(sys.argv) == 1:
        importlib.import_module("biopsy.engines.runner")
        for plain in PLAIN:
            with contextlib.suppress(Exception):  # a fork will raise it again
                type(create(plain)).version()  # imports its package
        serve_children(main)
    serving = Serving()
    engine = sys.argv[1]
    with contextlib.suppress(Exception):  # an error is raised again when a model is run
        type(create(engine)).version()  # imports its package
    return serving.serve(lambda request, note: _answer(engine, request, note))


def _answer(spec: str, request: Request, note: Note) -> dict[str, Any]:
    wants = request["wants"]
    if wants == "version":
        return {"version": type(create(spec)).version()}
    from biopsy.engines.runner import run_session
    from biopsy.tensors import files

    path = Path(request["model"])
    model = ModelInput(read_bytes(path), Path(request["folder"]), path)
    feeds: Sequence[Feed] = ()
    if wants == "outputs":
        if request["outputs"] is not None:
            model = ModelInput(mark_outputs(model.data, request["outputs"]), model.folder)
        files.keep(Path(request["feeds"]))
        feeds = files.read_feeds(Path(request["feeds"]))
    engine = create(spec)
    engine.version()  # imports its package
    note("build")
    if wants == "refusals":
        refusals = engine.refusals(model)
        return {"refusals": None if refusals is None else dict(refusals)}
    if wants == "tensors":
        given = engine.tensors_given(model)
        return {"tensors": None if given is None else {"sizes": dict(given.sizes), "refused": dict(given.refused)}}
    session = engine.build(model)
    if wants == "build":
        return {}
    del model
    note("run")
    result = run_session(session, feeds, runner=engine.label)
    files.write_results(Path(request["output"]), [result])
    for feed in feeds:
        release(*(feed[name] for name in session.inputs if name in feed))
    return {"remarks": list(session.remarks)}
