"""Every entry of the table is proved: on any model in which it holds, both spellings are the same function."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from biopsy.questions.workarounds.spellings.table import SPELLINGS
from questions.workarounds.spellings import layer_cases, operator_cases, reduction_cases
from questions.workarounds.spellings.cases import OF_SPELLING
from questions.workarounds.spellings.proving import prove

assert layer_cases and operator_cases and reduction_cases  # each fills the table when it is imported
_HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large]


def test_every_spelling_has_a_proof_and_a_name_of_its_own() -> None:
    assert sorted(each.name for each in SPELLINGS) == sorted(OF_SPELLING)


@pytest.mark.parametrize("name", sorted(OF_SPELLING))
@settings(max_examples=6, deadline=None, suppress_health_check=_HEALTH)
@given(data=st.data())
def test_both_spellings_are_the_same_function(name: str, data: st.DataObject) -> None:
    prove(name, OF_SPELLING[name](data.draw))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OF_SPELLING))
@settings(max_examples=400, deadline=None, suppress_health_check=_HEALTH)
@given(data=st.data())
def test_both_spellings_are_the_same_function_of_many_more(name: str, data: st.DataObject) -> None:
    prove(name, OF_SPELLING[name](data.draw))
