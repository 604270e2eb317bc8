"""Transforming a model and looking at what became of it: a tool at work, each transformation in a process of its own,
which is a fork of a warm one where that is possible; the check that a reduction asks; and the search for the fewest
passes that break it.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from shutil import copyfile
from typing import Any, TypeAlias

from numpy import savez

from biopsy import errors
from biopsy.checks.outcome import Check, Evidence, Judged, Outcome
from biopsy.checks.verdict import VerdictFile
from biopsy.checks.warm import command_check
from biopsy.engines.base import ModelInput
from biopsy.engines.runner import Inputs
from biopsy.engines.runner import feeds_for as feeds_of_model
from biopsy.model.index import index_file
from biopsy.processes import process
from biopsy.processes.own_process import other_python, own_python
from biopsy.processes.reading import read_plain
from biopsy.processes.warm import ForkServer, ServerGoneError
from biopsy.processes.watch import Ended, Limits, Stop, signal_name
from biopsy.questions.transformations.findings import PassFindings
from biopsy.questions.transformations.question import PASSES, SOURCE, TARGET, CommandQuestion, ToolSpec
from biopsy.questions.transformations.tools import Omission, TransformOrder
from biopsy.questions.transformations.verdict import CannotTellError, EngineVerdicts, Runs
from biopsy.search.drive import drive, first_that
from biopsy.search.subset import minimal_subsets, shortest
from biopsy.session.trial import CheckRuns
from biopsy.tensors.files import read_feeds, write_feeds
from biopsy.tensors.results import Feed
from biopsy.text import first_line, line_of, some_of

_CHILD = "biopsy.questions.transformations.child"
_MOST_BYTES = 1 << 20
_MOST_SHOWN = 2000


@dataclass(frozen=True)
class ToolFailure:
    """How a tool failed on a model: ``kind`` is the type of its exception, a signal, ``Timeout``, or ``NoModel``.

    ``message`` is what it said, in its own words.
    """

    kind: str
    message: str


class KnownTransformer:
    """A known tool, in the interpreter ``python``. ``scratch`` is a folder for transient files."""

    def __init__(self, spec: ToolSpec, python: Path, scratch: Path, limits: Limits) -> None:
        assert spec.known is not None
        self._tool = spec.known(spec.settings)
        start = own_python(_CHILD) if str(python) == sys.executable else other_python(python, _CHILD)
        self._words = [*start, spec.name, json.dumps(dict(spec.settings))]
        self._name = spec.text
        self._scratch = scratch
        self._limits = limits
        self._numbers = itertools.count()
        self.release = ""
        self._server: ForkServer | None = None
        with suppress(ServerGoneError):
            self._server = ForkServer(self._words)

    def close(self) -> None:
        """End the warm process."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def learn_release(self) -> None:
        """Find out the release of the tool. Raises BiopsyError if it cannot be imported."""
        answer = self._asked({"wants": "version"})
        if isinstance(answer, ToolFailure):
            raise errors.BiopsyError(
                f"{self._name} does not work here: {answer.kind}: {first_line(answer.message)}",
                next_steps=[f"--package {self._tool.package}    takes it from an environment of its own"],
            )
        self.release = str(answer["version"])

    def passes(self, source: Path) -> list[str]:
        """Those that the tool names for this model; none where it fails on it so early."""
        answer = self._asked({"wants": "passes", "source": str(source.resolve())})
        return [] if isinstance(answer, ToolFailure) else list(map(str, answer["passes"]))

    def transform(self, order: TransformOrder, *, cold: bool = False) -> ToolFailure | None:
        """Write what becomes of a model; how the tool fails on it, None if it does not.

        ``cold``: not in a fork of a warm process. Raises BiopsyError if the tool cannot be run at all.
        """
        source, target = (Path(path).resolve() for path in (order.source, order.target))
        target.unlink(missing_ok=True)
        samples = order.samples if self._tool.wants_samples else ()
        whole = replace(order, source=str(source), target=str(target), samples=samples)
        answer = self._asked({"wants": "model", "order": asdict(whole)}, cold=cold)
        return answer if isinstance(answer, ToolFailure) else _written(target)

    def omission(self, passes: Sequence[str]) -> Omission:
        """As the tool itself is told."""
        return self._tool.omission(passes)

    def _asked(self, request: Mapping[str, Any], *, cold: bool = False) -> dict[str, Any] | ToolFailure:
        """What came of a request."""
        told = self._scratch / f"answer-{next(self._numbers)}.json"
        try:
            ended = self._run({**request, "answer": str(told)}, cold=cold)
            if ended.cause != "itself" or ended.status < 0:
                return _death(ended)
            try:
                found = json.loads(read_plain(told, _MOST_BYTES))
                if "error" in found:
                    return ToolFailure(str(found["error"]["kind"]), str(found["error"]["message"]))
                return dict(found["answer"])
            except FileNotFoundError:
                return ToolFailure(f"exit status {ended.status}", _printed(ended))
            except (OSError, ValueError, KeyError, TypeError) as error:
                what = f"the process of {self._name} gave an answer that is not understood: {error}"
                raise errors.BiopsyError(what) from error
        finally:
            told.unlink(missing_ok=True)

    def _run(self, request: Mapping[str, Any], *, cold: bool) -> Ended:
        if self._server is not None and not cold:
            try:
                return self._server.run(request, lambda: self._limits)
            except ServerGoneError:
                self.close()  # it was never warm: a process of its own tells why
                Path(request["answer"]).unlink(missing_ok=True)
        return process.run([*self._words, json.dumps(request)], lambda: self._limits)


