"""Everything that is asked of what may vary."""

from __future__ import annotations

from dataclasses import dataclass, field

from biopsy.checks.signature import Signature
from biopsy.engines.feeding import Inputs
from biopsy.session.budget import Budget
from biopsy.session.options import SearchOptions

USUAL_CHECKS = 60
USUAL_SECONDS = 300.0

USUAL_BUDGET = Budget(checks=USUAL_CHECKS, seconds=USUAL_SECONDS)
"""What finding out what may vary costs, if nobody says otherwise."""


@dataclass(frozen=True, kw_only=True)
class VariationJob:
    """How a check is asked what may vary in a model that fails.

    ``search`` has the rules, the place of candidates, the journal and the budget. ``inputs`` is what a check that is
    our own ``run`` feeds: then inputs are varied too, and resized with the model; None for any other check.
    ``values_free``: the check does not compare with recorded values (see ``reduction.values``); None to conclude it
    from the failure. ``reference`` is the failure that counts as the same one; None for that of the model itself.
    ``allow_vacuous_check`` goes on where the check fails on anything.
    """

    search: SearchOptions = field(default_factory=lambda: SearchOptions(budget=USUAL_BUDGET))
    inputs: Inputs | None = None
    values_free: bool | None = None
    reference: Signature | None = None
    allow_vacuous_check: bool = False
