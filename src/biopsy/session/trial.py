"""A model to be checked."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from biopsy.checks.outcome import Check
from biopsy.session.stage import Stage


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A model to be checked: its bytes, how many nodes it has (or layers that are high), and what the run is for.

    ``description`` is shown in the progress line. ``place`` is where the model stands already; None if it is to be
    written where candidates stand. ``check`` replaces, for this trial alone, the check that all others get.
    ``is_kept``: it is asked beside the search, which neither answers nor abandons its run. ``inputs`` tells one set of
    inputs from another, where its check feeds it others than the check of the search does.
    """

    parts: Sequence[bytes]
    size: int
    stage: Stage
    description: str
    place: Path | None = None
    check: Check | None = None
    is_kept: bool = False
    inputs: str = ""

    @cached_property
    def digest(self) -> bytes:
        """What tells one model from another."""
        digest = hashlib.blake2b(digest_size=16)
        for part in self.parts:
            digest.update(part)
        digest.update(self.inputs.encode())
        return digest.digest()

    def asks_the_same(self, other: Trial) -> bool:
        """Whether a run of this trial answers the other one."""
        return self.digest == other.digest and self.check is other.check
