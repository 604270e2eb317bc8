"""Settings of an engine that may switch a failure off: which ones to try, and how they vary from build to build."""

from __future__ import annotations

import itertools
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple

from biopsy import errors
from biopsy.checks.command import CommandCheck
from biopsy.checks.command_line import parse
from biopsy.checks.outcome import Evidence
from biopsy.checks.warm import command_check
from biopsy.engines import registry
from biopsy.engines.base import Option
from biopsy.engines.registry import EngineSpec
from biopsy.processes.own_process import variables

VARIABLE = "BIOPSY_ENGINE"
"""The environment variable with the engine that a check must use and its settings: ``onnxrt:optimization=none``."""

ENGINE_PLACE, SETTINGS_PLACE = "{engine}", "{settings}"
"""Placeholders in a command, for the engine with its settings and for the settings alone."""

OPTIMIZERS = "disabled_optimizers"
"""The option of onnxrt with the optimizers that are off, joined by ``+``."""

_NOT_TRIED = frozenset({"profile", "device", "signal"})
"""Options that do not change how a model is computed."""

_UNDECLARED: Mapping[str, tuple[str, ...]] = {
    "onnxrt": (
        "config.session.disable_prepacking=1",
        "config.session.disable_quant_qdq=1",
        "config.session.set_denormal_as_zero=1",
    ),
    "openvino": (
        "config.SNIPPETS_MODE=DISABLE",
        "config.LP_TRANSFORMS_MODE=NO",
        "config.EXECUTION_MODE_HINT=ACCURACY",
        "config.DYNAMIC_QUANTIZATION_GROUP_SIZE=0",
        "config.CPU_DENORMALS_OPTIMIZATION=YES",
        "config.CPU_RUNTIME_CACHE_CAPACITY=0",
        "env.ONEDNN_MAX_CPU_ISA=AVX2",
    ),
}
"""Settings to try that are not among the declared options. onnxrt: from ``onnxruntime_session_options_config_keys.h``.
OpenVINO: properties of its CPU plug-in (SNIPPETS_MODE and LP_TRANSFORMS_MODE are internal), and the instruction set of
oneDNN."""


@dataclass(frozen=True)
class SettingChange:
    """Settings of an engine and environment variables that differ from the user's."""

    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """How a person writes it: ``threads=1``, ``env.NAME=value``."""
        pairs = [*self.settings.items(), *((f"env.{name}", value) for name, value in self.environment.items())]
        return " ".join(f"{key}={value}" for key, value in pairs)


def joined(changes: Iterable[SettingChange]) -> SettingChange:
    """All changes in one; where two disagree, the later one counts."""
    combined = SettingChange()
    for change in changes:
        combined = SettingChange(
            {**combined.settings, **change.settings}, {**combined.environment, **change.environment}
        )
    return combined


def change_of(text: str) -> SettingChange:
    """``key=value`` or ``env.NAME=value`` as a change."""
    key, _, value = text.partition("=")
    if key.startswith("env."):
        return SettingChange(environment={key.removeprefix("env."): value})
    return SettingChange({key: value})


def changes_to_try(spec: EngineSpec) -> list[SettingChange]:
    """Single changes of a spec to try, in this order: declared options, then others that the engine takes.

    They are every other value of an option with choices or of a switch, ``threads=1``, and ``providers=cpu``.
    """
    declared = registry.find_class(spec.name).options_declared
    changes = [change for option in declared for change in _other_values(option, spec)]
    for change in map(change_of, _UNDECLARED.get(spec.name, ())):
        is_set = change.settings.items() <= spec.settings.items() and change.environment.items() <= os.environ.items()
        if not is_set:
            changes.append(change)
    return changes


def _other_values(option: Option, spec: EngineSpec) -> Iterator[SettingChange]:
    if option.name in _NOT_TRIED or option.is_family:
        return
    now = spec.settings.get(option.name, option.default_text)
    now = "true" if now is None else now
    values: Sequence[str] = option.choices
    if option.is_switch:
        values = ("true", "false") if now not in ("true", "false") else ("false" if now == "true" else "true",)
    elif option.name == "threads":
        values = ("1",)
    elif option.name == "providers":
        values = ("cpu",)
    for value in values:
        if value.lower() != now.lower():
            yield SettingChange({option.name: value})


