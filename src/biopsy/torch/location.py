"""Locating the fault of an exported model (lines of the module, operators, and the smallest failing part), and the
operator of a captured program that raises, or that the exporter decomposes wrongly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.command_line import parse
from biopsy.checks.warm import command_check
from biopsy.checks.words import as_word
from biopsy.comparison.noise import DEFAULT_RATIO
from biopsy.diagnosis.context import TimeUpError
from biopsy.engines.registry import PLAIN, EngineSpec, create
from biopsy.findings.bundle.job import BundleJob, EarlierFindings, RunQuestion
from biopsy.findings.bundle.make import make_bundle
from biopsy.findings.verdict import Note
from biopsy.model.extract import OutputChoice
from biopsy.model.index import index_file
from biopsy.model.sources import noted_source
from biopsy.questions.layers.examination import Examination
from biopsy.questions.layers.findings import LayerFindings
from biopsy.questions.layers.question import Judge, Question
from biopsy.reduction.problem import Border
from biopsy.reduction.reduce import RecordingOptions, ReductionJob, run_job
from biopsy.reduction.result import Reduction, Target
from biopsy.session.checked_search import SearchOptions
from biopsy.session.trial import Budget
from biopsy.tensors.files import read_feeds
from biopsy.text import count, first_of
from biopsy.torch.arrays import type_in_model
from biopsy.torch.calls import Arguments
from biopsy.torch.deviation import apart, mended
from biopsy.torch.evaluation import (
    Accusation,
    Evaluators,
    ModuleDifference,
    OnnxModel,
    Steps,
    accusation_of,
    difference,
)
from biopsy.torch.facts import (
    GOLDEN,
    FurtherFault,
    GoldenCount,
    ModuleLine,
    SmallestPiece,
    lines_of,
    node_of_exception,
    place_of_node,
)
from biopsy.torch.recording import TorchRecording, record, values_of_nodes

_Answer = TypeVar("_Answer")

LOCATING = {
    "golden": "which tensors has the program a value of?",
    "layers": "which layers are wrong?",
    "piece": "which is the smallest part that still fails?",
    "bundle": "does it fail without PyTorch and without biopsy?",
    "further": "is anything else wrong once that has the right values?",
}
"""The questions, by name."""

_MOST_NAMED = 3
_MOST_FAULTS = 3

_MOST_MEASURED = 1 << 26
"""The most bytes of weights for which the bundle's failure is held against float64 once more."""


@dataclass(frozen=True, kw_only=True)
class Located:
    """The location of a fault; ``accusation`` is the one given, changed by what locating the fault has shown.

    ``tensors`` are those of the model in which it shows first.
    """

    accusation: Accusation
    places: tuple[ModuleLine, ...] = ()
    tensors: tuple[str, ...] = ()
    values: GoldenCount | None = None
    piece: SmallestPiece | None = None


