"""Settings of an engine that may switch a failure off: what there is to try, and how they vary from build to build."""

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
"""Environment variable that tells a check the engine to use, with its settings: ``onnxrt:optimization=none``."""

ENGINE_PLACE, SETTINGS_PLACE = "{engine}", "{settings}"
"""What stands in a command for the engine with its settings, and for the settings alone."""

OPTIMIZERS = "disabled_optimizers"
"""The option of onnxrt that holds the optimizers that are off, joined by ``+``."""

_NOT_TRIED = frozenset({"profile", "device", "signal"})
"""Options that measure or move the work instead of changing how it is done."""

_MORE: Mapping[str, tuple[str, ...]] = {
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
"""Settings to try that no declared option lists. onnxrt: ``onnxruntime_session_options_config_keys.h``. OpenVINO: the
properties of its CPU plug-in, of which SNIPPETS_MODE and LP_TRANSFORMS_MODE are internal ones; and the instructions
that oneDNN may use."""


@dataclass(frozen=True)
class SettingChange:
    """Settings of an engine that differ from the user's, and environment variables that do."""

    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """How a person writes it: ``threads=1``, ``env.NAME=value``."""
        pairs = [*self.settings.items(), *((f"env.{name}", value) for name, value in self.environment.items())]
        return " ".join(f"{key}={value}" for key, value in pairs)


def joined(changes: Iterable[SettingChange]) -> SettingChange:
    """All of some changes; the later one's values where two disagree."""
    whole = SettingChange()
    for change in changes:
        whole = SettingChange({**whole.settings, **change.settings}, {**whole.environment, **change.environment})
    return whole


def change_of(text: str) -> SettingChange:
    """``key=value`` or ``env.NAME=value`` as a change."""
    key, _, value = text.partition("=")
    if key.startswith("env."):
        return SettingChange(environment={key.removeprefix("env."): value})
    return SettingChange({key: value})


def changes_to_try(spec: EngineSpec) -> list[SettingChange]:
    """Single changes of a spec, in the order of asking: declared options first, then what only engines know.

    Every other value of an option with choices or of a switch, ``threads=1``, the CPU for other providers.
    """
    declared = registry.find_class(spec.name).options_declared
    changes = [change for option in declared for change in _other_values(option, spec)]
    for change in map(change_of, _MORE.get(spec.name, ())):
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
    """The change that switches optimizers of onnxrt off, besides those that the spec has off already."""
    off = [name for name in (spec.settings.get(OPTIMIZERS) or "").split("+") if name]
    return SettingChange({OPTIMIZERS: "+".join(dict.fromkeys([*off, *names]))})


@dataclass(frozen=True)
class CheckTemplate:
    """How the words of a check tell which engine to use, with which settings.

    ``words`` hold ``{engine}`` or ``{settings}`` where that belongs, or neither: then only the environment tells.
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
        """The words of the check with an engine, as it is written with its settings."""
        settings = engine.partition(":")[2]
        return tuple(word.replace(ENGINE_PLACE, engine).replace(SETTINGS_PLACE, settings) for word in self.words)

    def as_if_unchanged(self, evidence: Evidence, change: SettingChange) -> Evidence:
        """What a check left, with the engine called as it was before a change: or no failure would be the same one."""
        now, before = self.changed(change).text, self.spec.text
        said = evidence.verdict
        engine = before if said.engine == now else said.engine
        output = evidence.output.replace(now.encode(), before.encode())
        return replace(evidence, verdict=replace(said, engine=engine), output=output)

    def variables(self, change: SettingChange) -> dict[str, str]:
        """What a check of a change is to find in its environment."""
        return {**change.environment, VARIABLE: self.changed(change).text}

    def environment(self, change: SettingChange) -> AbstractContextManager[None]:
        """What a check that is started inside finds in its environment. For one thread: it is that of this process."""
        return variables(self.variables(change))


class VariedCheck:
    """A check whose words and environment change from run to run.

    ``check`` is run with other words where only these change: it may be a warm one. Where the environment changes, each
    run is a process of its own.
    """

    def __init__(self, check: CommandCheck, template: CheckTemplate) -> None:
        self.template = template
        self._check = check

    def with_change(self, change: SettingChange, *, cold: bool = False) -> CommandCheck:
        """The check of a change; it is good until the next call."""
        words = self.template.with_change(change)
        check = self._check
        if cold or change.environment:
            return CommandCheck(words, check.default_name, check.timeout, check.memory)
        check.command = parse(words)
        return check

    def elsewhere(self, change: SettingChange) -> CommandCheck:
        """The check of a change that holds its environment itself, for other machines: a process of its own."""
        check, words = self._check, self.template.with_change(change)
        told = self.template.variables(change)
        return CommandCheck(words, check.default_name, check.timeout, check.memory, environment=told)

    def expect(self, seconds: float) -> None:
        """Say how long a run without a change took."""
        self._check.expect(seconds)

    def close(self) -> None:
        """End what was kept warm."""
        self._check.close()


def separate_checks(
    template: CheckTemplate, default_name: str, timeout: float | None = None
) -> Callable[[SettingChange], CommandCheck]:
    """The check for words that vary, a new one for each change: several may be run at once, on other machines."""
    made = command_check if template.is_own_run else CommandCheck
    return lambda change: made(template.with_change(change), default_name, timeout)


def varied_check(template: CheckTemplate, default_name: str, timeout: float | None = None) -> VariedCheck:
    """The check for words that vary: forks of a warm process if it is our own run.

    ``default_name`` stands for the candidate in the words, as ``{}`` does. ``timeout``: seconds per run.
    """
    made = command_check if template.is_own_run else CommandCheck
    return VariedCheck(made(template.with_change(SettingChange()), default_name, timeout), template)


# What differs from build to build: settings of the engine and variables of the environment, in all combinations.
#
# Builds are made in randomised complete blocks (R. A. Fisher, The design of experiments, 1935): each block has every
# combination equally often, in an order drawn by lot. In a fixed cycle a setting has a period, and takes the blame
# for whatever else has the same one: every second run on a hot core, every fourth with a full cache.

LEAST_BLOCK = 10
"""Builds of a block, about: fewer could not tell chance from a cause, since only builds of a block are compared."""

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
"""What the engines' own documentation calls the options that biopsy declares."""


@dataclass(frozen=True)
class VariedSetting:
    """One thing that varies, by the name that changes have it under (``key``, ``env.NAME``), and its values."""

    key: str
    values: tuple[str, ...]


def parse_variation(text: str, engine: str) -> VariedSetting:
    r"""``key=v1,v2`` as a variation of an engine's settings; a comma in a value is written ``\,``.

    ``env.NAME`` is a variable of the environment. Names that the engine itself has for an option are understood, and so
    are plain names of properties where it takes any: ``NUM_STREAMS`` is ``config.NUM_STREAMS``. Raises UsageError.
    """
    key, equals, rest = text.partition("=")
    values = [value.replace("\\,", ",") for value in re.split(r"(?<!\\),", rest)]
    if not key or not equals or not all(values):
        raise errors.UsageError(
            f"--vary {text}: a key and its values are wanted", next_steps=["--vary precision=f32,bf16"]
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
    """How many different builds there are."""
    return prod(len(variation.values) for variation in variations)


class Drawn(NamedTuple):
    """The change for one build, and the number of the block that it belongs to."""

    change: SettingChange
    block: int


def changes(variations: Sequence[VariedSetting], seed: int, total: int | None = None) -> Iterator[Drawn]:
    """The changes for one build after the other, in blocks and by lot: always the same ones for a seed.

    ``total``: how many there will be, so that all combinations come equally often; None: without an end.
    """
    keys = [variation.key for variation in variations]
    every = [
        joined(change_of(f"{key}={value}") for key, value in zip(keys, chosen, strict=True))
        for chosen in itertools.product(*(one.values for one in variations))
    ]
    lot = random.Random(seed)  # noqa: S311 -- no secret
    usual = len(every) * max(1, LEAST_BLOCK // len(every))
    for block in itertools.count():
        # The last block of a known number takes what is left.
        size = usual if total is None or total >= 2 * usual else total
        whole = every * (size // len(every)) + lot.sample(every, size % len(every))
        lot.shuffle(whole)
        yield from (Drawn(change, block) for change in whole)
        total = None if total is None else total - size
        if total == 0:
            return


def require_possible(spec: EngineSpec, variations: Sequence[VariedSetting]) -> None:
    """Raise UsageError now if a value that varies is none of the engine's, or a key varies twice."""
    keys = [variation.key for variation in variations]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise errors.UsageError(f"--vary {twice[0]}: it is given twice")
    for variation in variations:
        for value in variation.values:
            change = change_of(f"{variation.key}={value}")
            registry.create(EngineSpec(spec.name, {**spec.settings, **change.settings}))
