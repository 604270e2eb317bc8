"""What is asked of features, and what is said of them: never anything that an answer contradicts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy.questions.variation.features import Alternative, ExaminedFeature, Feature
from biopsy.questions.variation.result import Finding, Variation, claim_of, finding_of
from support.planted_features import choice, examined, number, says

CONDITIONS = {
    "any": lambda present: lambda value: True,
    "equal": lambda present: lambda value: value == present,
    "parity": lambda present: lambda value: value % 2 == present % 2,
    "power of two": lambda present: lambda value: (value & (value - 1) == 0) == (present & (present - 1) == 0),
    "at least": lambda present: lambda value: value >= max(1, present - 2),
    "at most": lambda present: lambda value: value <= present + 3,
    "not one": lambda present: lambda value: value != 1 or present == 1,
    "multiple of three": lambda present: lambda value: (value % 3 == 0) == (present % 3 == 0),
    "strange": lambda present: lambda value: value == present or (value * 7919) % 5 < 2,
}


def is_kept(seen: ExaminedFeature) -> bool:
    """Whether everything that is said of a feature agrees with every answer."""
    claim, found = claim_of(seen), finding_of(seen)
    if claim == "free":
        tried = f"any of {len(seen.with_answer('fails'))} tried"
        return len(found.still) > 1 and not found.gone and tried in found.text
    if claim == "fixed":
        return bool(found.gone)
    return found.text.startswith("not known")


@given(
    present=st.integers(1, 70),
    planted=st.sampled_from(sorted(CONDITIONS)),
    invalid=st.sets(st.integers(1, 80), max_size=20),
)
def test_what_is_said_of_a_number_agrees_with_every_answer(present, planted, invalid):
    fails = CONDITIONS[planted](present)

    def truth(_, alternative: Alternative):
        return "invalid" if alternative.value in invalid else "fails" if fails(alternative.value) else "passes"

    [seen] = examined([number(present)], truth)
    assert is_kept(seen)
    short = finding_of(seen).short
    if claim_of(seen) == "fixed" and short:
        assert says(short, present)
        assert all(says(short, value) for value in seen.numbers_with("fails"))
        assert not any(says(short, value) for value in seen.numbers_with("passes"))


@given(st.data())
def test_what_is_said_of_a_choice_agrees_with_every_answer(data):
    words = ["b", "c", "d", "e", "f"]
    answers = {word: data.draw(st.sampled_from(["fails", "passes", "neither", "invalid"])) for word in words}
    [seen] = examined([choice("a", words)], lambda _, alternative: answers[alternative.text])
    found = finding_of(seen)
    assert is_kept(seen)
    assert all(answers[word] == "fails" for word in found.still)
    assert all(answers[word] == "passes" for word in found.gone)


@pytest.mark.parametrize(
    ("present", "planted", "short"),
    [
        (7, "parity", "odd"),
        (32, "parity", "even"),
        (16, "power of two", "a power of two"),
        (12, "power of two", "no power of two"),
        (20, "at least", "at least 18"),
        (20, "at most", "at most 23"),
        (9, "not one", "at least 2"),
        (6, "equal", "6"),
    ],
)
def test_a_simple_condition_is_found_in_few_checks(present, planted, short):
    fails = CONDITIONS[planted](present)
    [seen] = examined([number(present)], lambda _, one: "fails" if fails(one.value) else "passes")
    assert finding_of(seen).short == short
    assert len(seen.answers) <= 10


def test_one_size_that_is_no_failure_is_named():
    [seen] = examined([number(6)], lambda _, one: "passes" if one.value == 7 else "fails")
    assert finding_of(seen).short == "not 7"


def test_what_was_tried_in_one_way_only_is_never_called_free():
    [seen] = examined([choice("float32", ["float64"])], lambda _, one: "fails")
    assert claim_of(seen) == "open"
    assert finding_of(seen).text == "not known: only float64 still failed"


def test_every_feature_is_asked_about_before_any_is_asked_about_twice():
    order = []

    def truth(examination, alternative):
        order.append(examination.feature.name)
        return "fails"

    examined([number(4, name="a"), choice("x", ["y", "z"], name="b")], truth)
    assert order[:4] == ["a", "b", "a", "b"]


def test_what_a_check_cannot_say_is_not_asked_for_ever():
    [seen] = examined([number(50)], lambda _, one: "neither")
    assert len(seen.answers) == 3


def answered(present: str, failing: list[str], passing: list[str], name: str = "axes of F") -> Finding:
    """What is said of an attribute with these answers."""
    changes = [Alternative(kind=word, text=word, edit=lambda fed: fed) for word in (*failing, *passing)]
    feature = Feature(what="attribute", name=name, present=present, alternatives=changes)
    return finding_of(
        ExaminedFeature(feature, [(one, "fails" if one.text in failing else "passes") for one in changes])
    )


def test_a_list_that_passes_says_nothing_of_other_lists():
    found = answered("[2, 3]", ["[3, 2]", "[4, 5]"], ["[1, 2]", "left out"])
    assert found.short == ""
    sentence = Variation(fixed=(found,)).sentence
    assert sentence == "it passes if the axes of F are [1, 2] or left out"
    assert "kernel_shape of F is [2]" in Variation(fixed=(answered("[1]", [], ["[2]"], "kernel_shape of F"),)).sentence


def test_one_value_is_denied_only_if_several_others_fail():
    assert answered("a", ["b"], ["c"]).short == ""
    assert answered("a", ["b", "d"], ["c"]).short == "not c"
    assert answered("a", ["b"], ["c", "d"]).short == "not c or d"


def test_what_passes_only_where_it_is_left_out_must_be_given():
    assert answered("0.2", ["0.1", "0.4"], ["left out"], "clip of GRU").condition == "clip of GRU given"
    assert answered("[1]", ["[2]", "[4]"], ["left out"]).requirement == "the axes of F are given (3 tried)"
    assert answered("a", ["b", "c"], ["left out (d)"]).short != "given"