def without_optimizers(spec: EngineSpec, names: Sequence[str]) -> SettingChange:
    """The change that switches optimizers of onnxrt off, in addition to those that are off in the spec."""
    off = [name for name in (spec.settings.get(OPTIMIZERS) or "").split("+") if name]
    return SettingChange({OPTIMIZERS: "+".join(dict.fromkeys([*off, *names]))})


@dataclass(frozen=True)
class CheckTemplate:
    """The words of a check with placeholders for the engine.

    ``words`` hold ``{engine}`` or ``{settings}``, or neither: then only the environment names the engine.
    """

    words: tuple[str, ...]
    spec: EngineSpec
    is_own_run: bool = False

    @property
    def names_settings(self) -> bool:
        """Whether a change of settings changes the words."""
        return any(ENGINE_PLACE in word or SETTINGS_PLACE in word for word in self.words)

    def changed(self, change: SettingChange) -> EngineSpec:
        """The engine with a change of its settings."""
        return EngineSpec(self.spec.name, {**self.spec.settings, **change.settings})

    def with_change(self, change: SettingChange) -> tuple[str, ...]:
        """The words of the check with a change."""
        return self.with_engine(self.changed(change).text)

    def with_engine(self, engine: str) -> tuple[str, ...]:
        """The words of the check with an engine, such as ``onnxrt:threads=1``."""
        settings = engine.partition(":")[2]
        return tuple(word.replace(ENGINE_PLACE, engine).replace(SETTINGS_PLACE, settings) for word in self.words)

    def as_if_unchanged(self, evidence: Evidence, change: SettingChange) -> Evidence:
        """Evidence that names the engine as it was before a change, so that the same failure compares equal."""
        now, before = self.changed(change).text, self.spec.text
        verdict = evidence.verdict
        engine = before if verdict.engine == now else verdict.engine
        output = evidence.output.replace(now.encode(), before.encode())
        return replace(evidence, verdict=replace(verdict, engine=engine), output=output)

    def variables(self, change: SettingChange) -> dict[str, str]:
        """The environment variables for a check with a change."""
        return {**change.environment, VARIABLE: self.changed(change).text}

    def environment(self, change: SettingChange) -> AbstractContextManager[None]:
        """Sets the environment variables for a check with a change in this process; not for several threads."""
        return variables(self.variables(change))


class VariedCheck:
    """A check whose words and environment change from run to run.

    ``check``, which may be warm, is run with the changed words. If the environment changes, each run is a new process.
    """

    def __init__(self, check: CommandCheck, template: CheckTemplate) -> None:
        self.template = template
        self._check = check

    def with_change(self, change: SettingChange, *, cold: bool = False) -> CommandCheck:
        """The check with a change; valid until the next call."""
        words = self.template.with_change(change)
        check = self._check
        if cold or change.environment:
            return CommandCheck(words, check.default_name, check.timeout, check.memory)
        check.command = parse(words)
        return check

    def elsewhere(self, change: SettingChange) -> CommandCheck:
        """The check with a change, for another machine: it holds its environment variables itself."""
        check, words = self._check, self.template.with_change(change)
        variables = self.template.variables(change)
        return CommandCheck(words, check.default_name, check.timeout, check.memory, environment=variables)

    def expect(self, seconds: float) -> None:
        """Say how long a run without a change took."""
        self._check.expect(seconds)

    def close(self) -> None:
        """End warm processes."""
        self._check.close()


def separate_checks(
    template: CheckTemplate, default_name: str, timeout: float | None = None
) -> Callable[[SettingChange], CommandCheck]:
    """Returns a new check for each change, so that several may be run at once."""
    make = command_check if template.is_own_run else CommandCheck
    return lambda change: make(template.with_change(change), default_name, timeout)


def varied_check(template: CheckTemplate, default_name: str, timeout: float | None = None) -> VariedCheck:
    """The check of a template: forks of a warm process if it is ``biopsy run``.

    ``default_name`` stands for the candidate in the words, as ``{}`` does. ``timeout``: seconds per run.
    """
    check = separate_checks(template, default_name, timeout)(SettingChange())
    return VariedCheck(check, template)


