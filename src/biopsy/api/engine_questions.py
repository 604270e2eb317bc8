"""``biopsy.flags``, ``biopsy.build`` and ``biopsy.releases``: which setting, build or release of an engine fails."""

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
    external_data_dir: Folder = None,
    executor: OtherMachines | None = None,
    listener: events.Listener = events.ignore,
) -> Flags:
    """Find the smallest changes of the settings of ``engine`` that make ``model`` pass ``check``, which it fails now.

    ``check`` is a command, as a list of words in which ``{}`` stands for the model's path and ``{engine}`` for the
    engine with its settings, or ``{settings}`` for the settings alone; a command other than ``biopsy run`` may read the
    environment variable ``BIOPSY_ENGINE`` instead. It cannot be a function, because some settings take effect only in a
    fresh process. ``check_timeout`` is in seconds, by default 20 times as long as the first run, at least 60.
    ``external_data_dir`` is where external weights are. ``executor`` (a ``RayExecutor``) runs the check on other
    machines, with many settings at once; the result is the same.

    The result's ``switches`` are the smallest changes, none if nothing helps.

    Raises OriginalPasses if the model passes, CheckError if the check cannot be run, UsageError for a check or an
    engine that cannot be used, EngineMissing or ModelError.

    >>> words = ["biopsy", "run", "{}", "--engine", "onnxrt:optimization=none", "--engine", "{engine}"]
    >>> [switch.text for switch in biopsy.flags("model.onnx", "onnxrt", words).switches]
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
    rules = rules_of(rules)
    with model_file(model, external_data_dir) as (path, weights):
        ModelInput(read_bytes(path), weights, path)  # raises ModelError for external weights that may not be read
        with closing(varied_check(template, str(path), check_timeout)) as varied:
            return find_switches(varied, path, rules, listener, weights, executor)


def template_of(check: Sequence[str], spec: EngineSpec) -> CheckTemplate:
    """The words of a check, with ``{engine}`` or ``{settings}`` where the engine belongs.

    Raises UsageError for a ``biopsy run`` without either, whose settings would never change. Warns about any other
    command without them, which must read the environment.
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
    message = "the check has no {engine} and no {settings}: it must read BIOPSY_ENGINE from its environment"
    warnings.warn(message, UserWarning, stacklevel=3)
    return template


BuildCheck = Callable[[Path, str], object]
"""Called with the path of a build and the engine with its settings; returns True if the build is bad."""


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
    external_data_dir: Folder = None,
    executor: OtherMachines | None = None,
    listener: events.Listener = events.ignore,
) -> BuildFindings:
    """Build ``model`` with ``engine`` again and again, check every build, and say what bad builds have in common.

    ``check`` is called with the path of the build (of the model, if the engine saves nothing) and the engine with its
    settings, such as ``"openvino:precision=bf16"``; it returns True if the build is bad. Or it is a command, as a list
    of words with ``{}`` for that path and ``{engine}`` for the engine. With None, a build is bad if building fails.

    ``until`` is the number of builds, or ``"good"`` or ``"bad"`` to stop after the first such build. ``vary`` maps
    settings of the engine, and environment variables written ``env.NAME``, to their values: every combination is built,
    in an order drawn from ``seed``. Timeouts are in seconds. Builds are removed at the end; the result has the choices
    of each. ``executor`` (a ``RayExecutor``) builds and checks on other machines, as many at once as have room; the
    check must then be a command or None.

    Raises CheckError if the check cannot be run, EngineMissing, ModelError, or UsageError for an argument that cannot
    be used.

    >>> found = biopsy.build("model.onnx", "openvino", until=20, vary={"threads": [1, 4]})
    >>> found.good, found.bad
    (20, 0)
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
    with model_file(model, external_data_dir) as (path, weights), temporary_folder("biopsy-") as place:
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
    """Runs of the build and the check, here or on ``machines``.

    Raises UsageError for a function as the check if environment variables vary or ``timeout`` is given.
    """
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
            # Without a check, only the building counts, and this function is never called.
            is_bad = functools.wraps(check or bool)(lambda path: check is not None and check(path, spec))
            return FunctionCheck(is_bad)

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
    external_data_dir: Folder = None,
    executor: OtherMachines | None = None,
    listener: events.Listener = events.ignore,
) -> ReleaseFindings:
    """Find the release of ``package`` since which ``model`` fails ``check``, or no longer fails it.

    ``check`` is a command, as a list of words in which ``{}`` stands for the model's path and ``{python}`` for the
    interpreter of an environment that holds a release. In ``biopsy run``, ``{engine}`` stands for the engine of that
    package (or for ``engine``) with its release. The environment variables ``BIOPSY_PYTHON`` and ``BIOPSY_ENGINE`` hold
    the same. Environments are made from the package index, and kept in the cache.

    ``good`` is a release without the failure and ``bad`` one with it. Without them, the search tries the installed
    release and the newest, and then goes back in steps that double. ``versions`` limits it to some releases: ``A..B``,
    releases joined by commas, or a specifier. ``every`` tries all of them. ``beside`` are further requirements of each
    environment, such as ``numpy<2``; ``python`` is a version of Python or a path. ``jobs`` environments are made at
    once. ``check_timeout`` is in seconds. ``external_data_dir`` is where external weights are. ``executor`` (a
    ``RayExecutor``) makes environments and runs the check on other machines, as many at once as have room.

    A check that fails with every release, and on a model of one Identity node too, says nothing: that is a CheckError,
    unless ``allow_vacuous_check``.

    The result's ``answer`` is "changed", with ``borders``, or "every release tried fails".

    Raises OriginalPasses if no release that was tried fails, CheckError if the check cannot be run or uses no release,
    CannotInstall if this machine cannot install anything, UsageError for arguments that cannot be used, ModelError.

    >>> words = ["biopsy", "run", "{}", "--engine", "reference", "--engine", "{engine}"]
    >>> print(biopsy.releases("model.onnx", "onnxruntime", words, versions="1.20..1.24").text)
    """
    require_check(check, is_command=True)
    require_seconds(check_timeout=check_timeout)
    require_whole(jobs=jobs)
    named_releases = NamedReleases(good=good, bad=bad, versions=versions)
    command = parse(check)
    is_own_run = isinstance(command, OwnRun)
    if is_own_run and not has_place(command.words):
        raise errors.UsageError(
            f"check={list(check)!r}: nothing in it says where the release belongs",
            next_steps=["write {engine} in its place: ['biopsy', 'run', '{}', '--engine', '{engine}', ...]"],
        )
    engine_name = engine_of(package)
    release_check = ReleaseCheck(
        package=package,
        words=command.words,
        spec=parse_spec(engine) if engine else EngineSpec(engine_name) if engine_name else None,
        is_own_run=is_own_run,
        beside=requirements_of(package, beside),
        python=interpreter_of(python),
        python_text=python,
    )
    span = span_of(package, releases_of(package, python=release_check.python), named_releases)
    with model_file(model, external_data_dir) as (path, weights):
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
