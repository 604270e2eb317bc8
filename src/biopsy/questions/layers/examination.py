"""The examination of a model's layers: the whole model, each layer in isolation, and groups of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from biopsy import errors, events
from biopsy.engines.registry import create, parse_spec
from biopsy.engines.worker import Worker
from biopsy.model.index import ModelIndex, Node
from biopsy.model.nodes import RANDOM, constant_of_node, is_constant_node
from biopsy.model.tensor_type import FLOATS
from biopsy.questions.layers.findings import Engines, LayerFinding, LayerFindings, NonFiniteOrigin
from biopsy.questions.layers.groups import GroupSearch, SubgraphRuns
from biopsy.questions.layers.measurement import (
    RUNS_IF_FLAKY,
    IsolatedLayers,
    IsolatedResult,
    RoundingJudge,
    WholeModel,
)
from biopsy.questions.layers.question import Question, layer_node, layers_of
from biopsy.questions.layers.recorded import (
    NonFinite,
    RecordedModel,
    ReferenceRecorder,
    ReferenceValues,
    misfit_text,
    non_finite,
)
from biopsy.questions.layers.subgraphs import Subgraphs, is_hidden, measuring_layers
from biopsy.slow_imports import onnx
from biopsy.text import first_of

_MOST_HIDDEN_JUDGED = 20
"""Suspects of a model with right outputs of which it is found out whether their errors are hidden, the worst first."""

_UNKNOWN = NonFinite(1, 1)
"""Stands for a tensor without a value, which may hold anything."""


@dataclass(frozen=True, kw_only=True)
class _Measuring:
    """The objects that measure, made once the reference values are recorded."""

    recorded: RecordedModel
    measuring_layers: Mapping[int, tuple[int, ...]]
    whole: WholeModel
    isolated: IsolatedLayers
    search: GroupSearch


class Examination:
    """Answers a question. ``findings`` is available at any time; ``scratch`` is a folder for temporary files."""

    def __init__(self, question: Question, scratch: Path, listener: events.Listener = events.ignore) -> None:
        self.engines = Engines((question.reference, ""), (question.suspect, ""))
        self.samples = 0
        self._question = question
        self._scratch = scratch
        self._listener = listener
        self._index = question.index
        self._layers = layers_of(question.index, question.nodes)
        self._work: _Measuring | None = None
        self._is_complete = False
        self._remarks: list[str] = []
        self._is_hidden: dict[tuple[int, ...], bool | None] = {}

    def run(self) -> LayerFindings:
        """Examine the layers. Raises CannotCompare if the reference cannot run the model."""
        question, index, listener = self._question, self._index, self._listener
        with (
            question.worker(question.suspect, self._scratch) as suspect,
            question.worker(question.reference, self._scratch) as reference,
        ):
            for worker in (reference, suspect):
                worker.start()
            self.engines = Engines((question.reference, reference.version()), (question.suspect, suspect.version()))
            feeds = question.feeds({index.names[tensor]: index.tensor_type(tensor) for tensor in index.fed_inputs()})
            self.samples = len(feeds)
            recorded = ReferenceRecorder(question, reference, self._scratch, listener).record(feeds)
            reference.close()
            with RoundingJudge(recorded, reference, self._scratch, question.timeout) as rounding:
                subgraphs = Subgraphs(index, recorded)
                values = ReferenceValues(recorded, reference, question.judge)
                whole = WholeModel(question=question, recorded=recorded, suspect=suspect, listener=listener)
                isolated = IsolatedLayers(
                    subgraphs=subgraphs, suspect=suspect, reference=values, limit=question.limit, listener=listener
                )
                runs = SubgraphRuns(
                    subgraphs=subgraphs, suspect=suspect, reference=values, rounding=rounding, listener=listener
                )
                self._work = work = _Measuring(
                    recorded=recorded,
                    measuring_layers=measuring_layers(subgraphs),
                    whole=whole,
                    isolated=isolated,
                    search=GroupSearch(runs, whole),
                )
                numbers = {end for layer in self._layers for end in work.measuring_layers.get(layer.number, ())}
                ends = (node for node in layers_of(index) if node.number in numbers and node.op_type not in RANDOM)
                self._layers = sorted({*self._layers, *ends}, key=lambda node: node.number)
                self._remark_on_golden_values(recorded)
                whole.run()
                self._remarks += [f"{question.suspect}: {remark}" for remark in suspect.remarks]
                judged = [node.number for node in self._layers if node.op_type not in RANDOM]
                isolated.run(judged, flaky=self._is_flaky(work))
                isolated.judge_rounding(rounding)
                self._measure_marked(whole)
                if self._is_flaky(work):
                    runs.runs_each = RUNS_IF_FLAKY
                self._look_for_groups(work)
                self._judge_hidden(work, runs, suspect if recorded.is_golden else reference)
        self._is_complete = True
        return self.findings

    def _remark_on_golden_values(self, recorded: RecordedModel) -> None:
        """Remark on golden values that do not fit the model, and on outputs without one."""
        if recorded.golden is None:
            return
        index, reference = self._index, self._question.reference
        file = parse_spec(reference).settings.get("file", reference)
        for name, why in recorded.golden.misfits.items():
            node = layer_node(index, index.nodes[index.producer[index.ids[name]]])
            code = "" if node.source is None else f", {node.source.with_code}"
            self._remarks.append(f"{file}: {misfit_text(name, why)} ({node.label}{code})")
        outputs = (index.names[tensor] for tensor in index.outputs)
        self._remarks += [
            f"output {name!r} has no golden value: it is not judged" for name in outputs if name not in recorded
        ]

    def _is_flaky(self, work: _Measuring) -> bool:
        """Whether the suspect is flaky, not counting random models."""
        is_random = any(node.op_type in RANDOM for node in self._index.nodes)
        return work.isolated.is_flaky or (work.whole.is_flaky and not is_random)

    def _measure_marked(self, whole: WholeModel) -> None:
        """Measure the layers in the whole model, with their tensors marked as outputs."""
        suspect = self._question.suspect
        if whole.failure is not None:
            return
        if not create(suspect).capabilities.marks_any_tensor:
            self._remarks.append(f"{suspect} does not give inner tensors: only isolated layers are measured")
            return
        names = (self._index.names[tensor] for node in self._layers for tensor in node.writes)
        whole.measure([name for name in names if name in whole.recorded])
        if whole.unmarkable:
            others = f", as with {len(whole.unmarkable) - 1} others" if len(whole.unmarkable) > 1 else ""
            self._remarks.append(f"{suspect} fails with {whole.unmarkable[0]!r} marked as an output{others}")

    def _look_for_groups(self, work: _Measuring) -> None:
        """Search everywhere if all layers are measured, else only around the measured ones."""
        findings = (self._finding(node, work) for node in self._layers)
        work.search.isolated = frozenset(
            number for finding in findings if finding.is_suspect for number in finding.nodes
        )
        if self._question.nodes is None:
            work.search.run(self._question.limit)
        work.search.search_around(self._layers)
        for group in work.search.groups:
            if len(group.nodes) == 1:  # a flaky layer, right whenever it was run in isolation before
                result = IsolatedResult(error=group.error, failure=group.failure, flaky=group.flaky)
                work.isolated.results[group.nodes[0]] = result

    def _judge_hidden(self, work: _Measuring, runs: SubgraphRuns, worker: Worker) -> None:
        """Find out for each suspect of a model with right outputs whether the rest of it hides the error."""
        findings, subgraphs = self.findings, runs.subgraphs
        for suspect in findings.suspects[:_MOST_HIDDEN_JUDGED] if findings.has_right_outputs else ():
            outputs = [self._index.ids[name] for name in suspect.outputs if name in work.recorded]
            closed = subgraphs.closed(suspect.nodes)
            if suspect.failure is not None or closed is None or not outputs:
                continue
            wrong = runs.wrong_values(closed, outputs)
            if wrong is not None:
                judge, scratch = self._question.judge, self._scratch
                self._is_hidden[suspect.nodes] = is_hidden(subgraphs, judge, worker, wrong, scratch)

    @property
    def findings(self) -> LayerFindings:
        """What is known so far."""
        work = self._work
        if work is None:
            layers = tuple(LayerFinding(node=layer_node(self._index, node)) for node in self._layers)
            return LayerFindings(layers=layers, complete=False)
        judgeable = [node.number for node in self._layers if work.recorded.is_golden and node.op_type not in RANDOM]
        measured = work.isolated.results.keys()
        unmeasured = (n for n in judgeable if measured.isdisjoint(work.measuring_layers.get(n, (n,))))
        return LayerFindings(
            layers=tuple(self._finding(node, work) for node in self._layers),
            outputs=tuple(work.whole.outputs.values()),
            failure=work.whole.failure,
            groups=tuple(group for group in work.search.groups if len(group.nodes) > 1),
            marking_effects=tuple(work.whole.effects),
            non_finite_origins=tuple(self._non_finite_origins(work)) if self._is_complete else (),
            remarks=(*self._remarks, *work.search.remarks, *self._flakiness_remarks(work)),
            complete=self._is_complete,
            unmeasured=tuple(unmeasured),
            golden=work.recorded.golden,
            hidden=[nodes for nodes, hidden in self._is_hidden.items() if hidden],
            unread=[nodes for nodes, hidden in self._is_hidden.items() if hidden is False],
        )

    def _flakiness_remarks(self, work: _Measuring) -> Iterator[str]:
        suspect = self._question.suspect
        if work.whole.failure_rate is not None:
            yield f"{suspect} is wrong, or fails, {work.whole.failure_rate.text} of the whole model only"
        elif work.whole.is_flaky:
            yield f"{suspect} gives other values from run to run"
        if self._is_flaky(work):
            yield f"{suspect} is flaky: every layer was run {RUNS_IF_FLAKY} times, the worst run counts"

    def _finding(self, node: Node, work: _Measuring) -> LayerFinding:
        number, isolated = node.number, work.isolated
        result = isolated.results.get(number, IsolatedResult())
        ends = work.measuring_layers.get(number, ())
        note = isolated.impossible.get(number, "")
        if node.op_type in RANDOM:
            note = "it is random: not judged"
        elif ends:
            names = first_of([self._index.nodes[end].label for end in ends], 2)
            note = f"its outputs have no recorded value: measured as one piece with {names}"
        return LayerFinding(
            node=layer_node(self._index, node),
            introduced=result.error,
            propagated=work.whole.error_of(node),
            failure=result.failure,
            is_accused=work.whole.failure is not None,
            note=note,
            flaky=result.flaky,
            rounding_ratio=result.rounding_ratio,
            piece=isolated.pieces.get(number),
            within=ends,
            is_of_model=result.is_of_model,
        )

    def _non_finite_origins(self, work: _Measuring) -> Iterator[NonFiniteOrigin]:
        index, question, recorded, whole = self._index, self._question, work.recorded, work.whole

        def is_unknown(name: str) -> bool:
            """Whether a computed tensor has no golden value, so that its non-finite values may begin before it."""
            is_without = recorded.is_golden and name not in recorded and index.ids[name] in index.producer
            return is_without and constant_of_node(index, index.ids[name]) is None

        def in_whole(name: str) -> NonFinite | None:
            """The non-finite values of a tensor in the suspect's run of the whole model."""
            return recorded.non_finite(name) if index.ids[name] not in index.producer else whole.non_finite.get(name)

        def of_input(name: str) -> NonFinite | None:
            return _UNKNOWN if is_unknown(name) else recorded.non_finite(name)

        yield from non_finite_origins(index, question.reference, of_input, recorded.non_finite)
        if whole.propagated:
            yield from non_finite_origins(
                index, question.suspect, lambda name: _UNKNOWN if is_unknown(name) else in_whole(name), in_whole
            )
        else:
            given = {name: count for result in work.isolated.results.values() for name, count in result.non_finite}
            yield from non_finite_origins(index, question.suspect, of_input, given.get)


