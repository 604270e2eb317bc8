"""Transforming a model and looking at what became of it: the check that a reduction asks, and the search for the
fewest passes that break it.
"""

from __future__ import annotations

import itertools
import time
from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copyfile

import numpy as np
from numpy import savez

from biopsy import errors
from biopsy.checks.outcome import Check, Evidence, Judged, Outcome
from biopsy.checks.verdict import VerdictFile
from biopsy.checks.warm import command_check
from biopsy.engines.base import ModelInput
from biopsy.engines.runner import Inputs
from biopsy.engines.runner import feeds_for as feeds_of_model
from biopsy.model.index import index_file
from biopsy.processes.watch import Stop
from biopsy.questions.transformations.findings import PassFindings
from biopsy.questions.transformations.question import CommandQuestion
from biopsy.questions.transformations.transformer import SampleFiles, ToolFailure, Transformer
from biopsy.questions.transformations.verdict import CannotTellError, EngineVerdicts, Runs
from biopsy.search.drive import drive, first_that
from biopsy.search.subset import minimal_subsets, shortest
from biopsy.session.trial import CheckRuns
from biopsy.tensors.files import read_feeds, write_feeds
from biopsy.tensors.results import Array
from biopsy.text import line_of, some_of

ORIGINAL = "{original}"

_MOST_BYTES = (1 << 31) - (1 << 24)
"""Of weights in one file, which protobuf limits, with some room for the rest of the model."""


@dataclass(frozen=True, kw_only=True)
class AskedPasses:
    """Which passes may run, and whether every process is a fresh one."""

    passes: Sequence[str] | None = None
    cold: bool = False


class TransformationCheck(Check):
    """Transforms a candidate and judges the result; a subclass knows how.

    ``scratch`` is a folder for transient files, ``by`` the tool as it was asked for.
    """

    def __init__(self, transformer: Transformer, by: str, scratch: Path, asked: AskedPasses) -> None:
        self._transformer = transformer
        self._by = by
        self._scratch = scratch
        self._asked = asked
        self._numbers = itertools.count()

    def line(self, candidate: Path) -> str:
        """The command that asks all this of one model."""
        return line_of(["biopsy", "debug", "transform", str(candidate), "--by", self._by])

    def told(self, asked: AskedPasses) -> TransformationCheck:
        """The same check with other passes."""
        other = copy(self)
        other._asked = asked
        return other

    def cold(self) -> TransformationCheck:
        """The same check, which transforms in a process of its own."""
        return self.told(replace(self._asked, cold=True))

    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        """Transform and judge. Raises CheckError if the tool, or the engine, cannot be run at all."""
        started = time.monotonic()
        try:
            evidence = self._run(candidate, stop)
        except errors.CheckError:
            raise
        except errors.BiopsyError as error:
            raise errors.CheckError(error.message, next_steps=error.next_steps) from error
        return replace(evidence, seconds=time.monotonic() - started, candidate=str(candidate))

    @abstractmethod
    def _run(self, candidate: Path, stop: Stop | None) -> Evidence:
        """Transform the candidate, and judge what comes of it. Raises BiopsyError if either cannot be done."""

    def _target(self) -> Path:
        return self._scratch / f"transformed-{next(self._numbers)}.onnx"

    def transformed(self, candidate: Path, target: Path, samples: SampleFiles) -> ToolFailure | None:
        """Have the tool write what becomes of a model; how it fails on it. Raises CheckError and what the tool raises.

        It is given a copy: some tools write into the file that they read. Weights in other files are put into that
        copy: some write on which bytes of which file a weight stands, relative to a folder that the result is not in.
        """
        index = index_file(candidate)
        source = self._scratch / f"whole-{next(self._numbers)}.onnx"
        try:
            if index.has_external_data:
                import onnx

                if index.weight_bytes > _MOST_BYTES:
                    raise errors.CheckError(
                        f"the weights of {candidate} are more than fits into one file of ONNX (2 GB), which tools are "
                        "given here",
                        next_steps=["biopsy surgeon extract    cuts out a part of it, to be asked about instead"],
                    )
                onnx.save(onnx.load(candidate), source)
            else:
                copyfile(candidate, source)
            asked = self._asked
            failure = self._transformer.transform(source, target, asked.passes, samples, cold=asked.cold)
            if failure is None:
                return None
            return replace(failure, message=failure.message.replace(str(source), str(candidate)))
        finally:
            source.unlink(missing_ok=True)

    def _failed(self, candidate: Path, target: Path, samples: SampleFiles) -> Evidence | None:
        """The tool's own failure, which is one of a kind, as that of an engine; None if it has written a model."""
        failure = self.transformed(candidate, target, samples)
        if failure is None:
            return None
        name, message = self._by.partition(":")[0].split()[0], failure.message
        said = VerdictFile(outcome="fails", engine=name, stage="transform", kind=failure.kind, message=message)
        return Evidence(status=1, output=message.encode(), verdict=said)


