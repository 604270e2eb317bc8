"""From status, output and verdict file to an outcome."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from biopsy.checks.judge import Rules, Signature, judge, same_failure, signature_of
from biopsy.checks.message import normalised
from biopsy.checks.outcome import Evidence, FunctionCheck, Outcome
from biopsy.checks.verdict import VerdictFile
from biopsy.comparison.mismatch import Mismatch, kind_of

CRASH = Evidence(status=-11)
EXIT_1 = Evidence(status=1, output=b"something is wrong\n")
MISMATCH = Evidence(
    status=1, verdict=VerdictFile(outcome="fails", engine="onnxrt", stage="compare", kind="mismatch", outputs=("y",))
)
REFUSED = Evidence(
    status=1,
    verdict=VerdictFile(
        outcome="fails", engine="onnxrt", stage="load", kind="InvalidGraph", message="node 'n1' has no type"
    ),
)


def outcome(evidence: Evidence, reference: Evidence | None = None, **rules: object) -> Outcome:
    known = None if reference is None else signature_of(reference)
    return judge(evidence, Rules(**rules), known).outcome  # type: ignore[arg-type]


def test_status_0_passes_and_any_other_is_a_failure() -> None:
    assert outcome(Evidence(status=0)) is Outcome.PASSES
    assert outcome(EXIT_1) is Outcome.REPRODUCES


def test_125_says_nothing_and_126_and_127_are_no_failure_of_the_model() -> None:
    assert outcome(Evidence(status=125)) is Outcome.INVALID
    assert outcome(Evidence(status=126)) is Outcome.INFRASTRUCTURE
    assert outcome(Evidence(status=127)) is Outcome.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("found", "original"),
    [(CRASH, EXIT_1), (EXIT_1, CRASH), (REFUSED, MISMATCH), (MISMATCH, REFUSED), (Evidence(status=2), EXIT_1)],
)
def test_a_failure_of_another_kind_than_the_originals_is_another_failure(found: Evidence, original: Evidence) -> None:
    assert outcome(found, original) is Outcome.OTHER_FAILURE
    assert outcome(found, original, match="any") is Outcome.REPRODUCES


def test_names_numbers_and_shapes_in_a_message_make_no_other_failure() -> None:
    other = Evidence(
        status=1,
        verdict=VerdictFile(
            outcome="fails", engine="onnxrt", stage="load", kind="InvalidGraph", message="node 'n2/x' has no type"
        ),
    )
    assert outcome(other, REFUSED) is Outcome.REPRODUCES
    assert normalised("Got 3 dims [1,2] at 0x7ff in /a/b.cc:12") == normalised("Got 14 dims [7] at 0x1 in /c/d.cc:9")


def test_a_matrix_in_a_message_makes_no_other_failure() -> None:
    assert normalised("got [[1, 2], [3, 4]]") == normalised("got [[[5]], [[6]], [[7]]]") == normalised("got [1]")


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 2), (40, 40)])
def test_the_values_that_an_assertion_shows_make_no_other_failure(tmp_path: Path, shape: tuple[int, ...]) -> None:
    def check(path: Path) -> None:
        actual = np.arange(math.prod(shapes[path]), dtype=np.float32).reshape(shapes[path])
        np.testing.assert_allclose(actual, actual * 1.5 - 0.5, rtol=1e-3)

    shapes = {tmp_path / "original": (2,), tmp_path / "candidate": shape}
    original, candidate = (FunctionCheck(check).run(path) for path in shapes)
    assert outcome(candidate, original) is Outcome.REPRODUCES


def test_match_narrows_or_widens_what_counts_as_the_same() -> None:
    one, other = (
        signature_of(Evidence(status=1, output=b"bad scale")),
        signature_of(Evidence(status=1, output=b"bad shape")),
    )
    assert same_failure(one, other, "status")
    assert not same_failure(one, other, "message")
    assert same_failure(signature_of(MISMATCH), _with_outputs("z"), "message")
    assert not same_failure(signature_of(MISMATCH), _with_outputs("z"), "exact")


def _with_outputs(*names: str) -> Signature:
    return signature_of(
        Evidence(
            status=1,
            verdict=VerdictFile(outcome="fails", engine="onnxrt", stage="compare", kind="mismatch", outputs=names),
        )
    )


def test_a_missing_engine_stops_whatever_the_status() -> None:
    told = VerdictFile(outcome="infrastructure", kind="EngineMissing", message="openvino is not installed")
    judged = judge(Evidence(status=4, verdict=told), Rules(), None)
    assert (judged.outcome, judged.reason) == (Outcome.INFRASTRUCTURE, "openvino is not installed")


def test_fail_codes_decide_alone() -> None:
    assert outcome(Evidence(status=3), fail_codes=frozenset({3})) is Outcome.REPRODUCES
    assert outcome(Evidence(status=1), fail_codes=frozenset({3})) is Outcome.PASSES
    assert outcome(Evidence(status=125), fail_codes=frozenset({125})) is Outcome.REPRODUCES


def test_ignored_codes_pass_and_others_fail() -> None:
    assert outcome(Evidence(status=3), ignored_codes=frozenset({3})) is Outcome.PASSES
    assert outcome(Evidence(status=1), ignored_codes=frozenset({3})) is Outcome.REPRODUCES
    assert outcome(Evidence(status=0), ignored_codes=frozenset({3})) is Outcome.PASSES


def test_a_regular_expression_decides_whatever_the_status() -> None:
    rules = {"fail_regexes": (re.compile("Op: Mul"), re.compile("NaN"))}
    assert outcome(Evidence(status=0, output=b"x [Op: Mul]"), **rules) is Outcome.REPRODUCES
    assert outcome(Evidence(status=0, output=b"a NaN"), **rules) is Outcome.REPRODUCES
    assert outcome(Evidence(status=0, output=b"nothing"), **rules) is Outcome.PASSES
    assert outcome(Evidence(status=1, output=b"nothing"), **rules) is Outcome.PASSES
    assert outcome(Evidence(status=-11, output=b"nothing"), **rules) is Outcome.OTHER_FAILURE


def test_a_regular_expression_with_codes_needs_both() -> None:
    rules = {"fail_regexes": (re.compile("bad"),), "fail_codes": frozenset({2})}
    assert outcome(Evidence(status=2, output=b"bad"), **rules) is Outcome.REPRODUCES
    assert outcome(Evidence(status=1, output=b"bad"), **rules) is Outcome.PASSES
    assert outcome(Evidence(status=2, output=b"fine"), **rules) is Outcome.PASSES


def test_output_that_is_no_utf8_is_searched_too() -> None:
    assert (
        outcome(Evidence(status=0, output=b"\xff\xfe bad \x80"), fail_regexes=(re.compile("bad"),))
        is Outcome.REPRODUCES
    )


def test_a_hang_is_the_failure_only_if_the_original_hangs() -> None:
    hang = Evidence(status=-15, timed_out=True)
    assert outcome(hang, EXIT_1) is Outcome.TIMED_OUT
    assert outcome(hang, hang) is Outcome.REPRODUCES
    assert outcome(EXIT_1, hang) is Outcome.OTHER_FAILURE


def test_a_candidate_must_show_the_kind_of_the_original_among_its_own() -> None:
    beyond, odd = Mismatch(output="y"), Mismatch(output="y", kind="nan-mismatch")

    def failure(*found: Mismatch) -> Evidence:
        return Evidence(
            status=1,
            verdict=VerdictFile(
                outcome="fails", engine="onnxrt", stage="compare", kind=kind_of(found), mismatches=found
            ),
        )

    assert outcome(failure(odd, beyond), reference=failure(beyond)) is Outcome.REPRODUCES
    assert outcome(failure(odd), reference=failure(beyond)) is Outcome.OTHER_FAILURE
    assert outcome(failure(beyond), reference=failure(odd)) is Outcome.OTHER_FAILURE
    assert outcome(failure(beyond), reference=failure(odd, beyond)) is Outcome.OTHER_FAILURE
    infinite, fewer = Mismatch(output="y", kind="-inf-mismatch"), Mismatch(output="y", kind="-inf-expected")
    assert outcome(failure(infinite), reference=failure(odd)) is Outcome.OTHER_FAILURE
    assert outcome(failure(fewer), reference=failure(infinite)) is Outcome.OTHER_FAILURE


def test_a_change_of_an_interface_is_told_with_its_names() -> None:
    verdict = VerdictFile(stage="interface", kind="missing-output", message="it renames output 'y' to 'q'")
    evidence = Evidence(status=1, verdict=verdict)
    judged = judge(evidence, Rules(), None)
    assert "'y'" not in judged.reason
    told = signature_of(evidence).with_names(judged.reason)
    assert told == "interface · missing-output · it renames output 'y' to 'q'"