class CommandTransformer:
    """A command of the user's. In its words, ``{}`` is the model, ``{out}`` the file to write, ``{passes}`` the passes.

    ``control`` is the command that only loads and saves, if there is one: else the control is that of onnx.
    ``named`` are the passes that the user names.
    """

    release = ""  # nobody can tell

    def __init__(self, spec: ToolSpec, limits: Limits, control: ToolSpec | None, named: Sequence[str]) -> None:
        self._words = spec.words
        self._control = control.words if control is not None else ()
        self._named = list(named)
        self._limits = limits
        self._tells_passes = any(PASSES in word for word in spec.words)

    def passes(self, source: Path) -> list[str]:
        """Those that the user names, if the command takes them."""
        return self._named if self._tells_passes else []

    def omission(self, passes: Sequence[str]) -> Omission:
        """Nobody knows how the command leaves passes out."""
        return Omission()

    def transform(self, order: TransformOrder, *, cold: bool = False) -> ToolFailure | None:
        """Run the command."""
        target, words = Path(order.target), self._words
        target.unlink(missing_ok=True)
        if order.passes == () and self._control:
            words = self._control
        elif order.passes == () and not self._tells_passes:
            import onnx

            try:
                onnx.save(onnx.load(order.source), target)
            except Exception as error:  # what onnx raises at a model is what it says of it
                return ToolFailure(type(error).__name__, str(error))
            return None
        chosen = self._named if order.passes is None else order.passes
        places = {SOURCE: order.source, TARGET: order.target, PASSES: ",".join(chosen)}
        place = re.compile("|".join(map(re.escape, places)))  # what a name puts in one of them is no place again
        command = [place.sub(lambda found: places[found.group()], word) for word in words]
        try:
            ended = process.run(command, lambda: self._limits)
        except process.CannotStartError as error:
            raise errors.UsageError(f"--by: {command[0]} cannot be started: {error.reason}") from error
        if ended.cause != "itself" or ended.status < 0:
            return _death(ended)
        if ended.status != 0:
            lines = [line for line in _printed(ended).splitlines() if line.strip()]
            return ToolFailure(f"exit status {ended.status}", lines[-1] if lines else "")
        return _written(target)


Transformer: TypeAlias = KnownTransformer | CommandTransformer
"""What transforms models."""


def _death(ended: Ended) -> ToolFailure:
    seconds = {"time": ("Timeout", "it took too long"), "memory": ("OutOfMemory", "it took more memory than it may")}
    if ended.cause in seconds:
        return ToolFailure(*seconds[ended.cause])
    return ToolFailure(signal_name(-ended.status), _printed(ended))