NonFiniteOf: TypeAlias = Callable[[str], NonFinite | None]
"""Returns the NaN and infinities of a tensor; None if there are none or they are unknown."""


def non_finite_origins(
    index: ModelIndex, engine: str, of_input: NonFiniteOf, of_output: NonFiniteOf
) -> Iterator[NonFiniteOrigin]:
    """Layers in a run of ``engine`` that make NaN of what is not NaN, or infinity of finite values, in graph order.

    What a layer reads from a weight begins in the weight.
    """
    for node in index.nodes:
        outputs = {name: count for tensor in node.writes if (count := of_output(name := index.names[tensor]))}
        if not outputs or is_constant_node(index, node.number):
            continue
        given = [each for tensor in node.reads if (each := of_input(index.names[tensor]))]
        if not any(each.nan for each in given):
            given += [each for tensor in node.reads if (each := non_finite_in_weight(index, tensor))]
        reads_inf = any(each.inf for each in given)
        begin = (name for name, count in outputs.items() if count.nan or not reads_inf)
        if not any(each.nan for each in given) and (tensor_name := next(begin, None)):
            yield NonFiniteOrigin(
                engine=engine,
                number=node.number,
                label=node.label,
                tensor=tensor_name,
                nan=outputs[tensor_name].nan,
                inf=0 if reads_inf else outputs[tensor_name].inf,
                reads_inf=reads_inf,
            )


def non_finite_in_weight(index: ModelIndex, tensor: int) -> NonFinite | None:
    """The NaN and infinities of a weight or a Constant; None if there are none or it cannot be read."""
    weight = index.weights.get(tensor)
    if weight is None:
        data = constant_of_node(index, tensor)
    elif weight.sparse or weight.kind.elem not in FLOATS:
        data = None
    else:
        data = bytes(index.buffer[weight.start : weight.end])
    if data is None:
        return None

    try:
        values = onnx.numpy_helper.to_array(onnx.TensorProto.FromString(data), str(index.folder))
    except (ValueError, TypeError, OSError, onnx.checker.ValidationError, errors.BiopsyError):
        return None
    return non_finite([values])
