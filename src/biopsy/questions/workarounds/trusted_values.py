"""What the outputs of a model should be: values of an engine that is trusted, whether another one confirms them, and
inputs that the check has not seen.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from biopsy import errors, events
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import PLAIN, parse_spec
from biopsy.engines.runner import Inputs, feeds_for, wider_sample
from biopsy.engines.worker import Worker
from biopsy.model.load import read_bytes
from biopsy.model.tensor_type import ValueType
from biopsy.questions.layers.question import Judge
from biopsy.questions.workarounds.question import FRESH, WorkaroundQuestion
from biopsy.tensors.files import write_feeds
from biopsy.tensors.results import Array, Feed, same_values
from biopsy.tensors.types import is_extended, is_text, widened
from biopsy.text import first_line

Outputs = Sequence[Mapping[str, Array]]
"""Outputs of a model by name, per sample."""

CANNOT_RUN = (errors.EngineFailure, errors.EngineMissing, errors.CannotCompare, errors.DataError)
"""What says that an engine does not run a model."""

_ALIKE = 10.0
"""Two engines that compute the same may differ by so many times the tolerances: they round in another order."""

_MOST_SECONDS = 120.0
"""For an engine that only confirms what another one has said: an evaluator in Python may take for ever."""


@dataclass(frozen=True, kw_only=True)
class TrustedValues:
    """What ``engine`` computes of the original, per sample: ``own`` of them are the check's, those after them fresh.

    ``confirmed_by`` is an engine of another package that computes the same, None if there is none. ``feeds`` is the
    file of all samples, ``seconds`` what running them took.
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

        They may be those of the first samples alone. ``also`` are types that the engine gives the outputs of the
        original, where these are others than the trusted ones.
        """
        for number, (given, wanted) in enumerate(zip(actual, self.expected, strict=False)):
            for name, expected in wanted.items():
                if name not in given:
                    reason = f"output {name!r} is missing"
                elif given[name].dtype not in (expected.dtype, also.get(name) or expected.dtype):
                    reason = f"output {name!r} is {given[name].dtype}, not {expected.dtype}"
                else:
                    error = judge.error(name, [given[name]], [expected])
                    if error.passed:
                        continue
                    reason = f"output {name!r}: {error.reason}"
                if number >= self.own:
                    return f"{reason} on a fresh input"
                return f"{reason} in sample {number}" if self.own > 1 else reason
        return None


class _Witnesses:
    """The engines that may say what is right, asked about the model of a question; ``refused`` is why some do not."""

    def __init__(self, question: WorkaroundQuestion, scratch: Path) -> None:
        self.right = question.right
        self.suspect = parse_spec(question.template.spec.text)
        self.refused: list[str] = []
        self._scratch = scratch
        self._model = ModelInput(read_bytes(question.model), question.index.folder, question.model)

    def written(self, name: str, samples: Sequence[Feed]) -> Path:
        """The file with some samples."""
        write_feeds(self._scratch / name, samples)
        return self._scratch / name

    def values(self, engine: str, feeds: Path, timeout: float | None = _MOST_SECONDS) -> Outputs | None:
        """What an engine computes; None if it cannot."""
        with Worker(engine, self._scratch, timeout) as worker:
            try:
                return worker.run(self._model, feeds)
            except CANNOT_RUN as error:
                self.refused.append(f"{engine}: {first_line(error.summary)}")
                return None


def trusted_values(question: WorkaroundQuestion, scratch: Path, listener: events.Listener) -> TrustedValues:
    """What the model should give: on the check's samples, on fresh ones, and on a wider one if that makes sense.

    It does where both engines give the same finite numbers. Raises CannotCompare if no engine can tell what is right,
    or if those that can contradict.
    """
    right, wanted = question.right, question.index.fed_types()
    fresh = fresh_samples(wanted, right.samples, right.drawn, FRESH)
    started = time.monotonic()
    witnesses = _Witnesses(question, scratch)
    timeout = question.timeout or question.budget.seconds
    for more in [fresh, []] if fresh else [[]]:  # the model may not be defined for what was made up
        trusted = _first_trusted(witnesses, more, timeout)
        if trusted is not None:
            break
    else:
        raise errors.CannotCompare(
            "cannot tell what is right: no engine that could be trusted runs the model",
            details=[f"  {line}" for line in dict.fromkeys(witnesses.refused)],
            next_steps=["--reference-engine NAME    an engine that gives the right outputs"],
        )
    _require_meaning(trusted)
    trusted = _confirmed(trusted, witnesses, listener)
    wider = wider_sample(question.index, wanted, right.drawn)
    if wider is not None:
        trusted = _widened(trusted, witnesses, [*right.samples, *more], wider)
    if wanted and not trusted.fresh:
        remark = "no fresh inputs could be made: what is right for these inputs by luck is not told from what is right"
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
    """What the first engine gives that runs the model and agrees with the check's values."""
    right = witnesses.right
    feeds = witnesses.written(f"samples_{len(fresh)}.safetensors", [*right.samples, *fresh])
    for engine in dict.fromkeys(right.references):
        if parse_spec(engine) == witnesses.suspect:
            continue
        started = time.monotonic()
        values = witnesses.values(engine, feeds, timeout)
        if values is None:
            continue
        seconds = time.monotonic() - started
        golden = [
            {name: value for name, value in known.items() if name in outputs}
            for outputs, known in zip(values, right.golden or (), strict=False)
        ]
        against = _disagreement(values, golden, right.judge)
        if against is None:
            return TrustedValues(
                engine=engine,
                confirmed_by=None,
                feeds=feeds,
                own=len(right.samples),
                expected=values,
                seconds=seconds,
            )
        witnesses.refused.append(f"{engine} contradicts the values of the check: {against}")
    return None


