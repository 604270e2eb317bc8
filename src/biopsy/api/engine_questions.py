"""Asking what of an engine a failure comes with: its settings, its builds, its releases."""

from __future__ import annotations

import functools
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

from biopsy import errors, events
from biopsy.api.running import (
    Folder,
    Model,
    model_file,
    require_check,
    require_choice,
    require_seconds,
    require_whole,
    rules_of,
)
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import FunctionCheck
from biopsy.checks.task import require_weights_beside
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EngineSpec, create, parse_spec
from biopsy.model.load import read_bytes
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.environments.interpreter import interpreter_of
from biopsy.processes.environments.releases import releases as releases_of
from biopsy.questions.builds.building import (
    BuildFindings,
    BuildPlan,
    BuildRuns,
    BuildsHere,
    BuildTally,
    artifact_name,
    build_repeatedly,
)
from biopsy.questions.builds.elsewhere import BuildsElsewhere
from biopsy.questions.builds.flags import Flags, find_switches
from biopsy.questions.builds.settings import (
    CheckTemplate,
    SettingChange,
    parse_variation,
    require_possible,
    separate_checks,
    varied_check,
)
from biopsy.questions.releases.find import ReleaseSearch, ReleaseSearchOptions
from biopsy.questions.releases.findings import ReleaseFindings
from biopsy.questions.releases.question import (
    NamedReleases,
    ReleaseCheck,
    ReleaseQuestion,
    engine_of,
    has_place,
    requirements_of,
    span_of,
)
from biopsy.questions.releases.runs import RunsElsewhere, RunsHere
from biopsy.session.machines import OtherMachines


def flags(
    model: Model,
    engine: str,
    check: Sequence[str],
    *,
    rules: Rules | None = None,
    check_timeout: float | None = None,
    folder: Folder = None,
    executor: OtherMachines | None = None,
    listener: events.Listener = events.ignore,
) -> Flags:
    """Find the fewest settings of ``engine`` with which ``model`` passes ``check`` that fails as the engine is set.

    ``check`` is a command, a list of words, in which ``{}`` stands for the model's path and ``{engine}`` for the engine
    with its settings, or ``{settings}`` for the settings alone; other commands than ``biopsy run`` may read the
    environment variable ``BIOPSY_ENGINE`` instead. It is no function, since some settings take effect only in a fresh
    process. ``check_timeout`` is in seconds, by default 20 times as long as the first run, at least 60. ``folder`` is
    where external weights stand. ``executor`` are other machines, as of ``RayExecutor``, which run the check, with many
    settings at once; the result is the same. ``switches`` of it are the smallest changes, none if there are none.

    Raises OriginalPasses if the model passes, CheckError if the check cannot be run, UsageError for a check or an
    engine that cannot be used, EngineMissing and ModelError.
    """
    if callable(check):
        raise errors.UsageError(
            f"check={check!r}: it is a command as a list of words, for some settings need a fresh process",
            next_steps=["check=['python', 'check.py', '{}', '{engine}']"],
        )
    require_check(check)
    require_seconds(check_timeout=check_timeout)
    create(engine)
    template = template_of(check, parse_spec(engine))
    given = rules_of(rules)
    with model_file(model, folder) as (path, weights):
        ModelInput(read_bytes(path), weights, path)  # checks what it names
        with closing(varied_check(template, str(path), check_timeout)) as varied:
            return find_switches(varied, path, given, listener, weights, executor)


def template_of(check: Sequence[str], spec: EngineSpec) -> CheckTemplate:
    """The words of a check, with ``{engine}`` or ``{settings}`` where the engine belongs.

    Raises UsageError for a ``biopsy run`` without either: its settings would never change. Any other command may read
    them from its environment, which a warning says.
    """
    command = parse(check)
    template = CheckTemplate(command.words, spec, is_own_run=isinstance(command, OwnRun))
    if template.names_settings:
        return template
    if template.is_own_run:
        raise errors.UsageError(
            f"check={list(check)!r}: its engine would keep its settings, for nothing in it says where they belong",
            next_steps=["write {engine} in its place: ['biopsy', 'run', '{}', '--engine', '{engine}', ...]"],
        )
    told = "the check has no {engine} and no {settings}: it must read BIOPSY_ENGINE from its environment"
    warnings.warn(told, UserWarning, stacklevel=3)
    return template


BuildCheck = Callable[[Path, str], object]
"""Called with what was built and the engine with its settings; True if that build is bad."""


