"""What two runs give, value by value: tensors within tolerances, of the same type and shape, and all else equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from biopsy import errors
from biopsy.comparison.error_text import error_text
from biopsy.comparison.mismatch import ErrorSize, Mismatch, may_be_rounding, most_telling
from biopsy.comparison.run_mismatches import run_mismatches
from biopsy.comparison.runs import compare_runs
from biopsy.comparison.tolerance import Stats, Tolerances
from biopsy.tensors.results import Array, Iteration, RunnerResult
from biopsy.torch.outputs import Leaf, array_of_leaf

_MOST_TOLD = 8
_SMALL_PART = 0.01
_LONE = "output"
"""What the one value is called that a module returns as it is."""


@dataclass(frozen=True, kw_only=True)
class Closeness:
    """What counts as equal; "" in either is for all outputs."""

    tolerances: Tolerances
    stats: Stats


@dataclass(frozen=True, kw_only=True)
class ModuleDifference:
    """How two runs differ: the greatest mismatches of each kind, the gravest first."""

    mismatches: tuple[Mismatch, ...]

    @property
    def worst(self) -> Mismatch:
        """The one that tells most."""
        return self.mismatches[0]

    @property
    def text(self) -> str:
        """The worst, in words."""
        return error_text(ErrorSize(self.worst))

    @property
    def outputs(self) -> set[str]:
        """The outputs that differ."""
        return {one.output for one in self.mismatches}

    @property
    def is_of_values(self) -> bool:
        """Whether numbers differ, and nothing else: what rounding may explain."""
        return all(one.kind == "mismatch" for one in self.mismatches)

    @property
    def may_be_rounding(self) -> bool:
        """Whether it is worthwhile to ask float64: numbers differ, and not by far more than rounding could make."""
        return self.is_of_values and may_be_rounding(self.mismatches)

    def is_much_less_than(self, other: ModuleDifference) -> bool:
        """Whether numbers differ, by a small part of how far they differ in another case."""
        errors_ = self.worst.error, other.worst.error
        if not self.is_of_values or errors_[0] is None or errors_[1] is None:
            return False
        return errors_[0] <= _SMALL_PART * errors_[1]


def arrays_of(leaves: Sequence[Leaf]) -> dict[str, Array]:
    """What can be compared as arrays, by where it stands in what a module returns."""
    found = {leaf.path or _LONE: array_of_leaf(leaf.value) for leaf in leaves}
    return {name: array for name, array in found.items() if array is not None}


def difference(actual: Mapping[str, Array], expected: Mapping[str, Array], asked: Closeness) -> ModuleDifference | None:
    """How arrays differ from those that are expected, by name; None if they do not.

    Raises CannotCompare if there is nothing to compare: no array has an element.
    """
    found = [Mismatch(output=name, kind="missing-output") for name in actual.keys() ^ expected.keys()]
    found += [
        Mismatch(output=name, kind="type-mismatch")
        for name in actual.keys() & expected.keys()
        if actual[name].dtype.kind != "U" and actual[name].dtype != expected[name].dtype
    ]
    if actual.keys() & expected.keys():
        sides = RunnerResult("actual", (Iteration(actual),)), RunnerResult("expected", (Iteration(expected),))
        try:
            compared = compare_runs(*sides, asked.tolerances, asked.stats)
            found += run_mismatches(*sides, compared)
        except errors.CannotCompare:
            if not found:
                raise
    elif not found:
        raise errors.CannotCompare("the module returns no tensor and no number: there is nothing to compare")
    return ModuleDifference(mismatches=most_telling(found, _MOST_TOLD)) if found else None


def difference_of_leaves(actual: Sequence[Leaf], expected: Sequence[Leaf], asked: Closeness) -> ModuleDifference | None:
    """How what two runs return differs, in structure, in what is no number, and in numbers; None if it does not."""
    others = [_other(leaves) for leaves in (actual, expected)]
    if others[0] != others[1]:
        names = [name for name in {**others[0], **others[1]} if others[0].get(name, "") != others[1].get(name, "")]
        return ModuleDifference(
            mismatches=tuple(Mismatch(output=name, kind="type-mismatch") for name in names[:_MOST_TOLD])
        )
    return difference(arrays_of(actual), arrays_of(expected), asked)


def _other(leaves: Sequence[Leaf]) -> dict[str, str]:
    """What is no array, as far as it can be told apart: None from any value, and one class from another."""
    return {
        leaf.path or _LONE: "None" if leaf.value is None else type(leaf.value).__name__
        for leaf in leaves
        if array_of_leaf(leaf.value) is None
    }
