"""Runs many models in several engines, each in a fork of one warm process here, or several at once on other machines,
and keeps every result in a journal.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import shutil
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any

from biopsy import errors, events
from biopsy.checks.journal import FRESH, cannot_append, refusal, require_same_identity
from biopsy.checks.journal_file import DamagedError, JournalFile
from biopsy.checks.task import Inline, Prepared, PreparedTask, TaskSite
from biopsy.comparison.mismatch import LARGER, SLOWER
from biopsy.diagnosis.question import ENDINGS
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EngineSpec, find_class, parse_spec, release_now
from biopsy.engines.worker import memory_for, whole_size
from biopsy.hunting.models import FoundModel, files_of
from biopsy.hunting.records import INPUTS, JOURNAL, Kind, MatrixCell, ModelResult
from biopsy.model.external import files_referred_to
from biopsy.model.load import read_bytes
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.engine_calls import SIZE, LastCall, last_call
from biopsy.processes.own_process import own_python, processors
from biopsy.processes.process import CannotStartError
from biopsy.processes.reading import read_plain
from biopsy.processes.warm import ForkServer, ServerGoneError
from biopsy.processes.watch import Ended, Limits, Stop, signal_name
from biopsy.processes.writing import write_whole
from biopsy.records import plain, record_of
from biopsy.session.machines import OtherMachines, PreparedRun, tell_of_machines
from biopsy.session.pool import in_order

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


_MOST_WAITING = 4
"""How many results may wait for one that was begun earlier, for each model that is tried at once."""


class SweeperElsewhere:
    """Tries models on ``machines``, as ``Sweeper`` does here; a context manager. Results come in the order of models.

    A model that cannot be sent, such as one without its weights, is tried here.
    """

    def __init__(self, question: HuntQuestion, machines: OtherMachines, listener: events.Listener) -> None:
        self._question = question
        self._machines = machines
        self._listener = listener
        self._here = contextlib.ExitStack()
        self._sweeper: Sweeper | None = None
        self._releases = releases_of(question.engines)

    def __enter__(self) -> SweeperElsewhere:
        tell_of_machines(self._machines, self._listener)
        return self

    def __exit__(self, *exception: object) -> None:
        self._here.close()

    def results(self, models: Iterable[FoundModel]) -> Iterator[ModelResult]:
        """The result of every model. If a machine is lost, its model is tried on another.

        Raises CheckError if a machine cannot do it, or has another release of an engine than this one.
        """
        jobs = self._machines.jobs(self._question.jobs)
        self._machines.expect(jobs)
        ordered = in_order(models, self._begin, self._machines, jobs=jobs, waiting=_MOST_WAITING)
        with closing(ordered) as ended:
            for model, run in ended:
                yield run if isinstance(run, ModelResult) else self._result(model, run)

    def _begin(self, model: FoundModel, running: Collection[object]) -> Future[PreparedRun | ModelResult]:
        path = model.path.absolute()
        if not _can_be_sent(path):
            self._sweeper = self._sweeper or self._here.enter_context(Sweeper(self._question))
            return Inline().submit(self._sweeper.try_model, model)
        inputs = {place.absolute(): files for place in model.inputs if (files := files_of(place.absolute()))}
        samples = self._samples(model)
        task = PreparedTask(
            check=None,
            candidate=path,
            preparation=ModelPreparation(
                model=str(path),
                inputs=tuple((str(place), tuple(map(str, files))) for place, files in inputs.items()),
                samples=tuple(map(str, samples)),
                question=replace(self._question, places=(), folder=Path()),
                releases=self._releases,
            ),
            models=[path],
            files=[file for files in inputs.values() for file in files],
            back=samples,
        )
        return self._machines.begin_prepared(task)  # type: ignore[return-value]

    def _samples(self, model: FoundModel) -> list[Path]:
        """The files that may come back."""
        place = self._question.folder.absolute() / INPUTS
        return [place / f"{samples_name(model.path)}{ending}" for ending in ENDINGS]

    def _result(self, model: FoundModel, run: PreparedRun) -> ModelResult:
        """What a machine says of a model, with our paths; the samples that it sends are written."""
        result: ModelResult = run.report["result"]
        for path in self._samples(model):  # and to no other place that it may name
            if path in run.files:
                write_whole(path, [run.files[path]])
        cells = (
            replace(cell, text=run.with_our_paths(cell.text), message=run.with_our_paths(cell.message))
            for cell in result.cells
        )
        return replace(result, model=str(model.path), state=model.state, cells=tuple(cells))


def _can_be_sent(model: Path) -> bool:
    try:
        return all(file.is_file() for file in files_referred_to(read_bytes(model), model.parent))
    except errors.BiopsyError:
        return False


@dataclass(frozen=True, kw_only=True)
class ModelPreparation:
    """A model that another machine tries in all engines; see ``checks.task.Preparation``.

    Paths are those of this machine: ``inputs`` are the places of inputs with their files, ``samples`` are files of
    which the first that can hold the samples of a failing model is written. ``releases`` are those of the engines here.
    """

    model: str
    inputs: tuple[tuple[str, tuple[str, ...]], ...]
    samples: tuple[str, ...]
    question: HuntQuestion
    releases: Mapping[str, str]

    @contextlib.contextmanager
    def prepared(self, site: TaskSite, stop: Stop) -> Iterator[Prepared]:
        """Try the model. Raises CheckError if the releases here are others."""
        question, releases = self.question, self.releases
        key = ("hunt", question.engines, *releases.items(), question.seed, question.seconds, question.memory)
        sweeper = site.kept(key, lambda: _opened(question, releases))
        path, first = site.path(self.model), site.path(self.samples[0])
        sent = {place: [site.path(file) for file in files] for place, files in self.inputs}
        places = {
            files[0] if files[0].name == Path(place).name else files[0].parent: place for place, files in sent.items()
        }
        result = sweeper.try_model(FoundModel(path, tuple(places)), samples=first.with_suffix(""), stop=stop)
        ours = {there.name: Path(place).name for there, place in places.items()}
        result = replace(result, inputs=ours.get(result.inputs, result.inputs))
        try:
            yield Prepared(report={"result": result}, is_ready=False)
        finally:  # or a long hunt would fill the disk
            for folder in {file.parent for file in (path, first, *chain.from_iterable(sent.values()))}:
                shutil.rmtree(folder, ignore_errors=True)


def _opened(question: HuntQuestion, releases: Mapping[str, str]) -> Sweeper:
    others = [f"{spec} {text}" for spec, text in releases_of(question.engines).items() if releases[spec] != text]
    if others:
        ours = ", ".join(f"{spec} {text}" for spec, text in releases.items())
        raise errors.CheckError(
            f"a machine of the cluster has other releases: {', '.join(others)}",
            details=[f"  this machine has {ours}"],
            next_steps=["--runtime-env FILE    has Ray install the same on each"],
        )
    sweeper = Sweeper(question)
    return sweeper.__enter__()
