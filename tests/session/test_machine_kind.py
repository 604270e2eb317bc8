"""What kind of machine runs checks: how two differ, and what a journal is told of them."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy.session.conditions import MachineKind, conditions, differing, this_machine, unlike_this_one
from support.machine_kinds import installed

FACTS = st.dictionaries(st.sampled_from(["processor", "GPU", "onnx", "Python"]), st.sampled_from(["none", "1", "2"]))


def of(facts: dict[str, str], name: str = "there") -> MachineKind:
    """This machine but for these facts."""
    here = this_machine()
    return replace(here, machine=name, facts={**here.facts, **facts})


def test_it_tells_the_processor_its_features_and_the_packages() -> None:
    facts = this_machine().facts
    assert {"processor", "processor features", "GPU", "Python", "biopsy", "onnxruntime"} <= set(facts)
    assert facts["processor"] in str(this_machine())


def test_a_package_on_the_path_makes_another_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = this_machine()
    monkeypatch.syspath_prepend(installed(tmp_path / "packages", "onnx-made-up", "2.0"))
    assert before.differences(this_machine()) == "onnx-made-up: none, 2.0"
    assert sys.path[0] == str(tmp_path / "packages")


@given(FACTS, FACTS)
def test_machines_differ_just_where_their_facts_do(one: dict[str, str], other: dict[str, str]) -> None:
    first, second = (MachineKind(machine="m", facts=facts) for facts in (one, other))
    assert bool(first.differences(second)) == (one != other)
    assert bool(differing([first, first, second])) == (one != other)
    assert first.differences(first) == ""


def test_of_long_values_only_what_differs_is_told() -> None:
    features = " ".join(f"feature{number}" for number in range(60))
    words = of({"processor features": features}).differences(of({"processor features": f"{features} amx_int8"}))
    assert words == "processor features: none, amx_int8"


def test_another_name_is_no_other_kind() -> None:
    assert differing([of({}, "a"), of({}, "b")]) == ""
    assert unlike_this_one([of({}, "a")]) == ""


def test_machines_unlike_this_one_are_told() -> None:
    assert "there (GPU: none, H100)" in unlike_this_one([of({}), of({"GPU": "H100"})])


def test_a_search_here_goes_on_elsewhere_on_machines_of_the_same_kind() -> None:
    assert dict(conditions([])) == dict(conditions([of({}, "a"), of({}, "b")])) == dict(this_machine().facts)


@pytest.mark.parametrize(
    "facts", [{"processor": "another"}, {"GPU": "H100"}, {"onnxruntime": "0.1"}, {"onnx-new": "1"}]
)
def test_another_kind_is_another_condition(facts: dict[str, str]) -> None:
    here, there = dict(conditions([])), dict(conditions([of(facts)]))
    differ = {name for name in {*here, *there} if here.get(name) != there.get(name)}
    (name,) = facts
    assert differ == ({name} if name in ("processor", "GPU") else {f"{name} of other machines"})


def test_machines_that_differ_are_another_condition_than_each_of_them() -> None:
    one, other = of({"GPU": "H100"}), of({"GPU": "L4"})
    both = dict(conditions([one, other]))
    assert both["GPU"] == "H100 or L4"
    assert both == dict(conditions([other, one, other]))
    assert both not in (dict(conditions([one])), dict(conditions([other])))
