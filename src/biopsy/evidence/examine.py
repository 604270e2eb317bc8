"""The examination of a model's layers: record, run the whole, run each alone, and look for what neither explains."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from biopsy import events
from biopsy.engines.base import Capabilities, ModelInput
from biopsy.engines.worker import Worker
from biopsy.evidence.alone import Alones
from biopsy.evidence.groups import Groups, Wrong
from biopsy.evidence.judge import Judge, Odd, worst
from biopsy.evidence.layers import Findings, Group, Layer, Origin, TensorError
from biopsy.evidence.origins import origins
from biopsy.evidence.pieces import Pieces
from biopsy.evidence.recorded import Recorded, Recorder, is_constant, wanted
from biopsy.evidence.report import Engines
from biopsy.evidence.whole import Whole
from biopsy.model.index import ModelIndex, Node
from biopsy.model.tensor_type import TensorType
from biopsy.reduction.types_of_cuts import CutTypes
from biopsy.tensors.results import Feed

_RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
_MOST_GROUPS = 8
_JUMP = 10.0
"""How many times what is allowed a layer must be off in the whole model, its inputs being right, to look at it."""

_NEAR = 64
"""Nodes of a neighbourhood: so far it is looked for what makes such a layer wrong."""

_WINDOWS = (4, 16)
"""Nodes of the pieces that are looked through; any half of them that are neighbours stand in one piece together."""

_FEW = 32
"""Nodes of a group that a person can look at; more of them are rounding that adds up."""


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
        self._groups: list[Group] = []
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
            self._examine(suspect, self._recorded)
        self._complete = True
        return self.findings

    def _examine(self, suspect: Worker, recorded: Recorded) -> None:
        question = self._question
        pieces = Pieces(self._index, recorded)
        self._whole = Whole(question.model, recorded, suspect, question.judge, self._listener)
        self._whole.run_unmarked()
        self._remarks += [f"{question.suspect}: {remark}" for remark in suspect.remarks]
        self._alones = Alones(pieces, suspect, question.judge, self._listener)
        self._alones.run([node.number for node in self._chosen if node.op_type not in _RANDOM], question.limit)
        self._run_marked(self._whole, recorded)
        self._look_for_groups(Groups(pieces, suspect, question.judge, self._listener))

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
        if whole.wavers:
            self._remarks.append(f"{self._question.suspect} gives other values from run to run")

    @property
    def _chosen(self) -> list[Node]:
        """The nodes to measure."""
        layers = [node for node in self._index.nodes if not is_constant(self._index, node.number)]
        pattern = self._question.nodes
        if pattern is None:
            return layers
        return [node for node in layers if any(map(pattern.search, self._words(node)))]

    def _words(self, node: Node) -> list[str]:
        return [node.label, node.name, node.op_type, *(self._index.names[tensor] for tensor in node.writes)]

    # What neither the whole model nor single layers explain

    def _look_for_groups(self, groups: Groups) -> None:
        assert self._whole is not None
        if self._question.nodes is None:
            self._look_through_windows(groups, self._whole)
            self._whole.narrow(self._inner_names())
            self._explain(groups, self._whole)
        blamed = self._blamed()
        for node in self._unexplained(self._whole):
            if node not in blamed and not groups.is_spent:
                self._take(groups.around(node, self._rest, most=_NEAR))
                blamed = self._blamed()

    def _look_through_windows(self, groups: Groups, whole: Whole) -> None:
        """Run few neighbours at a time: so a group is found whose error nobody sees at the outputs.

        Where all outputs are right, small errors are not looked at: rounding adds up within a window too.
        """
        all_right = whole.failure is None and all(error.passed for error in whole.outputs.values())
        for size in _WINDOWS:
            for window in groups.windows(self._rest, size, self._question.limit):
                rest = set(window) - self._blamed()
                found = groups.wrong(rest)
                if found is None or found.error is None or len(self._groups) >= _MOST_GROUPS:
                    continue
                if not (all_right and found.error.times < _JUMP):
                    self._take(groups.within(rest, found))

    def _inner_names(self) -> list[str]:
        """Tensors inside groups that are right when those are marked."""
        hiding = (group for group in self._groups if group.hides)
        written = (tensor for group in hiding for node in group.nodes for tensor in self._index.node_writes[node])
        return [self._index.names[tensor] for tensor in written]

    @property
    def _rest(self) -> set[int]:
        """Nodes that are not known to be wrong, and not random."""
        return set(range(len(self._index.nodes))) - self._blamed() - self._random

    def _explain(self, groups: Groups, whole: Whole) -> None:
        """Take away what is wrong by itself. While the rest is wrong, find out which part of it is, and go on."""
        is_wrong = whole.failure is not None or not all(error.passed for error in whole.outputs.values())
        while is_wrong and len(self._groups) < _MOST_GROUPS and not groups.is_spent:
            rest = self._rest
            found = groups.wrong(rest)
            if found is None:
                return
            group = self._group_in(rest, found, groups, whole)
            if groups.is_spent or len(group.nodes) > _FEW:
                what = "cannot be run" if found.failure else "are out of tolerance"
                self._remarks.append(
                    f"{len(group.nodes)} layers together {what}, and no few of them: errors that add up, or a fault "
                    "that needs them all"
                )
                return
            self._take(group)

    def _group_in(self, rest: set[int], found: Wrong, groups: Groups, whole: Whole) -> Group:
        """A group within ``rest``, which is wrong: around what points to it, else by halves."""
        for centre in (*self._hidden(whole), *self._unexplained(whole)):
            if centre in rest and (group := groups.around(centre, rest, found)) is not None:
                return group
        return groups.within(rest, found)

    def _hidden(self, whole: Whole) -> list[int]:
        """The nodes that compute the tensors which hide a failure when they are marked."""
        producer = self._index.producer
        names = [name for one in whole.observed if one.change == "gone" for name in one.tensors]
        return [producer[self._index.ids[name]] for name in names if self._index.ids[name] in producer]

    def _unexplained(self, whole: Whole) -> list[int]:
        """Layers that are wrong in the whole model by far, although their inputs are right there; the worst first."""
        found = []
        for node in self._chosen:
            error = self._propagated(node)
            inputs = [whole.propagated.get(self._index.names[tensor]) for tensor in node.reads]
            if error is None or error.passed or error.times < _JUMP or node.op_type in _RANDOM:
                continue
            if all(before is None or before.passed for before in inputs):
                found.append((-error.times, node.number))
        return [number for _, number in sorted(found)]

    def _take(self, group: Group | None) -> None:
        if group is not None and len(group.nodes) <= _FEW:
            self._groups.append(group)

    def _blamed(self) -> set[int]:
        """Nodes that are known to be wrong."""
        assert self._alones is not None
        alone = {node for node in self._alones.found if self._layer(self._index.nodes[node]).is_suspect}
        return alone.union(*(group.nodes for group in self._groups))

    @property
    def _random(self) -> set[int]:
        return {node.number for node in self._index.nodes if node.op_type in _RANDOM}

    # What is known

    @property
    def findings(self) -> Findings:
        """What is known so far."""
        whole = self._whole
        return Findings(
            [self._layer(node) for node in self._chosen],
            tuple(whole.outputs.values()) if whole is not None else (),
            whole.failure if whole is not None else None,
            tuple(self._groups),
            tuple(whole.observed) if whole is not None else (),
            tuple(self._origins()),
            tuple(self._remarks),
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
            self._propagated(node),
            alone.failure if alone is not None else None,
            accused=self._whole is None or self._whole.failure is not None,
            note=self._note(node),
        )

    def _note(self, node: Node) -> str:
        if node.op_type in _RANDOM:
            return "it is random: not judged"
        return self._alones.impossible.get(node.number, "") if self._alones is not None else ""

    def _propagated(self, node: Node) -> TensorError | None:
        if self._whole is None:
            return None
        found = [self._whole.propagated.get(self._index.names[tensor]) for tensor in node.writes]
        known = [error for error in found if error is not None]
        return worst(known) if known else None

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
