"""Asking which release of a package broke a model, or mended it.

found = biopsy.releases("model.onnx", "onnxruntime", ["biopsy", "run", "{}", "--reference", "--engine", "{engine}"])
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from biopsy import errors, events
from biopsy.api.arguments import Folder, Model, index_of, model_file, require_check, require_seconds, require_whole
from biopsy.api.searching import rules_of
from biopsy.blame.releases.find import ReleaseSearch, ReleaseSearchOptions
from biopsy.blame.releases.findings import ReleaseFindings
from biopsy.blame.releases.probe import ReleaseQuestion
from biopsy.blame.releases.release_check import ReleaseCheck, engine_of, has_place, requirements_of
from biopsy.blame.releases.runs_elsewhere import RunsElsewhere
from biopsy.blame.releases.span import NamedReleases, span_of
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.judge import Rules
from biopsy.checks.preparation import require_weights_beside
from biopsy.engines.registry import EngineSpec, parse_spec
from biopsy.environments.interpreter import interpreter_of
from biopsy.environments.releases import releases as releases_of
from biopsy.session.machines import OtherMachines


def releases(
    model: Model,
    package: str,
    check: Sequence[str],
    *,
    good: str | None = None,
    bad: str | None = None,
    versions: str | None = None,
    beside: Sequence[str] = (),
    python: str | None = None,
    engine: str | None = None,
    every: bool = False,
    jobs: int = 1,
    allow_vacuous_check: bool = False,
    rules: Rules | None = None,
    check_timeout: float | None = None,
    folder: Folder = None,
    executor: OtherMachines | None = None,
    listener: events.Listener = events.ignore,
) -> ReleaseFindings:
    """Find the release of ``package`` since which ``model`` fails ``check``, or fails it no more.

    ``check`` is a command, a list of words, in which ``{}`` stands for the model's path and ``{python}`` for the
    interpreter of an environment that holds a release. In ``biopsy run``, ``{engine}`` stands for the engine of that
    package, or ``engine``, with its release. The environment variables ``BIOPSY_PYTHON`` and ``BIOPSY_ENGINE`` hold the
    same. Environments are made from the package index, and kept in the cache.

    ``good`` is a release without the failure and ``bad`` one with it; without them, the search begins with the release
    that is installed here, else the newest, looks at the newest, and goes back in steps that double. ``versions`` are
    those to look at: ``A..B``, releases joined by commas, or a specifier. ``beside`` are requirements that each gets
    besides, such as ``numpy<2``; ``python`` is a version of Python or a path. ``every``: all releases are asked.
    ``jobs`` environments are made at once. ``check_timeout`` is in seconds. ``folder`` is where external weights stand.
    A check that fails with every release, and on a model of one Identity node too, says nothing: that is a CheckError,
    unless ``allow_vacuous_check``. ``executor`` are other machines, as of ``RayExecutor``, which make environments and
    run the check, as many at once as have room.

    The ``answer`` of the result is "changed", with ``borders``, or "every release tried fails".

    Raises OriginalPasses if no release that was tried fails, CheckError if the check cannot be run or uses no release,
    CannotInstall if this machine cannot install anything, UsageError for arguments that cannot be used, ModelError.
    """
    require_check(check)
    require_seconds(check_timeout=check_timeout)
    require_whole(jobs=jobs)
    asked = NamedReleases(good=good, bad=bad, versions=versions)
    made = _check(package, check, engine, requirements_of(package, beside), python)
    span = span_of(package, releases_of(package, python=made.python), asked)
    with model_file(model, folder) as (path, weights):
        question = ReleaseQuestion(
            check=made,
            model=path,
            rules=rules_of(rules),
            weights=weights,
            operators=frozenset(node.op_type for node in index_of(path, weights).nodes),
            timeout=check_timeout,
        )
        options = ReleaseSearchOptions(every=every, jobs=jobs, allow_vacuous=allow_vacuous_check)
        if executor is None:
            return ReleaseSearch(question, span, listener, options).run()
        require_weights_beside(path, weights)
        with closing(RunsElsewhere(executor, executor.room, listener)) as runs:
            return ReleaseSearch(question, span, listener, options, runs=runs).run()


def _check(
    package: str, check: Sequence[str], engine: str | None, beside: tuple[str, ...], python: str | None
) -> ReleaseCheck:
    command = parse(check)
    is_own_run = isinstance(command, OwnRun)
    if is_own_run and not has_place(command.words):
        raise errors.UsageError(
            f"check={list(check)!r}: nothing in it says where the release belongs",
            next_steps=["write {engine} in its place: ['biopsy', 'run', '{}', '--engine', '{engine}', ...]"],
        )
    named = engine_of(package)
    return ReleaseCheck(
        package=package,
        words=command.words,
        spec=parse_spec(engine) if engine else EngineSpec(named) if named else None,
        is_own_run=is_own_run,
        beside=beside,
        python=interpreter_of(python),
        python_text=python,
    )