LEAST_BLOCK = 10
"""About how many builds a block has. Only builds of one block are compared, so fewer could not show a cause."""

_OTHER_NAMES: Mapping[str, Mapping[str, str]] = {
    "openvino": {
        "INFERENCE_PRECISION_HINT": "precision",
        "INFERENCE_NUM_THREADS": "threads",
        "PERF_COUNT": "profile",
    },
    "onnxrt": {
        "graph_optimization_level": "optimization",
        "intra_op_num_threads": "threads",
        "inter_op_num_threads": "inter_threads",
        "execution_mode": "execution",
    },
}
"""Names of options in the engine's own documentation -> their names in biopsy."""


@dataclass(frozen=True)
class VariedSetting:
    """A setting (``key``) or environment variable (``env.NAME``) that varies, and its values."""

    key: str
    values: tuple[str, ...]


def parse_variation(text: str, engine: str) -> VariedSetting:
    r"""The variation that ``key=v1,v2`` describes; a comma in a value is written ``\,``.

    ``env.NAME`` is an environment variable. The engine's own names of options are understood too, and so are plain
    names of properties if it takes any: ``NUM_STREAMS`` is ``config.NUM_STREAMS``. Raises UsageError.
    """
    key, equals, listed = text.partition("=")
    values = [value.replace("\\,", ",") for value in re.split(r"(?<!\\),", listed)]
    if not key or not equals or not all(values):
        raise errors.UsageError(
            f"--vary {text}: it must be a key and its values", next_steps=["--vary precision=f32,bf16"]
        )
    if len(set(values)) < len(values):
        raise errors.UsageError(f"--vary {text}: a value is given twice")
    key = _OTHER_NAMES.get(engine, {}).get(key, key)
    declared = registry.find_class(engine).options_declared
    if not key.startswith("env.") and not any(
        key == option.name or (option.is_family and key.startswith(f"{option.stem}.")) for option in declared
    ):
        takes_any = any(option.name == "config.KEY" for option in declared)
        key = f"config.{key}" if takes_any and (key.isupper() or "." in key) else key
    return VariedSetting(key, tuple(values))


def combinations(variations: Sequence[VariedSetting]) -> int:
    """How many combinations of values there are."""
    return prod(len(variation.values) for variation in variations)


class Drawn(NamedTuple):
    """The change for one build, and the number of its block."""

    change: SettingChange
    block: int


def changes(variations: Sequence[VariedSetting], seed: int, total: int | None = None) -> Iterator[Drawn]:
    """The changes for one build after the other, in randomised complete blocks; the same for the same seed.

    Each block has every combination equally often, in random order (R. A. Fisher, The design of experiments, 1935). In
    a fixed cycle a setting has a period, and takes the blame for everything else with that period: every second run on
    a hot core, every fourth with a full cache. ``total``: how many changes are yielded; None: endlessly many.
    """
    keys = [variation.key for variation in variations]
    every = [
        joined(change_of(f"{key}={value}") for key, value in zip(keys, chosen, strict=True))
        for chosen in itertools.product(*(variation.values for variation in variations))
    ]
    generator = random.Random(seed)  # noqa: S311 -- no secret
    usual = len(every) * max(1, LEAST_BLOCK // len(every))
    for block in itertools.count():
        size = usual if total is None or total >= 2 * usual else total  # the last block takes what is left
        shuffled = every * (size // len(every)) + generator.sample(every, size % len(every))
        generator.shuffle(shuffled)
        yield from (Drawn(change, block) for change in shuffled)
        total = None if total is None else total - size
        if total == 0:
            return


def require_possible(spec: EngineSpec, variations: Sequence[VariedSetting]) -> None:
    """Raise UsageError if a value is not valid for the engine, or a key is given twice."""
    keys = [variation.key for variation in variations]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise errors.UsageError(f"--vary {twice[0]}: it is given twice")
    for variation in variations:
        for value in variation.values:
            change = change_of(f"{variation.key}={value}")
            registry.create(EngineSpec(spec.name, {**spec.settings, **change.settings}))
