"""Writing what a reduction found: self-contained, whole or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from biopsy.model.load import parse
from biopsy.model.slice import Boundary, candidate_bytes, candidate_parts
from biopsy.model.write import write_whole
from biopsy.reduction.candidate import Candidate
from biopsy.reduction.problem import Problem


def write_result(
    problem: Problem, candidate: Candidate, boundary: Boundary, path: Path, external: str | None = None
) -> None:
    """Write a candidate to ``path`` with the weights it needs: inside, or in the file named ``external`` beside it.

    Above 1 GB they are put beside it in any case. Raises UsageError if it cannot be written, ModelError if weights are
    missing.
    """
    subset = problem.subset(candidate)
    if external is None and not problem.index.has_external_data:
        write_whole(path, candidate_parts(subset, boundary))
        return
    data = candidate_bytes(subset, replace(boundary, places={}))
    from biopsy.model import external as weights

    model = parse(data, path)
    if external is None:
        if sum(map(weights.byte_size, weights.external_tensors(model))) <= weights.MOST_INLINE:
            weights.load_into(model, problem.index.folder)
        else:
            external = weights.default_name(path)
    weights.save_with_weights(model, path, problem.index.folder, external)
