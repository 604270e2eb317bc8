"""What a reduction leaves: the model it found, self-contained, and the facts about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from biopsy.model.inlined import inlined_parts
from biopsy.model.load import parse
from biopsy.model.write import write_whole


@dataclass(frozen=True)
class Target:
    """Where a reduction leaves its results. ``external``: a file beside ``output`` for its weights."""

    output: Path
    min_good: Path | None = None
    external: str | None = None


@dataclass(frozen=True)
class Reduction:
    """What a reduction found.

    ``nodes`` are the nodes of the result in order, by operator and name; ``kept`` the numbers of those nodes of the
    original that the search kept. ``outcomes`` counts checks by what they said; ``other_failures`` the other failures
    met, by how they look. ``min_good`` is the file of the passing model closest in size, None if none was asked for or
    none was met. ``seconds`` is wall time of the whole. ``other_models`` are files that show one of the other failures
    each. ``remembered`` counts runs of the check that an interrupted reduction had done. ``stopped`` names the limit
    that ended the search before its end, so that smaller results may exist; None if none did. ``inputs`` is a file of
    recorded values that the result was fed in checks that load inputs; None if it needs none but those of the original.
    """

    output: Path
    nodes_before: int
    nodes: tuple[str, ...]
    kept: tuple[int, ...]
    signature: str
    outcomes: Mapping[str, int]
    other_failures: Mapping[str, int]
    seconds: float
    min_good: Path | None = None
    other_models: Mapping[str, Path] = field(default_factory=dict)
    remembered: int = 0
    stopped: str | None = None
    inputs: Path | None = None

    @property
    def checks(self) -> int:
        """Checks that were run, the first and the last included."""
        return sum(self.outcomes.values())


def write_result(parts: Iterable[bytes], path: Path, folder: Path, external: str | None, has_external: bool) -> None:
    """Write a model to ``path`` with the weights it needs: inside, or in the file named ``external`` beside it.

    ``parts`` are its bytes, which refer to external weights from ``folder`` if it ``has_external`` ones. Above 1 GB
    they are put beside it in any case. Raises UsageError if it cannot be written, ModelError if weights are missing.
    """
    if external is None and not has_external:
        write_whole(path, parts)
        return
    from biopsy.model import external as weights

    data = b"".join(parts)
    model = parse(data, path)
    if external is None and sum(map(weights.byte_size, weights.external_tensors(model))) <= weights.MOST_INLINE:
        write_whole(path, inlined_parts(data, model, folder))
    else:
        weights.save_with_weights(model, path, folder, external or weights.default_name(path))
