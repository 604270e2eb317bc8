"""The identity of a failure: what is kept of it, and how much of it must agree."""

import json

import pytest

from biopsy.checks.judge import Signature, same_failure, signature_of
from biopsy.checks.outcome import Evidence
from biopsy.checks.verdict import VerdictFile
from biopsy.records import plain, record_of

TRACE = b"""Traceback (most recent call last):
  File "/me/check.py", line 3, in <module>
    compare(a, b)
  File "/me/check.py", line 9, in compare
    raise ValueError(%s)
ValueError: %s
"""
DEAD = Evidence(status=1, output=TRACE % (b"text", b"12 of 30 differ"))
REFUSED = Evidence(
    status=1,
    output=b"no\n",
    verdict=VerdictFile(
        outcome="fails",
        engine="openvino",
        stage="load",
        kind="OpConversionFailure",
        message="no:\n-- rule for operations: a.B, c.D",
        outputs=("y",),
    ),
)


@pytest.mark.parametrize(
    "evidence",
    [DEAD, REFUSED, Evidence(status=-11), Evidence(status=1, timed_out=True), Evidence(status=2, output=b"\xff\n")],
)
def test_a_journal_gives_back_what_it_was_told(evidence: Evidence) -> None:
    signature = signature_of(evidence)
    assert record_of(Signature, json.loads(json.dumps(plain(signature)))) == signature


def test_fields_of_another_version_do_no_harm() -> None:
    kept = plain(signature_of(DEAD))
    assert record_of(Signature, {**kept, "something": {"new": 1}}) == signature_of(DEAD)
    del kept["parts"]
    assert record_of(Signature, kept) == signature_of(DEAD)


@pytest.mark.parametrize(
    "found",
    [{}, {"status": []}, {"status": 1, "message": "text"}, {"status": 1, "raised": [{}]}, {"status": 1, "parts": 3}],
)
def test_what_is_no_signature_is_told(found: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"no Signature|no Message|no Raised|unexpected value"):
        record_of(Signature, found)


def test_each_match_is_narrower_than_the_one_before() -> None:
    one = signature_of(DEAD)
    others = {
        "any": Evidence(status=2),
        "status": Evidence(status=1, output=b"FAILED\n"),
        "auto": Evidence(status=1, output=TRACE % (b"text", b"Required inputs are missing")),
        "message": Evidence(status=1, output=TRACE % (b"text", b"740 of 1024 differ")),
        "exact": DEAD,
    }
    wide = list(others)
    for number, evidence in enumerate(others.values()):
        alike = [same_failure(one, signature_of(evidence), match) for match in wide]  # type: ignore[arg-type]
        assert alike == [place <= number for place in range(len(wide))]


def test_what_a_check_reports_is_stronger_than_an_exception() -> None:
    assert signature_of(Evidence(status=1, output=DEAD.output, verdict=REFUSED.verdict)).raised == ()
    assert signature_of(Evidence(status=-6, output=DEAD.output)).raised == ()
    assert signature_of(Evidence(status=1, output=DEAD.output, verdict=VerdictFile(outcome="fails"))).raised != ()


def test_exact_looks_at_the_letters_of_what_is_reported_too() -> None:
    other = Evidence(
        status=1,
        output=b"no\n",
        verdict=VerdictFile(outcome="fails", engine="onnxrt", stage="load", kind="Fail", message="node 'a' of [1,2]"),
    )
    same = Evidence(
        status=1,
        output=b"no\n",
        verdict=VerdictFile(outcome="fails", engine="onnxrt", stage="load", kind="Fail", message="node 'b' of [3]"),
    )
    assert same_failure(signature_of(other), signature_of(same), "message")
    assert not same_failure(signature_of(other), signature_of(same), "exact")


def test_places_in_the_source_of_openvino_are_not_what_it_says() -> None:
    text = b"""Traceback (most recent call last):
  File "/me/check.py", line 3, in <module>
    core.compile_model(path)
RuntimeError: Exception from src/inference/src/cpp/core.cpp:132:
Exception from src/inference/src/dev/plugin.cpp:59:
Check 'inputs > 0' failed at src/core/src/op.cpp:31:
%s
"""
    one, other = (
        signature_of(Evidence(status=1, output=text % says))
        for says in (b"the rank is dynamic", b"the axis is dynamic")
    )
    assert same_failure(one, other, "auto")
    assert not same_failure(one, other, "message")
