"""Runs many models in several engines, each in a fork of one warm process, and keeps every result in a journal."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.journal import FRESH, cannot_append, refusal, require_same_identity
from biopsy.checks.journal_file import DamagedError, JournalFile
from biopsy.comparison.mismatch import LARGER, SLOWER
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EngineSpec, find_class, parse_spec, release_now
from biopsy.engines.worker import memory_for, whole_size
from biopsy.hunting.models import FoundModel
from biopsy.hunting.records import INPUTS, JOURNAL, Kind, MatrixCell, ModelResult
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.engine_calls import SIZE, LastCall, last_call
from biopsy.processes.own_process import own_python, processors
from biopsy.processes.process import CannotStartError
from biopsy.processes.reading import read_plain
from biopsy.processes.warm import ForkServer, ServerGoneError
from biopsy.processes.watch import Ended, Limits, Stop, signal_name
from biopsy.records import plain, record_of

_MOST_RESULT = 64 << 20


@dataclass(frozen=True, kw_only=True)
class HuntQuestion:
    """What to hunt in: ``places`` are folders, files and patterns, ``engines`` specs, ``folder`` keeps what is found.

    ``seconds`` and ``memory`` (bytes) limit each model, ``per_bug`` (seconds) the diagnosis of each bug (0: there is
    none), ``max_time`` (seconds) everything; None for no limit. ``limits``, by kind (``limits_of``), are how many times
    the time or memory of the first engine the last one may need. ``jobs`` models are tried at once, by default one per
    processor, or as many as other machines have room for. ``fresh`` starts over.
    """

    places: Sequence[str]
    engines: tuple[str, ...]
    folder: Path
    seconds: float = 60.0
    memory: int | None = None
    per_bug: float = 60.0
    max_time: float | None = None
    seed: int = 1
    jobs: int | None = None
    limits: Mapping[Kind, float] = field(default_factory=dict)
    fresh: bool = False

    def memory_of(self, model: Path) -> int:
        """The memory that the engines may take for a model, in bytes."""
        size = 0
        with contextlib.suppress(errors.BiopsyError, OSError):  # what reads it next will say so
            size = whole_size(ModelInput(b"", model.parent, model))
        return self.memory or memory_for(self.engines, size)


def limits_of(slower: float | None, larger: float | None) -> Mapping[Kind, float]:
    """The limits of time and memory that are given, by the kind of the bug."""
    given: dict[Kind, float | None] = {SLOWER: slower, LARGER: larger}
    return {kind: limit for kind, limit in given.items() if limit is not None}


def make_own_folder(folder: Path) -> None:
    """Make a folder in which a hunt writes. Raises UsageError if it is a link or a file, or cannot be made."""
    if folder.is_symlink():
        raise errors.UsageError(f"{folder} is a symbolic link: nothing is written there", next_steps=["--dir ANOTHER"])
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise errors.UsageError(f"cannot make the folder {folder}: {error.strerror}") from error


def releases_of(engines: Iterable[str]) -> dict[str, str]:
    """The releases of engines by their specs, without importing their packages here if they can be known so."""
    return {spec: _release(parse_spec(spec)) for spec in engines}


def _release(spec: EngineSpec) -> str:
    distributions = () if "release" in spec.settings else find_class(spec.name).distributions
    for distribution in distributions:
        with contextlib.suppress(PackageNotFoundError):
            return version(distribution)
    return release_now(spec)


def samples_name(model: Path) -> str:
    """The name, without its ending, of the file with the samples of a model that fails."""
    return hashlib.blake2b(str(model).encode("utf-8", "surrogateescape"), digest_size=10).hexdigest()


class HuntJournal:
    """The results of a hunt on disk: one line for each model, and one for each bug, as they become known."""

    def __init__(self, folder: Path, identity: Mapping[str, str]) -> None:
        """Open the journal in a folder, or create it.

        Raises UsageError if another process has it, if it is of a hunt with other engines, or damaged.
        """
        path = folder / JOURNAL
        self.models: dict[str, ModelResult] = {}
        self.notes: dict[str, Any] = {}
        then: dict[str, str] = {}
        try:
            self._file = JournalFile.open(path.absolute())
        except OSError as error:
            raise refusal(path, error) from error
        try:
            for _, (kind, *values) in self._file.lines():
                if kind == "identity":
                    then[str(values[0])] = str(values[1])
                elif kind == "model":
                    result = record_of(ModelResult, json.loads(str(values[0])))
                    self.models[result.model] = result
                elif kind == "note":
                    self.notes[str(values[0])] = json.loads(str(values[1]))
            if then:
                kept = "the folder, as it is"
                require_same_identity(then, identity, str(path), kept=kept, next_steps=[FRESH], search="hunt")
                self._file.append([])
            else:
                self._file.begin([("identity", name, value) for name, value in identity.items()])
        except (OSError, DamagedError, ValueError) as error:
            self._file.abandon()
            raise refusal(path, error) from error
        except BaseException:
            self._file.abandon()
            raise

    def __enter__(self) -> HuntJournal:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def add(self, result: ModelResult) -> None:
        """Append the result of a model: once this returns, it survives the end of this process."""
        self._append(("model", json.dumps(plain(result))))
        self.models[result.model] = result

    def note(self, name: str, tree: Any) -> None:
        """Append what is known of a bug under its name."""
        self._append(("note", name, json.dumps(tree)))
        self.notes[name] = tree

    def _append(self, line: tuple[str, ...]) -> None:
        try:
            self._file.append([line])
        except OSError as error:
            kept = f"the results of {len(self.models)} models in it"
            raise cannot_append(self._file.path, kept, error) from error


class Sweeper:
    """Tries models in forks of a warm process. A context manager; ``try_model`` may be called in several threads."""

    def __init__(self, question: HuntQuestion) -> None:
        self._question = question
        self._jobs = question.jobs or processors()
        self._stop = Stop()
        self._ended_servers: list[ForkServer] = []
        self._replacing = threading.Lock()

    def __enter__(self) -> Sweeper:
        self._scratch_held = temporary_folder("biopsy-hunt-")
        self._scratch = self._scratch_held.__enter__()
        try:
            self._server = self._started()
        except BaseException:
            self._scratch_held.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process of the engines, and whatever runs there."""
        self._stop.set()
        for server in (self._server, *self._ended_servers):
            server.close()
        self._scratch_held.__exit__(None, None, None)
        self._stop.close()

    def _started(self) -> ForkServer:
        words = [*own_python("biopsy.hunting.trial"), *self._question.engines]
        try:
            return ForkServer(words, connections=self._jobs)
        except (CannotStartError, ServerGoneError) as error:
            raise errors.CheckError(f"the process of the engines cannot be started: {error}") from error

    def results(self, models: Iterable[FoundModel]) -> Iterator[ModelResult]:
        """The result of every model, as it becomes known; a few models are tried ahead."""
        jobs = self._jobs
        waiting: set[concurrent.futures.Future[ModelResult]] = set()
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            try:
                for model in models:
                    waiting.add(pool.submit(self.try_model, model))
                    while len(waiting) >= 2 * jobs:
                        done, waiting = concurrent.futures.wait(waiting, return_when="FIRST_COMPLETED")
                        yield from (future.result() for future in done)
                yield from (future.result() for future in concurrent.futures.as_completed(waiting))
            finally:
                for future in waiting:
                    future.cancel()
                if any(not future.done() for future in waiting):
                    self._stop.set()

    def try_model(
        self,
        model: FoundModel,
        engines: tuple[str, ...] = (),
        *,
        samples: Path | None = None,
        stop: Stop | None = None,
    ) -> ModelResult:
        """What each engine makes of a model. An engine that ends the fork or holds it up is then left out.

        ``samples`` is where those of a failing model are written, without the ending; by default it is in the folder of
        the hunt. ``stop`` ends what runs.
        """
        specs = engines or self._question.engines
        started = time.monotonic()
        name = samples_name(model.path)
        samples = samples or self._question.folder / INPUTS / name
        stem = self._scratch / f"{name}-{time.monotonic_ns():x}"
        dead: dict[str, MatrixCell] = {}
        request: dict[str, Any] = {
            "model": str(model.path.absolute()),
            "files": [str(file.absolute()) for file in model.inputs],
            "engines": list(specs),
            "seed": self._question.seed,
            "state": model.state,
            "inputs": str(samples.absolute()),
            "result": f"{stem}.json",
            "calls": f"{stem}.calls",
        }
        alone: set[str] = set()
        while True:
            Path(request["calls"]).write_bytes(bytes(SIZE))
            ended = self._ended({**request, "dead": plain(dead)}, model.path, stop or self._stop)
            call = last_call(Path(request["calls"]).read_bytes())
            result = self._result(Path(request["result"]))
            if result is not None:
                seconds = time.monotonic() - started
                return replace(result, model=str(model.path), state=request["state"], seconds=seconds)
            cell = _cell_of(ended, call, self._question.seconds)
            is_of_engine = call is not None and call.engine not in dead and cell.kind != "error"
            guilty = call.engine if call is not None and is_of_engine else ""
            if not guilty or ended.cause == "stop":
                cells = tuple(dead.get(spec) or replace(cell, engine=spec) for spec in specs)
                return ModelResult(model=str(model.path), state=request["state"], cells=cells)
            if ended.cause == "time" and guilty in specs and len(specs) > 1 and guilty not in alone:
                alone.add(guilty)
                own = self.try_model(model, (guilty,), samples=samples, stop=stop).cells[0]
                cell = own if own.kind == "hang" else replace(cell, kind="limit")
            dead[guilty] = replace(cell, engine=guilty)

    def _ended(self, request: Mapping[str, Any], path: Path, stop: Stop) -> Ended:
        """How the fork of a request ended; another server is started if this one has ended."""
        limits = Limits(seconds=self._question.seconds, memory=self._question.memory_of(path))
        for _ in range(2):
            server = self._server
            try:
                return server.run(request, lambda: limits, stop)
            except ServerGoneError:
                with self._replacing:
                    if self._server is server:  # else another thread has replaced it
                        self._ended_servers.append(server)
                        self._server = self._started()
        raise errors.CheckError("the process of the engines ends again and again")

    @staticmethod
    def _result(path: Path) -> ModelResult | None:
        try:
            tree = json.loads(read_plain(path, _MOST_RESULT))
            path.unlink()
            return record_of(ModelResult, tree)
        except (OSError, ValueError):
            return None


def _cell_of(ended: Ended, call: LastCall | None, seconds: float) -> MatrixCell:
    """What it means that a fork ended without a result, while an engine was called last."""
    stage = "" if call is None else call.stage
    is_open = call is not None and call.is_open
    doing = "" if call is None else f" while {call.description}"
    if ended.cause == "time" and is_open:
        text = f"no answer after {seconds:g} s{doing}"
        return MatrixCell(engine="", kind="hang", stage=stage, failure="Timeout", message="no answer", text=text)
    if ended.cause in ("time", "memory", "stop"):
        text = f"ended: {ended.cause}{doing}"
        return MatrixCell(engine="", kind="limit", stage=stage, failure=ended.cause, text=text)
    name = signal_name(-ended.status) if ended.status < 0 else f"exit status {ended.status}"
    lines = [line for line in ended.output.decode("utf-8", "replace").splitlines() if line.strip()]
    text = f"{name}{doing}" if is_open else f"{name}: {lines[-1] if lines else ''}"
    kind: Kind = "crash" if is_open else "error"
    return MatrixCell(engine="", kind=kind, stage=stage, failure=name, message=f"ends{doing}", text=text[:300])
