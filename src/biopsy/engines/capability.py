"""Which nodes of a model an engine takes: asked of the engine itself, then by building parts, each by halves.

An engine that is asked names what it knows to refuse; only building tells the rest. A part is a model whose cut tensors
are inputs of the types that shape inference tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.model import infer, load
from biopsy.model.index import ModelIndex
from biopsy.model.slice import Boundary, Subset, candidate_bytes


class EngineAsked(Protocol):
    """Who is asked about models: a ``Worker``, so that an engine that crashes ends a process of its own."""

    def build(self, model: ModelInput) -> None:
        """Build. Raises EngineFailure."""

    def refusals(self, model: ModelInput) -> Mapping[int, str] | None:
        """What the engine itself says it refuses."""


@dataclass(frozen=True)
class ModelPart:
    """Connected nodes that the engine takes, or does not take."""

    supported: bool
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Together:
    """Nodes that are refused together although each half of them is taken."""

    nodes: tuple[int, ...]
    reason: str


@dataclass(kw_only=True)
class Survey:
    """What was found. ``unknown``: nodes that could not be asked about alone, and why; they count as taken."""

    index: ModelIndex
    refused: dict[int, str] = field(default_factory=dict)
    together: list[Together] = field(default_factory=list)
    unknown: dict[int, str] = field(default_factory=dict)
    queries: int = 0
    builds: int = 0

    @property
    def takes_all(self) -> bool:
        """Whether nothing was refused."""
        return not self.refused and not self.together

    def parts(self) -> list[ModelPart]:
        """The nodes in parts, in the order of their first nodes. No path leaves a part and comes back to it."""
        index = self.index
        stage: dict[int, int] = {}
        part_of: dict[int, int] = {}
        members: dict[int, list[int]] = {}
        for node in index.nodes:
            number = node.number
            before = [index.producer[tensor] for tensor in node.reads if tensor in index.producer]
            alike = {one for one in before if (one in self.refused) == (number in self.refused)}
            stage[number] = max((stage[one] + (one not in alike) for one in before), default=0)
            joined = {part_of[one] for one in alike if stage[one] == stage[number]}
            target = min(joined, default=number)
            members.setdefault(target, []).append(number)
            part_of[number] = target
            for other in joined - {target}:
                part_of |= dict.fromkeys(members[other], target)
                members[target] += members.pop(other)
        found = [ModelPart(nodes[0] not in self.refused, tuple(sorted(nodes))) for nodes in members.values()]
        return sorted(found, key=lambda part: part.nodes)


class Parts:
    """Makes models of some of the nodes of one model."""

    def __init__(self, index: ModelIndex) -> None:
        self.index = index
        light = infer.without_weights(load.parse(index.buffer[:], index.path))
        infos = infer.infer_value_infos(light.SerializeToString())
        self._infos = {index.ids[name]: info for name, info in infos.items() if name in index.ids}

    def bytes_of(self, nodes: Sequence[int]) -> bytes:
        """The model of these nodes. Raises UsageError if a tensor that it is cut at has no known type."""
        subset = Subset(self.index, tuple(sorted(nodes)))
        wanted = [*subset.cuts, *subset.sinks]
        missing = [tensor for tensor in subset.cuts if tensor not in self._infos]
        if missing:
            raise errors.UsageError(f"nothing tells the type of {self.index.names[missing[0]]!r}")
        infos = {tensor: self._infos[tensor] for tensor in wanted if tensor in self._infos}
        return candidate_bytes(subset, Boundary(infos=infos, frozen={}))


def survey(index: ModelIndex, asked: EngineAsked, parts: Parts) -> Survey:
    """Find out which nodes are refused, and why.

    Raises what the engine raises, but for EngineFailure, which is the answer of a build.
    """
    search = _Search(Survey(index=index), asked, parts)
    search.run()
    return search.found


@dataclass(frozen=True)
class _Search:
    found: Survey
    asked: EngineAsked
    parts: Parts

    @property
    def _left(self) -> tuple[int, ...]:
        left = (node.number for node in self.found.index.nodes)
        return tuple(number for number in left if number not in self.found.refused)

    def _model(self, nodes: Sequence[int]) -> ModelInput:
        return ModelInput(self.parts.bytes_of(nodes), self.found.index.folder)

    def run(self) -> None:
        """Ask the engine, again without what it refuses, until it names nothing more; then build what is left."""
        found, named = self.found, None
        while left := self._left:
            try:
                named = self.asked.refusals(self._model(left))
            except (errors.EngineFailure, errors.UsageError):
                break
            if named is not None:
                found.queries += 1
            if not named:
                break
            found.refused |= {left[place]: reason for place, reason in named.items()}
        before = len(found.refused)
        if left and self._search(left) and len(found.refused) > before and not found.together:
            rest = self._left
            reason = self._reason_against(rest) if rest else None
            if reason is not None and len(rest) > 1:
                found.together.append(Together(rest, reason))

    def _search(self, nodes: tuple[int, ...]) -> bool:
        """Whether something among these nodes is refused; it is then written down. What fails is built by halves."""
        reason = self._reason_against(nodes)
        if reason is None:
            return False
        if len(nodes) == 1:
            self.found.refused[nodes[0]] = reason
            return True
        middle = len(nodes) // 2
        halves = [self._search(nodes[:middle]), self._search(nodes[middle:])]
        if not any(halves):
            self.found.together.append(Together(nodes, reason))
        return True

    def _reason_against(self, nodes: tuple[int, ...]) -> str | None:
        try:
            model = self._model(nodes)
        except errors.UsageError as error:
            if len(nodes) > 1:
                return error.message
            self.found.unknown[nodes[0]] = error.message
            return None
        self.found.builds += 1
        try:
            self.asked.build(model)
        except errors.EngineFailure as failure:
            return " ".join(failure.message.split())
        return None


def file_names(parts: Sequence[ModelPart], folder: Path) -> list[Path]:
    """A file for each part, numbered from 1: ``supported-1.onnx``, ``unsupported-2.onnx``."""
    width = len(str(len(parts)))
    return [
        folder / f"{'supported' if part.supported else 'unsupported'}-{number:0{width}}.onnx"
        for number, part in enumerate(parts, 1)
    ]
