"""Who is to blame, and what shows it."""

from __future__ import annotations

from dataclasses import dataclass

from biopsy.torch.differences import ModuleDifference
from biopsy.torch.evaluation import OnnxModel
from biopsy.torch.facts import Blame, ExporterPart, ModuleLine


@dataclass(frozen=True, kw_only=True)
class Accusation:
    """Who is to blame, and what for. ``model`` is what shows it in ``engine``; ``error`` what was raised, in a line.

    ``places`` are known where the question itself has told them.
    """

    blame: Blame
    text: str
    part: ExporterPart | None = None
    reason: str = ""
    difference: ModuleDifference | None = None
    error: str = ""
    engine: str = ""
    model: OnnxModel | None = None
    places: tuple[ModuleLine, ...] = ()
