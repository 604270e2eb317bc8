"""An environment for a set of packages: made once, kept in the cache, used by any number of runs at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from biopsy import errors, events
from biopsy.environments.cache import Cache, Record
from biopsy.environments.installer import INSTALLING_SECONDS, python_of
from biopsy.environments.interpreter import Interpreter, interpreter_of
from biopsy.environments.making import Plan, make
from biopsy.environments.requirements import normalized, parsed
from biopsy.environments.sources import Sources, configured, origin_in_variables
from biopsy.environments.surroundings import undisturbed
from biopsy.filesystem.own_file import InUseError
from biopsy.text import series

_SHORT_WAIT = 1.0
"""Seconds after which it is said that another process has an environment."""
_LONG_WAIT = 2 * INSTALLING_SECONDS


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An environment that holds packages, which nobody changes or removes while it is open.

    ``python`` is its interpreter: start it with ``-I`` and ``variables``, so that it takes no module from elsewhere.
    ``requirements`` are those asked for, ``added`` what was found to be needed besides, such as "numpy<2".
    ``packages`` are the versions of all distributions in it, by their normalized names ("onnxruntime",
    "ml-dtypes"). ``interpreter`` is what it was made with.
    """

    python: Path
    requirements: tuple[str, ...]
    added: tuple[str, ...]
    packages: Mapping[str, str]
    interpreter: Interpreter

    def version(self, distribution: str) -> str | None:
        """The version of a distribution that is installed; None if it is not."""
        return self.packages.get(normalized(distribution))

    @property
    def variables(self) -> dict[str, str | None]:
        """Changes of the variables of a process that runs in it, as ``isolation.process`` takes them."""
        return undisturbed()


@contextmanager
def prepared(
    requirements: Sequence[str],
    *,
    python: Interpreter | None = None,
    listener: events.Listener = events.ignore,
    sources: Sources | None = None,
) -> Iterator[Environment]:
    """An environment that holds what is asked for, such as ``["onnxruntime==1.20.1", "numpy<2"]``, while it is open.

    It is made if there is none yet: by uv or pip, of wheels only, from ``sources`` (those that are configured), for
    ``python`` (this interpreter). What was asked for is imported in it once. Where an import says that another
    package is too new, and the user has asked for no version of that, an older one is added.

    Raises CannotInstall if it cannot be made, UsageError for what is no requirement, BiopsyError if a package is
    missing that this needs.
    """
    interpreter = interpreter_of() if python is None else python
    origin = origin_in_variables() if sources is None else sources.origin
    plan = Plan(wanted=parsed(requirements), interpreter=interpreter, origin=origin)
    cache, made = Cache.of_user(), False
    while True:
        with _waited_for(cache, plan, listener, shared=True):
            record = cache.record(plan.key)
            if record is not None:
                cache.touch(plan.key)
                listener(_event(record, cached=not made))
                yield _environment(cache.place(plan.key), record, interpreter)
                return
        with _waited_for(cache, plan, listener, shared=False) as lock:
            if cache.record(plan.key) is None:  # nobody has made it meanwhile
                make(plan, cache, lock, configured() if sources is None else sources, listener)
                made = True


@contextmanager
def _waited_for(cache: Cache, plan: Plan, listener: events.Listener, *, shared: bool) -> Iterator[int]:
    """The lock of an environment, however long another process installs the same. Raises CannotInstall."""
    with ExitStack() as stack:
        try:
            lock = stack.enter_context(cache.locked(plan.key, shared=shared, patience=_SHORT_WAIT))
        except InUseError:
            named = series(plan.requirements)
            listener(events.Remark(f"another process installs {named}: waiting for it"))
            try:
                lock = stack.enter_context(cache.locked(plan.key, shared=shared, patience=_LONG_WAIT))
            except InUseError as error:
                raise errors.CannotInstall(
                    f"another process has installed {named} for {_LONG_WAIT / 60:.0f} minutes", kind="other"
                ) from error
        yield lock


def _environment(place: Path, record: Record, interpreter: Interpreter) -> Environment:
    return Environment(
        python=python_of(place),
        requirements=record.requirements,
        added=record.added,
        packages=record.packages,
        interpreter=interpreter,
    )


def _event(record: Record, *, cached: bool) -> events.InstallationDone:
    return events.InstallationDone(
        requirements=record.requirements,
        added=record.added,
        python=record.python,
        packages=record.packages,
        bytes=record.bytes,
        seconds=0.0 if cached else record.seconds,
        cached=cached,
    )
