"""Which release of an engine's package broke a model, for a caller with an engine and a check, as a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from biopsy import errors, events
from biopsy.blame.releases.find import ReleaseSearch
from biopsy.blame.releases.probe import ReleaseQuestion
from biopsy.blame.releases.release_check import ReleaseCheck, has_place
from biopsy.blame.releases.span import NamedReleases, span_of
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.judge import Rules
from biopsy.engines.registry import EngineSpec, find_class
from biopsy.environments.releases import releases
from biopsy.model.index import index_file


def search_of_engine(
    model: Path,
    engine: EngineSpec,
    check: Sequence[str],
    listener: events.Listener = events.ignore,
    *,
    rules: Rules | None = None,
    named: NamedReleases = NamedReleases(),  # noqa: B008 -- frozen
) -> ReleaseSearch:
    """The search for the release of ``engine``'s package that broke ``model``, or mended it; its ``run`` begins it.

    ``check`` is a command that fails, with ``{}`` for the model and ``{engine}`` for the engine. What ends ``run``
    early, such as an exception of the listener when the time is up, leaves what is known in ``found``.

    Raises UsageError for an engine without releases and a check without a place for it, CannotInstall if the package
    index does not answer, ModelError.
    """
    packages = find_class(engine.name).distributions
    if not packages:
        raise errors.UsageError(f"the engine {engine.name!r} is no package with releases")
    if not has_place(check):
        raise errors.UsageError("the check does not say where the engine belongs", next_steps=["{engine}"])
    command = parse(check)
    made = ReleaseCheck(package=packages[0], words=command.words, spec=engine, is_own_run=isinstance(command, OwnRun))
    question = ReleaseQuestion(
        check=made,
        model=model,
        rules=Rules() if rules is None else rules,
        operators=frozenset(node.op_type for node in index_file(model).nodes),
    )
    return ReleaseSearch(question, span_of(packages[0], releases(packages[0]), named), listener)
