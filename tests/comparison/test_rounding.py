"""Whether rounding explains a difference: by both sides, by the difference itself, and behind a step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from biopsy.comparison.mismatch_size import WRONG_ALIKE, explained, only
from biopsy.tensors.results import Array, Iteration, RunnerResult

RNG = np.random.default_rng(0)
EXACT = RNG.normal(size=(16, 16))
PLAIN = (EXACT * (1 + 1e-7 * RNG.uniform(-1, 1, EXACT.shape))).astype(np.float32)
OTHER = (EXACT * (1 + 2e-7 * RNG.uniform(-1, 1, EXACT.shape))).astype(np.float32)
WRONG = (EXACT * 1.01).astype(np.float32)


def run(name: str, value: Array) -> RunnerResult:
    return RunnerResult(name, (Iteration({"y": value}),))


def none() -> Iterator[RunnerResult]:
    yield run("exact", EXACT)


def verdict(actual: Array, expected: Array) -> str:
    return explained(run("a", actual), run("b", expected), run("plain", PLAIN), run("exact", EXACT), none).verdict


def test_two_sides_that_round_differ_by_rounding() -> None:
    assert verdict(OTHER, PLAIN) == "rounding"


def test_either_side_may_be_wrong() -> None:
    assert verdict(WRONG, PLAIN) == "bug"
    assert verdict(PLAIN, WRONG) == "bug"


def test_two_sides_that_are_wrong_alike_differ_by_rounding_and_that_is_said() -> None:
    nearly = np.nextafter(WRONG, np.float32(9))
    found = explained(run("a", WRONG), run("b", nearly), run("plain", PLAIN), run("exact", EXACT), none)
    assert (found.verdict, found.reason) == ("rounding", WRONG_ALIKE)
    assert found.times is not None
    assert found.times < 10


def test_nan_on_one_side_only_is_never_rounding() -> None:
    exact = EXACT.copy()
    exact[0, 0] = np.nan
    plain, lost = PLAIN.copy(), PLAIN.copy()
    plain[0, 0], lost[0, 0] = np.nan, 0
    sides = (run("plain", plain), run("exact", exact))
    assert explained(run("a", lost), run("b", plain), *sides, none).verdict == "bug"
    assert explained(run("a", plain), run("b", lost), *sides, none).verdict == "bug"
    assert explained(run("a", plain), run("b", plain), *sides, none).verdict == "rounding"
    finite = (run("plain", PLAIN), run("exact", EXACT))
    assert explained(run("a", plain), run("b", PLAIN), *finite, none).verdict == "bug"


def test_an_output_that_float64_lacks_is_not_known() -> None:
    two = RunnerResult("a", (Iteration({"y": OTHER, "z": OTHER}),))
    found = explained(two, two, run("plain", PLAIN), run("exact", EXACT), none)
    assert found.verdict == "unknown"
    assert "'z'" in found.reason


def flipped(places: int) -> tuple[Array, Array]:
    exact = np.floor(EXACT * 9)
    actual = exact.astype(np.float32)
    actual.reshape(-1)[:places] += 1
    return actual, exact


def test_behind_a_step_what_perturbed_inputs_turn_over_is_rounding() -> None:
    actual, exact = flipped(2)

    def turning() -> Iterator[RunnerResult]:
        for place in range(2):
            changed = exact.copy()
            changed.reshape(-1)[place] += 1
            yield run("exact", changed)

    right = run("plain", exact.astype(np.float32))
    assert explained(run("a", actual), right, right, run("exact", exact), turning).verdict == "rounding"
    more, _ = flipped(3)
    assert explained(run("a", more), right, right, run("exact", exact), turning).verdict == "bug"


def test_behind_a_step_a_continuous_output_may_differ_by_as_much_as_perturbed_inputs_change_it() -> None:
    moved = PLAIN.copy()
    moved[0, :4] += np.float32(0.25)

    def turning() -> Iterator[RunnerResult]:
        changed = EXACT.copy()
        changed[3, 5:9] += 0.25
        yield run("exact", changed)

    right = run("plain", PLAIN)
    assert explained(run("a", moved), right, right, run("exact", EXACT), turning).verdict == "rounding"
    assert explained(run("a", moved), right, right, run("exact", EXACT), none).verdict == "bug"


def test_what_perturbed_inputs_turn_into_nan_explains_nothing() -> None:
    moved = PLAIN + np.float32(0.25)

    def leaving() -> Iterator[RunnerResult]:
        changed = EXACT.copy()
        changed[0, 0] = np.nan
        yield run("exact", changed)

    right = run("plain", PLAIN)
    assert explained(run("a", moved), right, right, run("exact", EXACT), leaving).verdict == "bug"


def test_only_the_outputs_that_are_asked_for_are_kept() -> None:
    both = RunnerResult("a", (Iteration({"y": OTHER, "z": OTHER}),))
    assert list(only(both, {"z"}).iterations[0].outputs) == ["z"]
