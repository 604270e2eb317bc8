"""Transforming models in processes of their own, the check of the results, and the search for the passes to blame."""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from shutil import copyfile
from typing import Any, TypeAlias

import onnx
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
from biopsy.questions.transformations.question import PASSES, SOURCE, TARGET, CommandQuestion, PassFindings, ToolSpec
from biopsy.questions.transformations.tools import Omission, TransformOrder
from biopsy.questions.transformations.verdict import CannotTellError, EngineVerdicts, Runs
from biopsy.search.drive import drive, first_that
from biopsy.search.subset import minimal_subsets, shortest
from biopsy.session.trial import CheckRuns, until_no_pass
from biopsy.tensors.files import read_feeds, write_feeds
from biopsy.tensors.results import Feed
from biopsy.text import first_line, line_of, some_of

_CHILD_MODULE = "biopsy.questions.transformations.child"
_LONGEST_ANSWER = 1 << 20
_LONGEST_OUTPUT = 2000


@dataclass(frozen=True)
class ToolFailure:
    """How a tool fails on a model, in its words; ``kind`` is its exception, a signal, ``Timeout`` or ``NoModel``."""

    kind: str
    message: str


class KnownTransformer:
    """A known tool, in the interpreter ``python``. ``scratch`` is a folder for transient files."""

    def __init__(self, spec: ToolSpec, python: Path, scratch: Path, limits: Limits) -> None:
        assert spec.known is not None
        self._tool = spec.known(spec.settings)
        start = own_python(_CHILD_MODULE) if str(python) == sys.executable else other_python(python, _CHILD_MODULE)
        self._words = [*start, spec.name, json.dumps(dict(spec.settings))]
        self._name = spec.text
        self._scratch = scratch
        self.limits = limits
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
        """Set ``release`` to that of the tool. Raises BiopsyError if it cannot be imported."""
        answer = self._ask({"wants": "version"})
        if isinstance(answer, ToolFailure):
            raise errors.BiopsyError(
                f"{self._name} does not work here: {answer.kind}: {first_line(answer.message)}",
                next_steps=[f"--package {self._tool.package}    takes it from an environment of its own"],
            )
        self.release = str(answer["version"])

    def passes(self, source: Path) -> list[str]:
        """The passes that the tool names for a model; none if it fails on the model."""
        answer = self._ask({"wants": "passes", "source": str(source.resolve())})
        return [] if isinstance(answer, ToolFailure) else list(map(str, answer["passes"]))

    def transform(self, order: TransformOrder, *, cold: bool = False) -> ToolFailure | None:
        """Write the transformed model; returns how the tool fails, None if it does not.

        ``cold``: in a new process. Raises BiopsyError if the tool cannot be run.
        """
        source, target = (Path(path).resolve() for path in (order.source, order.target))
        target.unlink(missing_ok=True)
        samples = order.samples if self._tool.wants_samples else ()
        absolute = replace(order, source=str(source), target=str(target), samples=samples)
        answer = self._ask({"wants": "model", "order": asdict(absolute)}, cold=cold)
        return answer if isinstance(answer, ToolFailure) else _failure_to_write(target)

    def omission(self, passes: Sequence[str]) -> Omission:
        """How a user of the tool leaves passes out."""
        return self._tool.omission(passes)

    def _ask(self, request: Mapping[str, Any], *, cold: bool = False) -> dict[str, Any] | ToolFailure:
        """The answer to a request, or how the tool fails."""
        answer = self._scratch / f"answer-{next(self._numbers)}.json"
        try:
            ended = self._run({**request, "answer": str(answer)}, cold=cold)
            if ended.cause != "itself" or ended.status < 0:
                return _death(ended, self.limits)
            try:
                reply = json.loads(read_plain(answer, _LONGEST_ANSWER))
                if "error" not in reply:
                    return dict(reply["answer"])
                failure = ToolFailure(str(reply["error"]["kind"]), str(reply["error"]["message"]))
                if not reply["error"]["ours"]:
                    return failure
            except FileNotFoundError:
                return ToolFailure(f"exit status {ended.status}", _printed(ended))
            except (OSError, ValueError, KeyError, TypeError) as error:
                message = f"the process of {self._name} gave an answer that is not understood: {error}"
                raise errors.BiopsyError(message) from error
            raise errors.CheckError(
                f"biopsy cannot call {f'{self._name} {self.release}'.strip()}: {failure.kind}: "
                f"{first_line(failure.message)}; this is not a fault of the tool",
                next_steps=[
                    f"--package {self._tool.package}    takes the newest release, in an environment of its own",
                    "--by 'COMMAND {} {out}'    takes any command",
                ],
            )
        finally:
            answer.unlink(missing_ok=True)

    def _run(self, request: Mapping[str, Any], *, cold: bool) -> Ended:
        if self._server is not None and not cold:
            try:
                return self._server.run(request, lambda: self.limits)
            except ServerGoneError:
                self.close()  # loading failed or ended it: a new process shows why
                Path(request["answer"]).unlink(missing_ok=True)
        return process.run([*self._words, json.dumps(request)], lambda: self.limits)