def _printed(ended: Ended) -> str:
    return ended.output[-_MOST_SHOWN:].decode("utf-8", "replace").strip()


def _written(target: Path) -> ToolFailure | None:
    """Whether the tool has written what it should."""
    if target.is_file() and not target.is_symlink() and target.stat().st_size:
        return None
    return ToolFailure("NoModel", "it ended without an error and wrote no model")


# The check: a candidate is transformed, and what comes of it is judged.

ORIGINAL = "{original}"

_MOST_WEIGHTS = (1 << 31) - (1 << 24)
"""Of weights in one file, which protobuf limits, with some room for the rest of the model."""


@dataclass(frozen=True, kw_only=True)
class TransformationCheck(Check):
    """Transforms a candidate and judges the result; a subclass knows how.

    ``by`` is the tool as it was asked for, ``scratch`` a folder for transient files. ``passes`` may run, None for all
    that run by themselves. ``is_cold``: each transformation has a process of its own.
    """

    transformer: Transformer
    by: str
    scratch: Path
    passes: tuple[str, ...] | None = None
    is_cold: bool = False
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def line(self, candidate: Path) -> str:
        """The command that asks all this of one model."""
        return line_of(["biopsy", "debug", "transform", str(candidate), "--by", self.by])

    def cold(self) -> TransformationCheck:
        """The same check, which transforms in a process of its own."""
        return replace(self, is_cold=True)

    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        """Transform and judge. Raises CheckError if the tool, or the engine, cannot be run at all."""
        started = time.monotonic()
        try:
            evidence = self.evidence_of(candidate, stop)
        except errors.CheckError:
            raise
        except errors.BiopsyError as error:
            raise errors.CheckError(error.message, next_steps=error.next_steps) from error
        return replace(evidence, seconds=time.monotonic() - started, candidate=str(candidate))

    @abstractmethod
    def evidence_of(self, candidate: Path, stop: Stop | None) -> Evidence:
        """Transform the candidate, and judge what comes of it. Raises BiopsyError if either cannot be done."""

    def free_path(self, name: str) -> Path:
        """A transient file, in whose name a number takes the place of ``*``."""
        return self.scratch / name.replace("*", str(next(self.numbers)))

    def samples(self, feeds: Path | None) -> dict[str, tuple[str, ...]]:
        """The inputs of a model as a ``TransformOrder`` has them; none if there is no file of them."""
        if feeds is None:
            return {}
        given = read_feeds(feeds)
        files = [str(self.scratch / f"sample-{number}.npz") for number in range(len(given))]
        for file, feed in zip(files, given, strict=True):
            savez(file, *[feed[name] for name in given[0]])
        return {"samples": tuple(files), "names": tuple(given[0])}

    def transformed(self, candidate: Path, target: Path, feeds: Path | None) -> ToolFailure | None:
        """Have the tool write what becomes of a model; how it fails on it. Raises CheckError and what the tool raises.

        It is given a copy: some tools write into the file that they read. Weights in other files are put into that
        copy: some write on which bytes of which file a weight stands, relative to a folder that the result is not in.
        """
        index = index_file(candidate)
        source = self.free_path("whole-*.onnx")
        try:
            if index.has_external_data:
                import onnx

                if index.weight_bytes > _MOST_WEIGHTS:
                    raise errors.CheckError(
                        f"the weights of {candidate} are more than fits into one file of ONNX (2 GB), which tools are "
                        "given here",
                        next_steps=["biopsy surgeon extract    cuts out a part of it, to be asked about instead"],
                    )
                onnx.save(onnx.load(candidate), source)
            else:
                copyfile(candidate, source)
            order = TransformOrder(source=str(source), target=str(target), passes=self.passes, **self.samples(feeds))
            failure = self.transformer.transform(order, cold=self.is_cold)
            if failure is None:
                return None
            return replace(failure, message=failure.message.replace(str(source), str(candidate)))
        finally:
            source.unlink(missing_ok=True)

    def failure_of_tool(self, candidate: Path, target: Path, feeds: Path | None) -> Evidence | None:
        """The tool's own failure, which is one of a kind, as that of an engine; None if it has written a model."""
        failure = self.transformed(candidate, target, feeds)
        if failure is None:
            return None
        name, message = self.by.partition(":")[0].split()[0], failure.message
        said = VerdictFile(outcome="fails", engine=name, stage="transform", kind=failure.kind, message=message)
        return Evidence(status=1, output=message.encode(), verdict=said)


