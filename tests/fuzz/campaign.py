"""Many random reductions, each from a seed of its own, so that every breach can be typed again."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import onnx

import biopsy
from fuzz.failures import Failure, random_failure
from fuzz.models import COLUMNS, ROWS, random_model
from fuzz.oracle import Breach, Values, breaches, is_valid, values_of


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """One random reduction, and the rules that its result does not keep."""

    seed: int
    original: onnx.ModelProto
    result: onnx.ModelProto | None
    failure: Failure
    values: str
    checks: int
    breaches: tuple[Breach, ...]

    def __str__(self) -> str:
        told = "; ".join(map(str, self.breaches))
        return f"seed {self.seed} (values {self.values}, {self.failure.text}): {told}"


def reduced(seed: int) -> Reduced:
    """Make a model and a failure from a seed, reduce it, and judge the result."""
    random = Random(seed)
    original = usable_model(random)
    values = random.choice(["keep", "free"])
    feeds = random_feeds(original, random)
    failure = random_failure(random, original, feeds[0])
    samples = [_with_inner_values(original, feed) for feed in feeds] if values == "keep" else feeds
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.onnx"
        try:
            found = biopsy.reduce(
                original, failure.fails, path, takes="model", values=values, inputs=samples, allow_vacuous_check=True
            )
        except biopsy.BiopsyError as error:
            told = (Breach("error", f"{type(error).__name__}: {error}"),)
            return Reduced(
                seed=seed, original=original, result=None, failure=failure, values=values, checks=0, breaches=told
            )
        result = onnx.load(path)
    told = tuple(breaches(original, result, failure.fails, feeds[0], values_kept=values == "keep"))
    return Reduced(
        seed=seed,
        original=original,
        result=result,
        failure=failure,
        values=values,
        checks=sum(found.outcomes.values()),
        breaches=told,
    )


def _with_inner_values(model: onnx.ModelProto, feed: Values) -> Values:
    """A feed that holds every tensor, as a layerwise inputs file does."""
    return {name: value for name, value in values_of(model, feed).items() if isinstance(value, np.ndarray)}


def usable_model(random: Random) -> onnx.ModelProto:
    """A random model that the checker accepts and onnx's evaluator can run as far as it knows the operators."""
    while True:
        made = random_model(random)
        if is_valid(made, full=False) and _runs(made, random):
            return made


def _runs(model: onnx.ModelProto, random: Random) -> bool:
    with np.errstate(all="ignore"):
        try:
            values_of(model, random_feeds(model, random)[0])
        except Exception:  # whatever the evaluator raises: such a model has nothing to hold a result against
            return False
    return True


def random_feeds(model: onnx.ModelProto, random: Random, count: int = 2) -> list[Values]:
    """Feeds for every input, the open dimension being of one size."""
    generator = np.random.default_rng(random.randrange(1 << 32))
    shape = (ROWS, COLUMNS)
    return [
        {info.name: generator.uniform(-2, 2, shape).astype(np.float32) for info in model.graph.input}
        for _ in range(count)
    ]


def campaign(seeds: Iterator[int]) -> Iterator[Reduced]:
    """Reduce one model after the other."""
    for seed in seeds:
        with np.errstate(all="ignore"):
            yield reduced(seed)


def rules_broken(found: list[Reduced]) -> Counter[str]:
    """How many results break each rule."""
    return Counter(breach.rule for one in found for breach in one.breaches)
