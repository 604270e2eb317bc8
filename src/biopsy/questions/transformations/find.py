"""Finding what a tool does wrong: the control, the whole model, its smallest piece, the passes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors, events
from biopsy.checks.command_line import NO_WORDS, parse
from biopsy.checks.outcome import Judged, Outcome
from biopsy.engines.registry import PLAIN
from biopsy.model.index import index_file
from biopsy.model.load import parse as load_parse
from biopsy.model.load import read_bytes
from biopsy.model.sources import sources_of
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import write_whole
from biopsy.questions.transformations.check import (
    STAGE,
    AskedPasses,
    Asking,
    CommandOfUser,
    EngineCheck,
    PassSearch,
    TransformationCheck,
)
from biopsy.questions.transformations.findings import (
    Fault,
    JudgedIn,
    PassFindings,
    Piece,
    SecondOpinion,
    TransformationFindings,
    after_file,
)
from biopsy.questions.transformations.question import (
    PASSES,
    SOURCE,
    CommandQuestion,
    SameEngine,
    TransformationQuestion,
)
from biopsy.questions.transformations.transformer import CommandTransformer, KnownTransformer, SampleFiles, Transformer
from biopsy.questions.transformations.verdict import EngineVerdicts
from biopsy.reduction.reduce import RecordingOptions, ReductionJob, run_job
from biopsy.reduction.result import Reduction, Target, inputs_file
from biopsy.session.checked_search import SearchOptions
from biopsy.session.trial import CheckRuns
from biopsy.tensors.files import read_feeds, write_feeds
from biopsy.tensors.results import Feed
from biopsy.text import ask_for, first_line, printable, shortened, similar, some_of

if TYPE_CHECKING:
    import onnx

ANOTHER = PLAIN[1]
"""The engine that is asked too: it shares no code with the others."""

CONTROL = "only load and save"
_FRESH = 2
_IN_TURN: tuple[tuple[Fault, tuple[str, ...] | None, str], ...] = (
    ("control", (), CONTROL),
    ("transformation", None, "the whole model"),
)
_FLAKY = "the tool does not do the same each time: what it makes of the model is right only sometimes"


def find_transformation(
    question: TransformationQuestion, listener: events.Listener = events.ignore
) -> TransformationFindings:
    """Find what a tool does wrong to a model.

    Raises OriginalPasses if the transformed model is right, or if the model fails before any transformation;
    CheckError if nobody can tell, as when the model gives other values in each run; UsageError, ModelError and
    EngineMissing.
    """
    with temporary_folder("biopsy-") as scratch, _transformer(question, scratch) as transformer:
        feeds = scratch / "inputs.safetensors"  # none where a command decides
        if isinstance(question.decides, SameEngine):
            write_feeds(feeds, question.decides.feeds())
        require_passes(question, transformer)
        with _check(question, transformer, scratch, feeds) as check:
            return _TransformationSearch(question, transformer, check, scratch, feeds, listener).run()


@contextmanager
def _transformer(question: TransformationQuestion, scratch: Path) -> Iterator[Transformer]:
    if question.tool.words:
        named = question.passes or ()
        yield CommandTransformer(question.tool, question.limits, question.control, named)
        return
    known = KnownTransformer(question.tool, question.python, scratch, question.limits)
    with known:
        known.learn_release()
        yield known


@contextmanager
def _check(
    question: TransformationQuestion, transformer: Transformer, scratch: Path, feeds: Path
) -> Iterator[TransformationCheck]:
    asked, by = AskedPasses(passes=question.passes), question.tool.text
    decides = question.decides
    if isinstance(decides, CommandQuestion):
        require_candidate(decides, question)
        command = CommandOfUser(transformer, by, scratch, decides, asked)
        try:
            yield command
        finally:
            command.close()
        return
    with EngineVerdicts(decides, question.tool.rounds_to, scratch) as verdicts:
        verdicts.start()
        yield EngineCheck(transformer, by, scratch, verdicts, feeds, asked)


class _TransformationSearch:
    """The steps, one after the other."""

    def __init__(
        self,
        question: TransformationQuestion,
        transformer: Transformer,
        check: TransformationCheck,
        scratch: Path,
        feeds: Path,
        listener: events.Listener,
    ) -> None:
        assert question.index.path is not None
        self._question = question
        self._model = question.index.path
        self._transformer = transformer
        self._check = check
        self._scratch = scratch
        self._feeds = feeds
        self._listener = listener
        self._runs = CheckRuns(STAGE, None, listener, first=1)
        self._asking = Asking(check, self._runs)

    def run(self) -> TransformationFindings:
        started = time.monotonic()
        engine_version = self._require_right_original()
        fault, judged = self._failure()
        signature = self._runs.take_failure(judged)
        passes = () if fault == "control" else self._question.passes
        reduction = self._reduced(passes) if self._question.reduces else None
        small = self._model if reduction is None else reduction.output
        found = PassFindings()
        if fault == "transformation" and self._question.finds_passes:
            on_piece = Asking(self._check_of_piece(reduction), self._runs)
            search = PassSearch(on_piece, self._transformer, small, self._question.passes)
            found = search.run(self._asking, self._model)
        second = self._second_opinion(small, reduction, passes, judged)
        return TransformationFindings(
            tool=self._question.tool.text,
            release=self._transformer.release,
            where=self._where(engine_version, second),
            fault=fault,
            judged=judged,
            signature=signature,
            piece=self._piece(small, reduction, passes),
            passes=found,
            reduction=reduction,
            checks=self._runs.checks + (reduction.checks if reduction else 0),
            seconds=time.monotonic() - started,
            stopped=reduction.stopped if reduction else None,
        )

    def _where(self, engine_version: str, second: SecondOpinion) -> JudgedIn:
        decides = self._question.decides
        if isinstance(decides, CommandQuestion):
            return JudgedIn()
        samples = len(read_feeds(self._feeds))
        return JudgedIn(engine=decides.engine, version=engine_version, samples=samples, second_opinion=second)

    # What must hold before anything is blamed

    def _require_right_original(self) -> str:
        """Raise OriginalPasses if the model fails by itself, CheckError if it is never twice the same."""
        if isinstance(self._check, CommandOfUser):
            itself = self._check.before(self._model)
            if itself is not None and itself.status != 0:
                raise errors.OriginalPasses(
                    f"{self._model} does not pass the check before it is transformed: no tool is to blame",
                    next_steps=["--check names the transformed model as {}, and the model itself as {original}"],
                )
            return ""
        assert isinstance(self._check, EngineCheck)
        try:
            steady = self._check.is_steady(self._model)
        except errors.EngineFailure as error:
            raise errors.OriginalPasses(
                f"the engine fails on {self._model} before it is transformed, so no tool is to blame: "
                f"{first_line(error.message)}",
                next_steps=[f"biopsy diagnose {self._model}"],
            ) from error
        if self._check.is_mute(self._model):
            raise errors.CheckError(
                f"{self._model} gives no finite number: nothing can be compared",
                next_steps=["--load-inputs FILE    with inputs for which the outputs are numbers"],
            )
        if not steady:
            raise errors.CheckError(
                f"{self._model} gives other values in each run of the same engine: nothing can be compared",
                next_steps=["biopsy debug repeat    shows how it varies; is there a random operator?"],
            )
        return self._check.engine_version

    def _failure(self) -> tuple[Fault, Judged]:
        """The control, then the transformation."""
        control = self._asking.judged(self._model, (), CONTROL)
        _require_told(control, "what only was loaded and saved")
        if control.outcome is not Outcome.PASSES:
            return "control", control
        whole = self._asking.judged(self._model, self._question.passes, "the whole model")
        _require_told(whole, "the transformed model")
        if whole.outcome is Outcome.PASSES:
            fault, whole = self._wider() or ("transformation", whole)
            if fault == "control":
                return fault, whole
        whole = self._once_more(whole)
        if whole.outcome is Outcome.PASSES:
            raise errors.OriginalPasses(
                f"what {_title(self._question, self._transformer)} makes of {self._model} is right: nothing is to blame"
            )
        return "transformation", whole

    def _wider(self) -> tuple[Fault, Judged] | None:
        """The same with one more sample, of numbers that the others do not reach; None where that tells nothing.

        Where it shows a failure it is among the samples from here on. The model need not be defined for it.
        """
        decides, check = self._question.decides, self._check
        wider = decides.wider() if isinstance(decides, SameEngine) else None
        if wider is None or not isinstance(check, EngineCheck):
            return None
        given = read_feeds(self._feeds)
        write_feeds(self._feeds, [*given, wider])
        if check.gives_numbers(self._model):
            for fault, passes, told in _IN_TURN:
                asked = self._question.passes if passes is None else passes
                judged = self._asking.judged(self._model, asked, f"{told}, a wider range")
                if judged.outcome is Outcome.REPRODUCES:
                    return fault, judged
                if judged.outcome is not Outcome.PASSES:
                    break
        write_feeds(self._feeds, given)
        return None

    def _once_more(self, first: Judged) -> Judged:
        """The transformation in fresh processes: some tools do not do the same in each. The failure, if one fails."""
        every = [first]
        if first.evidence.verdict.kind == "Timeout":
            return first
        for _ in range(_FRESH):
            every.append(self._asking.judged(self._model, self._question.passes, "the whole model, afresh", cold=True))
            if len({one.outcome is Outcome.PASSES for one in every}) > 1:
                self._listener(events.Remark(f"flaky      {_FLAKY}", warning=True))
                break
        return next((one for one in every if one.outcome is not Outcome.PASSES), first)

    # The piece

    def _reduced(self, passes: Sequence[str] | None) -> Reduction:
        question = self._question
        asked = AskedPasses(passes=passes)
        decides, compares = question.decides, isinstance(question.decides, SameEngine)
        feeds: Sequence[Feed] = read_feeds(self._feeds) if compares else []
        job = ReductionJob(
            target=Target(question.output or self._scratch / "piece.onnx"),
            search=SearchOptions(candidate=self._scratch / "candidate.onnx", budget=question.budget),
            recording=RecordingOptions(samples=(lambda: feeds) if compares else None),
            values="free" if compares else "auto",
            command=NO_WORDS if isinstance(decides, SameEngine) else parse(decides.words),
            feeds_recorded=compares,
        )
        return run_job(question.index, self._check.told(asked), job, self._listener)

    def _check_of_piece(self, reduction: Reduction | None) -> TransformationCheck:
        """The check, which feeds the piece what its reduction fed it."""
        if reduction is None or reduction.inputs is None or not isinstance(self._check, EngineCheck):
            return self._check
        return self._check.fed(reduction.inputs)

    def _piece(self, small: Path, reduction: Reduction | None, passes: Sequence[str] | None) -> Piece:
        """Both models of the piece, written beside each other if that is asked for."""
        output = self._question.output
        after = self._scratch / "after.onnx"
        fed = self._fed(small, reduction)
        samples = (
            self._check.samples(fed) if fed is not None and isinstance(self._check, EngineCheck) else SampleFiles()
        )
        asked = AskedPasses(passes=passes, cold=True)
        failed = self._check.told(asked).transformed(small, after, samples)
        written = None if failed is not None or output is None else after_file(output)
        if written is not None:
            write_whole(written, [_self_contained(after)])
        index = index_file(small)
        return Piece(
            path=output if reduction is not None and output is not None else None,
            after_path=written,
            inputs=fed if output is not None else None,
            nodes_before=len(self._question.index.nodes),
            nodes=reduction.nodes if reduction is not None else tuple(node.label for node in index.nodes),
            before=model_lines(small),
            after=_lines_of(after) if failed is None else (),
            made=_nodes_of(after) if failed is None else (),
            sources=reduction.sources if reduction is not None else sources_of(index),
        )

    def _second_opinion(
        self, small: Path, reduction: Reduction | None, passes: Sequence[str] | None, judged: Judged
    ) -> SecondOpinion:
        """What another engine gives of both models: where they agree, the engine may be what is wrong."""
        decides, check = self._question.decides, self._check_of_piece(reduction)
        if isinstance(decides, CommandQuestion) or not isinstance(check, EngineCheck):
            return ""
        if decides.engine.startswith(ANOTHER) or judged.evidence.verdict.stage != "compare":
            return ""
        asked = AskedPasses(passes=passes)
        with EngineVerdicts(replace(decides, engine=ANOTHER), self._question.tool.rounds_to, self._scratch) as verdicts:
            said = check.judged_by(verdicts).told(asked).run(small).verdict
        if said.outcome == "passes":
            return "right"
        return "wrong" if said.outcome == "fails" and said.stage == "compare" else ""

    def _fed(self, small: Path, reduction: Reduction | None) -> Path | None:
        """The file of what the piece is fed, beside it."""
        if not isinstance(self._check, EngineCheck):
            return None
        if reduction is not None and reduction.inputs is not None:
            return reduction.inputs
        given = self._check.feeds_for(small)
        if self._question.output is None:
            return given
        path = inputs_file(self._question.output)
        write_feeds(path, read_feeds(given))
        return path


def _title(question: TransformationQuestion, transformer: Transformer) -> str:
    return f"{question.tool.text} {transformer.release}".strip()


def _require_told(judged: Judged, what: str) -> None:
    if judged.outcome not in {Outcome.PASSES, Outcome.REPRODUCES}:
        raise errors.CheckError(
            f"nothing can be said of {what}: {judged.reason}",
            next_steps=["--atol 1e-2 --rtol 1e-2    decide then alone"],
        )


def _nodes_of(path: Path) -> tuple[str, ...]:
    try:
        return tuple(node.label for node in index_file(path).nodes)
    except errors.ModelError:
        return ()


def _self_contained(path: Path) -> bytes:
    """The bytes of a model, which stands in no need of other files; a damaged one is as the tool has written it."""
    try:
        if not index_file(path).has_external_data:
            return path.read_bytes()
    except errors.ModelError:
        return path.read_bytes()
    import onnx

    data: bytes = onnx.load(path).SerializeToString()
    return data


def _lines_of(path: Path) -> tuple[str, ...]:
    try:
        return model_lines(path)
    except errors.ModelError as error:
        return (f"no model: {first_line(error.summary)}",)


# What a question about a tool must say, or its answer would be the same whatever the tool does.


def require_passes(question: TransformationQuestion, transformer: Transformer) -> None:
    """Raise UsageError for passes that would not run: without them the model is right whatever the tool does."""
    wanted = question.passes or ()
    assert question.index.path is not None
    known = transformer.passes(question.index.path)
    if question.tool.words and wanted and not known:
        raise errors.UsageError(
            f"--passes: the command has no {PASSES}, so it is not told which passes may run",
            next_steps=[f"--by '{question.tool.text} {PASSES}'"],
        )
    strange = [name for name in wanted if known and name not in known]
    if strange:
        raise errors.UsageError(
            f"--passes: no pass {strange[0]!r} of {_title(question, transformer)} runs on {question.index.path}",
            next_steps=[*ask_for(similar(strange[0], known)), f"those that do: {some_of(known, 12)}"],
        )


def require_candidate(decides: CommandQuestion, question: TransformationQuestion) -> None:
    """Raise UsageError for a check that does not name the transformed model."""
    if not any(place in word for word in decides.words for place in (SOURCE, str(question.index.path))):
        raise errors.UsageError(
            f"--check: no word of it is {SOURCE}, the transformed model, so it says the same of every model"
        )


# A small model as lines of text, to be read beside another one.

_MOST_VALUES = 8
_LONGEST = 160
_MOST_LINES = 200
_NARROWEST = 60


def model_lines(path: Path) -> tuple[str, ...]:
    """Inputs, weights, nodes and outputs of a model, a line each; what is too long is cut. Raises ModelError."""
    model = load_parse(read_bytes(path), path)
    lines = [shortened(printable(line), _LONGEST) for line in _lines(model.graph)]
    more = len(lines) - _MOST_LINES
    return tuple(lines if more <= 0 else [*lines[:_MOST_LINES], f"... {more} more lines"])


def side_by_side(left: Sequence[str], right: Sequence[str], width: int, head: tuple[str, str]) -> list[str]:
    """Two texts in columns, the left one as wide as it needs, at most half of ``width``; 0 for any width."""
    width = max(_NARROWEST, width) if width else 2 * _LONGEST + 3
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
    attributes = ", ".join(f"{one.name}={_attribute(one)}" for one in node.attribute)
    operator = f"{node.domain}.{node.op_type}" if node.domain not in {"", "ai.onnx"} else node.op_type
    inside = f"<{attributes}>" if attributes else ""
    return f"{', '.join(node.output)} = {operator}{inside}({', '.join(node.input)})"


def _attribute(attribute: onnx.AttributeProto) -> str:
    from onnx import helper

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
    from onnx import helper, numpy_helper

    count = 1
    for size in weight.dims:
        count *= size
    kind = helper.tensor_dtype_to_string(weight.data_type).partition(".")[2].lower()
    shape = f"{kind}{list(weight.dims)}"
    if count > _MOST_VALUES or weight.data_location == weight.EXTERNAL:
        return shape
    try:
        values = numpy_helper.to_array(weight).reshape(-1).tolist()
    except (ValueError, TypeError):
        return shape
    return f"{shape} {{{', '.join(f'{one:g}' if isinstance(one, float) else str(one) for one in values)}}}"


def _value(value: onnx.ValueInfoProto) -> str:
    from onnx import helper

    if not value.type.HasField("tensor_type"):
        return value.name
    kind = value.type.tensor_type
    name = helper.tensor_dtype_to_string(kind.elem_type).partition(".")[2].lower()
    sizes = [str(dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else "?")) for dim in kind.shape.dim]
    return f"{value.name}: {name}[{', '.join(sizes)}]"