@dataclass(frozen=True, kw_only=True)
class EngineCheck(TransformationCheck):
    """Holds the transformed model against the model itself, in the same engine.

    ``feeds`` is a file of inputs; those that a candidate needs besides are made up.
    """

    verdicts: EngineVerdicts
    feeds: Path

    def start(self) -> None:
        """Begin to load the engine."""
        self.verdicts.engine.start()

    def fed(self, inputs: Path) -> EngineCheck:
        """The same check with the inputs of another file."""
        return replace(self, feeds=inputs)

    def before(self, candidate: Path) -> tuple[Path, Runs]:
        """The inputs of a candidate, and what the engine gives of it. Raises what the engine raises."""
        feeds = self.feeds_for(candidate)
        return feeds, self.verdicts.engine.run(_input(candidate), feeds)

    def evidence_of(self, candidate: Path, stop: Stop | None) -> Evidence:
        """Run both models."""
        feeds, target = None, self.free_path("transformed-*.onnx")
        try:
            feeds, expected = self.before(candidate)
            failed = self.failure_of_tool(candidate, target, feeds)
            if failed is not None:
                return failed
            verdict = self.verdicts.verdict(_input(candidate), expected, target, feeds)
            return Evidence(status=0 if verdict.outcome == "passes" else 1, verdict=verdict)
        except (errors.EngineFailure, errors.CannotCompare, errors.DoesNotFit, errors.ModelError) as error:
            return _invalid(f"the engine does not run the model itself: {error.message}")
        except CannotTellError as error:
            return _invalid(str(error))
        finally:
            for path in (target, feeds):
                if path is not None and path != self.feeds:
                    path.unlink(missing_ok=True)

    def feeds_for(self, candidate: Path) -> Path:
        """A file of exactly what a candidate is fed."""
        wanted = index_file(candidate).fed_types()

        def only_wanted(feeds: Sequence[Feed]) -> list[Feed]:
            return [{name: feed[name] for name in feed if name in wanted} for feed in feeds]

        path = self.free_path("fed-*.safetensors")
        inputs = Inputs(given=only_wanted(read_feeds(self.feeds)))
        write_feeds(path, only_wanted(feeds_of_model(wanted, inputs).feeds))
        return path


@dataclass(frozen=True, kw_only=True)
class CommandOfUser(TransformationCheck):
    """Asks a command of the user's about the transformed model, and about the model itself."""

    question: CommandQuestion
    checks: dict[tuple[str, ...], Check] = field(default_factory=dict)

    def close(self) -> None:
        """End what was kept warm for the command."""
        for check in self.checks.values():
            check.close()

    def fails_before(self, candidate: Path, stop: Stop | None = None) -> bool:
        """Whether the model itself does not pass; where the command is told of both at once, that is not asked."""
        if any(ORIGINAL in word for word in self.question.words):
            return False
        return self._check_for(candidate).run(candidate, stop).status != 0

    def evidence_of(self, candidate: Path, stop: Stop | None) -> Evidence:
        """Run the command."""
        if self.fails_before(candidate, stop):
            return _invalid("the model itself does not pass the check")
        target = self.free_path("transformed-*.onnx")
        try:
            return self.failure_of_tool(candidate, target, None) or self._check_for(candidate).run(target, stop)
        finally:
            target.unlink(missing_ok=True)

    def _check_for(self, candidate: Path) -> Check:
        words = tuple(word.replace(ORIGINAL, str(candidate)) for word in self.question.words)
        if words not in self.checks:
            asked = self.question
            self.checks[words] = command_check(words, str(candidate), asked.timeout, asked.memory)
        check = self.checks[words]
        return check.cold() if self.is_cold else check


