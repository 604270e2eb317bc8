"""Finding how a tool breaks a model: the control, the whole model, its smallest piece, the passes to blame."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from biopsy import errors, events
from biopsy.checks.command_line import NO_WORDS, parse
from biopsy.checks.judge import MeasuredRate
from biopsy.checks.outcome import Judged, Outcome
from biopsy.engines.registry import PLAIN
from biopsy.model.index import index_file
from biopsy.model.load import parse as load_parse
from biopsy.model.load import read_bytes
from biopsy.model.sources import sources_of
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import write_whole
from biopsy.questions.transformations.check import (
    CommandTransformer,
    EngineCheck,
    KnownTransformer,
    PassSearch,
    TransformationCheck,
    Transformer,
    UserCommandCheck,
    judge_with,
    written,
)
from biopsy.questions.transformations.question import (
    CONTROL,
    INTERRUPTION,
    PASSES,
    SOURCE,
    STAGE,
    CommandQuestion,
    Fault,
    JudgedIn,
    PassFindings,
    Piece,
    SameEngine,
    SecondOpinion,
    TransformationFindings,
    TransformationQuestion,
    after_file,
)
from biopsy.questions.transformations.verdict import EngineVerdicts
from biopsy.reduction.reduce import RecordingOptions, ReductionJob, run_job
from biopsy.reduction.result import Reduction, Target, inputs_file
from biopsy.session.checked_search import SearchOptions
from biopsy.session.trial import CheckRuns, until_no_pass
from biopsy.tensors.files import read_feeds, write_feeds
from biopsy.tensors.results import Feed
from biopsy.text import ask_for, first_line, printable, shortened, similar, some_of

SECOND_ENGINE = PLAIN[1]
"""The engine of the second opinion: it shares no code with the others."""

_FRESH_RUNS = 2

_LEAST_LIMIT, _TIMES_THE_CONTROL = 10.0, 20
"""Seconds for a tool that has been seen not to end, and how many times what it takes without passes."""


def find_transformation(
    question: TransformationQuestion, listener: events.Listener = events.ignore
) -> TransformationFindings:
    """Find how a tool breaks a model.

    Raises OriginalPasses if the transformed model is right, or if the model fails before any transformation;
    CheckError if nothing can be concluded, for example because the outputs differ from run to run; UsageError,
    ModelError and EngineMissing.
    """
    with ExitStack() as stack:
        scratch = stack.enter_context(temporary_folder("biopsy-"))
        feeds = scratch / "inputs.safetensors"  # not written if a command decides
        decides, tool = question.decides, question.tool
        transformer: Transformer
        if tool.words:
            transformer = CommandTransformer(tool, question.limits, question.control, question.passes or ())
        else:
            transformer = known = stack.enter_context(
                closing(KnownTransformer(tool, question.python, scratch, question.limits))
            )
            known.learn_release()
        if isinstance(decides, SameEngine):
            write_feeds(feeds, decides.feeds())
        require_passes(question, transformer)
        fields: dict[str, Any] = {
            "transformer": transformer, "by": tool.text, "scratch": scratch, "passes": question.passes,
        }  # fmt: skip
        check: TransformationCheck
        if isinstance(decides, CommandQuestion):
            if not any(place in word for word in decides.words for place in (SOURCE, str(question.index.path))):
                raise errors.UsageError(
                    f"--check: no word of it is {SOURCE}, the transformed model, so it says the same of every model"
                )
            check = stack.enter_context(closing(UserCommandCheck(question=decides, **fields)))
        else:
            verdicts = stack.enter_context(EngineVerdicts(decides, tool.rounds_to, scratch))
            check = EngineCheck(verdicts=verdicts, feeds=feeds, **fields)
            check.start()
        search = _TransformationSearch(question=question, check=check, scratch=scratch, feeds=feeds, listener=listener)
        return search.run()


@dataclass(kw_only=True)
class _TransformationSearch:
    """The steps of a search."""

    question: TransformationQuestion
    check: TransformationCheck
    scratch: Path
    feeds: Path
    listener: events.Listener

    def __post_init__(self) -> None:
        assert self.question.index.path is not None
        self._model = self.question.index.path
        self._runs = CheckRuns(STAGE, None, self.listener, first=1)
        self._title = _title(self.question, self.check.transformer)

    def run(self) -> TransformationFindings:
        """Take all steps."""
        started, question = time.monotonic(), self.question
        self._require_right_original()
        fault, judged = self._failure()
        signature = self._runs.take_failure(judged)
        self._limit_hangs(judged)
        passes = () if fault == "control" else question.passes
        check = replace(self.check, passes=passes)
        reduction = self._reduced(check) if question.reduces else None
        small = self._model if reduction is None else reduction.output
        on_piece = check
        if reduction is not None and reduction.inputs is not None and isinstance(check, EngineCheck):
            on_piece = check.fed(reduction.inputs)
        stopped = None if reduction is None else reduction.stopped
        passes_to_blame = PassFindings()
        if fault == "transformation" and question.finds_passes:
            search = PassSearch(check=on_piece, runs=self._runs, piece=small, named=question.passes)
            try:
                search.run(self.check, self._model)
            except KeyboardInterrupt:
                stopped = INTERRUPTION
            passes_to_blame = search.findings
        where = JudgedIn(rate=self._runs.rate)
        if stopped != INTERRUPTION and isinstance(question.decides, SameEngine) and isinstance(on_piece, EngineCheck):
            where = replace(
                where,
                engine=question.decides.engine,
                version=on_piece.verdicts.engine.version(),
                samples=len(read_feeds(self.feeds)),
                second_opinion=self._second_opinion(small, on_piece, question.decides, judged),
            )
        return TransformationFindings(
            tool=question.tool.text,
            release=self.check.transformer.release,
            where=where,
            fault=fault,
            judged=judged,
            signature=signature,
            piece=self._piece(small, reduction, on_piece),
            passes=passes_to_blame,
            reduction=reduction,
            checks=self._runs.checks + (reduction.checks if reduction else 0),
            seconds=time.monotonic() - started,
            stopped=stopped,
        )

    def _require_right_original(self) -> None:
        """Raise OriginalPasses if the model itself fails, CheckError if its outputs differ from run to run."""
        model, check = self._model, self.check
        if isinstance(check, UserCommandCheck) and check.fails_before(model):
            raise errors.OriginalPasses(
                f"{model} does not pass the check before it is transformed: no tool is to blame",
                next_steps=["--check names the transformed model as {}, and the model itself as {original}"],
            )
        if not isinstance(check, EngineCheck):
            return
        try:
            first, second = (check.before(model)[1] for _ in range(2))
        except errors.EngineFailure as error:
            raise errors.OriginalPasses(
                f"the engine fails on {model} before it is transformed, so no tool is to blame: "
                f"{first_line(error.message)}",
                next_steps=[f"biopsy diagnose {model}"],
            ) from error
        values = [value for outputs in first for value in outputs.values() if value.size]
        if all(value.dtype.kind in "fc" and not np.isfinite(value).any() for value in values):
            raise errors.CheckError(
                f"the outputs of {model} are never finite: nothing can be compared",
                next_steps=["--load-inputs FILE    with inputs for which the outputs are finite"],
            )
        if not check.verdicts.agree(first, second):
            raise errors.CheckError(
                f"the outputs of {model} differ from run to run of the same engine: nothing can be compared",
                next_steps=["biopsy debug repeat    shows how it varies; is there a random operator?"],
            )

    def _limit_hangs(self, judged: Judged) -> None:
        """If the tool does not end, give it less time from now on: 20 times what it took without passes."""
        transformer = self.check.transformer
        if judged.evidence.verdict.kind == "Timeout" and transformer.limits.seconds is not None:
            seconds = min(transformer.limits.seconds, max(_LEAST_LIMIT, _TIMES_THE_CONTROL * self._control_seconds))
            transformer.limits = replace(transformer.limits, seconds=seconds)
            text = f"what does not end within {seconds:.0f} s counts as not ending from here on"
            self.listener(events.Remark(f"timeout    {text}"))

    def _judged(self, passes: tuple[str, ...] | None, description: str, *, cold: bool = False) -> Judged:
        return judge_with(replace(self.check, passes=passes, is_cold=cold), self._runs, self._model, description)

    def _failure(self) -> tuple[Fault, Judged]:
        """The failure of the control, or else of the transformation. Raises OriginalPasses if neither fails."""
        control = self._judged((), CONTROL)
        self._control_seconds = control.evidence.seconds
        _require_conclusive(control, "the model that was only loaded and saved")
        if control.outcome is not Outcome.PASSES:
            return "control", control
        transformed = self._judged(self.question.passes, "the whole model")
        _require_conclusive(transformed, "the transformed model")
        if transformed.outcome is Outcome.PASSES:
            fault, transformed = self._failure_with_wider_sample() or ("transformation", transformed)
            if fault == "control":
                return fault, transformed
        transformed = self._once_more(transformed)
        if transformed.outcome is Outcome.PASSES:
            raise errors.OriginalPasses(f"what {self._title} makes of {self._model} is right: nothing is to blame")
        self._require_steady_control()
        if self._runs.rate.is_flaky:
            text = "what the tool makes of the model is right only sometimes, and what is only loaded and saved always"
            self.listener(events.Remark(f"flaky      {text}", warning=True))
        return "transformation", transformed

    def _require_steady_control(self) -> None:
        """Run the control as often as proves that it passes where the transformed model fails.

        Raises CheckError if it fails now: then the engine or the check contradicts itself, and the tool may be right.
        """
        for _ in range(self._runs.rate.proof - 1):
            judged = self._judged((), f"{CONTROL}, once more")
            if judged.outcome is not Outcome.PASSES:
                raise errors.CheckError(
                    "not deterministic: the model that was only loaded and saved is right in some runs, and wrong in "
                    f"others ({judged.reason}), so nothing can be said of {self._title}",
                    next_steps=["biopsy debug repeat    shows how often the check fails"],
                )

    def _failure_with_wider_sample(self) -> tuple[Fault, Judged] | None:
        """The failure with one more sample, of larger numbers than the others; None if there is none.

        A sample that shows a failure is used from here on. One for which the model's outputs are not finite is not.
        """
        decides, check = self.question.decides, self.check
        wider = decides.wider() if isinstance(decides, SameEngine) else None
        if wider is None or not isinstance(check, EngineCheck):
            return None
        samples = read_feeds(self.feeds)
        write_feeds(self.feeds, [*samples, wider])
        if _outputs_are_finite(check, self._model):
            steps: list[tuple[Fault, tuple[str, ...] | None, str]] = [
                ("control", (), CONTROL),
                ("transformation", self.question.passes, "the whole model"),
            ]
            for fault, passes, description in steps:
                judged = self._judged(passes, f"{description}, a wider range")
                if judged.outcome is Outcome.REPRODUCES:
                    return fault, judged
                if judged.outcome is not Outcome.PASSES:
                    break
        write_feeds(self.feeds, samples)
        return None

    def _once_more(self, first: Judged) -> Judged:
        """The failure if one of some fresh processes fails, else ``first``: some tools are flaky.

        The rate of the failure is then known.
        """
        runs = [first]
        if first.evidence.verdict.kind == "Timeout":
            return first
        for _ in range(_FRESH_RUNS):
            runs.append(self._judged(self.question.passes, "the whole model, afresh", cold=True))
            if len({run.outcome is Outcome.PASSES for run in runs}) > 1:
                break
        failed = sum(run.outcome is not Outcome.PASSES for run in runs)
        self._runs.believe(MeasuredRate(failed=failed, runs=len(runs)))
        return next((run for run in runs if run.outcome is not Outcome.PASSES), first)

    def _reduced(self, check: TransformationCheck) -> Reduction:
        question = self.question
        decides, compares = question.decides, isinstance(question.decides, SameEngine)
        feeds: Sequence[Feed] = read_feeds(self.feeds) if compares else []
        job = ReductionJob(
            target=Target(question.output or self.scratch / "piece.onnx"),
            search=SearchOptions(candidate=self.scratch / "candidate.onnx", budget=question.budget),
            recording=RecordingOptions(samples=(lambda: feeds) if compares else None),
            values="free" if compares else "auto",
            command=NO_WORDS if isinstance(decides, SameEngine) else parse(decides.words),
            feeds_recorded=compares,
        )
        return run_job(question.index, check, job, self.listener)

    def _piece(self, small: Path, reduction: Reduction | None, check: TransformationCheck) -> Piece:
        """Both models of the piece, written beside each other if the question has an ``output``."""
        output = self.question.output
        after = self.scratch / "after.onnx"
        inputs = None if reduction is None else reduction.inputs
        if isinstance(check, EngineCheck) and inputs is None:
            inputs = check.feeds_for(small)
            if output is not None:
                beside = inputs_file(output)
                write_feeds(beside, read_feeds(inputs))
                inputs = beside
        is_written = self._is_transformed(check, small, after, inputs)
        after_path = None if not after.is_file() or output is None else after_file(output)
        index, index_after = index_file(small), None
        after_lines: tuple[str, ...] = ()
        if is_written and not after.is_file():
            after_lines = (f"no ONNX model, but a {written(after).suffix} file",)
        elif is_written:
            with suppress(errors.ModelError):
                index_after = index_file(after)
            try:
                after_lines = model_lines(after)
            except errors.ModelError as error:
                after_lines = (f"no model: {first_line(error.summary)}",)
        if after_path is not None:
            data = after.read_bytes()
            if index_after is not None and index_after.has_external_data:
                data = onnx.load(after).SerializeToString()
            write_whole(after_path, [data])
        return Piece(
            path=output if reduction is not None and output is not None else None,
            after_path=after_path,
            inputs=inputs if output is not None else None,
            nodes_before=len(self.question.index.nodes),
            nodes=reduction.nodes if reduction is not None else tuple(node.label for node in index.nodes),
            before=model_lines(small),
            after=after_lines,
            nodes_after=() if index_after is None else tuple(node.label for node in index_after.nodes),
            sources=reduction.sources if reduction is not None else sources_of(index),
        )

    def _is_transformed(self, check: TransformationCheck, small: Path, after: Path, inputs: Path | None) -> bool:
        """Whether the tool writes a model to ``after``; if it is flaky, one that fails."""
        if not self._runs.rate.is_flaky:
            return check.cold().transformed(small, after, inputs) is None
        keeping = replace(check.cold(), kept=after)
        run = partial(judge_with, keeping, self._runs, small, "the piece, to keep a model that fails")
        judged, _ = until_no_pass(run, self._runs.rate.proof)
        return judged.evidence.verdict.stage != "transform"

    def _second_opinion(self, small: Path, check: EngineCheck, decides: SameEngine, judged: Judged) -> SecondOpinion:
        """The verdict of another engine: if it is "right", the first engine may be wrong."""
        if decides.engine.startswith(SECOND_ENGINE) or judged.evidence.verdict.stage != "compare":
            return ""
        other = replace(decides, engine=SECOND_ENGINE)
        with EngineVerdicts(other, self.question.tool.rounds_to, self.scratch) as verdicts:
            verdict = replace(check, verdicts=verdicts).run(small).verdict
        if verdict.outcome == "passes":
            return "right"
        return "wrong" if verdict.outcome == "fails" and verdict.stage == "compare" else ""


def _outputs_are_finite(check: EngineCheck, model: Path) -> bool:
    """Whether the engine runs a model and all its outputs are finite."""
    try:
        values = [value for outputs in check.before(model)[1] for value in outputs.values()]
    except errors.BiopsyError:
        return False
    return all(value.dtype.kind not in "fc" or bool(np.isfinite(value).all()) for value in values)


def _title(question: TransformationQuestion, transformer: Transformer) -> str:
    return f"{question.tool.text} {transformer.release}".strip()


def _require_conclusive(judged: Judged, model: str) -> None:
    if judged.outcome not in {Outcome.PASSES, Outcome.REPRODUCES}:
        raise errors.CheckError(
            f"nothing can be concluded about {model}: {judged.reason}",
            next_steps=["--atol 1e-2 --rtol 1e-2    then decide alone"],
        )


def require_passes(question: TransformationQuestion, transformer: Transformer) -> None:
    """Raise UsageError for passes that would not run, because then the model is right whatever the tool does."""
    named = question.passes or ()
    assert question.index.path is not None
    known = transformer.passes(question.index.path)
    if question.tool.words and named and not known:
        raise errors.UsageError(
            f"--passes: the command has no {PASSES}, so it is not told which passes may run",
            next_steps=[f"--by '{question.tool.text} {PASSES}'"],
        )
    unknown = [name for name in named if known and name not in known]
    if unknown:
        raise errors.UsageError(
            f"--passes: no pass {unknown[0]!r} of {_title(question, transformer)} runs on {question.index.path}",
            next_steps=[*ask_for(similar(unknown[0], known)), f"those that do: {some_of(known, 12)}"],
        )


_MOST_VALUES = 8
_LONGEST_LINE = 160
_MOST_LINES = 200
_NARROWEST = 60


def model_lines(path: Path) -> tuple[str, ...]:
    """Inputs, weights, nodes and outputs of a model, a line each, shortened. Raises ModelError."""
    model = load_parse(read_bytes(path), path)
    lines = [shortened(printable(line), _LONGEST_LINE) for line in _lines(model.graph)]
    more = len(lines) - _MOST_LINES
    return tuple(lines if more <= 0 else [*lines[:_MOST_LINES], f"... {more} more lines"])


def side_by_side(left: Sequence[str], right: Sequence[str], width: int, head: tuple[str, str]) -> list[str]:
    """Two texts in columns, the left one as wide as it needs, at most half of ``width``; 0: no limit."""
    width = max(_NARROWEST, width) if width else 2 * _LONGEST_LINE + 3
    column = min((width - 3) // 2, max(map(len, [head[0], *left])))
    rows = zip_longest([head[0], *left], [head[1], *right], fillvalue="")
    return [f"{shortened(a, column):<{column}}   {shortened(b, width - column - 3)}".rstrip() for a, b in rows]


def _lines(graph: onnx.GraphProto) -> Iterator[str]:
    stored = {weight.name for weight in graph.initializer}
    for value in graph.input:
        if value.name not in stored:
            yield f"in  {_value(value)}"
    for weight in graph.initializer:
        yield f"    {weight.name} = {_weight(weight)}"
    for sparse in graph.sparse_initializer:
        yield f"    {sparse.values.name} = sparse {_weight(sparse.values)} at {_weight(sparse.indices)}"
    for node in graph.node:
        yield f"    {_node(node)}"
    for value in graph.output:
        yield f"out {_value(value)}"


def _node(node: onnx.NodeProto) -> str:
    attributes = ", ".join(f"{attribute.name}={_attribute(attribute)}" for attribute in node.attribute)
    operator = f"{node.domain}.{node.op_type}" if node.domain not in {"", "ai.onnx"} else node.op_type
    listed = f"<{attributes}>" if attributes else ""
    return f"{', '.join(node.output)} = {operator}{listed}({', '.join(node.input)})"


def _attribute(attribute: onnx.AttributeProto) -> str:
    kinds = type(attribute)
    if attribute.type == kinds.TENSOR:
        return _weight(attribute.t)
    if attribute.type in {kinds.GRAPH, kinds.GRAPHS}:
        return "{...}"
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        return f"{value:g}"
    return str(list(value)) if not isinstance(value, int | str) else str(value)


def _weight(weight: onnx.TensorProto) -> str:
    kind = helper.tensor_dtype_to_string(weight.data_type).partition(".")[2].lower()
    shape = f"{kind}{list(weight.dims)}"
    if math.prod(weight.dims) > _MOST_VALUES or weight.data_location == weight.EXTERNAL:
        return shape
    try:
        values = numpy_helper.to_array(weight).reshape(-1).tolist()
    except (ValueError, TypeError):
        return shape
    return f"{shape} {{{', '.join(f'{item:g}' if isinstance(item, float) else str(item) for item in values)}}}"


def _value(value: onnx.ValueInfoProto) -> str:
    if not value.type.HasField("tensor_type"):
        return value.name
    kind = value.type.tensor_type
    name = helper.tensor_dtype_to_string(kind.elem_type).partition(".")[2].lower()
    sizes = [str(dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else "?")) for dim in kind.shape.dim]
    return f"{value.name}: {name}[{', '.join(sizes)}]"
