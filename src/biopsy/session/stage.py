"""What a run of a check is for: whether its outcome is remembered, and whether it is an iteration of the search."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """What a run of a check is for. The ``name`` stands in events, in journals and in the names of artifacts.

    ``is_remembered``: the outcome goes into the journal; otherwise every process asks again. ``is_iteration``: the
    model is the original or a candidate, so it is counted and its artifacts are sorted; any other model is a probe.

    A pass of a search is a stage under its own name, remembered and an iteration.
    """

    name: str
    is_remembered: bool = True
    is_iteration: bool = True


ORIGINAL = Stage("original")
"""The model as the user gave it."""

HIGH = Stage("high")
"""The model with every layer in high precision."""

LOW = Stage("low")
"""The model with every layer in low precision."""

CONFIRM = Stage("confirm", is_iteration=False)
"""The best model so far, once more."""

MARKED = Stage("marked", is_iteration=False)
"""The original with every tensor an output: is a wrong value masked later?"""

VALUES = Stage("values", is_iteration=False)
"""Changed outputs: does the check compare them with recorded values?"""

IDENTITY = Stage("identity", is_remembered=False, is_iteration=False)
"""A model of one Identity node, on which a check that means anything passes."""

LOOK = Stage("look", is_remembered=False, is_iteration=False)
"""The original with every tensor an output: which of them does the check call wrong?"""

ROUNDING = Stage("rounding", is_remembered=False, is_iteration=False)
"""The original, judged against float64."""

FINAL = Stage("final", is_remembered=False, is_iteration=False)
"""The result as it was written, in a process of its own."""

PROBES = (CONFIRM, MARKED, VALUES, IDENTITY, LOOK, ROUNDING, FINAL)
"""Every stage that is no iteration."""

PROBE_NAMES = frozenset(stage.name for stage in PROBES)
"""The names of the probes, as journals hold them."""
