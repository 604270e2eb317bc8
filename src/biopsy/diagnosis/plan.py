"""The questions of a diagnosis in their order. Each one decides by what is known whether it is asked."""

from __future__ import annotations

from biopsy.diagnosis.step import DiagnosisStep
from biopsy.diagnosis.steps.changes import CHANGES
from biopsy.diagnosis.steps.failing import FAILING
from biopsy.diagnosis.steps.known import KNOWN
from biopsy.diagnosis.steps.layers import LAYERS
from biopsy.diagnosis.steps.masked import MASKED
from biopsy.diagnosis.steps.piece import SMALLEST_PIECE
from biopsy.diagnosis.steps.precision import PRECISION
from biopsy.diagnosis.steps.releases import RELEASES
from biopsy.diagnosis.steps.rounding import ROUNDING
from biopsy.diagnosis.steps.settings import SETTINGS
from biopsy.diagnosis.steps.steadiness import STEADINESS
from biopsy.diagnosis.steps.transformation import TRANSFORMATION
from biopsy.diagnosis.steps.variation import VARIATION

PLAN: tuple[DiagnosisStep, ...] = (
    FAILING,
    MASKED,
    ROUNDING,
    STEADINESS,
    SMALLEST_PIECE,
    KNOWN,
    LAYERS,
    SETTINGS,
    PRECISION,
    TRANSFORMATION,
    VARIATION,
    CHANGES,
    RELEASES,
)
"""A further question is a step in a file of its own, and its place here."""
