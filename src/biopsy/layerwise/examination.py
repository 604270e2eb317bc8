"""The examination of a model's layers: record, run the whole, run each alone, and look for what neither explains."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from biopsy import events
from biopsy.engines.base import Capabilities, ModelInput
from biopsy.engines.worker import Worker
from biopsy.layerwise.explanation import Explanation, propagated
from biopsy.layerwise.findings import Findings, Layer, Origin
from biopsy.layerwise.groups import Groups
from biopsy.layerwise.isolated_layers import RUNS_IF_FLAKY, Alones, Introduced
from biopsy.layerwise.non_finite_origins import origins
from biopsy.layerwise.recorded import Recorded, Recorder, is_constant, wanted
from biopsy.layerwise.report import Engines
from biopsy.layerwise.rounding import RoundingJudge
from biopsy.layerwise.subgraphs import Pieces
from biopsy.layerwise.tensor_errors import Judge, Odd
from biopsy.layerwise.truth import Truth
from biopsy.layerwise.whole_model import Whole
from biopsy.model.index import ModelIndex, Node
from biopsy.model.random_operators import RANDOM
from biopsy.model.tensor_type import TensorType
from biopsy.recording.cut_types import CutTypes
from biopsy.tensors.results import Feed


@dataclass(frozen=True)
class Question:
    """What to examine: the ``suspect`` against the ``reference``, both as specs of engines.

    ``model`` has a path. ``feeds`` gives the input samples for the inputs that the model takes. ``limit``: bytes of
    tensors in memory at a time. ``nodes``: only layers whose name, operator or output it matches somewhere are
    measured. ``marks_any_tensor``: whether the suspect gives any tensor that is marked. ``timeout``: seconds per run.
    """

    index: ModelIndex
    model: ModelInput
    reference: str
    suspect: str
    feeds: Callable[[Mapping[str, TensorType | None]], Sequence[Feed]]
    limit: int
    judge: Judge = field(default_factory=Judge)
    nodes: re.Pattern[str] | None = None
    suspect_can: Capabilities = field(default_factory=Capabilities)
    timeout: float | None = None


def layers_of(index: ModelIndex, pattern: re.Pattern[str] | None = None) -> list[Node]:
    """The nodes that can be measured, all but constants, of which the name, the operator or an output matches."""

    def words(node: Node) -> list[str]:
        return [node.label, node.name, node.op_type, *(index.names[tensor] for tensor in node.writes)]

    layers = [node for node in index.nodes if not is_constant(index, node.number)]
    return [node for node in layers if pattern is None or any(map(pattern.search, words(node)))]


class Examination:
    """Answers a question, step by step. ``findings`` are what is known so far. ``scratch`` is a folder for files."""

    def __init__(self, question: Question, scratch: Path, listener: events.Listener = events.ignore) -> None:
        self._question = question
        self._scratch = scratch
        self._listener = listener
        self._index = question.index
        self._recorded: Recorded | None = None
        self._whole: Whole | None = None
        self._alones: Alones | None = None
        self._explanation: Explanation | None = None
        self._remarks: list[str] = []
        self._complete = False
        self.engines = Engines((question.reference, ""), (question.suspect, ""))
        self.samples = 0

    def run(self) -> Findings:
        """Examine. Raises CannotCompare if the reference cannot run the model, and what else stops every run."""
        question, index = self._question, self._index
        with (
            Worker(question.suspect, self._scratch, question.timeout) as suspect,
            Worker(question.reference, self._scratch, question.timeout) as reference,
        ):
            for worker in (reference, suspect):
                worker.start()
            self.engines = Engines((question.reference, reference.version()), (question.suspect, suspect.version()))
            inputs = {index.names[tensor]: index.tensor_type(tensor) for tensor in index.fed_inputs()}
            feeds = question.feeds(inputs)
            self.samples = len(feeds)
            recorder = Recorder(index, question.model, reference, question.limit, self._listener)
            self._recorded = recorder.record(
                feeds, wanted(index, CutTypes(index, lambda tensor: None)), self._scratch, question.judge
            )
            reference.close()
            with RoundingJudge(self._recorded.path, self._scratch, question.timeout) as rounding:
                self._examine(suspect, self._recorded, Truth(self._recorded, reference, question.judge), rounding)
        self._complete = True
        return self.findings

    def _examine(self, suspect: Worker, recorded: Recorded, truth: Truth, rounding: RoundingJudge) -> None:
        question = self._question
        pieces = Pieces(self._index, recorded)
        self._whole = Whole(question.model, recorded, suspect, question.judge, self._listener)
        self._whole.run_unmarked()
        self._remarks += [f"{question.suspect}: {remark}" for remark in suspect.remarks]
        self._alones = Alones(pieces, suspect, truth, self._listener)
        measured = [node.number for node in self._chosen if node.op_type not in RANDOM]
        self._alones.run(measured, question.limit, flaky=self._is_flaky)
        self._alones.weigh(rounding)
        self._run_marked(self._whole, recorded)
        groups = Groups(pieces, suspect, truth, rounding, self._listener, flaky=self._is_flaky)
        self._explain(groups, self._whole)

    @property
    def _is_flaky(self) -> bool:
        """Whether the suspect wavers, and not only because the model is random."""
        is_random = any(node.op_type in RANDOM for node in self._index.nodes)
        is_flaky = self._whole is not None and self._whole.is_flaky and not is_random
        return is_flaky or (self._alones is not None and self._alones.is_flaky)

    def _explain(self, groups: Groups, whole: Whole) -> None:
        """Look for groups; everywhere, if all layers are measured."""
        assert self._alones is not None
        alone = frozenset(node.number for node in self._chosen if self._layer(node).is_suspect)
        random = frozenset(node.number for node in self._index.nodes if node.op_type in RANDOM)
        self._explanation = Explanation(self._index, groups, whole, alone, random)
        if self._question.nodes is None:
            self._explanation.run(self._question.limit)
        self._explanation.look_at(self._chosen)
        for group in self._explanation.found:
            if len(group.nodes) == 1:  # of a suspect that wavers: it was right whenever it was run alone before
                self._alones.found[group.nodes[0]] = Introduced(group.error, group.failure, flaky=group.flaky)

    def _run_marked(self, whole: Whole, recorded: Recorded) -> None:
        if whole.failure is not None:
            return
        if not self._question.suspect_can.marks_any_tensor:
            self._remarks.append(
                f"{self._question.suspect} does not give inner tensors: only layers alone are measured"
            )
            return
        names = (self._index.names[tensor] for node in self._chosen for tensor in node.writes)
        whole.run_marked([name for name in names if name in recorded], self._question.limit)
        if whole.unmarkable:
            self._remarks.append(
                f"{self._question.suspect} fails with {whole.unmarkable[0]!r} marked as an output"
                + (f", as with {len(whole.unmarkable) - 1} others" if len(whole.unmarkable) > 1 else "")
            )

    def _on_flakiness(self) -> Iterable[str]:
        whole, suspect = self._whole, self._question.suspect
        if whole is not None and whole.flaky is not None:
            yield f"{suspect} is wrong, or fails, {whole.flaky.text} of the whole model only"
        elif whole is not None and whole.is_flaky:
            yield f"{suspect} gives other values from run to run"
        if self._is_flaky:
            yield f"{suspect} is flaky: every layer was run {RUNS_IF_FLAKY} times, the worst run counts"

    @property
    def _chosen(self) -> list[Node]:
        """The nodes to measure."""
        return layers_of(self._index, self._question.nodes)

    # What is known

    @property
    def findings(self) -> Findings:
        """What is known so far."""
        whole, explanation = self._whole, self._explanation
        more = [*(explanation.remarks if explanation is not None else []), *self._on_flakiness()]
        return Findings(
            [self._layer(node) for node in self._chosen],
            tuple(whole.outputs.values()) if whole is not None else (),
            whole.failure if whole is not None else None,
            tuple(group for group in explanation.found if len(group.nodes) > 1) if explanation is not None else (),
            tuple(whole.observed) if whole is not None else (),
            tuple(self._origins()),
            (*self._remarks, *more),
            self._complete,
        )

    def _layer(self, node: Node) -> Layer:
        alone = self._alones.found.get(node.number) if self._alones is not None else None
        return Layer(
            node.number,
            node.name,
            node.op_type,
            node.label,
            tuple(self._index.names[tensor] for tensor in node.reads if tensor not in self._index.weights),
            tuple(self._index.names[tensor] for tensor in node.writes),
            alone.error if alone is not None else None,
            propagated(self._index, self._whole, node) if self._whole is not None else None,
            alone.failure if alone is not None else None,
            accused=self._whole is None or self._whole.failure is not None,
            note=self._note(node),
            flaky=alone.flaky if alone is not None else None,
            times_rounding=alone.times_rounding if alone is not None else None,
        )

    def _note(self, node: Node) -> str:
        if node.op_type in RANDOM:
            return "it is random: not judged"
        return self._alones.impossible.get(node.number, "") if self._alones is not None else ""

    def _origins(self) -> Iterable[Origin]:
        if not self._complete or self._recorded is None or self._whole is None or self._alones is None:
            return
        recorded, question = self._recorded, self._question

        def odd_recorded(name: str) -> Odd | None:
            return recorded.odd(name) if name in recorded else None

        yield from origins(self._index, question.reference, odd_recorded, odd_recorded)
        if self._whole.propagated:
            yield from origins(self._index, question.suspect, self._odd_in_whole, self._odd_in_whole)
        else:
            alone = {name: lost for one in self._alones.found.values() for name, lost in one.odd}
            yield from origins(self._index, question.suspect, odd_recorded, alone.get)

    def _odd_in_whole(self, name: str) -> Odd | None:
        """NaN and infinities of a tensor in the suspect's run; of the model's inputs those they have."""
        assert self._whole is not None and self._recorded is not None
        is_input = self._index.ids[name] not in self._index.producer
        return self._recorded.odd(name) if is_input and name in self._recorded else self._whole.odd.get(name)
