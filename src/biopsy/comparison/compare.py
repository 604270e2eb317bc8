"""Compares one output of two runs: a verdict by its tolerances and by limits of metrics, with the numbers behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from biopsy import errors
from biopsy.comparison import differences, metrics
from biopsy.comparison.differences import Differences, ErrorSummary
from biopsy.comparison.metrics import Element, Statistics
from biopsy.comparison.mismatch import Mismatch
from biopsy.comparison.tolerance import AT_LEAST, STRICTEST, Criteria, Limit, Stat, Tolerance
from biopsy.model.tensor_type import TensorType
from biopsy.tensors.results import Array
from biopsy.tensors.types import is_text, may_stand_for
from biopsy.text import html_table, printable, some_of

Detail: TypeAlias = Literal["brief", "usual", "full"]
"""How much to measure: "brief" leaves out statistics of outputs that pass, "full" adds figures without a limit."""


@dataclass(frozen=True, kw_only=True)
class JudgedLimit:
    """The value of one metric and its limit.

    ``value`` is the number of ``ranks`` out of place for "indices", the greatest distance for "ulp". ``worst`` is the
    element of that distance, or the first rank out of place with both indices; None if nothing differs.
    """

    limit: Limit
    value: float
    passed: bool
    worst: Element | None = None
    ranks: int = 0


@dataclass(frozen=True, kw_only=True)
class Figures:
    """All metrics of two numeric tensors of one shape (see differences.py); ``ulp`` is the greatest distance."""

    l2: float
    cosine: float
    psnr: float
    snr: float
    ulp: float


@dataclass(frozen=True, kw_only=True)
class JudgedTypes:
    """The type that the model ``declared`` for an output, if it is known, and of which side the element type is judged.

    Without a declared type, both sides must have the same one if both are judged. The shape is not judged.
    """

    declared: TensorType | None = None
    actual: bool = False
    expected: bool = False

    def fault(self, actual: str, expected: str) -> str | None:
        """What is wrong with the element types of both sides, in words; None if nothing is."""
        if self.declared is None:
            alike = may_stand_for(actual, expected) or may_stand_for(expected, actual)
            is_judged = self.actual and self.expected
            return f"types differ: {actual}, expected {expected}" if is_judged and not alike else None
        right = self.declared.dtype
        if self.actual and not may_stand_for(actual, right):
            return f"its type is {actual}, and the model declares {right}"
        if self.expected and not may_stand_for(expected, right):
            return f"the other side's type is {expected}, and the model declares {right}"
        return None


_NO_TYPES = JudgedTypes()


@dataclass(frozen=True, kw_only=True)
class OutputComparison:
    """The verdict on one output. ``reason`` says in a few words why it fails, None if it passes.

    ``type_fails``: an element type is wrong. ``declared`` is the type that the model declares, None if it is not known.
    ``measured`` is None if shapes differ or only one side holds strings. Statistics are None for strings. ``judged``
    are the metrics with a limit; ``tolerances_decide`` is False if they alone decide. ``figures`` are only measured in
    "full" detail, ``differences`` only then and if the output fails.
    """

    name: str
    passed: bool
    reason: str | None
    stat: Stat
    quantile: float
    tolerance: Tolerance
    actual_shape: tuple[int, ...]
    expected_shape: tuple[int, ...]
    actual_dtype: str
    expected_dtype: str
    actual_statistics: Statistics | None
    expected_statistics: Statistics | None
    measured: ErrorSummary | None
    judged: tuple[JudgedLimit, ...] = ()
    tolerances_decide: bool = True
    figures: Figures | None = None
    differences: Differences | None = None
    type_fails: bool = False
    declared: TensorType | None = None

    @property
    def forms(self) -> tuple[Mismatch, ...]:
        """The mismatches of its element type and of its shape."""
        declared, forms = self.declared, dict[str, tuple[str, str, str]]()
        if self.type_fails:
            right = "" if declared is None else declared.dtype
            forms["type-mismatch"] = self.actual_dtype, self.expected_dtype, right
        if self.actual_shape != self.expected_shape:
            right = str(list(declared.shape or ())) if declared is not None and declared.is_static else ""
            forms["shape-mismatch"] = str(list(self.actual_shape)), str(list(self.expected_shape)), right
        return tuple(
            Mismatch(output=self.name, kind=kind, form=given, expected_form=expected, declared_form=right)
            for kind, (given, expected, right) in forms.items()
        )

    @property
    def verdict(self) -> tuple[str, str]:
        """The verdict and its reason, in words."""
        return ("passes", "") if self.passed else ("FAILS", self.reason or "")

    def __repr__(self) -> str:
        verdict, reason = self.verdict
        return (
            f"<OutputComparison of {some_of([repr(self.name)])}: {verdict}{printable(f': {reason}' if reason else '')}>"
        )

    def _repr_html_(self) -> str:
        rows = [
            ("actual", self.actual_dtype, list(self.actual_shape)),
            ("expected", self.expected_dtype, list(self.expected_shape)),
        ]
        return html_table(f"{self.name}: {' '.join(self.verdict)}", ["side", "type", "shape"], rows)


def compare_output(
    name: str,
    actual: Array,
    expected: Array,
    criteria: Criteria,
    detail: Detail = "usual",
    types: JudgedTypes = _NO_TYPES,
) -> OutputComparison:
    """Compare one output with its expected value, and their element types as far as ``types`` are judged.

    Different shapes fail. Different types of numbers do not: they are compared by value, in float64 or better, integers
    exactly; strings must be equal. Two NaN in the same place are equal, as are two infinities of the same sign; a NaN
    or infinity on one side only always fails.

    Raises DoesNotFit if the output lacks an axis along which elements are to be ranked, or no rank can be compared.
    """
    measured = figures = pictured = None
    judged: tuple[JudgedLimit, ...] = ()
    tolerance = criteria.tolerance_of(expected)
    given, wanted = ("string" if is_text(side) else side.dtype.name for side in (actual, expected))
    wrong_type = types.fault(given, wanted)
    if is_text(actual) != is_text(expected):
        wrong_type = wrong_type or f"types differ: {given}, expected {wanted}"
    reason: str | None = None
    if actual.shape != expected.shape:
        reason = f"shapes differ: {list(actual.shape)}, expected {list(expected.shape)}"
    elif is_text(actual) and is_text(expected):
        exact = _measured(actual, expected, Tolerance(0.0, 0.0), Criteria(), detail)
        measured = replace(exact, passing_atol=None, passing_rtol=None)
        reason = f"{measured.mismatching} of {measured.elements} strings differ" if measured.mismatching else None
    elif not (is_text(actual) or is_text(expected)):
        measured = _measured(actual, expected, tolerance, criteria, detail)
        judged = tuple(judge(name, actual, expected, limit) for limit in criteria.limits)
        if detail == "full":
            figures = Figures(**{name: figure(actual, expected) for name, figure in differences.FIGURES.items()})
        has_no_rank = any(figure.limit.metric == "indices" and figure.ranks == 0 for figure in judged)
        if has_no_rank and actual.size and not measured.broken:  # a comparison of no ranks must not pass
            raise errors.DoesNotFit(
                f"no index of output {name!r} of shape {list(actual.shape)} is compared: all may have moved so far",
                next_steps=["--index-tolerance 0"],
            )
        reason = _reason(measured, criteria, tolerance, judged)
        if reason and detail == "full" and actual.size:
            pictured = differences.differences_between(actual, expected)
    reason = "; ".join(filter(None, (wrong_type, reason))) or None
    is_described = reason is not None or detail != "brief"
    return OutputComparison(
        name=name,
        passed=reason is None,
        reason=reason,
        stat=criteria.stat,
        quantile=criteria.quantile,
        tolerance=tolerance,
        actual_shape=actual.shape,
        expected_shape=expected.shape,
        actual_dtype=given,
        expected_dtype=wanted,
        actual_statistics=metrics.statistics(actual) if is_described else None,
        expected_statistics=metrics.statistics(expected) if is_described else None,
        measured=measured,
        judged=judged,
        tolerances_decide=criteria.tolerances_decide,
        figures=figures,
        differences=pictured,
        type_fails=wrong_type is not None,
        declared=types.declared,
    )


def _measured(actual: Array, expected: Array, tolerance: Tolerance, criteria: Criteria, detail: Detail) -> ErrorSummary:
    atol, rtol = tolerance.atol, tolerance.rtol
    if detail == "brief" and criteria.stat == "elemwise" and not criteria.limits:  # only tolerances decide
        summary = differences.summary_within(actual, expected, tolerance)
        if summary is not None:
            return summary
    elif actual.dtype == expected.dtype and np.array_equal(actual, expected):
        # Most tensors are equal: nothing of their size is computed for them.
        passing = tolerance if criteria.stat == "elemwise" else Tolerance(0.0, 0.0)
        return ErrorSummary(elements=actual.size, passing_atol=passing.atol, passing_rtol=passing.rtol)
    between = metrics.errors_between(actual, expected)
    absolute, relative = (
        metrics.error_statistics(side, criteria.quantile) for side in (between.absolute, between.relative)
    )
    mismatching = int(metrics.outside(between, atol, rtol).sum())
    passing_atol: float | None = None
    passing_rtol: float | None = None
    if criteria.stat == "elemwise":
        passing_atol, passing_rtol = metrics.passing(between, atol, rtol)
    elif not between.broken:
        # A tolerance of 0 asks for equality with any statistic, so it must be above 0 if anything differs.
        least = metrics.LEAST if absolute.maximum > 0 else 0.0
        passing_atol, passing_rtol = (
            metrics.rounded_up(max(side.of(criteria.stat), least)) for side in (absolute, relative)
        )
    offending = None
    if mismatching:
        # Several may be equally far outside (all are, with tolerances of 0): take the one with the greatest error.
        shares = metrics.shares(between, atol, rtol)
        greatest_share = float(shares.max())
        offending = metrics.worst(actual, expected, np.where(shares == greatest_share, between.absolute, 0))
        offending = None if offending is None else replace(offending, error=greatest_share)
    return ErrorSummary(
        elements=between.absolute.size,
        mismatching=mismatching,
        broken=between.broken,
        absolute=absolute,
        relative=relative,
        worst_absolute=metrics.worst(actual, expected, between.absolute),
        worst_relative=metrics.worst(actual, expected, between.relative),
        passing_atol=passing_atol,
        passing_rtol=passing_rtol,
        offending=offending,
        differing=int(np.count_nonzero(between.absolute)),
        greatest=float(metrics.greatest_finite(between.magnitude)),
    )


def _reason(
    measured: ErrorSummary, criteria: Criteria, tolerance: Tolerance, judged: Sequence[JudgedLimit]
) -> str | None:
    def elements(some: int) -> str:
        return f"{some} of {measured.elements} elements {'is' if some == 1 else 'are'}"

    if measured.broken:
        return f"{elements(measured.broken)} NaN or infinite on one side only"
    reasons = []
    if not criteria.tolerances_decide:
        pass
    elif criteria.stat == "elemwise":
        if measured.mismatching:
            reasons.append(f"{elements(measured.mismatching)} outside the tolerances")
    elif tolerance == Tolerance(0, 0) and measured.differing:
        reasons.append(f"{elements(measured.differing)} not equal, which tolerances of 0 ask for")
    else:
        absolute, relative = measured.absolute.of(criteria.stat), measured.relative.of(criteria.stat)
        if not (absolute <= tolerance.atol or relative <= tolerance.rtol):
            sizes = f"absolute {absolute:.3g}, relative {relative:.3g}"
            reasons.append(f"{criteria.stat} errors are outside the tolerances: {sizes}")
    for limit, figure in ((figure.limit, figure) for figure in judged if not figure.passed):
        ranked = f"indices of the top {limit.top.k}" if limit.top else "indices"
        texts = {"indices": f"{figure.value:.0f} of {figure.ranks} {ranked} are out of place"}
        if limit.value >= STRICTEST["cosine"]:
            texts["cosine"] = f"{elements(measured.differing)} not equal, which cosine 1 asks for"
        reasons.append(texts.get(limit.metric, f"{limit.metric} is outside its limit"))
    return "; ".join(reasons) or None


def judge(name: str, actual: Array, expected: Array, limit: Limit) -> JudgedLimit:
    """Compare two numeric tensors of one shape by one metric; only equal tensors pass the strictest limit.

    Raises DoesNotFit if the output ``name`` lacks the axis along which elements are to be ranked.
    """
    worst = None
    if limit.metric == "indices":
        left, right = actual, expected
        if limit.top is not None:
            try:
                left, right = (differences.top_k(side, limit.top) for side in (actual, expected))
            except ValueError as error:
                raise errors.DoesNotFit(
                    f"output {name!r} of shape {list(actual.shape)} has no axis {limit.top.axis} to rank along"
                ) from error
        moved = differences.rank_mismatches(left, right, int(limit.value))
        if moved.first is not None:
            actual_at, expected_at = (metrics.element(side.reshape(moved.shape), moved.first) for side in (left, right))
            worst = Element(moved.first, actual_at, expected_at, 1.0)
        return JudgedLimit(limit=limit, value=moved.count, passed=not moved.count, worst=worst, ranks=moved.ranks)
    is_equal = not metrics.differing(actual, expected).any()
    if limit.metric == "ulp":
        distances = differences.ulps(actual, expected)
        value = float(distances.max(initial=0))
        worst = metrics.worst(actual, expected, distances)
    else:
        value = STRICTEST[limit.metric] if is_equal else differences.FIGURES[limit.metric](actual, expected)
    passed = value >= limit.value if limit.metric in AT_LEAST else value <= limit.value
    if limit.metric == "cosine" and not is_equal:  # a multiple of the expected tensor also has cosine 1
        passed = passed and limit.value < STRICTEST["cosine"]
    return JudgedLimit(limit=limit, value=value, passed=passed, worst=worst)
