"""How an environment is made, by a process that has it to itself: whole, or not there."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from biopsy import errors, events
from biopsy.environments.cache import Cache, Record, size_of
from biopsy.environments.installer import Installer, installer_for, python_of
from biopsy.environments.interpreter import Interpreter
from biopsy.environments.refusals import refusal
from biopsy.environments.releases import available
from biopsy.environments.requirements import WantedPackage, names, parsed
from biopsy.environments.sources import Sources
from biopsy.environments.trial import ImportTrial, tried
from biopsy.isolation import cleanup
from biopsy.isolation.process import CannotStartError
from biopsy.isolation.watch import Ended
from biopsy.quantities import count, size_text

_MOST_ADDED = 3
"""How often something is added that an import has asked for: each makes up for another package that is too new."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an environment is to hold, and for which interpreter; ``origin`` is where it comes from, if that is told."""

    wanted: tuple[WantedPackage, ...]
    interpreter: Interpreter
    origin: tuple[str, ...] = ()

    @property
    def requirements(self) -> tuple[str, ...]:
        """What is asked for."""
        return tuple(each.text for each in self.wanted)

    @property
    def key(self) -> str:
        """The name of the environment; it begins with that of a package, for whoever looks into the folder."""
        origin = [self.origin] if self.origin else []
        told = json.dumps([self.requirements, str(self.interpreter.path), self.interpreter.version, *origin])
        return f"{self.wanted[0].name[:40]}-{hashlib.sha256(told.encode()).hexdigest()[:16]}"


def make(plan: Plan, cache: Cache, lock: int, sources: Sources, listener: events.Listener) -> None:
    """Make an environment whose ``lock`` we hold, and room for it. Raises CannotInstall, and then leaves nothing."""
    started = time.monotonic()
    installer = installer_for(plan.interpreter.path, sources)
    listener(
        events.InstallationStarted(
            requirements=plan.requirements, python=plan.interpreter.version, installer=installer.name
        )
    )
    _make_room(plan, cache, listener)
    told = available(plan.wanted, plan.interpreter, sources)
    filling = _Filling(plan=plan, told=told, cache=cache, lock=lock, sources=sources, installer=installer)
    with _kept_if_whole(plan, cache) as keep:
        added, trial = filling.filled()
        record = Record(
            requirements=plan.requirements,
            added=added,
            interpreter=str(plan.interpreter.path),
            python=plan.interpreter.version,
            packages=trial.packages,
            bytes=size_of(cache.place(plan.key)),
            seconds=time.monotonic() - started,
        )
        keep.keep()  # before it is whole: who is killed in between leaves what the next one removes
        cache.finish(plan.key, record)
    _make_room(plan, cache, listener)


def _make_room(plan: Plan, cache: Cache, listener: events.Listener) -> None:
    gone = cache.keep_below_limit(plan.key)
    if gone:
        listener(
            events.Remark(
                f"{count(len(gone), 'environment')} that had not been used for longest "
                f"{'was' if len(gone) == 1 else 'were'} removed: all may have {size_text(cache.limit)}"
            )
        )


@contextmanager
def _kept_if_whole(plan: Plan, cache: Cache) -> Iterator[cleanup.TransientFolder]:
    """A folder for the environment, which goes again unless what stands inside comes to its end, as its lock does."""
    listed = ("lock", str(cache.lock(plan.key)))
    cache.empty(plan.key)  # of what one that was killed has left
    cleanup.register(*listed)  # who has it after us may have made another folder at the same place
    try:
        folder = cleanup.TransientFolder(cache.whole(plan.key))
        try:
            yield folder
        except BaseException:
            cache.discard(plan.key)
            folder.keep()
            raise
    except OSError as error:
        cache.discard(plan.key)
        raise cache.unusable(error) from error
    finally:
        cleanup.strike(*listed)


@dataclass(frozen=True, kw_only=True)
class _Filling:
    """Packages on their way into an environment; ``told`` is what an installer is asked for."""

    plan: Plan
    told: tuple[str, ...]
    cache: Cache
    lock: int
    sources: Sources
    installer: Installer

    def filled(self) -> tuple[tuple[str, ...], ImportTrial]:
        """Make it, install and import what is asked for; what was added, and what is in it. Raises CannotInstall."""
        try:
            self._require(self.installer.make(self.cache.place(self.plan.key), self.lock))
            self._install(self.told)
            return self._mended(self._tried())
        except CannotStartError as error:
            raise errors.CannotInstall(error.message, kind="other") from error

    def _mended(self, trial: ImportTrial) -> tuple[tuple[str, ...], ImportTrial]:
        """Add what imports ask for, unless the user has said which version of it is to be there."""
        added: tuple[str, ...] = ()
        while trial.problem is not None:
            more = self._allowed(trial.needs, added)
            if not more or len(added) + len(more) > _MOST_ADDED:
                raise trial.problem
            added += more
            try:
                self._install((*self.told, *added))
            except errors.CannotInstall as error:
                if error.concerns_all:
                    raise
                raise trial.problem from error
            trial = self._tried()
        return added, trial

    def _allowed(self, needs: Sequence[str], added: Sequence[str]) -> tuple[str, ...]:
        said = names([*self.plan.wanted, *(parsed(added) if added else ())])
        return tuple(need for need in needs if not names(parsed([need])) & said)

    def _install(self, requirements: Sequence[str]) -> None:
        self._require(self.installer.install(self._python, requirements, self.lock), requirements)

    def _require(self, ended: Ended, requirements: Sequence[str] | None = None) -> None:
        if ended.status != 0:
            raise refusal(ended, requirements or self.plan.requirements, self.sources, self.cache.folder)

    def _tried(self) -> ImportTrial:
        return tried(self._python, sorted(names(self.plan.wanted)))

    @property
    def _python(self) -> Path:
        return python_of(self.cache.place(self.plan.key))