@dataclass(frozen=True, kw_only=True)
class _WrongLayers:
    """The findings about layers; the lines of those that are wrong, and their tensors."""

    findings: LayerFindings
    places: tuple[ModuleLine, ...]
    tensors: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Locator:
    """Locates a fault. ``folder`` is for files to keep, ``scratch`` for transient ones.

    ``given`` are the arguments for which the model is wrong, ``timeout`` is in seconds per run of an engine, and
    ``captured`` is the program that the model was made of.
    """

    given: Arguments
    judge: Judge
    timeout: float | None
    folder: Path
    scratch: Path
    steps: Steps
    listener: events.Listener
    captured: Any
    engines: Evaluators

    def locate(self, accusation: Accusation, *, bundled: bool) -> Located:
        """Locate the fault of an accusation; with ``bundled``, pack the smallest part as a folder to send.

        A question without an answer does not prevent the others.
        """
        model = accusation.model
        if model is None:
            return Located(accusation=accusation, places=accusation.places)
        recording = self._answer("golden", lambda: self._recorded(model))
        if recording is None:
            return Located(accusation=accusation)
        values = GoldenCount(matched=recording.tensors, of=recording.of)
        accusation = self._with_decomposition(accusation, model, recording)
        if accusation.part == "decomposition":
            return Located(accusation=accusation, places=accusation.places, values=values)
        failing = FailingExport(
            model=model.path, engine=accusation.engine, golden=recording.path, judge=self.judge, timeout=self.timeout
        )
        layers = self._answer("layers", lambda: self._wrong(accusation, model.path))
        places: tuple[ModuleLine, ...] = ()
        tensors: tuple[str, ...] = ()
        if layers is not None:
            accusation = self._reconsidered(accusation, layers.findings)
            places, tensors = layers.places, layers.tensors
        if accusation.is_hidden:  # the check of the smallest part sees outputs only
            return Located(accusation=accusation, places=places, tensors=tensors, values=values)
        part = self._answer("piece", lambda: self._smallest(failing))
        if part is None:
            return Located(accusation=accusation, places=places, tensors=tensors, values=values)
        places = places or lines_of(part.sources)
        piece = SmallestPiece(nodes=part.nodes, of=part.nodes_before)
        if bundled:
            piece = replace(piece, path=part.output, inputs=part.inputs)
            earlier = EarlierFindings(title=_title(accusation, places), notes=list(_notes(accusation)))
            bundle = self._answer("bundle", lambda: self._packed(failing, part, earlier))
            piece = replace(piece, bundle=bundle)
        return Located(accusation=accusation, places=places, tensors=tensors, values=values, piece=piece)

    def further(self, located: Located, suspect: str) -> Iterator[FurtherFault]:
        """Faults of the engine ``suspect`` or of the model that show once the values of the fault before are right."""
        first, tensors = located.accusation, set(located.tensors)
        if first.model is None or first.difference is None or not (tensors or first.part == "decomposition"):
            return
        for number in range(1, _MOST_FAULTS):
            accused = partial(self._accused, first.model, frozenset(tensors), suspect, f"mended_{number}.onnx")
            accusation, path = self._answer("further", accused) or (None, None)
            if accusation is None or path is None:
                return
            layers = self._answer("layers", partial(self._wrong, accusation, path))
            yield FurtherFault(
                verdict=accusation.verdict,
                places=() if layers is None else layers.places,
                error=accusation.error_text,
                mismatches=() if accusation.difference is None else accusation.difference.mismatches,
            )
            if layers is None or tensors.issuperset(layers.tensors):
                return
            tensors.update(layers.tensors)

    def _accused(
        self, model: OnnxModel, tensors: Collection[str], suspect: str, name: str
    ) -> tuple[tuple[Accusation, Path] | None, str]:
        """Who is to blame for a model whose ``tensors`` have their golden values, and its file; None if it is right.

        Without ``tensors``, each step of the model has them.
        """
        golden = self.folder / GOLDEN
        mended_model = mended(model, golden, tensors) if tensors else apart(model, golden)
        evaluation = None if mended_model is None else self.engines.evaluation(suspect, mended_model)
        if mended_model is None or evaluation is None or not evaluation.ran or evaluation.is_right:
            return None, "no"
        accusation = accusation_of(self.engines, evaluation, mended_model, None)
        answer = f"{accusation.blame}: {evaluation.error_text}"
        if not tensors:
            return (replace(accusation, model=model), model.path), answer
        path = self.folder / name
        path.write_bytes(mended_model.data)
        return (accusation, path), answer

    def _answer(self, name: str, answer: Callable[[], tuple[_Answer, str]]) -> _Answer | None:
        try:
            return self.steps.ask(name, answer)
        except errors.EngineMissing:
            raise
        except (errors.BiopsyError, TimeUpError):
            return None

    def _recorded(self, model: OnnxModel) -> tuple[TorchRecording, str]:
        given = self.given.copied()
        recording = record(model.program, given.args, self.folder / GOLDEN, given.kwargs)
        return recording, f"{recording.tensors} of {recording.of}"

    def _with_decomposition(self, accusation: Accusation, model: OnnxModel, recording: TorchRecording) -> Accusation:
        """The accusation, or one of the exporter's decomposition, if the decomposed program is wrong itself."""
        golden = read_feeds(recording.path)[0]
        expected = {name: value for name, value in model.expected.items() if name in golden}
        if accusation.blame not in ("exporter", "unknown") or not expected:
            return accusation
        error = difference({name: golden[name] for name in expected}, expected, self.judge)
        if error is None or accusation.difference is None:
            return accusation
        # The error of the program must be comparable to that of the exported model, and more than rounding.
        share = error.share_of(accusation.difference)
        if not error.is_of_values or (share is not None and share < COMPARABLE):
            return accusation
        if model.noise is not None:
            program = {name: golden[name] for name in expected}
            rounding = model.noise.rounding(program, expected, error.outputs, self.steps.left.require)
            if rounding.verdict == "rounding":
                return accusation
        text = "The exporter decomposes operators into others that give something else, before it translates them."
        decomposed = model.program.exported_program
        place = place_of_decomposition(self.captured, decomposed, self.given, self.judge, error)
        place = place or ModuleLine(unknown="no operator was found whose decomposition alone gives something else")
        accusation = replace(accusation, blame="exporter", part="decomposition", text=text, reason="")
        return replace(accusation, difference=error, places=(place,))

    def _reconsidered(self, accusation: Accusation, findings: LayerFindings) -> Accusation:
        """The accusation; if the whole model left doubt and single layers leave none, the exporter is to blame."""
        wrong = [layer for layer in findings.layers if layer.is_suspect]
        is_doubtful = accusation.blame == "unknown" and accusation.model is not None and accusation.difference
        if not wrong or findings.groups or not is_doubtful or not all(layer.is_of_model for layer in wrong):
            return accusation
        text = "The exported model computes something else than the module: in float64, the reference evaluator"
        text += " agrees with it."
        return replace(accusation, blame="exporter", part="translation", text=text, reason="")

    def _wrong(self, accusation: Accusation, path: Path) -> tuple[_WrongLayers, str]:
        """The layers of the accused model, which is in the file ``path``, that are wrong by themselves or together."""
        left, golden, model = self.steps.left, self.folder / GOLDEN, accusation.model
        assert model is not None
        steps = apart(model, golden)
        each = None if steps is None else self.engines.evaluation(accusation.engine, steps)
        question = Question(
            index=index_file(path, path.parent),
            feeds=lambda _: read_feeds(golden),
            suspect=accusation.engine,
            reference=recorded_engine(golden),
            judge=self.judge,
            timeout=left.for_run(self.timeout),
        )
        findings = Examination(question, self.scratch, left.bounding(self.listener)).run()
        left.require()  # a layer that took longer than the time left is not slow by itself
        # What is rounding by itself, against float64, is no fault of a layer, whatever the tolerances.
        rounded = set() if each is None or not each.ran or steps is None else set(steps.expected) - set(each.faults)
        groups = {
            group.nodes
            for group in findings.groups
            if group.rounding_ratio is None or group.rounding_ratio > DEFAULT_RATIO or group.is_of_model
        }
        suspects = [each for each in findings.suspects if each.nodes in groups or not rounded.issuperset(each.outputs)]
        index = question.index
        # The lines of the layers and groups that make errors, those of the worst first.
        lines = (lines_of(noted_source(index, node) for node in suspect.nodes) for suspect in suspects)
        layers = _WrongLayers(
            findings=findings,
            places=tuple(dict.fromkeys(chain.from_iterable(lines))),
            tensors=tuple(chain.from_iterable(suspect.outputs for suspect in suspects)),
        )
        return layers, first_of([suspect.name for suspect in suspects], _MOST_NAMED, "; ") or "none by itself"

    def _smallest(self, failing: FailingExport) -> tuple[Reduction, str]:
        """The smallest part of the model that still differs from its golden values.

        Raises OriginalPasses or CheckError if there is none.
        """
        words = failing.check
        candidate = self.scratch / "candidate.onnx"
        job = ReductionJob(
            target=Target(self.folder / PIECE, shares_weights=True),
            search=SearchOptions(candidate=candidate, budget=Budget(seconds=self.steps.left.seconds)),
            recording=RecordingOptions(samples=lambda: read_feeds(failing.golden), engines=(failing.reference,)),
            border=Border(mark_intermediate=None),
            command=parse(words),
        )
        with closing(command_check(words, str(candidate), timeout=failing.timeout)) as check:
            part = run_job(index_file(failing.model), check, job, self.listener)
        return part, f"{len(part.nodes)} of {count(part.nodes_before, 'node')}"

    def _packed(self, failing: FailingExport, part: Reduction, earlier: EarlierFindings) -> tuple[Path, str]:
        """Pack the smallest part as a folder to send. Raises CheckError if its script does not fail."""
        job = BundleJob(
            target=self.folder / BUNDLE,
            original=failing.model,
            model=part.output,
            folder=part.output.parent,
            check=CommandCheck(failing.check, "{}", failing.timeout),
            run=RunQuestion(
                engines=[create(failing.engine)],
                outputs=OutputChoice(),
                judge=Judge(failing.judge.tolerances, failing.judge.stats),
                golden=[failing.golden],
            ),
            inputs=part.inputs,
            earlier=earlier,
            measures_rounding=index_file(part.output).weight_bytes <= _MOST_MEASURED,
        )
        bundle = make_bundle(job)
        if bundle.reproduced == "not":
            raise errors.CheckError(f"no: {BUNDLE}/reproduce.py ended with status {bundle.status}, and says so")
        return bundle.path, "yes" if bundle.reproduced == "alone" else "only where biopsy is installed"


