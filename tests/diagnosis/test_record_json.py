"""Facts survive the way to disk and back, and what is none is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy.diagnosis.facts import KnownFacts, ModelFailure, StepReport
from biopsy.records import plain, record_of
from support.diagnoses import facts, settings, switch


def test_all_facts_come_back() -> None:
    known = facts(settings=settings(switch("A"), switch(text="with x=1")))
    assert record_of(KnownFacts, json.loads(json.dumps(plain(known)))) == known


@given(st.builds(StepReport))
def test_any_report_of_a_step_comes_back(report: StepReport) -> None:
    assert record_of(StepReport, json.loads(json.dumps(plain(report)))) == report


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "perhaps"}, {"seconds": "long"}, {"checks": True}, {"name": None}, {"answer": ["a"]},
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused(change: dict[str, object]) -> None:
    tree = plain(StepReport(name="n", question="q", outcome="done", answer="a"))
    with pytest.raises(ValueError, match=r"unexpected|no "):
        record_of(StepReport, {**tree, **change})


@pytest.mark.parametrize("tree", [None, [], {}, {"check": "words"}, {"check": [1]}])
def test_what_is_no_record_is_refused(tree: object) -> None:
    with pytest.raises(ValueError, match=r"no |unexpected"):
        record_of(ModelFailure, tree)
