"""Building a model again and again, to see which builds are bad and what they share.

findings = biopsy.build("model.onnx", "openvino", fails, until=20, vary={"precision": ["f32", "bf16"]})
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

from biopsy import errors, events
from biopsy.api.arguments import (
    Folder,
    Model,
    model_file,
    require_check,
    require_choice,
    require_seconds,
    require_whole,
)
from biopsy.api.engine_checks import template_of
from biopsy.api.searching import rules_of
from biopsy.checks.function import FunctionCheck
from biopsy.checks.judge import Rules
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EngineSpec, create, parse_spec
from biopsy.isolation.cleanup import temporary_folder
from biopsy.model.load import read_bytes
from biopsy.session.machines import OtherMachines
from biopsy.tactics.build_findings import BuildFindings, findings_of
from biopsy.tactics.build_plan import BuildPlan, CheckFor, artifact_name
from biopsy.tactics.build_run import BuildRuns, BuildsHere
from biopsy.tactics.building import BuildTally, build_repeatedly
from biopsy.tactics.setting_changes import CheckTemplate, SettingChange, separate_checks, varied_check
from biopsy.tactics.variations import VariedSetting, parse_variation, require_possible

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
    variations = _variations(vary or {}, spec)
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
            return _built(plan, runs, listener)


@contextmanager
def _runs(
    plan: BuildPlan,
    check: BuildCheck | Sequence[str] | None,
    timeout: float | None,
    machines: OtherMachines | None,
    listener: events.Listener,
) -> Iterator[BuildRuns]:
    """Who builds and checks."""
    if machines is None:
        with _checks(plan, check, timeout) as check_for:
            yield BuildsHere(plan, check_for, listener)
        return
    from biopsy.tactics.builds_elsewhere import BuildsElsewhere

    assert not callable(check)
    template = CheckTemplate(("build",), plan.spec) if check is None else template_of(check, plan.spec)
    yield BuildsElsewhere(plan, separate_checks(template, "{}", timeout), machines, machines.room, listener)


def _built(plan: BuildPlan, runs: BuildRuns, listener: events.Listener) -> BuildFindings:
    tally, started = BuildTally(), time.monotonic()
    with closing(build_repeatedly(plan, runs, tally, listener)) as builds:
        for _ in builds:  # each is counted when it is over
            pass
    return findings_of(plan, tally, time.monotonic() - started)


def _variations(vary: Mapping[str, Sequence[object]], spec: EngineSpec) -> list[VariedSetting]:
    """What varies. Raises UsageError for text in place of a list, and for what the engine does not take."""
    found = []
    for key, values in vary.items():
        if isinstance(values, str):
            raise errors.UsageError(
                f"vary={{{key!r}: {values!r}}}: its values are a list", next_steps=[f"[{values!r}]"]
            )
        texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
        found.append(
            parse_variation(f"{key}={','.join(text.replace(',', chr(92) + ',') for text in texts)}", spec.name)
        )
    require_possible(spec, found)
    return found


@contextmanager
def _checks(plan: BuildPlan, check: BuildCheck | Sequence[str] | None, timeout: float | None) -> Iterator[CheckFor]:
    """The check for each build. Raises UsageError for a function where variables of the environment vary."""
    if check is None or callable(check):
        if check is not None and timeout is not None:
            raise errors.UsageError("check_timeout has no effect on a function: only a command can be ended")
        names = [variation.key for variation in plan.variations if variation.key.startswith("env.")]
        if check is not None and names:
            raise errors.UsageError(
                f"vary: {names[0]} may have no effect on a function, since this process has read it already",
                next_steps=["check=['python', 'check.py', '{}', '{engine}']"],
            )
        yield lambda change: _function_check(plan, check, change)
        return
    with closing(varied_check(template_of(check, plan.spec), "{}", timeout)) as varied:
        yield varied.with_change


def _function_check(plan: BuildPlan, check: BuildCheck | None, change: SettingChange) -> FunctionCheck:
    spec = CheckTemplate((), plan.spec).changed(change).text
    if check is None:
        return FunctionCheck(_builds, as_proto=False)

    @functools.wraps(check)
    def with_engine(path: Path) -> object:
        return check(path, spec)

    return FunctionCheck(with_engine, as_proto=False)


def _builds(path: Path) -> bool:
    """What is asked if building alone is checked: it is never called."""
    return False