def _title(accusation: Accusation, places: tuple[ModuleLine, ...]) -> str:
    """The title of the bundle if the exporter is to blame, since the bundle itself would blame the engine; else ""."""
    if accusation.blame != "exporter":
        return ""
    part = {"optimizer": "onnxscript's optimizer breaks", "decomposition": "torch.onnx decomposes wrongly:"}
    operators = " -> ".join(places[0].operators) if places else ""
    return f"{part.get(accusation.part or '', 'torch.onnx translates wrongly:')} {operators or 'an operator'}"


def _notes(accusation: Accusation) -> Iterator[Note]:
    """What was found out about the whole model, for the bundle."""
    yield Note(label="found", text=accusation.text)
    torch, onnxscript = version("torch"), version("onnxscript")
    made = f"The model was exported by torch.onnx of PyTorch {torch} with onnxscript {onnxscript}"
    yield Note(label="cause", text=f"{made}. What is expected is what PyTorch computed.")
    if accusation.part == "optimizer":
        text = "without onnxscript's optimizer, the exported model gives what the module gives."
        yield Note(label="workaround", text=text, code=("torch.onnx.export(..., optimize=False)",))
    elif accusation.engine == "onnxrt" and PLAIN[0] in accusation.right:
        level = "options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL"
        text = "without optimizations, ONNX Runtime gives what the module gives."
        yield Note(label="workaround", text=text, code=("options = onnxruntime.SessionOptions()", level))