class EngineCheck(TransformationCheck):
    """Holds the transformed model against the model itself, in the same engine.

    ``feeds`` is a file of inputs; those that a candidate needs besides are made up.
    """

    def __init__(
        self,
        transformer: Transformer,
        by: str,
        scratch: Path,
        verdicts: EngineVerdicts,
        feeds: Path,
        asked: AskedPasses,
    ) -> None:
        super().__init__(transformer, by, scratch, asked)
        self._verdicts = verdicts
        self._feeds = feeds

    def start(self) -> None:
        """Begin to load the engine."""
        self._verdicts.start()

    @property
    def engine_version(self) -> str:
        """The release of the engine. Raises EngineMissing."""
        return self._verdicts.version()

    def is_steady(self, candidate: Path) -> bool:
        """Whether the engine gives the same of a model in two runs. Raises what the engine raises."""
        return self._verdicts.agree(*(self.before(candidate)[1] for _ in range(2)))

    def is_mute(self, candidate: Path) -> bool:
        """Whether no output of a model has a finite number. Raises what the engine raises."""
        values = self._values(candidate)
        return all(value.dtype.kind in "fc" and not np.isfinite(value).any() for value in values if value.size)

    def gives_numbers(self, candidate: Path) -> bool:
        """Whether the engine runs a model, and all that it gives is finite."""
        try:
            values = self._values(candidate)
        except errors.BiopsyError:
            return False
        return all(value.dtype.kind not in "fc" or bool(np.isfinite(value).all()) for value in values)

    def _values(self, candidate: Path) -> list[Array]:
        return [value for run in self.before(candidate)[1] for value in run.values()]

    def fed(self, inputs: Path) -> EngineCheck:
        """The same check with the inputs of another file."""
        other = copy(self)
        other._feeds = inputs
        return other

    def judged_by(self, verdicts: EngineVerdicts) -> EngineCheck:
        """The same check in another engine."""
        other = copy(self)
        other._verdicts = verdicts
        return other

    def before(self, candidate: Path) -> tuple[Path, Runs]:
        """The inputs of a candidate, and what the engine gives of it. Raises what the engine raises."""
        feeds = self.feeds_for(candidate)
        return feeds, self._verdicts.run(_input(candidate), feeds)

    def _run(self, candidate: Path, stop: Stop | None) -> Evidence:
        del stop
        feeds, target = None, self._target()
        try:
            feeds, expected = self.before(candidate)
            failed = self._failed(candidate, target, self.samples(feeds))
            if failed is not None:
                return failed
            verdict = self._verdicts.verdict(_input(candidate), expected, target, feeds)
            return Evidence(status=0 if verdict.outcome == "passes" else 1, verdict=verdict)
        except (errors.EngineFailure, errors.CannotCompare, errors.DoesNotFit, errors.ModelError) as error:
            return _invalid(f"the engine does not run the model itself: {error.message}")
        except CannotTellError as error:
            return _invalid(str(error))
        finally:
            for path in (target, feeds):
                if path is not None and path != self._feeds:
                    path.unlink(missing_ok=True)

    def feeds_for(self, candidate: Path) -> Path:
        """A file of exactly what a candidate is fed."""
        index = index_file(candidate)
        wanted = index.fed_types()
        given = read_feeds(self._feeds)
        inputs = Inputs(given=[{name: feed[name] for name in feed if name in wanted} for feed in given])
        feeds = feeds_of_model(wanted, inputs).feeds
        path = self._scratch / f"fed-{next(self._numbers)}.safetensors"
        write_feeds(path, [{name: feed[name] for name in feed if name in wanted} for feed in feeds])
        return path

    def samples(self, feeds: Path) -> SampleFiles:
        """The inputs as a tool in any interpreter reads them."""
        given = read_feeds(feeds)
        names = tuple(given[0])
        files = []
        for number, feed in enumerate(given):
            path = self._scratch / f"sample-{number}.npz"
            savez(path, *[feed[name] for name in names])
            files.append(str(path))
        return SampleFiles(tuple(files), names)


class CommandOfUser(TransformationCheck):
    """Asks a command of the user's about the transformed model, and about the model itself."""

    def __init__(
        self, transformer: Transformer, by: str, scratch: Path, question: CommandQuestion, asked: AskedPasses
    ) -> None:
        super().__init__(transformer, by, scratch, asked)
        self._question = question
        self._checks: dict[tuple[str, ...], Check] = {}

    def close(self) -> None:
        """End what was kept warm for the command."""
        for check in self._checks.values():
            check.close()

    def before(self, candidate: Path, stop: Stop | None = None) -> Evidence | None:
        """What the command says of the model itself; None where it is told of both at once."""
        if any(ORIGINAL in word for word in self._question.words):
            return None
        return self._check_for(candidate).run(candidate, stop)

    def _run(self, candidate: Path, stop: Stop | None) -> Evidence:
        itself = self.before(candidate, stop)
        if itself is not None and itself.status != 0:
            return _invalid("the model itself does not pass the check")
        target = self._target()
        try:
            failed = self._failed(candidate, target, SampleFiles())
            return failed or self._check_for(candidate).run(target, stop)
        finally:
            target.unlink(missing_ok=True)

    def _check_for(self, candidate: Path) -> Check:
        words = tuple(word.replace(ORIGINAL, str(candidate)) for word in self._question.words)
        if words not in self._checks:
            made = command_check(words, str(candidate), timeout=self._question.timeout, memory=self._question.memory)
            self._checks[words] = made
        check = self._checks[words]
        return check.cold() if self._asked.cold else check


