"""What a search leaves on disk so that it can be resumed, what it begins with, and when that goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors, events
from biopsy.session.stage import PROBE_NAMES

if TYPE_CHECKING:
    from biopsy.checks.journal import Journal


@dataclass(frozen=True, kw_only=True)
class Resume:
    """``journal`` is the file to resume from, None for none; ``fresh`` sets an old one aside.

    ``load`` and ``save`` are replays to begin with and to leave; ``polygraphy_form`` saves as Polygraphy does.
    ``files`` are those that answers depend on too, besides those that the check names; ``about`` is whatever else they
    depend on, by name. ``search`` is what a person calls what is resumed.
    """

    journal: Path | None = None
    fresh: bool = False
    load: Path | None = None
    save: Path | None = None
    polygraphy_form: bool = False
    files: tuple[Path, ...] = ()
    search: str = "reduction"
    about: Mapping[str, str] = field(default_factory=dict)

    def open(self, identity: Mapping[str, str]) -> Journal | None:
        """The journal, with what a replay adds to it; None if none is wanted.

        ``identity`` is what outcomes depend on. Raises UsageError if the journal or the replay is of another model,
        check, option or version, or in use.
        """
        if self.journal is None:
            return None
        from biopsy.checks.journal import Journal

        journal = Journal.open(self.journal, identity, fresh=self.fresh, search=self.search)
        try:
            if self.load is not None:
                from biopsy.checks.replay import load_replay

                journal.found += load_replay(self.load, journal)
        except BaseException:
            (journal.close if journal.found else journal.remove)()
            raise
        return journal

    def export(self, journal: Journal) -> None:
        """Write the replay that was asked for, if one was."""
        if self.save is None:
            return
        from biopsy.checks.replay import save_polygraphy_replay, save_replay

        if self.polygraphy_form:
            save_polygraphy_replay(self.save, journal, PROBE_NAMES)
        else:
            save_replay(self.save, journal)


def run_with_journal(
    search: Callable[[], str | None],
    journal: Journal,
    resume: Resume,
    listener: events.Listener,
    is_worth_resuming: Callable[[], bool],
) -> str | None:
    """Run a search whose oracle remembers in a journal; returns what the search returns: the limit that ended it.

    The journal stays if there is something to go on from. Not after the end: the same line typed again is a new
    question, for the engine may have been mended meanwhile.
    """
    if journal.found:
        listener(events.Resumed(str(journal.path), journal.found))
    is_finished = is_interrupted = False
    try:
        stopped = search()
        is_finished, is_interrupted = stopped is None, stopped is not None
        return stopped
    except errors.Interrupted as stop:
        is_interrupted = True
        kept = [*filter(None, [stop.kept]), *([_answers_in(journal)] if journal.count else [])]
        raise errors.Interrupted(stop.message, kept=", and ".join(kept) or None) from stop
    finally:
        try:
            resume.export(journal)
        finally:
            is_worth = journal.found or is_worth_resuming() or (is_interrupted and journal.count)
            if is_finished or not is_worth:
                journal.remove()


def _answers_in(journal: Journal) -> str:
    return f"{journal.count} answer{'' if journal.count == 1 else 's'} in {journal.path}"
