"""Errors of tensors in the whole model, marked as outputs batch by batch; and what marking them changes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

from biopsy import events
from biopsy.layerwise.findings import MarkingEffect, TensorError
from biopsy.layerwise.non_finite import NonFinite, non_finite
from biopsy.layerwise.reference_values import CANNOT_RUN
from biopsy.layerwise.tensor_errors import worst
from biopsy.layerwise.whole_model import WholeModel
from biopsy.model.index import ModelIndex, Node
from biopsy.search.subset import minimized
from biopsy.tensors.recording import Request, plan
from biopsy.tensors.results import Array, release, same_values

_MOST_TRIES = 200
"""Runs that the search for the tensors that hide a failure may take."""


class MarkedTensors:
    """Measures tensors in the whole model, each marked in one batch.

    ``propagated`` are their errors, ``non_finite`` the NaN and infinities in them. ``effects``: what marking has
    changed, at first with all tensors of the batch (see ``narrow``). ``unmarkable``: tensors that the suspect cannot
    give.
    """

    def __init__(self, whole: WholeModel, listener: events.Listener) -> None:
        self.propagated: dict[str, TensorError] = {}
        self.non_finite: dict[str, NonFinite] = {}
        self.effects: list[MarkingEffect] = []
        self.unmarkable: list[str] = []
        self._whole = whole
        self._recorded = whole.recorded
        self._judge = whole.judge
        self._listener = listener

    def error_of(self, index: ModelIndex, node: Node) -> TensorError | None:
        """The error of a layer's worst output; None if none was measured."""
        measured = (self.propagated.get(index.names[tensor]) for tensor in node.writes)
        known = [error for error in measured if error is not None]
        return worst(known) if known else None

    def run(self, names: Sequence[str], limit: int) -> None:
        """Measure ``names``, at most ``limit`` bytes of them at a time."""
        samples = max(self._recorded.computed.count, 1)
        sizes = {name: self._recorded.computed.size(name) // samples for name in names}
        own = [name for name in self._whole.outputs if name in sizes]
        request = Request(
            runner=0, names=names, sizes=sizes, own=own, iterations=samples, limit=max(limit // samples, 1)
        )
        batches, shared = plan(request)
        shown = [name for name in shared if name in self._whole.outputs]
        for number, batch in enumerate(batches, 1):
            self._run_batch(batch, shown)
            self._listener(events.Measured("whole", number, len(batches)))

    def _run_batch(self, names: Sequence[str], shown: Sequence[str]) -> None:
        """Measure one batch; where the suspect fails with it marked, its halves."""
        try:
            runs = self._whole.marked([*names, *shown])
        except CANNOT_RUN:
            if len(names) == 1:
                self.unmarkable += names
                return
            half = len(names) // 2
            self._run_batch(names[:half], shown)
            self._run_batch(names[half:], shown)
            return
        for name in names:
            if all(name in run for run in runs):
                self._measure(name, [run[name] for run in runs])
        for name in shown:
            self._observe(name, runs, names)

    def _measure(self, name: str, values: Sequence[Array]) -> None:
        if (lost := non_finite(values)) is not None:
            self.non_finite[name] = lost
        self.propagated[name] = self._judge.error(name, values, self._recorded.expected(name))

    # Does observing change the result?

    def _observe(self, output: str, runs: Sequence[Mapping[str, Array]], names: Sequence[str]) -> None:
        """Compare an output with what it is when nothing is marked."""
        if any(effect.output == output for effect in self.effects) or not all(output in run for run in runs):
            return
        marked, unmarked = [run[output] for run in runs], self._whole.unmarked(output)
        if all(map(same_values, marked, unmarked)) or self._judge.error(output, marked, unmarked).passed:
            release(*marked, *unmarked)
            return
        self._whole.is_flaky = self._whole.is_flaky or not self._is_steady
        if self._whole.is_flaky:
            return
        before = self._whole.outputs[output].passed
        after = self._judge.error(output, marked, self._recorded.expected(output)).passed
        changed: Literal["gone", "appears"] = "gone" if after else "appears"
        self.effects.append(MarkingEffect("differs" if before == after else changed, output, tuple(names)))

    @cached_property
    def _is_steady(self) -> bool:
        return self._whole.is_steady()

    def narrow(self, first: Sequence[str]) -> None:
        """Find few tensors that make a wrong output right when they are marked, where many were; best of ``first``."""
        self.effects = [
            replace(effect, tensors=self._that_hide(effect.output, effect.tensors, first))
            if effect.change == "gone"
            else effect
            for effect in self.effects
        ]

    def _that_hide(self, output: str, names: Sequence[str], first: Sequence[str]) -> tuple[str, ...]:
        tries = itertools.count(1)

        def hide(some: Sequence[str]) -> bool:
            number = next(tries)
            self._listener(events.Measured("marks", number, _MOST_TRIES))
            return number <= _MOST_TRIES and self._hides(output, some)

        single = next((name for name in first if name in names and hide([name])), None)
        if single is not None:
            return (single,)
        return tuple(minimized([name for name in names if name != output], hide))

    def _hides(self, output: str, names: Sequence[str]) -> bool:
        try:
            runs = self._whole.marked([*names, output])
        except CANNOT_RUN:
            return False
        return self._judge.error(output, [run[output] for run in runs], self._recorded.expected(output)).passed