class CommandTransformer:
    """A command of the user's with ``{}`` for the model, ``{out}`` for the file to write and ``{passes}``.

    ``control`` is the command that only loads and saves; None: onnx loads and saves. ``named`` are the passes that the
    user names.
    """

    release = ""

    def __init__(self, spec: ToolSpec, limits: Limits, control: ToolSpec | None, named: Sequence[str]) -> None:
        self._words = spec.words
        self._control = control.words if control is not None else ()
        self._named = list(named)
        self.limits = limits
        self._takes_passes = any(PASSES in word for word in spec.words)

    def passes(self, source: Path) -> list[str]:
        """The passes that the user names, if the command takes them."""
        return self._named if self._takes_passes else []

    def omission(self, passes: Sequence[str]) -> Omission:
        """Empty: how the command leaves passes out is unknown."""
        return Omission()

    def transform(self, order: TransformOrder, *, cold: bool = False) -> ToolFailure | None:
        """Write the transformed model; returns how the command fails, None if it does not."""
        target, words = Path(order.target), self._words
        remove_written(target)
        if order.passes == () and self._control:
            words = self._control
        elif order.passes == () and not self._takes_passes:
            try:
                onnx.save(onnx.load(order.source), target)
            except Exception as error:  # onnx raises exceptions of many types
                return ToolFailure(type(error).__name__, str(error))
            return None
        passes = self._named if order.passes is None else order.passes
        values = {SOURCE: order.source, TARGET: order.target, PASSES: ",".join(passes)}
        placeholder = re.compile("|".join(map(re.escape, values)))  # in one go: a value may contain a placeholder
        command = [placeholder.sub(lambda match: values[match.group()], word) for word in words]
        try:
            ended = process.run(command, lambda: self.limits)
        except process.CannotStartError as error:
            raise errors.UsageError(f"--by: {command[0]} cannot be started: {error.reason}") from error
        if ended.cause != "itself" or ended.status < 0:
            return _death(ended, self.limits)
        if ended.status != 0:
            lines = [line for line in _printed(ended).splitlines() if line.strip()]
            return ToolFailure(f"exit status {ended.status}", lines[-1] if lines else "")
        return _failure_to_write(written(target))


Transformer: TypeAlias = KnownTransformer | CommandTransformer


def written(target: Path) -> Path:
    """The file that a command wrote for ``target``: the file itself, or that with an ending that the command adds.

    Of several, such as the .xml and the .bin of OpenVINO, it is the one that names the weights.
    """
    beside = [*target.parent.glob(f"{target.name}.*"), *target.parent.glob(f"{target.stem}.*")]
    endings = sorted(beside, key=lambda path: (path.suffix in {".bin", ".data"}, str(path)))
    return target if target.exists() or not endings else endings[0]


def remove_written(target: Path) -> None:
    """Remove what a command wrote for ``target``."""
    while (file := written(target)).is_file():
        file.unlink()


