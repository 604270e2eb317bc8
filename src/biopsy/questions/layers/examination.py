"""The examination of a model's layers: record, run the whole, run each in isolation, and look for what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from biopsy import errors, events
from biopsy.engines.registry import parse_spec
from biopsy.engines.worker import Worker
from biopsy.model.index import ModelIndex, Node
from biopsy.model.nodes import RANDOM, constant_of_node, is_constant_node
from biopsy.model.tensor_type import FLOATS
from biopsy.questions.layers.findings import Engines, LayerFinding, LayerFindings, NonFiniteOrigin
from biopsy.questions.layers.groups import Explanation, GroupSearch, SubgraphRuns
from biopsy.questions.layers.isolated_layers import RUNS_IF_FLAKY, IsolatedLayers, IsolatedResult, RoundingJudge
from biopsy.questions.layers.question import Question, layer_node, layers_of
from biopsy.questions.layers.recorded import (
    NonFinite,
    RecordedModel,
    ReferenceRecorder,
    ReferenceValues,
    misfit_text,
    non_finite,
    tensors_to_record,
)
from biopsy.questions.layers.subgraphs import Subgraphs, bridges, with_ends
from biopsy.questions.layers.whole_model import MarkedTensors, WholeModel
from biopsy.text import first_of

_ANY = NonFinite(0, 0)
"""Of a tensor that nobody has a value of."""


class Examination:
    """Answers a question, step by step. ``findings`` are what is known so far. ``scratch`` is a folder for files."""

    def __init__(self, question: Question, scratch: Path, listener: events.Listener = events.ignore) -> None:
        self.engines = Engines((question.reference, ""), (question.suspect, ""))
        self.samples = 0
        self._question = question
        self._scratch = scratch
        self._listener = listener
        self._index = question.index
        self._chosen = layers_of(question.index, question.nodes)
        self._recorded: RecordedModel | None = None  # this, and what follows, as far as the examination has come
        self._whole: WholeModel | None = None
        self._isolated: IsolatedLayers | None = None
        self._marked: MarkedTensors | None = None
        self._explanation: Explanation | None = None
        self._is_complete = False
        self._bridges: Mapping[int, tuple[int, ...]] = {}
        self._remarks: list[str] = []

    def run(self) -> LayerFindings:
        """Examine. Raises CannotCompare if the reference cannot run the model, and what else stops every run."""
        question = self._question
        with (
            Worker(question.suspect, self._scratch, question.timeout, memory=question.memory) as suspect,
            Worker(question.reference, self._scratch, question.timeout, memory=question.memory) as reference,
        ):
            for worker in (reference, suspect):
                worker.start()
            self.engines = Engines((question.reference, reference.version()), (question.suspect, suspect.version()))
            recorded = self._recorded = self._record(reference)
            reference.close()
            with RoundingJudge(recorded, self._scratch, question.timeout, reference.memory) as rounding:
                self._examine(suspect, recorded, ReferenceValues(recorded, reference, question.judge), rounding)
        self._is_complete = True
        return self.findings

    def _record(self, reference: Worker) -> RecordedModel:
        question, index = self._question, self._index
        feeds = question.feeds({index.names[tensor]: index.tensor_type(tensor) for tensor in index.fed_inputs()})
        self.samples = len(feeds)
        recorder = ReferenceRecorder(
            index=index,
            model=question.model,
            reference=reference,
            folder=self._scratch,
            limit=question.limit,
            judge=question.judge,
            listener=self._listener,
        )
        return recorder.record(feeds, tensors_to_record(index))

    def _examine(
        self, suspect: Worker, recorded: RecordedModel, reference: ReferenceValues, rounding: RoundingJudge
    ) -> None:
        question, listener = self._question, self._listener
        subgraphs = Subgraphs(self._index, recorded)
        self._bridges = bridges(subgraphs)
        ends = with_ends(self._chosen, self._bridges, layers_of(self._index))
        self._chosen = sorted({*self._chosen, *ends}, key=lambda node: node.number)
        golden = subgraphs.recorded.golden
        if golden is not None:
            file = parse_spec(question.reference).settings.get("file", question.reference)
            for name, why in golden.misfits.items():
                node = layer_node(self._index, self._index.nodes[self._index.producer[self._index.ids[name]]])
                code = "" if node.source is None else f", {node.source.with_code}"
                self._remarks.append(f"{file}: {misfit_text(name, why)} ({node.label}{code})")
            lacking = [
                name
                for name in [self._index.names[tensor] for tensor in self._index.outputs]
                if name not in subgraphs.recorded
            ]
            self._remarks += [f"output {name!r} has no golden value: it is not judged" for name in lacking]
        whole = self._whole = WholeModel(model=question.model, recorded=recorded, suspect=suspect, judge=question.judge)
        marked = self._marked = MarkedTensors(whole=whole, listener=listener)
        whole.run()
        self._remarks += [f"{question.suspect}: {remark}" for remark in suspect.remarks]
        isolated = self._isolated = IsolatedLayers(
            subgraphs=subgraphs, suspect=suspect, reference=reference, limit=question.limit, listener=listener
        )
        isolated.run([node.number for node in self._chosen if node.op_type not in RANDOM], flaky=self._is_flaky)
        isolated.weigh(rounding)
        self._run_marked(whole, marked)
        runs_each = RUNS_IF_FLAKY if self._is_flaky else 1
        runs = SubgraphRuns(
            subgraphs=subgraphs,
            suspect=suspect,
            reference=reference,
            rounding=rounding,
            listener=listener,
            runs_each=runs_each,
        )
        self._explain(GroupSearch(runs), whole, marked, isolated)

    @property
    def _is_flaky(self) -> bool:
        """Whether the suspect is flaky, and not only because the model is random."""
        whole, isolated = self._whole, self._isolated
        is_random = any(node.op_type in RANDOM for node in self._index.nodes)
        is_flaky = whole is not None and whole.is_flaky and not is_random
        return is_flaky or (isolated is not None and isolated.is_flaky)

    def _explain(self, search: GroupSearch, whole: WholeModel, marked: MarkedTensors, isolated: IsolatedLayers) -> None:
        """Look for groups; everywhere, if all layers are measured."""
        explanation = self._explanation = Explanation(
            self._index,
            search,
            marked,
            is_wrong=whole.is_wrong,
            isolated=frozenset(
                number for node in self._chosen if (found := self._finding(node)).is_suspect for number in found.nodes
            ),
            random=frozenset(node.number for node in self._index.nodes if node.op_type in RANDOM),
        )
        if self._question.nodes is None:
            explanation.run(self._question.limit)
        explanation.look_at(self._chosen)
        for group in explanation.groups:
            if len(group.nodes) == 1:  # of a flaky suspect: the layer was right whenever it was run by itself before
                isolated.results[group.nodes[0]] = IsolatedResult(
                    error=group.error, failure=group.failure, flaky=group.flaky
                )

    def _run_marked(self, whole: WholeModel, marked: MarkedTensors) -> None:
        suspect = self._question.suspect
        if whole.failure is not None:
            return
        if not self._question.suspect_can.marks_any_tensor:
            self._remarks.append(f"{suspect} does not give inner tensors: only isolated layers are measured")
            return
        names = (self._index.names[tensor] for node in self._chosen for tensor in node.writes)
        marked.run([name for name in names if name in whole.recorded], self._question.limit)
        if marked.unmarkable:
            others = f", as with {len(marked.unmarkable) - 1} others" if len(marked.unmarkable) > 1 else ""
            self._remarks.append(f"{suspect} fails with {marked.unmarkable[0]!r} marked as an output{others}")

    def _on_flakiness(self) -> Iterable[str]:
        whole, suspect = self._whole, self._question.suspect
        if whole is not None and whole.flaky is not None:
            yield f"{suspect} is wrong, or fails, {whole.flaky.text} of the whole model only"
        elif whole is not None and whole.is_flaky:
            yield f"{suspect} gives other values from run to run"
        if self._is_flaky:
            yield f"{suspect} is flaky: every layer was run {RUNS_IF_FLAKY} times, the worst run counts"

    # What is known

    @property
    def findings(self) -> LayerFindings:
        """What is known so far."""
        whole, marked, explanation = self._whole, self._marked, self._explanation
        groups = explanation.groups if explanation is not None else []
        unexplained = explanation.remarks if explanation is not None else []
        return LayerFindings(
            layers=tuple(self._finding(node) for node in self._chosen),
            outputs=tuple(whole.outputs.values()) if whole is not None else (),
            failure=whole.failure if whole is not None else None,
            groups=tuple(group for group in groups if len(group.nodes) > 1),
            marking_effects=tuple(marked.effects) if marked is not None else (),
            non_finite_origins=tuple(self._non_finite_origins()),
            remarks=(*self._remarks, *unexplained, *self._on_flakiness()),
            complete=self._is_complete,
            unmeasured=tuple(self._unmeasured()),
            golden=None if self._recorded is None else self._recorded.golden,
        )

    def _unmeasured(self) -> Iterable[int]:
        """Layers that no golden value judges."""
        recorded, isolated = self._recorded, self._isolated
        if recorded is None or not recorded.is_golden or isolated is None:
            return
        for node in self._chosen:
            ends = self._bridges.get(node.number, (node.number,))
            if node.op_type not in RANDOM and not any(end in isolated.results for end in ends):
                yield node.number

    def _finding(self, node: Node) -> LayerFinding:
        whole, marked, isolated = self._whole, self._marked, self._isolated
        result = isolated.results.get(node.number) if isolated is not None else None
        return LayerFinding(
            node=layer_node(self._index, node),
            introduced=result.error if result is not None else None,
            propagated=marked.error_of(self._index, node) if marked is not None else None,
            failure=result.failure if result is not None else None,
            is_accused=whole is None or whole.failure is not None,
            note=self._note(node),
            flaky=result.flaky if result is not None else None,
            rounding_ratio=result.rounding_ratio if result is not None else None,
            piece=isolated.pieces.get(node.number) if isolated is not None else None,
            within=self._bridges.get(node.number, ()),
            is_of_model=result is not None and result.is_of_model,
        )

    def _note(self, node: Node) -> str:
        if node.op_type in RANDOM:
            return "it is random: not judged"
        if ends := self._bridges.get(node.number):
            names = first_of([self._index.nodes[end].label for end in ends], 2)
            return f"its outputs have no recorded value: measured as one piece with {names}"
        return self._isolated.impossible.get(node.number, "") if self._isolated is not None else ""

    def _non_finite_origins(self) -> Iterable[NonFiniteOrigin]:
        recorded, marked, isolated = self._recorded, self._marked, self._isolated
        if not self._is_complete or recorded is None or marked is None or isolated is None:
            return
        index, question = self._index, self._question

        def is_unknown(name: str) -> bool:
            """Whether a tensor has no golden value, and may hold anything: so nothing is said to begin behind it."""
            is_without = recorded.is_golden and name not in recorded and index.ids[name] in index.producer
            return is_without and constant_of_node(index, index.ids[name]) is None

        def in_whole(name: str) -> NonFinite | None:
            """Of a tensor in the suspect's run; of the model's inputs those they have."""
            return recorded.non_finite(name) if index.ids[name] not in index.producer else marked.non_finite.get(name)

        def of_input(name: str) -> NonFinite | None:
            return _ANY if is_unknown(name) else recorded.non_finite(name)

        yield from non_finite_origins(index, question.reference, of_input, recorded.non_finite)
        if marked.propagated:
            yield from non_finite_origins(
                index, question.suspect, lambda name: _ANY if is_unknown(name) else in_whole(name), in_whole
            )
        else:
            given = {name: count for result in isolated.results.values() for name, count in result.non_finite}
            yield from non_finite_origins(index, question.suspect, of_input, given.get)


# Where NaN and infinities begin: layers whose inputs are finite and whose outputs are not.

NonFiniteOf: TypeAlias = Callable[[str], NonFinite | None]
"""The NaN and infinities of a tensor; None if there are none, or if nobody knows."""


def non_finite_origins(
    index: ModelIndex, engine: str, of_input: NonFiniteOf, of_output: NonFiniteOf
) -> Iterator[NonFiniteOrigin]:
    """The origins in a run of ``engine``, in the order of the graph.

    A weight that is not finite is an origin by itself, and no layer that reads it is.
    """
    for node in index.nodes:
        if is_constant_node(index, node.number):
            continue
        outputs = ((name, count) for name in map(index.names.__getitem__, node.writes) if (count := of_output(name)))
        first = next(outputs, None)
        if first is None or any(of_input(index.names[tensor]) for tensor in node.reads):
            continue
        if not any(_is_non_finite_weight(index, tensor) for tensor in node.reads):
            tensor, count = first
            yield NonFiniteOrigin(
                engine=engine, number=node.number, label=node.label, tensor=tensor, nan=count.nan, inf=count.inf
            )


def _is_non_finite_weight(index: ModelIndex, tensor: int) -> bool:
    """Whether a weight or a Constant holds NaN or infinities; its values are read only now."""
    weight = index.weights.get(tensor)
    if weight is None:
        data = constant_of_node(index, tensor)
    elif weight.sparse or weight.kind.elem not in FLOATS:
        data = None
    else:
        data = bytes(index.buffer[weight.start : weight.end])
    if data is None:
        return False
    import onnx
    from onnx import numpy_helper

    try:
        values = numpy_helper.to_array(onnx.TensorProto.FromString(data), str(index.folder))
    except (ValueError, TypeError, OSError, onnx.checker.ValidationError, errors.BiopsyError):
        return False
    return non_finite([values]) is not None
