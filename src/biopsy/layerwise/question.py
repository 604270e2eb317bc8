"""What an examination is asked: which model, which engine against which, with which inputs and tolerances."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from biopsy import errors
from biopsy.comparison.spoken_of import require_known_outputs, spoken_of
from biopsy.engines.base import Capabilities, ModelInput
from biopsy.engines.registry import create
from biopsy.engines.yardsticks import PLAIN
from biopsy.layerwise.layers import layers_of
from biopsy.layerwise.tensor_errors import Judge
from biopsy.model.index import ModelIndex, index_file
from biopsy.model.tensor_type import TensorType
from biopsy.tensors.results import Feed

DEFAULT_REFERENCE = PLAIN[0]
DEFAULT_LIMIT = 1_000_000_000
"""Bytes of tensors in memory."""

FeedsFor: TypeAlias = Callable[[Mapping[str, "TensorType | None"]], "Sequence[Feed]"]
"""Gives the input samples for the inputs that a model takes."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What to examine: the ``suspect`` against the ``reference``, both as specs of engines.

    ``model`` has a path. ``feeds`` gives the input samples. ``limit``: bytes of tensors in memory at a time. ``nodes``:
    only layers whose name, operator or output it matches somewhere are measured. ``suspect_can``: among others, whether
    the suspect gives any tensor that is marked. ``timeout``: seconds per run. ``memory``: bytes
    that an engine may take; None for what ``Worker`` gives it.
    """

    index: ModelIndex
    model: ModelInput
    reference: str
    suspect: str
    feeds: FeedsFor
    limit: int
    judge: Judge = field(default_factory=Judge)
    nodes: re.Pattern[str] | None = None
    suspect_can: Capabilities = field(default_factory=Capabilities)
    timeout: float | None = None
    memory: int | None = None


def question_about(
    path: Path,
    weights_folder: Path | None,
    feeds: FeedsFor,
    *,
    suspect: str,
    reference: str = DEFAULT_REFERENCE,
    judge: Judge | None = None,
    nodes: re.Pattern[str] | None = None,
    limit: int = DEFAULT_LIMIT,
    timeout: float | None = None,
    memory: int | None = None,
) -> Question:
    """The question about the model in a file, whose external weights stand in ``weights_folder``.

    Raises UsageError if the reference gives no inner tensors, or if no layer matches ``nodes``; DoesNotFit if a
    tolerance is for a tensor that there is not; EngineMissing; and what ``index_file`` raises.
    """
    judge = judge or Judge()
    suspected, trusted = create(suspect), create(reference)
    if not trusted.capabilities.marks_any_tensor:
        raise errors.UsageError(
            f"{reference} gives no inner tensors: it cannot be the reference",
            next_steps=[f"take {DEFAULT_REFERENCE} as the reference"],
        )
    index = index_file(path, weights_folder)
    known = [index.names[tensor] for tensor in index.producer]
    require_known_outputs(spoken_of(judge.tolerances, judge.stats, judge.limits), index.ids, known)
    if nodes is not None and not layers_of(index, nodes):
        raise errors.UsageError(
            f"--nodes {nodes.pattern}: no layer has a name, operator or output that matches",
            next_steps=["biopsy inspect model MODEL --show layers    shows them"],
        )
    return Question(
        index=index,
        model=ModelInput(b"", index.folder, path),
        reference=reference,
        suspect=suspect,
        feeds=feeds,
        limit=limit,
        judge=judge,
        nodes=nodes,
        suspect_can=suspected.capabilities,
        timeout=timeout,
        memory=memory,
    )