def _input(path: Path) -> ModelInput:
    return ModelInput(b"", path.parent, path)


def _invalid(message: str) -> Evidence:
    return Evidence(status=125, verdict=VerdictFile(outcome="invalid", message=message))


STAGE = "transform"


def judged_by(check: TransformationCheck, runs: CheckRuns, model: Path, description: str) -> Judged:
    """What a check says of a model, counted among the ``runs`` of a search. Raises CheckError if it cannot be run."""
    judged = runs.once(lambda: check.run(model), line=check.line(model), description=description)
    if judged.outcome is Outcome.INFRASTRUCTURE:
        raise errors.CheckError(f"the check could not be run: {judged.reason}")
    return judged


# Which passes of a tool break a model: the fewest that do it alone, and the fewest without which it is right.

_MOST_SETS = 4
"""Sets of passes that do it, or to leave out, that are sought; the fewest are those of the shortest."""


@dataclass(kw_only=True)
class PassSearch:
    """Asks about sets of passes on one model, the ``piece``; ``named`` are those that may run, None for all."""

    check: TransformationCheck
    runs: CheckRuns
    piece: Path
    named: Sequence[str] | None
    known: dict[frozenset[str], Outcome] = field(default_factory=dict)

    def run(self, check_of_whole: TransformationCheck, whole: Path) -> PassFindings:
        """Search, and look at the answer in fresh processes, on the piece and on the whole model."""
        every = self._passes_of(self.piece)

        def rest(passes: Sequence[str]) -> list[str]:
            return [name for name in every if name not in passes]

        def fails(passes: Sequence[str]) -> bool:
            return self._outcome(passes, f"only {some_of(passes, 3)}") is Outcome.REPRODUCES

        def is_right_without(passes: Sequence[str]) -> bool:
            return self._outcome(rest(passes), f"without {some_of(passes, 3)}") is Outcome.PASSES

        if not every or not fails(every):
            return PassFindings(all=tuple(every))
        alone = shortest(drive(minimal_subsets(every, _MOST_SETS), first_that(fails))[0])[0]
        sets, complete = drive(minimal_subsets([*rest(alone), *alone], _MOST_SETS), first_that(is_right_without))
        without = shortest(sets)
        if not without:
            return PassFindings(all=tuple(every), alone=tuple(alone), complete=complete)
        of_whole = None
        if whole != self.piece:
            left = tuple(name for name in self._passes_of(whole) if name not in without[0])
            afresh = replace(check_of_whole, passes=left, is_cold=True)
            of_whole = judged_by(afresh, self.runs, whole, f"the whole model without {some_of(without[0], 3)}")
        is_verified = [
            self._judged(alone, f"fresh: only {some_of(alone, 3)}", cold=True).outcome is Outcome.REPRODUCES,
            self._judged(rest(without[0]), f"fresh: without {some_of(without[0], 3)}", cold=True).outcome
            is Outcome.PASSES,
        ]
        return PassFindings(
            all=tuple(every),
            alone=tuple(alone),
            without=tuple(map(tuple, without)),
            complete=complete,
            verified=all(is_verified),
            whole_is_right=None if of_whole is None else of_whole.outcome is Outcome.PASSES,
            whole="" if of_whole is None else of_whole.reason,
            omission=self.check.transformer.omission(without[0]),
        )

    def _passes_of(self, model: Path) -> list[str]:
        every = self.check.transformer.passes(model)
        return every if self.named is None else [name for name in every if name in self.named]

    def _judged(self, passes: Sequence[str], description: str, *, cold: bool = False) -> Judged:
        return judged_by(replace(self.check, passes=tuple(passes), is_cold=cold), self.runs, self.piece, description)

    def _outcome(self, passes: Sequence[str], description: str) -> Outcome:
        key = frozenset(passes)
        if key not in self.known:
            self.known[key] = self._judged(passes, description).outcome
        return self.known[key]
