"""The right outputs of a model: values of a trusted engine, confirmed by another one, also on fresh inputs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from biopsy import errors, events
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EXACT, PLAIN, parse_spec
from biopsy.engines.runner import Inputs, feeds_for, wider_sample
from biopsy.engines.worker import Worker
from biopsy.model.load import read_bytes
from biopsy.model.tensor_type import ValueType
from biopsy.questions.layers.question import Judge
from biopsy.questions.workarounds.question import FRESH, WhatIsRight, WorkaroundQuestion
from biopsy.tensors.files import write_feeds
from biopsy.tensors.results import Array, Feed, same_values
from biopsy.tensors.types import is_extended, is_text, widened
from biopsy.text import first_line

Outputs = Sequence[Mapping[str, Array]]
"""Outputs of a model by name, per sample."""

CANNOT_RUN = (errors.EngineFailure, errors.EngineMissing, errors.CannotCompare, errors.DataError)
"""Raised if an engine does not run a model."""

_TIMES_THE_TOLERANCES = 10.0
"""How much two engines that are right may differ, because they round in another order."""

_MOST_SECONDS = 120.0
"""The time limit of an engine that only confirms another one: an evaluator in Python may take very long."""


@dataclass(frozen=True, kw_only=True)
class TrustedValues:
    """The outputs of the original in ``engine`` per sample: the first ``own`` are the check's samples, others fresh.

    ``confirmed_by`` is an engine of another package that computes the same, None if there is none. ``feeds`` is the
    file of all samples, ``seconds`` how long running them took.
    """

    engine: str
    confirmed_by: str | None
    feeds: Path
    own: int
    expected: Outputs
    seconds: float

    @property
    def fresh(self) -> int:
        """How many samples the check has not seen."""
        return len(self.expected) - self.own

    def objection(self, actual: Outputs, judge: Judge, also: Mapping[str, np.dtype[Any]]) -> str | None:
        """Why outputs are not right, in one line; None if they are.

        They may be those of only the first samples. ``also`` are the types of the original's outputs in the engine,
        which are allowed too.
        """
        for number, (outputs, expected_outputs) in enumerate(zip(actual, self.expected, strict=False)):
            for name, expected in expected_outputs.items():
                if name not in outputs:
                    reason = f"output {name!r} is missing"
                elif outputs[name].dtype not in (expected.dtype, also.get(name) or expected.dtype):
                    reason = f"output {name!r} is {outputs[name].dtype}, not {expected.dtype}"
                else:
                    error = judge.error(name, [outputs[name]], [expected])
                    if error.passed:
                        continue
                    reason = f"output {name!r}: {error.reason}"
                if number >= self.own:
                    return f"{reason} on a fresh input"
                return f"{reason} in sample {number}" if self.own > 1 else reason
        return None


class _Witnesses:
    """Runs the model of a question in engines that may be trusted; ``refused`` says why some cannot be."""

    def __init__(self, question: WorkaroundQuestion, scratch: Path) -> None:
        self.right = question.right
        self.suspect = parse_spec(question.template.spec.text)
        self.refused: list[str] = []
        self._scratch = scratch
        self._model = ModelInput(read_bytes(question.model), question.index.folder, question.model)

    def write(self, name: str, samples: Sequence[Feed]) -> Path:
        """Write samples to a file; returns its path."""
        write_feeds(self._scratch / name, samples)
        return self._scratch / name

    def values(self, engine: str, feeds: Path, timeout: float | None = _MOST_SECONDS) -> Outputs | None:
        """The outputs of the model in an engine; None if it cannot run the model."""
        with Worker(engine, self._scratch, timeout) as worker:
            try:
                return worker.run(self._model, feeds)
            except CANNOT_RUN as error:
                self.refused.append(f"{engine}: {first_line(error.summary)}")
                return None


def trusted_values(question: WorkaroundQuestion, scratch: Path, listener: events.Listener) -> TrustedValues:
    """The right outputs of the model: for the check's samples, for fresh ones, and for one of larger numbers.

    The latter counts only if both engines compute the same finite numbers for it. Raises CannotCompare if no engine can
    be trusted, or if those that could be contradict each other.
    """
    right, input_types = question.right, question.index.fed_types()
    fresh = fresh_samples(input_types, right.samples, right.drawn, FRESH)
    started = time.monotonic()
    witnesses = _Witnesses(question, scratch)
    timeout = question.timeout or question.budget.seconds
    for more in [fresh, []] if fresh else [[]]:  # the model may not be defined for random inputs
        trusted = _first_trusted(witnesses, more, timeout)
        if trusted is not None:
            break
    else:
        raise errors.CannotCompare(
            "cannot tell what is right: no engine that could be trusted gives outputs to compare with",
            details=[f"  {line}" for line in dict.fromkeys(witnesses.refused)],
            next_steps=[
                "--reference-engine NAME    an engine that gives the right outputs",
                "--load-inputs FILE    with inputs for which the outputs are numbers",
            ],
        )
    trusted = _confirmed(trusted, witnesses, listener)
    wider = wider_sample(question.index, input_types, right.drawn)
    if wider is not None:
        trusted = _widened(trusted, witnesses, [*right.samples, *more], wider)
    if input_types and not trusted.fresh:
        remark = "no fresh inputs could be made, so a change that is right only for these inputs would not be noticed"
        listener(events.Remark(remark, warning=True))
    listener(
        events.Trusted(
            engine=trusted.engine,
            confirmed_by=trusted.confirmed_by,
            samples=trusted.own,
            fresh=trusted.fresh,
            seconds=time.monotonic() - started,
        )
    )
    return trusted


def _first_trusted(witnesses: _Witnesses, fresh: Sequence[Feed], timeout: float | None) -> TrustedValues | None:
    """The values of the first engine that gives some with a meaning, and agrees with the golden ones of the check."""
    right = witnesses.right
    feeds = witnesses.write(f"samples_{len(fresh)}.safetensors", [*right.samples, *fresh])
    for engine in dict.fromkeys(right.references):
        if parse_spec(engine) == witnesses.suspect:
            continue
        started = time.monotonic()
        values = witnesses.values(engine, feeds, timeout)
        if values is None:
            continue
        if why := _meaningless(values[: len(right.samples)]):
            witnesses.refused.append(f"{engine} {why}")
            continue
        seconds = time.monotonic() - started
        disagreement = _contradiction(values, right)
        if disagreement is None:
            return TrustedValues(
                engine=engine,
                confirmed_by=None,
                feeds=feeds,
                own=len(right.samples),
                expected=values,
                seconds=seconds,
            )
        witnesses.refused.append(f"{engine} contradicts the values of the check: {disagreement}")
    return None


def _contradiction(values: Outputs, right: WhatIsRight) -> str | None:
    """How outputs differ from the golden values of the check; None if they do not."""
    golden = [
        {name: value for name, value in known.items() if name in outputs}
        for outputs, known in zip(values, right.golden or (), strict=False)
    ]
    return _disagreement(values, golden, right.judge)


def _meaningless(own: Outputs) -> str:
    """Why comparing outputs for the samples of the check would prove nothing; "" if it may prove something."""
    if not own or not own[0]:
        return "gives no tensor"
    for name in own[0]:
        values = [outputs[name] for outputs in own if name in outputs]
        if not any(value.size and (value.dtype.kind not in "fc" or np.isfinite(value).any()) for value in values):
            return f"gives no finite number for output {name!r}"
    return ""


def _confirmed(trusted: TrustedValues, witnesses: _Witnesses, listener: events.Listener) -> TrustedValues:
    """The values with the name of another engine that agrees; if it does not, those that float64 agrees with.

    Raises CannotCompare if that decides nothing, and the user has not named the trusted engine.
    """
    name = parse_spec(trusted.engine).name
    for other in reversed(PLAIN):
        if parse_spec(other).name == name or parse_spec(other) == witnesses.suspect:
            continue
        values = witnesses.values(other, trusted.feeds)
        if values is None:
            continue
        disagreement = _disagreement(values, trusted.expected, witnesses.right.judge)
        if disagreement is None:
            return replace(trusted, confirmed_by=other)
        remark = f"{other} does not agree with {trusted.engine}: {disagreement}"
        exact = None if witnesses.right.named else witnesses.values(EXACT, trusted.feeds)
        sides = [trusted]
        if _contradiction(values, witnesses.right) is None:
            sides.append(replace(trusted, engine=other, expected=values))
        confirmed = [
            side
            for side in sides
            if exact is not None and _disagreement(side.expected, exact, witnesses.right.judge) is None
        ]
        if len(confirmed) == 1:
            listener(events.Remark(f"{remark}; float64 agrees with {confirmed[0].engine}", warning=True))
            return confirmed[0]
        if not witnesses.right.named:
            raise errors.CannotCompare(
                f"cannot tell what is right: {remark}",
                next_steps=[f"--reference-engine {trusted.engine}    or {other}: the one that is right"],
            )
        listener(events.Remark(remark, warning=True))
        return trusted
    if name == witnesses.suspect.name:
        listener(events.Remark(f"no engine of another package could confirm what {trusted.engine} gives", warning=True))
    return trusted


def _widened(trusted: TrustedValues, witnesses: _Witnesses, samples: Sequence[Feed], wider: Feed) -> TrustedValues:
    """The values with those of one more sample, if two engines agree on it, and all its outputs are finite."""
    if trusted.confirmed_by is None:
        return trusted
    feeds = witnesses.write("wider.safetensors", [wider])
    values, confirming = (witnesses.values(engine, feeds) for engine in (trusted.engine, trusted.confirmed_by))
    if values is None or confirming is None or values[0].keys() != confirming[0].keys():
        return trusted
    for name, value in values[0].items():
        is_finite = value.dtype.kind not in "fc" or np.isfinite(value).all()
        if not is_finite or not witnesses.right.judge.error(name, [confirming[0][name]], [value]).passed:
            return trusted
    feeds = witnesses.write("all_samples.safetensors", [*samples, wider])
    return replace(trusted, feeds=feeds, expected=[*trusted.expected, *values])


def _disagreement(actual: Outputs, expected: Outputs, judge: Judge) -> str | None:
    """How outputs differ by more than the order of rounding explains; None if they do not."""
    for outputs, expected_outputs in zip(actual, expected, strict=False):
        for name, value in expected_outputs.items():
            if name not in outputs:
                return f"output {name!r} is missing"
            error = judge.error(name, [outputs[name]], [value])
            if not error.passed and error.tolerance_ratio > _TIMES_THE_TOLERANCES:
                return f"output {name!r}: {error.reason}"
    return None


_OTHER_SEED = 7919
"""Added to the seed of the check, because the check uses the seeds that follow its own."""


def fresh_samples(
    input_types: Mapping[str, ValueType | None], samples: Sequence[Feed], drawn: Inputs, count: int
) -> list[Feed]:
    """At most ``count`` samples that the check has not seen, so that a change is not right only by luck.

    If ``samples`` were random, others are drawn in the same way. Otherwise they are varied: floating-point values are
    drawn between the least and the greatest of a tensor, and other values are permuted, so that indices stay valid.
    Empty for a model whose inputs cannot be varied.
    """
    if not input_types or not samples:
        return []
    fresh: list[Feed] = []
    if drawn.given is None:
        try:
            fresh += feeds_for(input_types, replace(drawn, iterations=count, seed=drawn.seed + _OTHER_SEED)).feeds
        except errors.BiopsyError:
            return []
    for number in range(0 if drawn.given is None else count):
        random = np.random.default_rng((_OTHER_SEED, number))
        sample = samples[number % len(samples)]
        fresh.append({name: _other_values(np.asarray(sample[name]), random) for name in sample})
    return [
        sample
        for sample in fresh
        if not any(
            all(name in known and same_values(np.asarray(sample[name]), np.asarray(known[name])) for name in sample)
            for known in samples
        )
    ]


def _other_values(value: Array, random: np.random.Generator) -> Array:
    is_float = value.dtype.kind == "f" or value.dtype.name == "bfloat16"
    if is_text(value) or value.size < 2 or not is_float:
        return random.permutation(value.reshape(-1)).reshape(value.shape)
    wide = widened(value) if is_extended(value.dtype) else value
    finite = wide[np.isfinite(wide)].astype(np.float64)
    if not finite.size or finite.min() == finite.max():
        return value
    result: Array = random.uniform(finite.min(), finite.max(), value.shape).astype(value.dtype)
    return result