def recorded_engine(golden: Path) -> str:
    """The spec of the engine that replays golden values."""
    return EngineSpec("recorded", {"file": str(golden)}).text


PIECE = "piece.onnx"
BUNDLE = "bundle"
"""The names of the smallest part and of the folder to send in the folder of the diagnosis."""


@dataclass(frozen=True, kw_only=True)
class FailingExport:
    """A model that is wrong in ``engine``, and a file of golden values of its inputs and other tensors."""

    model: Path
    engine: str
    golden: Path
    judge: Judge
    timeout: float | None = None

    @property
    def reference(self) -> str:
        """The spec of the engine that replays the golden values."""
        return recorded_engine(self.golden)

    @property
    def check(self) -> list[str]:
        """The words of the check that the model fails, which also feeds parts of it with golden values."""
        limits = self.judge.tolerances.for_output("")
        return [
            *("biopsy", "run", "{}", "--engine", self.engine),
            *("--load-inputs", as_word(self.golden), "--load-outputs", as_word(self.golden)),
            *("--atol", repr(limits.atol), "--rtol", repr(limits.rtol)),
        ]


COMPARABLE = 0.1
"""The least share of an error that may explain it."""


def place_of_failure(program: Any, given: Arguments) -> ModuleLine:
    """The place of the operator at which a captured program raises for these arguments."""
    try:
        deque(values_of_nodes(program, given, {}), maxlen=0)
    except errors.BiopsyError as failure:
        node = node_of_exception(failure)
        if node is not None:
            return place_of_node(node)
    return ModuleLine(unknown="no operator of the program raises by itself")


def place_of_decomposition(
    captured: Any, decomposed: Any, given: Arguments, judge: Judge, whole: ModuleDifference
) -> ModuleLine | None:
    """The place of the first operator of a captured program that differs as a decomposed program computes it.

    Its error is at least comparable to the ``whole`` error. None if there is none, or if it is not known which nodes of
    the decomposed program an operator became.
    """
    nodes = {node.name: node for node in captured.graph.nodes if node.op == "call_function" and _is_tensor(node)}
    ends: dict[str, str] = {}  # the last node of what each operator became
    for node in decomposed.graph.nodes:
        origins = [name for name, target in _origins(node) if name in nodes and str(nodes[name].target) == target]
        if origins and _is_tensor(node):
            ends[origins[-1]] = node.name
    before = values_of_nodes(captured, given, {name: (name,) for name in ends})
    after = values_of_nodes(decomposed, given, {end: (name,) for name, end in ends.items()})
    try:
        for (name, expected), (other, actual) in zip(before, after, strict=True):
            if name != other:
                return None
            error = difference({name: actual}, {name: expected}, judge) if expected.size else None
            share = None if error is None else error.share_of(whole)
            if share is not None and share >= COMPARABLE:
                return place_of_node(nodes[name])
    except (errors.BiopsyError, ValueError):
        return None
    return None


def _is_tensor(node: Any) -> bool:
    value = node.meta.get("val")
    return value is not None and type_in_model(value) is not None


def _origins(node: Any) -> Iterator[tuple[str, str]]:
    """The names and operators of the nodes that a node was made of, graph by graph, those of the first graph last."""
    waiting = list(node.meta.get("from_node") or ())
    while waiting:
        source = waiting.pop()
        if source.node_info is not None:
            yield source.node_info.name, source.node_info.target
        waiting += source.from_node