def _input(path: Path) -> ModelInput:
    return ModelInput(b"", path.parent, path)


def _invalid(message: str) -> Evidence:
    return Evidence(status=125, verdict=VerdictFile(outcome="invalid", message=message))


# Transformations that are judged one by one, told as they happen, and counted.

STAGE = "transform"


@dataclass(frozen=True)
class Asking:
    """Asks a check about models and passes; ``runs`` counts and judges, also for other checks of the same search."""

    check: TransformationCheck
    runs: CheckRuns

    def judged(self, model: Path, passes: Sequence[str] | None, description: str, *, cold: bool = False) -> Judged:
        """How a model fails with these passes. Raises CheckError if the tool cannot be run."""
        check = self.check.told(AskedPasses(passes=passes, cold=cold))
        judged = self.runs.once(lambda: check.run(model), line=check.line(model), description=description)
        if judged.outcome is Outcome.INFRASTRUCTURE:
            raise errors.CheckError(f"the check could not be run: {judged.reason}")
        return judged


# Which passes of a tool break a model: the fewest that do it alone, and the fewest without which it is right.

_MOST_SETS = 4
"""Sets of passes that do it, or to leave out, that are sought; the fewest are those of the shortest."""


class PassSearch:
    """Asks about sets of passes on one model, the ``piece``; ``named`` are those that may run, None for all."""

    def __init__(self, asking: Asking, transformer: Transformer, piece: Path, named: Sequence[str] | None) -> None:
        self._asking = asking
        self._transformer = transformer
        self._piece = piece
        self._named = named
        self._known: dict[frozenset[str], Outcome] = {}
        self._every: list[str] = []

    def run(self, asking_of_whole: Asking, whole: Path) -> PassFindings:
        """Search, and look at the answer in fresh processes, on the piece and on the whole model."""
        every = self._every = self._passes_of(self._piece)
        if not every or not self._fails(every):
            return PassFindings(all=tuple(every))
        alone = shortest(drive(minimal_subsets(every, _MOST_SETS), first_that(self._fails))[0])[0]
        sets, complete = drive(
            minimal_subsets([*(name for name in every if name not in alone), *alone], _MOST_SETS),
            first_that(self._is_right_without),
        )
        without = shortest(sets)
        if not without:
            return PassFindings(all=tuple(every), alone=tuple(alone), complete=complete)
        of_whole = None
        if whole != self._piece:
            rest = [name for name in self._passes_of(whole) if name not in without[0]]
            description = f"the whole model without {some_of(without[0], 3)}"
            of_whole = asking_of_whole.judged(whole, rest, description, cold=True)
        return PassFindings(
            all=tuple(every),
            alone=tuple(alone),
            without=tuple(map(tuple, without)),
            complete=complete,
            verified=self._verified(alone, without[0], every),
            whole_is_right=None if of_whole is None else of_whole.outcome is Outcome.PASSES,
            whole="" if of_whole is None else of_whole.reason,
            omission=self._transformer.omission(without[0]),
        )

    def _passes_of(self, model: Path) -> list[str]:
        every = self._transformer.passes(model)
        return every if self._named is None else [name for name in every if name in self._named]

    def _fails(self, passes: Sequence[str]) -> bool:
        return self._outcome(passes, f"only {some_of(passes, 3)}") is Outcome.REPRODUCES

    def _is_right_without(self, passes: Sequence[str]) -> bool:
        rest = [name for name in self._every if name not in passes]
        return self._outcome(rest, f"without {some_of(passes, 3)}") is Outcome.PASSES

    def _outcome(self, passes: Sequence[str], description: str) -> Outcome:
        key = frozenset(passes)
        if key not in self._known:
            self._known[key] = self._asking.judged(self._piece, passes, description).outcome
        return self._known[key]

    def _verified(self, alone: Sequence[str], without: Sequence[str], every: Sequence[str]) -> bool:
        rest = [name for name in every if name not in without]
        fails = self._asking.judged(self._piece, alone, f"fresh: only {some_of(alone, 3)}", cold=True)
        right = self._asking.judged(self._piece, rest, f"fresh: without {some_of(without, 3)}", cold=True)
        return fails.outcome is Outcome.REPRODUCES and right.outcome is Outcome.PASSES
