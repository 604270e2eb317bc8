"""What whoever looks ahead may ask of candidates."""

from __future__ import annotations

from typing import Protocol

from biopsy.reduction.candidate import Candidate, Proposal
from biopsy.reduction.pace import Pace
from biopsy.session.oracle import Oracle
from biopsy.session.stage import Stage
from biopsy.session.trial import Trial


class Candidates(Protocol):
    """What is known of candidates: see ``Driver``."""

    oracle: Oracle
    pace: Pace

    def eligible(self, proposal: Proposal, target: Candidate) -> list[Candidate]:
        """What of a proposal is worth a check."""

    def known(self, candidate: Candidate) -> bool | None:
        """Whether a candidate reproduces, if that is known."""

    def missed(self, target: Candidate) -> frozenset[int]:
        """Nodes of a target, each of which alone was missing in a candidate that did not reproduce."""

    def trial(self, proposal: Proposal, stage: Stage) -> Trial:
        """A candidate as a model to be checked."""
