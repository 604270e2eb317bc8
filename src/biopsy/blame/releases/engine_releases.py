"""Which release of an engine's package broke a model, for a caller with an engine and a check, as a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from biopsy import errors, events
from biopsy.blame.releases.find import ReleaseSearch, ReleaseSearchOptions
from biopsy.blame.releases.probe import ReleaseQuestion
from biopsy.blame.releases.release_check import ReleaseCheck, has_place
from biopsy.blame.releases.span import NamedReleases, span_of
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.judge import Rules
from biopsy.engines.registry import EngineSpec, find_class
from biopsy.environments.releases import releases
from biopsy.model.index import index_file


@dataclass(frozen=True, kw_only=True)
class FailingModel:
    """A model, and the words of a check that it fails. ``weights_folder`` has external weights that stand elsewhere."""

    model: Path
    check: Sequence[str]
    weights_folder: Path | None = None


def search_of_engine(
    model: Path,
    engine: EngineSpec,
    check: Sequence[str],
    listener: events.Listener = events.ignore,
    *,
    rules: Rules | None = None,
    named: NamedReleases = NamedReleases(),  # noqa: B008 -- frozen
    whole: FailingModel | None = None,
) -> ReleaseSearch:
    """The search for the release of ``engine``'s package that broke ``model``, or mended it; its ``run`` begins it.

    ``check`` is a command that fails, with ``{}`` for the model and ``{engine}`` for the engine. What ends ``run``
    early, such as an exception of the listener when the time is up, leaves what is known in ``found``. ``whole`` is the
    model of which this one is a piece: by it, what was found is verified.

    Raises UsageError for an engine without releases and a check without a place for it, CannotInstall if the package
    index does not answer, ModelError.
    """
    package = _package_of(engine)
    question = _question_of(FailingModel(model=model, check=check), engine, package, rules)
    of_whole = None if whole is None else _question_of(whole, engine, package, rules)
    options = ReleaseSearchOptions(whole=of_whole)
    return ReleaseSearch(question, span_of(package, releases(package), named), listener, options)


def _package_of(engine: EngineSpec) -> str:
    packages = find_class(engine.name).distributions
    if not packages:
        raise errors.UsageError(f"the engine {engine.name!r} is no package with releases")
    return packages[0]


def _question_of(asked: FailingModel, engine: EngineSpec, package: str, rules: Rules | None) -> ReleaseQuestion:
    if not has_place(asked.check):
        raise errors.UsageError("the check does not say where the engine belongs", next_steps=["{engine}"])
    command = parse(asked.check)
    made = ReleaseCheck(package=package, words=command.words, spec=engine, is_own_run=isinstance(command, OwnRun))
    return ReleaseQuestion(
        check=made,
        model=asked.model,
        rules=Rules() if rules is None else rules,
        operators=frozenset(node.op_type for node in index_file(asked.model, asked.weights_folder).nodes),
    )
