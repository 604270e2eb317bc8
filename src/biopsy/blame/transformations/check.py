"""The check that a reduction and a search for passes ask: transform a model, then look at what became of it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copyfile

import numpy as np

from biopsy import errors
from biopsy.blame.transformations.question import CommandQuestion
from biopsy.blame.transformations.same_engine import CannotTellError, EngineVerdicts, Runs
from biopsy.blame.transformations.transformer import SampleFiles, ToolFailure, Transformer
from biopsy.checks.outcome import Check, Evidence
from biopsy.checks.verdict import VerdictFile
from biopsy.checks.warm import command_check
from biopsy.engines.base import ModelInput
from biopsy.engines.feeding import Inputs
from biopsy.engines.feeding import feeds_for as feeds_of_model
from biopsy.isolation.watch import Stop
from biopsy.model.index import index_file
from biopsy.shell_words import line_of
from biopsy.tensors.files import read_feeds, write_feeds

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
        other = self._copy()
        other._asked = asked
        return other

    def _copy(self) -> TransformationCheck:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
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

    def _run(self, candidate: Path, stop: Stop | None) -> Evidence:
        raise NotImplementedError

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
                _write_whole(candidate, index.weight_bytes, source)
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
        """What a failure of the tool is; None if it has written a model."""
        failure = self.transformed(candidate, target, samples)
        return None if failure is None else _tool_failed(failure, self._by)


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
        values = [value for run in self.before(candidate)[1] for value in run.values()]
        return all(value.dtype.kind in "fc" and not np.isfinite(value).any() for value in values if value.size)

    def gives_numbers(self, candidate: Path) -> bool:
        """Whether the engine runs a model, and all that it gives is finite."""
        try:
            values = [value for run in self.before(candidate)[1] for value in run.values()]
        except errors.BiopsyError:
            return False
        return all(value.dtype.kind not in "fc" or bool(np.isfinite(value).all()) for value in values)

    def fed(self, inputs: Path) -> EngineCheck:
        """The same check with the inputs of another file."""
        other = self._copy()
        assert isinstance(other, EngineCheck)
        other._feeds = inputs
        return other

    def judged_by(self, verdicts: EngineVerdicts) -> EngineCheck:
        """The same check in another engine."""
        other = self._copy()
        assert isinstance(other, EngineCheck)
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
        from numpy import savez

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


def _write_whole(source: Path, weight_bytes: int, target: Path) -> None:
    """Write a model with all its weights inside. Raises CheckError if it is too large for one file."""
    import onnx

    if weight_bytes > _MOST_BYTES:
        raise errors.CheckError(
            f"the weights of {source} are more than fits into one file of ONNX (2 GB), which tools are given here",
            next_steps=["biopsy surgeon extract    cuts out a part of it, to be asked about instead"],
        )
    onnx.save(onnx.load(source), target)


def _input(path: Path) -> ModelInput:
    return ModelInput(b"", path.parent, path)


def _invalid(message: str) -> Evidence:
    return Evidence(status=125, verdict=VerdictFile(outcome="invalid", message=message))


def _tool_failed(failure: ToolFailure, by: str) -> Evidence:
    """The tool's own failure, which is one of a kind, as that of an engine."""
    name = by.partition(":")[0].split()[0]
    said = VerdictFile(outcome="fails", engine=name, stage="transform", kind=failure.kind, message=failure.message)
    return Evidence(status=1, output=failure.message.encode(), verdict=said)