def _death(ended: Ended, allowed: Limits) -> ToolFailure:
    limits = {
        "time": ("Timeout", f"it did not end within {allowed.seconds:g} s"),
        "memory": ("OutOfMemory", "it took more memory than it may"),
    }
    if ended.cause in limits:
        return ToolFailure(*limits[ended.cause])
    return ToolFailure(signal_name(-ended.status), _printed(ended))


def _printed(ended: Ended) -> str:
    return ended.output[-_LONGEST_OUTPUT:].decode("utf-8", "replace").strip()


def _failure_to_write(target: Path) -> ToolFailure | None:
    if target.is_file() and not target.is_symlink() and target.stat().st_size:
        return None
    return ToolFailure("NoModel", "it ended without an error and wrote no model")


ORIGINAL = "{original}"

_MOST_WEIGHTS = (1 << 31) - (1 << 24)
"""Bytes of weights in one file: the limit of protobuf, less some room for the other parts of the model."""


@dataclass(frozen=True, kw_only=True)
class TransformationCheck(Check):
    """Transforms a candidate and judges the result; subclasses say how.

    ``by`` is the tool as the user wrote it, ``scratch`` a folder for transient files. ``passes`` may run; None: the
    default ones. ``is_cold``: each transformation has a new process. ``kept`` is the path where the transformed model
    of the last run stays; None if nobody needs it.
    """

    transformer: Transformer
    by: str
    scratch: Path
    passes: tuple[str, ...] | None = None
    is_cold: bool = False
    kept: Path | None = None
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def line(self, candidate: Path) -> str:
        """The command that transforms and checks one model."""
        return line_of(["biopsy", "debug", "transform", str(candidate), "--by", self.by])

    def cold(self) -> TransformationCheck:
        """The same check with a new process for each transformation."""
        return replace(self, is_cold=True)

    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        """Transform and judge. Raises CheckError if the tool or the engine cannot be run."""
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
        """Transform the candidate and judge the result. Raises BiopsyError if either is impossible."""

    def free_path(self, name: str) -> Path:
        """The path of a new transient file: ``name`` with a number for ``*``."""
        return self.scratch / name.replace("*", str(next(self.numbers)))

    @contextmanager
    def new_target(self) -> Iterator[Path]:
        """The path for a transformed model, which is removed at the end unless it is to be kept."""
        target = self.kept or self.free_path("transformed-*.onnx")
        remove_written(target)
        try:
            yield target
        finally:
            if self.kept is None:
                remove_written(target)

    def samples(self, feeds: Path | None) -> dict[str, tuple[str, ...]]:
        """The ``samples`` and ``names`` of a ``TransformOrder`` from a file of inputs."""
        if feeds is None:
            return {}
        samples = read_feeds(feeds)
        files = [str(self.scratch / f"sample-{number}.npz") for number in range(len(samples))]
        for file, sample in zip(files, samples, strict=True):
            savez(file, *[sample[name] for name in samples[0]])
        return {"samples": tuple(files), "names": tuple(samples[0])}

    def transformed(self, candidate: Path, target: Path, feeds: Path | None) -> ToolFailure | None:
        """Have the tool write the transformed model; returns how it fails, None if it does not.

        The tool gets a copy, because some tools write into the file that they read. External weights are put into the
        copy, because some tools write references to them that are wrong in another folder. Raises CheckError, and what
        ``transform`` of the transformer raises.
        """
        index = index_file(candidate)
        source = self.free_path("whole-*.onnx")
        try:
            if index.has_external_data:
                if index.weight_bytes > _MOST_WEIGHTS:
                    raise errors.CheckError(
                        f"the weights of {candidate} do not fit into one ONNX file (2 GB), as tools get it here",
                        next_steps=["biopsy surgeon extract    cuts out a part of it, to try that instead"],
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
        """Transform a candidate; the failure of the tool as evidence, None if it has written a model."""
        failure = self.transformed(candidate, target, feeds)
        if failure is None:
            return None
        name, message = self.by.partition(":")[0].split()[0], failure.message
        verdict = VerdictFile(outcome="fails", engine=name, stage="transform", kind=failure.kind, message=message)
        return Evidence(status=1, output=message.encode(), verdict=verdict)


@dataclass(frozen=True, kw_only=True)
class EngineCheck(TransformationCheck):
    """Compares the transformed model with the model itself, in the same engine.

    ``feeds`` is a file of inputs; others that a candidate needs are random.
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
        """The file of a candidate's inputs, and its outputs. Raises what the engine raises."""
        feeds = self.feeds_for(candidate)
        return feeds, self.verdicts.engine.run(_input(candidate), feeds)

    def evidence_of(self, candidate: Path, stop: Stop | None) -> Evidence:
        """Run both models and compare their outputs."""
        feeds = None
        try:
            feeds, expected = self.before(candidate)
            with self.new_target() as target:
                failed = self.failure_of_tool(candidate, target, feeds)
                if failed is not None:
                    return failed
                if not target.exists():
                    ending = written(target).suffix
                    raise errors.CheckError(
                        f"{self.by} wrote a {ending} file, which no engine here compares with the model",
                        next_steps=["--check COMMAND {}    any command that tells whether such a file is right"],
                    )
                verdict = self.verdicts.verdict(_input(candidate), expected, target, feeds)
                return Evidence(status=0 if verdict.outcome == "passes" else 1, verdict=verdict)
        except (errors.EngineFailure, errors.CannotCompare, errors.DoesNotFit, errors.ModelError) as error:
            return _invalid(f"the engine does not run the model itself: {error.message}")
        except CannotTellError as error:
            return _invalid(str(error))
        finally:
            if feeds is not None and feeds != self.feeds:
                feeds.unlink(missing_ok=True)

    def feeds_for(self, candidate: Path) -> Path:
        """A new file with exactly the inputs of a candidate."""
        types = index_file(candidate).fed_types()

        def only_inputs(feeds: Sequence[Feed]) -> list[Feed]:
            return [{name: feed[name] for name in feed if name in types} for feed in feeds]

        path = self.free_path("fed-*.safetensors")
        inputs = Inputs(given=only_inputs(read_feeds(self.feeds)))
        write_feeds(path, only_inputs(feeds_of_model(types, inputs).feeds))
        return path


@dataclass(frozen=True, kw_only=True)
class UserCommandCheck(TransformationCheck):
    """Runs a command of the user's on the transformed model, and on the model itself."""

    question: CommandQuestion
    checks: dict[tuple[str, ...], Check] = field(default_factory=dict)

    def close(self) -> None:
        """End warm processes."""
        for check in self.checks.values():
            check.close()

    def fails_before(self, candidate: Path, stop: Stop | None = None) -> bool:
        """Whether the model itself fails the command; False if the command compares both models itself."""
        if any(ORIGINAL in word for word in self.question.words):
            return False
        return self._check_for(candidate).run(candidate, stop).status != 0

    def evidence_of(self, candidate: Path, stop: Stop | None) -> Evidence:
        """Run the command on the model itself, and on the transformed model."""
        if self.fails_before(candidate, stop):
            return _invalid("the model itself does not pass the check")
        with self.new_target() as target:
            failed = self.failure_of_tool(candidate, target, None)
            return failed or self._check_for(candidate).run(written(target), stop)

    def _check_for(self, candidate: Path) -> Check:
        words = tuple(word.replace(ORIGINAL, str(candidate)) for word in self.question.words)
        if words not in self.checks:
            self.checks[words] = command_check(words, str(candidate), self.question.timeout, self.question.memory)
        check = self.checks[words]
        return check.cold() if self.is_cold else check


def _input(path: Path) -> ModelInput:
    return ModelInput(b"", path.parent, path)


def _invalid(message: str) -> Evidence:
    return Evidence(status=125, verdict=VerdictFile(outcome="invalid", message=message))


def judge_with(check: TransformationCheck, runs: CheckRuns, model: Path, description: str) -> Judged:
    """Run a check on a model, as one of the ``runs`` of a search. Raises CheckError if it cannot be run."""
    judged = runs.once(lambda: check.run(model), line=check.line(model), description=description)
    if judged.outcome is Outcome.INFRASTRUCTURE:
        raise errors.CheckError(f"the check could not be run: {judged.reason}")
    return judged


_MOST_SETS = 4
"""How many minimal sets of passes are searched for; the shortest are the result."""


@dataclass(kw_only=True)
class PassSearch:
    """The search for the passes that break a model, the ``piece``; ``named`` are those that may run, None for all.

    It finds the smallest set that breaks the model alone, and the smallest sets without which the model is right.
    """

    check: TransformationCheck
    runs: CheckRuns
    piece: Path
    named: Sequence[str] | None
    known: dict[frozenset[str], Outcome] = field(default_factory=dict)
    findings: PassFindings = field(default_factory=PassFindings)

    def run(self, whole_check: TransformationCheck, whole_model: Path) -> None:
        """Search, and verify the result in fresh processes, on the piece and on the whole model.

        ``findings`` are what is known at any time.
        """
        every = self._passes_of(self.piece)
        self.findings = PassFindings(all=tuple(every), complete=False)

        def others(passes: Sequence[str]) -> list[str]:
            return [name for name in every if name not in passes]

        def fails(passes: Sequence[str]) -> bool:
            return self._outcome(passes, f"only {some_of(passes, 3)}") is Outcome.REPRODUCES

        def is_right_without(passes: Sequence[str]) -> bool:
            return self._outcome(others(passes), f"without {some_of(passes, 3)}") is Outcome.PASSES

        if not every or not fails(every):
            self.findings = PassFindings(all=tuple(every))
            return
        alone = shortest(drive(minimal_subsets(every, _MOST_SETS), first_that(fails))[0])[0]
        self.findings = replace(self.findings, alone=tuple(alone))
        sets, complete = drive(minimal_subsets([*others(alone), *alone], _MOST_SETS), first_that(is_right_without))
        without = shortest(sets)
        if not without:
            self.findings = replace(self.findings, complete=complete)
            return
        proof = self.runs.rate.with_runs(1, 1).proof
        judged_whole = None
        if whole_model != self.piece:
            kept = tuple(name for name in self._passes_of(whole_model) if name not in without[0])
            fresh_check = replace(whole_check, passes=kept, is_cold=True)
            description = f"the whole model without {some_of(without[0], 3)}"
            once = partial(judge_with, fresh_check, self.runs, whole_model, description)
            judged_whole, _ = until_no_pass(once, proof)
        still_fails, _ = until_no_pass(
            lambda: self._judged(alone, f"fresh: only {some_of(alone, 3)}", cold=True), self.runs.rate.needed
        )
        is_right, _ = until_no_pass(
            lambda: self._judged(others(without[0]), f"fresh: without {some_of(without[0], 3)}", cold=True),
            max(self.runs.rate.needed, proof - 1),  # one run has passed in the search
        )
        self.findings = replace(
            self.findings,
            without=tuple(map(tuple, without)),
            complete=complete,
            verified=still_fails.outcome is Outcome.REPRODUCES and is_right.outcome is Outcome.PASSES,
            whole_is_right=None if judged_whole is None else judged_whole.outcome is Outcome.PASSES,
            whole_failure="" if judged_whole is None else judged_whole.reason,
            omission=self.check.transformer.omission(without[0]),
        )

    def _passes_of(self, model: Path) -> list[str]:
        every = self.check.transformer.passes(model)
        return every if self.named is None else [name for name in every if name in self.named]

    def _judged(self, passes: Sequence[str], description: str, *, cold: bool = False) -> Judged:
        return judge_with(replace(self.check, passes=tuple(passes), is_cold=cold), self.runs, self.piece, description)

    def _outcome(self, passes: Sequence[str], description: str) -> Outcome:
        key = frozenset(passes)
        if key not in self.known:
            judged, _ = until_no_pass(lambda: self._judged(passes, description), self.runs.rate.needed)
            self.known[key] = judged.outcome
        return self.known[key]
