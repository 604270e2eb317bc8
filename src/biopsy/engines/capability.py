"""Find out which nodes of a model an engine supports: ask the engine, then build parts of the model and halve those
that fail.

In a part, the tensors at the cuts are inputs, of the types that shape inference finds.
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


class ModelBuilder(Protocol):
    """What builds models: a ``Worker``, so that an engine that crashes ends only its own process."""

    def build(self, model: ModelInput) -> None:
        """Build. Raises EngineFailure."""

    def refusals(self, model: ModelInput) -> Mapping[int, str] | None:
        """The nodes that the engine says it refuses."""


@dataclass(frozen=True)
class ModelPart:
    """Connected nodes that the engine supports, or that it refuses."""

    supported: bool
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Together:
    """Nodes that are refused together although each half of them is supported."""

    nodes: tuple[int, ...]
    reason: str


@dataclass(kw_only=True)
class Survey:
    """What an engine refuses. ``unknown``: nodes that could not be built alone, and why; they count as supported."""

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
        """All nodes in parts, ordered by their first nodes. No path leaves a part and comes back to it."""
        index = self.index
        stage: dict[int, int] = {}
        part_of: dict[int, int] = {}
        members: dict[int, list[int]] = {}
        for node in index.nodes:
            number = node.number
            sources = [index.producer[tensor] for tensor in node.reads if tensor in index.producer]
            alike = {source for source in sources if (source in self.refused) == (number in self.refused)}
            stage[number] = max((stage[source] + (source not in alike) for source in sources), default=0)
            joined = {part_of[source] for source in alike if stage[source] == stage[number]}
            target = min(joined, default=number)
            members.setdefault(target, []).append(number)
            part_of[number] = target
            for other in joined - {target}:
                part_of |= dict.fromkeys(members[other], target)
                members[target] += members.pop(other)
        parts = [ModelPart(nodes[0] not in self.refused, tuple(sorted(nodes))) for nodes in members.values()]
        return sorted(parts, key=lambda part: part.nodes)


class Parts:
    """Makes smaller models from nodes of one model."""

    def __init__(self, index: ModelIndex) -> None:
        self.index = index
        light = infer.without_weights(load.parse(index.buffer[:], index.path))
        infos = infer.infer_value_infos(light.SerializeToString())
        self._infos = {index.ids[name]: info for name, info in infos.items() if name in index.ids}

    def bytes_of(self, nodes: Sequence[int]) -> bytes:
        """The model of these nodes. Raises UsageError if the type of a tensor at a cut is not known."""
        subset = Subset(self.index, tuple(sorted(nodes)))
        missing = [tensor for tensor in subset.cuts if tensor not in self._infos]
        if missing:
            raise errors.UsageError(f"nothing tells the type of {self.index.names[missing[0]]!r}")
        infos = {tensor: self._infos[tensor] for tensor in (*subset.cuts, *subset.sinks) if tensor in self._infos}
        return candidate_bytes(subset, Boundary(infos=infos, frozen={}))


def survey(index: ModelIndex, builder: ModelBuilder, parts: Parts) -> Survey:
    """Find out which nodes are refused, and why: ask the engine until it names no more, then build the other nodes.

    Raises what the engine raises, except EngineFailure, which is the answer of a build.
    """
    search = _Search(Survey(index=index), builder, parts)
    search.run()
    return search.survey


@dataclass(frozen=True)
class _Search:
    survey: Survey
    builder: ModelBuilder
    parts: Parts

    @property
    def _not_refused(self) -> tuple[int, ...]:
        numbers = (node.number for node in self.survey.index.nodes)
        return tuple(number for number in numbers if number not in self.survey.refused)

    def _model(self, nodes: Sequence[int]) -> ModelInput:
        return ModelInput(self.parts.bytes_of(nodes), self.survey.index.folder)

    def run(self) -> None:
        survey = self.survey
        while nodes := self._not_refused:
            try:
                refusals = self.builder.refusals(self._model(nodes))
            except (errors.EngineFailure, errors.UsageError):
                break
            if refusals is not None:
                survey.queries += 1
            if not refusals:
                break
            survey.refused |= {nodes[place]: reason for place, reason in refusals.items()}
        before = len(survey.refused)
        if nodes and self._bisect(nodes) and len(survey.refused) > before and not survey.together:
            supported = self._not_refused
            reason = self._build_error(supported) if supported else None
            if reason is not None and len(supported) > 1:
                survey.together.append(Together(supported, reason))

    def _bisect(self, nodes: tuple[int, ...]) -> bool:
        """Build these nodes, and the halves of what fails; record the refusals. Returns whether there are any."""
        reason = self._build_error(nodes)
        if reason is None:
            return False
        if len(nodes) == 1:
            self.survey.refused[nodes[0]] = reason
            return True
        middle = len(nodes) // 2
        halves = [self._bisect(nodes[:middle]), self._bisect(nodes[middle:])]
        if not any(halves):
            self.survey.together.append(Together(nodes, reason))
        return True

    def _build_error(self, nodes: tuple[int, ...]) -> str | None:
        try:
            model = self._model(nodes)
        except errors.UsageError as error:
            if len(nodes) > 1:
                return error.message
            self.survey.unknown[nodes[0]] = error.message
            return None
        self.survey.builds += 1
        try:
            self.builder.build(model)
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
