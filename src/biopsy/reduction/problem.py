"""Candidates, and the model to be reduced: which subsets of its nodes can stand alone, and what stands at their
borders.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import Literal, TypeAlias

from biopsy.model.index import ModelIndex
from biopsy.model.nodes import constant_of_node, neighbourhood_order
from biopsy.model.slice import NO_CHANGE, Boundary, Subset
from biopsy.recording.reference_run import Recording
from biopsy.recording.types import CutTypes, as_constant, border_types, is_shape_like
from biopsy.search.drive import Search


@dataclass(frozen=True)
class Candidate:
    """A smaller model, as decisions about the original.

    ``nodes`` are the numbers of the nodes it keeps, ascending. Nodes that are gone are cut: what they computed becomes
    an input or a constant. ``bypassed`` are those whose readers read one of the node's own inputs instead, as
    (node, tensor) in the order of the nodes. ``sample`` is the input sample whose values constants have that are not
    the same in all of them. ``turned`` are cuts in the other form than the policy gives them: fed instead of frozen, or
    frozen instead of fed.
    """

    nodes: tuple[int, ...]
    bypassed: tuple[tuple[int, int], ...] = ()
    sample: int = 0
    turned: tuple[int, ...] = ()

    @cached_property
    def kept(self) -> frozenset[int]:
        """``nodes``, to look one up."""
        return frozenset(self.nodes)

    @property
    def size(self) -> int:
        """Nodes left: what a reduction makes small."""
        return len(self.nodes)

    def without(self, gone: Iterable[int]) -> Candidate:
        """The candidate without some nodes: what they computed is cut."""
        left_out = frozenset(gone)
        return replace(self, nodes=tuple(node for node in self.nodes if node not in left_out))


@dataclass(frozen=True)
class Proposal:
    """A candidate with words for the progress line, such as "nodes 1-250 of 500"."""

    candidate: Candidate
    description: str


NodeSearch: TypeAlias = Search[Proposal, Candidate, None]
"""A pass at work: it proposes candidates, and is sent the one that reproduces, closed, or None."""


def uncuttable_sources(
    index: ModelIndex,
    tensors: Iterable[int],
    kept: Container[int],
    can_cut: Callable[[int], bool],
) -> set[int]:
    """The nodes outside ``kept`` that compute those of these tensors that cannot be cut, and what they need in turn."""
    waiting, sources = list(tensors), set[int]()
    while waiting:
        tensor = waiting.pop()
        source = index.producer.get(tensor)
        if source is not None and source not in kept and source not in sources and not can_cut(tensor):
            sources.add(source)
            waiting.extend(index.node_reads[source])
    return sources


Cut = Literal["auto", "input", "constant"]
"""What happens to a cut tensor: fed, frozen, or by its kind: what looks like a shape is frozen, the rest is fed."""


@dataclass(frozen=True, kw_only=True)
class Border:
    """What happens at the border of a candidate: to a cut tensor, to the inputs and outputs of the original.

    ``cut`` makes a cut tensor an input that is fed (``input``), freezes it with its recorded value (``constant``), or
    does what fits the tensor (``auto``). ``keep_inputs`` and ``keep_outputs`` keep those of the original.
    ``mark_intermediate`` makes every tensor of a candidate an output, because the failure is masked otherwise; None
    does so once the original is found to hide one, for a check that has golden values of inner tensors.
    """

    cut: Cut = "auto"
    keep_inputs: bool = False
    keep_outputs: bool = False
    mark_intermediate: bool | None = False


class Problem:
    """The geometry of the model: its nodes, which of them can stand alone, and their borders.

    ``keep_inputs`` and ``keep_outputs`` keep those of the original unchanged. ``mark_intermediate`` makes every tensor
    of a candidate an output, because the failure is masked otherwise. ``feeds_vouched_only``: a candidate is fed only
    recorded values that golden values cannot contradict (see ``is_vouched``).
    """

    def __init__(self, index: ModelIndex, types: CutTypes, recording: Recording, border: Border = Border()) -> None:
        self.index = index
        self.types = types
        self.recording = recording
        self._border = border
        self.may_cut_inputs = not border.keep_inputs  # whether inner tensors may become inputs or constants
        self.may_cut_outputs = not border.keep_outputs
        self.mark_intermediate = border.mark_intermediate
        self.feeds_vouched_only = False
        self._freezes_vouched_only = False
        self._frozen: dict[tuple[int, int, bool], bytes | None] = {}
        self._order = lru_cache(maxsize=4)(partial(neighbourhood_order, index))
        self._last_subset: tuple[tuple[object, object], Subset] | None = None

    @cached_property
    def elements(self) -> int:
        """Elements of all tensors that nodes compute, together; what nobody knows of a shape counts as one."""
        return sum(map(self.types.elements, self.index.producer))

    def order(self, candidate: Candidate) -> list[int]:
        """The nodes of a candidate, those that belong together next to each other; the last few are remembered."""
        return list(self._order(candidate.nodes))

    def detours(self, candidate: Candidate, node: int) -> list[int]:
        """The inputs of a node of a candidate that its readers could read instead of its output.

        An input and the output must agree in type and shape; no other output of the node may be read; and the readers
        must read it as an input, since a body would have to be rewritten.
        """
        index = self.index
        subset = self.subset(candidate)
        read = [tensor for tensor in index.node_writes[node] if tensor in subset.read]
        if len(read) != 1 or not subset.kept.isdisjoint(index.captors.get(read[0], ())):
            return []
        return [tensor for tensor in subset.reads_of(node) if self.types.agree(tensor, read[0])]

    @cached_property
    def whole(self) -> Candidate:
        """The original: every node."""
        return Candidate(tuple(range(len(self.index.nodes))))

    def closed(self, candidate: Candidate) -> Candidate | None:
        """The nearest candidate that can stand alone; None if there is none.

        A tensor of unknown type cannot be cut: the node that computes it is added. Nor can it be an output: a node that
        reads it is added. With inputs kept, nodes that would need a cut are removed; with outputs kept, nodes that no
        output needs are.
        """
        if self._border.keep_inputs:
            kept = set(candidate.nodes)
            subset = self.subset(candidate)
            producer = self.index.producer
            readers: dict[int, list[int]] = {}
            waiting = []
            for node in subset.nodes:
                for tensor in subset.reads_of(node):
                    readers.setdefault(tensor, []).append(node)
                    if producer.get(tensor, node) not in kept:
                        waiting.append(node)
            while waiting:
                node = waiting.pop()
                if node in kept:
                    kept.discard(node)
                    for tensor in self.index.node_writes[node]:
                        waiting += readers.get(tensor, ())
            candidate = self._normalised(kept, candidate)
        candidate = self._completed(candidate)
        kept = set(candidate.nodes)
        if self._border.keep_outputs and not self._only_what_outputs_need(kept, self.subset(candidate)):
            return None
        return self._normalised(kept, candidate) if kept else None

    def comes_back(self, target: Candidate, gone: Sequence[int]) -> bool:
        """Whether all of these nodes would surely be added again if they were left out of a target, which is closed.

        This looks only at the nodes and their neighbours, which takes far less time than closing what is left.
        """
        if self._border.keep_inputs or self._border.keep_outputs or target.bypassed:
            return False
        index, kept, lacking = self.index, target.kept, frozenset(gone)

        def may_go(tensor: int) -> bool:
            return index.producer.get(tensor) not in lacking or self._can_cut(tensor)

        ends = [
            tensor
            for node in lacking
            for tensor in index.node_writes[node]
            if any(reader in kept and reader not in lacking for reader in index.consumers.get(tensor, ()))
        ]
        return uncuttable_sources(index, ends, (), may_go) == lacking

    def _completed(self, candidate: Candidate) -> Candidate:
        """The candidate with the nodes added that it cannot stand alone without.

        The first reader of an end of unknown type is added, so that the tensor is no end any more. These readers are a
        ring around the candidate. They bring along the nodes that they cannot be cut from, and have ends of their own:
        the next ring. Only the first ring is normalised by itself: it may leave bypasses and forms that nobody uses any
        more.
        """
        is_first_ring = True
        while True:
            subset = self.subset(candidate)
            kept = set(candidate.nodes)
            kept |= uncuttable_sources(self.index, subset.cuts, kept, self._can_cut)
            kept |= self._bypassed_for_bodies(kept, candidate)
            if len(kept) == candidate.size and not self._border.keep_outputs:
                kept |= self._first_readers(subset.sinks) if is_first_ring else self._rings(subset, candidate.bypassed)
                is_first_ring = False
            if len(kept) == candidate.size:
                return candidate
            candidate = self._normalised(kept, candidate)

    def _rings(self, subset: Subset, bypassed: Sequence[tuple[int, int]]) -> set[int]:
        """The nodes of all rings, and what they bring along; each node is looked at once, however many rings there are.

        It ends early at a ring that meets a bypass: the candidate must be rewired before its ends are known again.
        """
        index, outputs, around = self.index, frozenset(self.index.outputs), frozenset(node for node, _ in bypassed)
        kept, read = set(subset.kept), set(subset.read)
        ring = self._first_readers(subset.sinks) - kept
        while ring:
            kept |= ring
            reads = chain.from_iterable(map(index.node_reads.__getitem__, ring))
            taken = uncuttable_sources(index, reads, kept, self._can_cut)
            new = ring | taken
            if around and not around.isdisjoint(
                {*new, *(index.producer.get(tensor) for node in new for tensor in index.node_reads[node])}
            ):
                break
            kept |= taken
            read.update(tensor for node in new for tensor in index.node_reads[node])
            written = (tensor for node in new for tensor in index.node_writes[node])
            ring = self._first_readers(tensor for tensor in written if tensor in outputs or tensor not in read) - kept
        return kept - subset.kept

    def _first_readers(self, ends: Iterable[int]) -> set[int]:
        """The first reader of each end of unknown type."""
        consumers = self.index.consumers
        return {consumers[end][0] for end in ends if end in consumers and not self.types.is_sufficient(end)}

    def _bypassed_for_bodies(self, kept: set[int], candidate: Candidate) -> set[int]:
        """The nodes that cannot stay bypassed, since the body of a node that was added reads their outputs."""
        writes, captors = self.index.node_writes, self.index.captors
        return {
            node
            for node, _ in (candidate.bypassed if captors else ())
            if any(not kept.isdisjoint(captors.get(tensor, ())) for tensor in writes[node])
        }

    def subset(self, candidate: Candidate) -> Subset:
        """The nodes of a candidate, the readers of bypassed nodes rewired.

        The last one is remembered: closing a candidate, its border and its bytes all ask for the same.
        """
        key = candidate.nodes, candidate.bypassed
        if self._last_subset is not None and self._last_subset[0] == key:
            return self._last_subset[1]
        # Output of each bypassed node -> the tensor read instead, through any bypassed nodes before it. Nodes of an
        # invalid model may wait for each other. Where such nodes are all bypassed, one of their outputs is read, and
        # comes from outside.
        replaced = {output: tensor for node, tensor in candidate.bypassed for output in self.index.node_writes[node]}
        rewired = {}
        for output in replaced:
            tensor, passed = replaced[output], {output}
            while tensor in replaced and tensor not in passed:
                passed.add(tensor)
                tensor = replaced[tensor]
            rewired[output] = tensor
        subset = Subset(self.index, candidate.nodes, rewired)
        self._last_subset = key, subset
        return subset

    def _normalised(self, kept: set[int], candidate: Candidate) -> Candidate:
        """The candidate without what makes no difference: bypasses that nobody reads through, forms of no cut."""
        instead = {node: tensor for node, tensor in candidate.bypassed if node not in kept}
        used: set[int] = set()
        waiting = [tensor for node in kept for tensor in self.index.node_reads[node]] if instead else []
        while waiting:
            source = self.index.producer.get(waiting.pop(), -1)
            if source in instead and source not in used:
                used.add(source)
                waiting.append(instead[source])
        bypassed = tuple((node, instead[node]) for node in sorted(used))
        normalised = replace(candidate, nodes=tuple(sorted(kept)), bypassed=bypassed, turned=())
        if not candidate.turned or self._border.cut != "auto":
            return normalised
        # A cut has another form: fed if anybody can tell its type, frozen if its one value is known.
        turned = (
            tensor
            for tensor in sorted(set(candidate.turned).intersection(self.subset(normalised).cuts))
            if (
                self.types.is_sufficient(tensor)
                if self.frozen(tensor) is not None
                else self.frozen(tensor, turned=True) is not None
            )
        )
        return replace(normalised, turned=tuple(turned))

    def boundary(self, candidate: Candidate) -> Boundary:
        """Types, constants, inputs and outputs at the border of a candidate that is closed."""
        if candidate == self.whole:
            return self.everything_marked() if self.mark_intermediate else NO_CHANGE
        subset = self.subset(candidate)
        infos = border_types(self.types, subset)
        turned = set(candidate.turned)
        kinds = ((tensor, self.frozen(tensor, candidate.sample, turned=tensor in turned)) for tensor in subset.cuts)
        frozen = {tensor: span for tensor, span in kinds if span is not None}
        inputs = self.index.inputs if self._border.keep_inputs else None
        outputs: Sequence[int] | None = self.index.outputs if self._border.keep_outputs else None
        if self.mark_intermediate and outputs is None:
            # What is masked later is masked in a candidate too: it must be seen where it is.
            inner = sorted(subset.written.difference(subset.sinks))
            infos |= {t: info for t in inner if self.types.is_sufficient(t) and (info := self.types.end(t)) is not None}
            outputs = [*subset.sinks, *(tensor for tensor in inner if tensor in infos)]
        return Boundary(infos=infos, frozen=frozen, inputs=inputs, outputs=outputs)

    def everything_marked(self, candidate: Candidate | None = None) -> Boundary:
        """The border of a closed candidate, by default of the whole model, with every tensor of a known type an output.

        They are in the order of the nodes.
        """
        if candidate is None or candidate == self.whole:
            border, handed_through = NO_CHANGE, [t for t in self.index.outputs if t not in self.index.producer]
        else:
            border, handed_through = self.boundary(candidate), []
        nodes = self.whole.nodes if candidate is None else candidate.nodes
        written = [tensor for node in nodes for tensor in self.index.nodes[node].writes]
        outputs = set(self.index.outputs)
        infos = {
            tensor: info
            for tensor in written
            if tensor not in outputs and (info := self.types.info(tensor)) is not None
        }
        in_order = [tensor for tensor in written if tensor in outputs or tensor in infos]
        return replace(border, infos={**border.infos, **infos}, outputs=[*handed_through, *in_order])

    def runs_of_nodes(self, elements: int) -> Iterator[Candidate]:
        """The model in runs of consecutive nodes that compute at most so many elements each, or are one node.

        Each is closed, so that it may hold nodes of its neighbours too; a run that cannot stand alone is left out.
        """
        nodes: list[int] = []
        held = 0
        for node, writes in enumerate(self.index.node_writes):
            more = sum(map(self.types.elements, writes))
            if nodes and held + more > elements:
                yield from filter(None, [self.closed(Candidate(tuple(nodes)))])
                nodes, held = [], 0
            nodes.append(node)
            held += more
        yield from filter(None, [self.closed(Candidate(tuple(nodes)))])

    def samples_of(self, candidate: Candidate) -> list[Candidate]:
        """The candidate once for each sample that gives it other constants, its own sample first.

        Only a policy that freezes everything freezes what differs from sample to sample.
        """
        if self._border.cut != "constant" or self.recording.count < 2:
            return [candidate]
        cuts = self.subset(candidate).cuts
        if self._freezes_vouched_only:
            cuts = list(filter(self._is_vouched_constant, cuts))
        if all(self.recording.constant_value(self.index.names[tensor]) is not None for tensor in cuts):
            return [candidate]
        others = [number for number in range(self.recording.count) if number != candidate.sample]
        return [candidate, *(replace(candidate, sample=number) for number in others)]

    def frozen(self, tensor: int, sample: int = 0, *, turned: bool = False) -> bytes | None:
        """The serialized TensorProto that a cut becomes, its value from a sample; None if it is fed.

        ``turned``: in the other form than the policy gives it.
        """
        key = tensor, sample, turned
        if key not in self._frozen:
            span, cut = None, self._border.cut
            if turned:
                is_recorded = self.frozen(tensor, sample) is None
            else:
                span = None if cut == "input" else constant_of_node(self.index, tensor)
                is_recorded = (
                    cut != "input"
                    and span is None
                    and (
                        is_shape_like(self.types.tensor_type(tensor))
                        or cut == "constant"
                        or tensor in self.recording.independent
                    )
                )
            self._frozen[key] = self._recorded_constant(tensor, sample) if is_recorded else span
        return self._frozen[key]

    def freeze_vouched_only(self) -> None:
        """From now on, freeze no cut with a recorded value that nobody vouches for: see ``Vouching``."""
        self._freezes_vouched_only = True
        self._frozen.clear()

    def is_vouched(self, tensor: int) -> bool:
        """Whether what is recorded of a tensor is right whatever golden values say of other tensors.

        Either the user gave it, or it is the same whatever values the inputs have.
        """
        return tensor in self.recording.value_free or self.recording.is_given(self.index.names[tensor])

    def doubtful(self, candidate: Candidate, *, fed: bool) -> bool:
        """Whether a closed candidate is ``fed``, or has as a constant, what is recorded and nobody vouches for."""
        turned, is_believed = set(candidate.turned), self.is_vouched if fed else self._is_vouched_constant
        return any(
            (self.frozen(tensor, candidate.sample, turned=tensor in turned) is None) == fed and not is_believed(tensor)
            for tensor in self.subset(candidate).cuts
        )

    def _is_vouched_constant(self, tensor: int) -> bool:
        """The same of a constant: the value of one sample contradicts what golden values say of another one."""
        if constant_of_node(self.index, tensor) is not None:
            return True
        return self.is_vouched(tensor) and self.recording.constant_value(self.index.names[tensor]) is not None

    def will_freeze(self, candidate: Candidate) -> None:
        """Record at once all values that cuts at the nodes of a candidate would be frozen to."""
        if self._border.cut == "auto" and self.may_cut_inputs:
            self.recording.include(tensor for node in candidate.nodes for tensor in self.index.node_writes[node])

    def in_form(self, candidate: Candidate, tensors: Iterable[int], *, fed: bool) -> Candidate:
        """The candidate with some cuts fed, whatever the policy makes of them; or frozen, if one value is known."""
        if self._border.cut != "auto":
            return candidate
        chosen = set(tensors)
        other = {tensor for tensor in chosen if fed == (self.frozen(tensor) is not None)}
        return replace(candidate, turned=tuple(sorted((set(candidate.turned) - chosen) | other)))

    def _recorded_constant(self, tensor: int, sample: int) -> bytes | None:
        if self._freezes_vouched_only and not self._is_vouched_constant(tensor):
            return None
        name = self.index.names[tensor]
        value = self.recording.constant_value(name)
        if value is None and self._border.cut == "constant":
            values = self.recording.values(name)
            value = values[sample] if values is not None else None
        return None if value is None else as_constant(name, value)

    def _can_cut(self, tensor: int) -> bool:
        """Whether a tensor can come from outside. With inputs kept none can, and a node brings all it needs along.

        Nor can one without a value where values are all from a file: nobody could feed it.
        """
        if self.recording.has_only_golden_values and self.index.names[tensor] not in self.recording:
            return False
        return not self._border.keep_inputs and (self.types.is_sufficient(tensor) or self.frozen(tensor) is not None)

    def _only_what_outputs_need(self, kept: set[int], subset: Subset) -> bool:
        """Keep what the original's outputs are computed from; False if one of them is computed no more."""
        producer = self.index.producer
        needed: set[int] = set()
        waiting = [producer[tensor] for tensor in self.index.outputs if tensor in producer]
        while waiting:
            node = waiting.pop()
            if node not in needed and node in kept:
                needed.add(node)
                waiting += [producer[tensor] for tensor in subset.reads_of(node) if tensor in producer]
        kept &= needed
        return all(producer[tensor] in kept for tensor in self.index.outputs if tensor in producer)
