"""Candidates, and the model to be reduced: which subsets of its nodes can stand alone, and what their cuts become."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import Literal, TypeAlias

from biopsy.model.index import ModelIndex
from biopsy.model.nodes import constant_of_node, neighbourhood_order
from biopsy.model.slice import NO_CHANGE, Boundary, Subset
from biopsy.model.walk import reached
from biopsy.recording.reference_run import Recording
from biopsy.recording.types import CutTypes, as_constant, border_types, is_shape_like
from biopsy.search.drive import Search


@dataclass(frozen=True)
class Candidate:
    """A smaller model, described by its differences from the original.

    ``nodes`` are the numbers of the remaining nodes, ascending. Each tensor that they read from a removed node is a
    *cut*: it becomes an input (it is *fed*) or a constant (it is *frozen*). If the removed node is in ``bypassed``, a
    list of (node, tensor) in the order of the nodes, its readers read that tensor instead, an input of the node.
    ``sample`` is the input sample from which constants have their values if these differ between samples. ``turned``
    are cuts in the other form than the policy's: fed instead of frozen, or frozen instead of fed.
    """

    nodes: tuple[int, ...]
    bypassed: tuple[tuple[int, int], ...] = ()
    sample: int = 0
    turned: tuple[int, ...] = ()

    @cached_property
    def kept(self) -> frozenset[int]:
        """``nodes`` as a set."""
        return frozenset(self.nodes)

    @property
    def size(self) -> int:
        """The number of nodes, which a reduction makes small."""
        return len(self.nodes)

    def without(self, gone: Iterable[int]) -> Candidate:
        """The candidate without some nodes; their outputs are cut."""
        removed = frozenset(gone)
        return replace(self, nodes=tuple(node for node in self.nodes if node not in removed))


@dataclass(frozen=True)
class Proposal:
    """A candidate, and its description for the progress line, such as "nodes 1-250 of 500"."""

    candidate: Candidate
    description: str


NodeSearch: TypeAlias = Search[Proposal, Candidate, None]
"""A running pass: it proposes candidates, and is sent the closed one that reproduces, or None."""


def uncuttable_sources(
    index: ModelIndex,
    tensors: Iterable[int],
    kept: Container[int],
    can_cut: Callable[[int], bool],
) -> set[int]:
    """The nodes outside ``kept`` that must be added, since they compute tensors that cannot be cut."""

    def sources(tensors: Iterable[int]) -> Iterator[int]:
        for tensor in tensors:
            source = index.producer.get(tensor)
            if source is not None and source not in kept and not can_cut(tensor):
                yield source

    return reached(sources(tensors), lambda source: sources(index.node_reads[source]))


Cut = Literal["auto", "input", "constant"]
"""The policy for cuts: all fed, all frozen, or ``auto``: what looks like a shape is frozen, all others are fed."""


@dataclass(frozen=True, kw_only=True)
class Border:
    """The options for cuts, inputs and outputs of candidates.

    ``cut`` is the policy for cuts. ``keep_inputs`` and ``keep_outputs`` keep those of the original.
    ``mark_intermediate`` makes every tensor of a candidate an output, because later nodes mask the failure. None does
    so only if the original turns out to mask a wrong inner tensor, and the check has golden values of those.
    """

    cut: Cut = "auto"
    keep_inputs: bool = False
    keep_outputs: bool = False
    mark_intermediate: bool | None = False


class Problem:
    """The model to be reduced: which candidates of it can stand alone, and what their cuts become.

    ``mark_intermediate`` is as in ``Border``. With ``feeds_vouched_only``, candidates are only fed with recorded values
    that golden values cannot contradict (see ``is_vouched``).
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
        """The number of elements of all computed tensors together; unknown dimensions count as 1."""
        return sum(map(self.types.elements, self.index.producer))

    def order(self, candidate: Candidate) -> list[int]:
        """The nodes of a candidate in ``neighbourhood_order``; the last few orders are cached."""
        return list(self._order(candidate.nodes))

    def detours(self, candidate: Candidate, node: int) -> list[int]:
        """The inputs of a node of a candidate that its readers could read instead of its output.

        The input and the output must agree in type and shape, no other output of the node may be read, and no body may
        capture the output, since it would have to be rewritten.
        """
        index = self.index
        subset = self.subset(candidate)
        read = [tensor for tensor in index.node_writes[node] if tensor in subset.read]
        if len(read) != 1 or not subset.kept.isdisjoint(index.captors.get(read[0], ())):
            return []
        return [tensor for tensor in subset.reads_of(node) if self.types.agree(tensor, read[0])]

    @cached_property
    def original(self) -> Candidate:
        """The original: the candidate with all nodes."""
        return Candidate(tuple(range(len(self.index.nodes))))

    def closed(self, candidate: Candidate) -> Candidate | None:
        """The nearest candidate that can stand alone; None if there is none.

        A tensor of unknown type cannot be cut, so the node that computes it is added. It cannot be an output either, so
        a node that reads it is added. If inputs are kept, nodes that need a cut are removed instead; if outputs are
        kept, nodes that no output needs are removed.
        """
        if self._border.keep_inputs:
            subset, index = self.subset(candidate), self.index
            readers: dict[int, list[int]] = {}
            for node in subset.nodes:
                for tensor in subset.reads_of(node):
                    readers.setdefault(tensor, []).append(node)
            need_a_cut = (node for cut in subset.cuts if cut in index.producer for node in readers[cut])
            gone = reached(
                need_a_cut, lambda node: (other for t in index.node_writes[node] for other in readers.get(t, ()))
            )
            candidate = self._normalised(set(candidate.nodes) - gone, candidate)
        candidate = self._completed(candidate)
        kept = set(candidate.nodes)
        if self._border.keep_outputs and not self._only_what_outputs_need(kept, self.subset(candidate)):
            return None
        return self._normalised(kept, candidate) if kept else None

    def comes_back(self, target: Candidate, gone: Sequence[int]) -> bool:
        """Whether closing a closed target without these nodes would certainly add all of them again.

        This only looks at the nodes and their neighbours, which takes far less time than closing the candidate.
        """
        if self._border.keep_inputs or self._border.keep_outputs or target.bypassed:
            return False
        index, kept, removed = self.index, target.kept, frozenset(gone)

        def may_go(tensor: int) -> bool:
            return index.producer.get(tensor) not in removed or self._can_cut(tensor)

        cuts = [
            tensor
            for node in removed
            for tensor in index.node_writes[node]
            if any(reader in kept and reader not in removed for reader in index.consumers.get(tensor, ()))
        ]
        return uncuttable_sources(index, cuts, (), may_go) == removed

    def bound(self, candidate: Candidate) -> tuple[list[int], list[int]]:
        """The nodes of a closed candidate that are never left out alone, and the tensors of unknown type between them.

        Without its producer, such a tensor would be an input; without its only reader, an output.
        """
        index, read = self.index, self.subset(candidate).read
        readers: dict[int, list[int]] = {}
        for node in candidate.nodes:
            for tensor in index.node_reads[node]:
                readers.setdefault(tensor, []).append(node)
        nodes, tensors = set[int](), set[int]()
        for node in candidate.nodes:
            for tensor in index.node_writes[node]:
                if tensor not in read or tensor not in readers or self.types.is_sufficient(tensor):
                    continue
                held = {node} if self.may_cut_inputs and self.frozen(tensor) is None else set()
                if self.may_cut_outputs and len(readers[tensor]) == 1 and tensor not in index.outputs:
                    held.update(readers[tensor])
                nodes |= held
                if held:
                    tensors.add(tensor)
        return sorted(nodes), sorted(tensors)

    def _completed(self, candidate: Candidate) -> Candidate:
        """The candidate with all nodes added that it needs to stand alone.

        For each output of unknown type, its first reader is added, so that the tensor need not be an output. These
        readers are a ring around the candidate. They may need further nodes, and have outputs of their own: the next
        ring. The first ring is normalised by itself, since bypasses and forms may no longer be used after it.
        """
        captors = self.index.captors
        is_first_ring = True
        while True:
            subset = self.subset(candidate)
            kept = set(candidate.nodes)
            kept |= uncuttable_sources(self.index, subset.cuts, kept, self._can_cut)
            # A body cannot be rewired: what it captures cannot stay bypassed.
            captured = (
                node
                for node, _ in (candidate.bypassed if captors else ())
                if any(not kept.isdisjoint(captors.get(tensor, ())) for tensor in self.index.node_writes[node])
            )
            kept.update(list(captured))
            if len(kept) == candidate.size and not self._border.keep_outputs:
                kept |= self._first_readers(subset.sinks) if is_first_ring else self._rings(subset, candidate.bypassed)
                is_first_ring = False
            if len(kept) == candidate.size:
                return candidate
            candidate = self._normalised(kept, candidate)

    def _rings(self, subset: Subset, bypassed: Sequence[tuple[int, int]]) -> set[int]:
        """The nodes of all rings and the further nodes that they need, in time linear in their number.

        It stops at a ring that meets a bypass: the candidate must be rewired before its outputs are known.
        """
        index, outputs, around = self.index, frozenset(self.index.outputs), frozenset(node for node, _ in bypassed)
        kept, read = set(subset.kept), set(subset.read)
        ring = self._first_readers(subset.sinks) - kept
        while ring:
            kept |= ring
            reads = chain.from_iterable(map(index.node_reads.__getitem__, ring))
            sources = uncuttable_sources(index, reads, kept, self._can_cut)
            new = ring | sources
            if around and not around.isdisjoint(
                {*new, *(index.producer.get(tensor) for node in new for tensor in index.node_reads[node])}
            ):
                break
            kept |= sources
            read.update(tensor for node in new for tensor in index.node_reads[node])
            written = (tensor for node in new for tensor in index.node_writes[node])
            ring = self._first_readers(tensor for tensor in written if tensor in outputs or tensor not in read) - kept
        return kept - subset.kept

    def _first_readers(self, ends: Iterable[int]) -> set[int]:
        """The first reader of each of these tensors whose type is unknown."""
        consumers = self.index.consumers
        return {consumers[end][0] for end in ends if end in consumers and not self.types.is_sufficient(end)}

    def subset(self, candidate: Candidate) -> Subset:
        """The nodes of a candidate, with the readers of bypassed nodes rewired.

        The last subset is cached, since closing a candidate, its boundary and its bytes need the same one.
        """
        key = candidate.nodes, candidate.bypassed
        if self._last_subset is not None and self._last_subset[0] == key:
            return self._last_subset[1]
        # The output of each bypassed node -> the tensor read instead, which may be behind further bypassed nodes. In an
        # invalid model these may be a cycle; then one of their outputs is read, and comes from outside.
        replaced = {output: tensor for node, tensor in candidate.bypassed for output in self.index.node_writes[node]}
        rewired = {}
        for output in replaced:
            tensor, seen = replaced[output], {output}
            while tensor in replaced and tensor not in seen:
                seen.add(tensor)
                tensor = replaced[tensor]
            rewired[output] = tensor
        subset = Subset(self.index, candidate.nodes, rewired)
        self._last_subset = key, subset
        return subset

    def _normalised(self, kept: set[int], candidate: Candidate) -> Candidate:
        """The candidate with the nodes ``kept``, without bypasses and forms that make no difference."""
        bypasses = {node: tensor for node, tensor in candidate.bypassed if node not in kept}

        def around(tensors: Iterable[int]) -> Iterator[int]:
            return (source for tensor in tensors if (source := self.index.producer.get(tensor, -1)) in bypasses)

        read = (tensor for node in kept for tensor in self.index.node_reads[node]) if bypasses else ()
        used = reached(around(read), lambda node: around([bypasses[node]]))
        bypassed = tuple((node, bypasses[node]) for node in sorted(used))
        normalised = replace(candidate, nodes=tuple(sorted(kept)), bypassed=bypassed, turned=())
        if not candidate.turned or self._border.cut != "auto":
            return normalised
        # A cut has another form if it is frozen and its type is known, or if it is fed and has a single known value.
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
        """The types, constants, inputs and outputs of a closed candidate."""
        if candidate == self.original:
            return self.everything_marked() if self.mark_intermediate else NO_CHANGE
        subset = self.subset(candidate)
        infos = border_types(self.types, subset)
        turned = set(candidate.turned)
        kinds = ((tensor, self.frozen(tensor, candidate.sample, turned=tensor in turned)) for tensor in subset.cuts)
        frozen = {tensor: span for tensor, span in kinds if span is not None}
        inputs = self.index.inputs if self._border.keep_inputs else None
        outputs: Sequence[int] | None = self.index.outputs if self._border.keep_outputs else None
        if self.mark_intermediate and outputs is None:
            # A wrong value that is masked later is masked in a candidate, too.
            inner = sorted(subset.written.difference(subset.sinks))
            infos |= {t: info for t in inner if self.types.is_sufficient(t) and (info := self.types.end(t)) is not None}
            outputs = [*subset.sinks, *(tensor for tensor in inner if tensor in infos)]
        return Boundary(infos=infos, frozen=frozen, inputs=inputs, outputs=outputs)

    def everything_marked(self, candidate: Candidate | None = None) -> Boundary:
        """The boundary of a closed candidate, by default the original, with every tensor of known type as an output.

        The outputs are in the order of the nodes.
        """
        if candidate is None or candidate == self.original:
            border, not_computed = NO_CHANGE, [t for t in self.index.outputs if t not in self.index.producer]
        else:
            border, not_computed = self.boundary(candidate), []
        nodes = self.original.nodes if candidate is None else candidate.nodes
        written = [tensor for node in nodes for tensor in self.index.nodes[node].writes]
        outputs = set(self.index.outputs)
        infos = {
            tensor: info
            for tensor in written
            if tensor not in outputs and (info := self.types.info(tensor)) is not None
        }
        in_order = [tensor for tensor in written if tensor in outputs or tensor in infos]
        return replace(border, infos={**border.infos, **infos}, outputs=[*not_computed, *in_order])

    def runs_of_nodes(self, elements: int) -> Iterator[Candidate]:
        """The model in runs of consecutive nodes, each of which is a single node or computes at most ``elements``.

        Each run is closed, so it may also have nodes of its neighbours; runs that cannot stand alone are left out.
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
        """The candidate for each sample that gives it other constants, its own sample first.

        Only the policy ``constant`` freezes values that differ between samples.
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
        """The serialized TensorProto of a cut that is frozen, with its value in a sample; None if the cut is fed.

        ``turned``: the cut has the other form than the policy's.
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
        """From now on, freeze cuts with a recorded value only if it ``is_vouched``: see ``Vouching``."""
        self._freezes_vouched_only = True
        self._frozen.clear()

    def is_vouched(self, tensor: int) -> bool:
        """Whether the recorded value of a tensor is right whatever golden values other tensors have.

        Either the user gave it, or it does not depend on the values of inputs.
        """
        return tensor in self.recording.value_free or self.recording.is_given(self.index.names[tensor])

    def doubtful(self, candidate: Candidate, *, fed: bool) -> bool:
        """Whether a closed candidate has recorded values, ``fed`` or else frozen, that are not vouched for."""
        turned, is_vouched = set(candidate.turned), self.is_vouched if fed else self._is_vouched_constant
        return any(
            (self.frozen(tensor, candidate.sample, turned=tensor in turned) is None) == fed and not is_vouched(tensor)
            for tensor in self.subset(candidate).cuts
        )

    def _is_vouched_constant(self, tensor: int) -> bool:
        """``is_vouched`` for a constant, which must also be the same in all samples."""
        if constant_of_node(self.index, tensor) is not None:
            return True
        return self.is_vouched(tensor) and self.recording.constant_value(self.index.names[tensor]) is not None

    def will_freeze(self, candidate: Candidate) -> None:
        """Record all values at once that may be frozen when nodes of a candidate are removed."""
        if self._border.cut == "auto" and self.may_cut_inputs:
            self.recording.include(tensor for node in candidate.nodes for tensor in self.index.node_writes[node])

    def in_form(self, candidate: Candidate, tensors: Iterable[int], *, fed: bool) -> Candidate:
        """The candidate with some cuts ``fed``, or else frozen if they have a single known value; see ``turned``."""
        if self._border.cut != "auto":
            return candidate
        chosen = set(tensors)
        turned = {tensor for tensor in chosen if fed == (self.frozen(tensor) is not None)}
        return replace(candidate, turned=tuple(sorted((set(candidate.turned) - chosen) | turned)))

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
        """Whether a tensor can be a cut. None can with kept inputs, nor one without a value if all are from a file."""
        if self.recording.has_only_golden_values and self.index.names[tensor] not in self.recording:
            return False
        return not self._border.keep_inputs and (self.types.is_sufficient(tensor) or self.frozen(tensor) is not None)

    def _only_what_outputs_need(self, kept: set[int], subset: Subset) -> bool:
        """Keep only the nodes that the original's outputs need; False if one of the outputs is no longer computed."""
        producer = self.index.producer

        def computing(tensors: Iterable[int]) -> Iterator[int]:
            return (producer[tensor] for tensor in tensors if producer.get(tensor, -1) in kept)

        needed = reached(computing(self.index.outputs), lambda node: computing(subset.reads_of(node)))
        kept &= needed
        return all(producer[tensor] in kept for tensor in self.index.outputs if tensor in producer)
