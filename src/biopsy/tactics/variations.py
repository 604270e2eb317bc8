"""What differs from build to build: settings of the engine and variables of the environment, in all combinations."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from biopsy import errors
from biopsy.engines import registry
from biopsy.engines.registry import EngineSpec
from biopsy.tactics.switches import Change, change_of

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
class Variation:
    """One thing that varies, by the name that changes have it under (``key``, ``env.NAME``), and its values."""

    key: str
    values: tuple[str, ...]


def parse_variation(text: str, engine: str) -> Variation:
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
    return Variation(_own_key(key, engine), tuple(values))


def _own_key(key: str, engine: str) -> str:
    if key.startswith("env."):
        return key
    key = _OTHER_NAMES.get(engine, {}).get(key, key)
    declared = registry.find_class(engine).options_declared
    if any(key == option.name or (option.is_family and key.startswith(f"{option.stem}.")) for option in declared):
        return key
    takes_any = any(option.name == "config.KEY" for option in declared)
    return f"config.{key}" if takes_any and (key.isupper() or "." in key) else key


def combinations(variations: Sequence[Variation]) -> int:
    """How many different builds there are."""
    return prod(len(variation.values) for variation in variations)


def changes(variations: Sequence[Variation], seed: int | None = None) -> Iterator[Change]:
    """Changes for one build after the other, without an end: all combinations again and again, or drawn by lot."""
    if seed is None:
        every = [_change(variations, chosen) for chosen in itertools.product(*(one.values for one in variations))]
        yield from itertools.cycle(every)
    lot = random.Random(seed)  # noqa: S311 -- no secret
    while True:
        yield _change(variations, [lot.choice(one.values) for one in variations])


def _change(variations: Sequence[Variation], values: Sequence[str]) -> Change:
    whole = Change()
    for variation, value in zip(variations, values, strict=True):
        whole = whole.joined(change_of(f"{variation.key}={value}"))
    return whole


def require_possible(spec: EngineSpec, variations: Sequence[Variation]) -> None:
    """Raise UsageError now if a value that varies is none of the engine's, or a key varies twice."""
    keys = [variation.key for variation in variations]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise errors.UsageError(f"--vary {twice[0]}: it is given twice")
    for variation in variations:
        for value in variation.values:
            change = change_of(f"{variation.key}={value}")
            registry.create(EngineSpec(spec.name, {**spec.settings, **change.settings}))
