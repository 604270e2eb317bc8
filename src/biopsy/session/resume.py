"""What a reduction leaves on disk so that it can be resumed, and what it begins with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from biopsy.checks.journal import Journal


@dataclass(frozen=True)
class Resume:
    """``journal`` is the file to resume from, None for none; ``fresh`` sets an old one aside.

    ``load`` and ``save`` are replays to begin with and to leave; ``polygraphy_form`` saves as Polygraphy does.
    ``files`` are those that answers depend on too, besides those that the check names; ``about`` is whatever else they
    depend on, by name.
    """

    journal: Path | None = None
    fresh: bool = False
    load: Path | None = None
    save: Path | None = None
    polygraphy_form: bool = False
    files: tuple[Path, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)

    def export(self, journal: Journal) -> None:
        """Write the replay that was asked for, if one was."""
        if self.save is None:
            return
        from biopsy.checks.replay import save_polygraphy_replay, save_replay

        (save_polygraphy_replay if self.polygraphy_form else save_replay)(self.save, journal)
