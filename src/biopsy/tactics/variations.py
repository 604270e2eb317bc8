"""What differs from build to build: settings of the engine and variables of the environment, in all combinations.

Builds are made in randomised complete blocks (R. A. Fisher, The design of experiments, 1935): each block has every
combination equally often, in an order drawn by lot. In a fixed cycle a setting has a period, and takes the blame for
whatever else has the same one: every second run on a hot core, every fourth with a full cache.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from biopsy import errors
from biopsy.engines import registry
from biopsy.engines.registry import EngineSpec
from biopsy.tactics.setting_changes import SettingChange, change_of

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
    return VariedSetting(_own_key(key, engine), tuple(values))


def _own_key(key: str, engine: str) -> str:
    if key.startswith("env."):
        return key
    key = _OTHER_NAMES.get(engine, {}).get(key, key)
    declared = registry.find_class(engine).options_declared
    if any(key == option.name or (option.is_family and key.startswith(f"{option.stem}.")) for option in declared):
        return key
    takes_any = any(option.name == "config.KEY" for option in declared)
    return f"config.{key}" if takes_any and (key.isupper() or "." in key) else key


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
    every = [_change(variations, chosen) for chosen in itertools.product(*(one.values for one in variations))]
    lot = random.Random(seed)  # noqa: S311 -- no secret
    for block, size in enumerate(_block_sizes(len(every), total)):
        whole = every * (size // len(every)) + lot.sample(every, size % len(every))
        lot.shuffle(whole)
        yield from (Drawn(change, block) for change in whole)


def _block_sizes(combinations: int, total: int | None) -> Iterator[int]:
    """All combinations as often as a block takes; the last block of a known number takes what is left."""
    usual = combinations * max(1, LEAST_BLOCK // combinations)
    while total is None or total >= 2 * usual:
        yield usual
        total = None if total is None else total - usual
    if total:
        yield total


def _change(variations: Sequence[VariedSetting], values: Sequence[str]) -> SettingChange:
    whole = SettingChange()
    for variation, value in zip(variations, values, strict=True):
        whole = whole.joined(change_of(f"{variation.key}={value}"))
    return whole


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
