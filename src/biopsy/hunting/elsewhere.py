"""Models tried on other machines, several at once: each is sent there with its inputs, and its result comes back."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.task import Inline, Prepared, PreparedTask, TaskSite
from biopsy.diagnosis.question import ENDINGS
from biopsy.hunting.models import FoundModel, files_of
from biopsy.hunting.records import INPUTS, ModelResult
from biopsy.hunting.sweep import HuntQuestion, Sweeper, releases_of, samples_name
from biopsy.model.external import files_referred_to
from biopsy.model.load import read_bytes
from biopsy.processes.watch import Stop
from biopsy.processes.writing import write_whole
from biopsy.session.machines import OtherMachines, PreparedRun, tell_of_machines
from biopsy.session.pool import in_order

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