def _require_meaning(trusted: TrustedValues) -> None:
    """Raise CannotCompare where a comparison proves nothing: no elements, or nothing finite."""
    own = trusted.expected[: trusted.own]
    if not own or not own[0]:
        raise errors.CannotCompare(f"cannot tell what is right: {trusted.engine} gives no tensor")
    for name in own[0]:
        values = [outputs[name] for outputs in own if name in outputs]
        if not any(value.size and (value.dtype.kind not in "fc" or np.isfinite(value).any()) for value in values):
            raise errors.CannotCompare(
                f"cannot tell what is right: {trusted.engine} gives no finite number for output {name!r}",
                next_steps=["--load-inputs FILE    with inputs for which the outputs are numbers"],
            )


def _confirmed(trusted: TrustedValues, witnesses: _Witnesses, listener: events.Listener) -> TrustedValues:
    """The values, with the name of another engine that agrees. Raises CannotCompare if it contradicts a guess."""
    name = parse_spec(trusted.engine).name
    for other in reversed(PLAIN):
        if parse_spec(other).name == name or parse_spec(other) == witnesses.suspect:
            continue
        values = witnesses.values(other, trusted.feeds)
        if values is None:
            continue
        against = _disagreement(values, trusted.expected, witnesses.right.judge)
        if against is None:
            return replace(trusted, confirmed_by=other)
        remark = f"{other} does not agree with {trusted.engine}: {against}"
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
    """The values with those of one more sample, where two engines agree on it, and none of its outputs overflows."""
    if trusted.confirmed_by is None:
        return trusted
    feeds = witnesses.written("wider.safetensors", [wider])
    ours, others = (witnesses.values(engine, feeds) for engine in (trusted.engine, trusted.confirmed_by))
    if ours is None or others is None or ours[0].keys() != others[0].keys():
        return trusted
    for name, value in ours[0].items():
        is_finite = value.dtype.kind not in "fc" or np.isfinite(value).all()
        if not is_finite or not witnesses.right.judge.error(name, [others[0][name]], [value]).passed:
            return trusted
    every = witnesses.written("all_samples.safetensors", [*samples, wider])
    return replace(trusted, feeds=every, expected=[*trusted.expected, *ours])


def _disagreement(actual: Outputs, expected: Outputs, judge: Judge) -> str | None:
    """How outputs differ by more than the order of rounding explains; None if they do not."""
    for given, wanted in zip(actual, expected, strict=False):
        for name, value in wanted.items():
            if name not in given:
                return f"output {name!r} is missing"
            error = judge.error(name, [given[name]], [value])
            if not error.passed and error.tolerance_ratio > _ALIKE:
                return f"output {name!r}: {error.reason}"
    return None


# Inputs like those of a check that it has not seen: what is right on these too is not right by luck.

_OTHER_SEED = 7919
"""Added to the seed of the check: its own iterations count up from that one."""


def fresh_samples(
    wanted: Mapping[str, ValueType | None], samples: Sequence[Feed], drawn: Inputs, count: int
) -> list[Feed]:
    """At most ``count`` other samples, none of which is among ``samples``.

    Where these were made up, others are drawn in the same way. Given ones are varied within what they hold: numbers of
    a floating type are drawn between the least and the greatest of a tensor, all others change places, so that what
    were indices still are. None for a model whose inputs leave nothing to vary.
    """
    if not wanted or not samples:
        return []
    fresh: list[Feed] = []
    if drawn.given is None:
        try:
            fresh += feeds_for(wanted, replace(drawn, iterations=count, seed=drawn.seed + _OTHER_SEED)).feeds
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
    drawn: Array = random.uniform(finite.min(), finite.max(), value.shape).astype(value.dtype)
    return drawn