def build(
    model: Model,
    engine: str,
    check: BuildCheck | Sequence[str] | None = None,
    *,
    until: int | Literal["good", "bad"] = 10,
    vary: Mapping[str, Sequence[object]] | None = None,
    seed: int = 1,
    rules: Rules | None = None,
    build_timeout: float | None = None,
    check_timeout: float | None = None,
    folder: Folder = None,
    executor: OtherMachines | None = None,
    listener: events.Listener = events.ignore,
) -> BuildFindings:
    """Build ``model`` with ``engine`` again and again, check every build, and say what bad ones have in common.

    ``check`` is called with the path of what was built (of the model, if the engine saves nothing) and the engine with
    its settings, such as ``"openvino:precision=bf16"``: True if the build is bad. Or it is a command, a list of words
    with ``{}`` for that path and ``{engine}`` for the engine. None: a build that fails is bad.

    ``until`` is how many builds, or ``"good"`` or ``"bad"`` to stop after the first of these. ``vary`` has settings of
    the engine, and variables of the environment written ``env.NAME``, each with its values: every combination is built,
    in an order drawn from ``seed``. Timeouts are in seconds. What is built is removed at the end; the result has the
    choices of each build. ``executor`` are other machines, as of ``RayExecutor``, which build and check, as many at
    once as have room; the check is a command then, or None.

    Raises CheckError if the check cannot be run, EngineMissing, ModelError, and UsageError for what cannot be used.
    """
    if isinstance(until, int):
        require_whole(until=until)
    else:
        require_choice("until", until, ("good", "bad"), "or a number of builds")
    require_seconds(build_timeout=build_timeout, check_timeout=check_timeout)
    spec = parse_spec(engine)
    create(spec)
    variations = []
    for key, values in (vary or {}).items():
        if isinstance(values, str):
            raise errors.UsageError(
                f"vary={{{key!r}: {values!r}}}: its values are a list", next_steps=[f"[{values!r}]"]
            )
        texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
        words = ",".join(text.replace(",", "\\,") for text in texts)
        variations.append(parse_variation(f"{key}={words}", spec.name))
    require_possible(spec, variations)
    if check is not None:
        require_check(check)
        if executor is not None and callable(check):
            raise errors.UsageError("check: a function cannot be sent to the machines of executor, a command can")
    name = artifact_name(spec)
    with model_file(model, folder) as (path, weights), temporary_folder("biopsy-") as place:
        plan = BuildPlan(
            model=ModelInput(read_bytes(path), weights, path),
            spec=spec,
            until=until,
            artifact=None if name is None else place / name,
            variations=variations,
            seed=seed,
            rules=rules_of(rules),
            build_timeout=build_timeout,
            checks_building=check is None,
        )
        with _runs(plan, check, check_timeout, executor, listener) as runs:
            tally = BuildTally(plan=plan)
            with closing(build_repeatedly(runs, tally, listener)) as builds:
                deque(builds, 0)  # each is counted when it is over
            return tally.findings()


@contextmanager
def _runs(
    plan: BuildPlan,
    check: BuildCheck | Sequence[str] | None,
    timeout: float | None,
    machines: OtherMachines | None,
    listener: events.Listener,
) -> Iterator[BuildRuns]:
    """Who builds and checks. Raises UsageError for a function where variables of the environment vary."""
    if machines is not None:
        assert not callable(check)
        template = CheckTemplate(("build",), plan.spec) if check is None else template_of(check, plan.spec)
        yield BuildsElsewhere(plan, separate_checks(template, "{}", timeout), machines, machines.room, listener)
    elif check is None or callable(check):
        if check is not None and timeout is not None:
            raise errors.UsageError("check_timeout has no effect on a function: only a command can be ended")
        names = [variation.key for variation in plan.variations if variation.key.startswith("env.")]
        if check is not None and names:
            raise errors.UsageError(
                f"vary: {names[0]} may have no effect on a function, since this process has read it already",
                next_steps=["check=['python', 'check.py', '{}', '{engine}']"],
            )

        def with_engine(change: SettingChange) -> FunctionCheck:
            spec = CheckTemplate((), plan.spec).changed(change).text
            # Where building alone is checked, the check is never called.
            called = functools.wraps(check or bool)(lambda path: check is not None and check(path, spec))
            return FunctionCheck(called, as_proto=False)

        yield BuildsHere(plan, with_engine, listener)
    else:
        with closing(varied_check(template_of(check, plan.spec), "{}", timeout)) as varied:
            yield BuildsHere(plan, varied.with_change, listener)


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
    command = parse(check)
    is_own_run = isinstance(command, OwnRun)
    if is_own_run and not has_place(command.words):
        raise errors.UsageError(
            f"check={list(check)!r}: nothing in it says where the release belongs",
            next_steps=["write {engine} in its place: ['biopsy', 'run', '{}', '--engine', '{engine}', ...]"],
        )
    named = engine_of(package)
    release_check = ReleaseCheck(
        package=package,
        words=command.words,
        spec=parse_spec(engine) if engine else EngineSpec(named) if named else None,
        is_own_run=is_own_run,
        beside=requirements_of(package, beside),
        python=interpreter_of(python),
        python_text=python,
    )
    span = span_of(package, releases_of(package, python=release_check.python), asked)
    with model_file(model, folder) as (path, weights):
        question = ReleaseQuestion(
            check=release_check,
            model=path,
            rules=rules_of(rules),
            weights=weights,
            timeout=check_timeout,
        )
        options = ReleaseSearchOptions(every=every, allow_vacuous=allow_vacuous_check)
        if executor is not None:
            require_weights_beside(path, weights)
        with closing(
            RunsHere(ahead=jobs) if executor is None else RunsElsewhere(executor, executor.room, listener)
        ) as runs:
            return ReleaseSearch(question, span, listener, options, runs=runs).run()
