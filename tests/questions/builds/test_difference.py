"""Choices that go with failing: what is a choice, what is one group, what is decided and what is not."""

import random

from biopsy.engines.base import LayerRecord
from biopsy.questions.builds.difference import Build, Choice, build_of, difference, summarized
from biopsy.questions.builds.record import TacticRecord


def build(is_bad: bool, *texts: str) -> Build:
    return Build("file", is_bad, frozenset(Choice(*text.split("|")) for text in texts))


def record(*layers: LayerRecord, **settings: str) -> TacticRecord:
    return TacticRecord(engine="openvino", version="2026.4", settings=settings, layers=layers)


def test_the_choices_of_a_build_are_those_of_its_nodes_and_of_what_it_was_told():
    layers = (
        LayerRecord(
            name="generated_17",
            kind="Convolution",
            implementation="jit",
            precision="float32",
            layout="nchw",
            nodes=("conv", "relu"),
        ),
        LayerRecord(name="generated_18", kind="Reorder", nodes=()),
        LayerRecord(name="generated_19", kind="Reorder", nodes=()),
    )
    texts = {choice.text for choice in build_of("f", record(*layers, threads="1"), is_bad=True).choices}
    assert {
        "engine openvino 2026.4",
        "threads=1",
        "conv: kernel Convolution jit",
        "conv: precision float32",
        "conv: layout nchw",
        "fusion conv + relu",
        "number of layers Reorder that the engine put in: 2",
    } <= texts
    assert not any("generated" in text for text in texts)


def test_the_machine_is_named_where_it_decides_and_not_where_all_are_alike():
    def found(*machines: str):
        made = (TacticRecord(engine="trt", machine=machines[number % 2]) for number in range(20))
        return difference([build_of("f", one, is_bad=number % 2 == 0) for number, one in enumerate(made)])

    assert [group.representative.text for group in found("H100 (1a)", "L4 (2b)").decided] == ["machine H100 (1a)"]
    assert found("H100 (1a)", "H100 (1a)").groups == ()


def test_a_node_in_several_layers_has_all_their_kernels():
    layers = (LayerRecord(name="a", kind="Mul", nodes=("n",)), LayerRecord(name="b", kind="Add", nodes=("n",)))
    choices = build_of("f", record(*layers), is_bad=True).choices
    assert Choice("n", "kernel", "Mul + Add") in choices


def test_what_is_in_every_bad_build_and_in_no_good_one_comes_first():
    builds = [build(number % 2 == 0, f"|option|p={number % 2}", f"n|kernel|k{number % 3}") for number in range(20)]
    found = difference(builds)
    assert found.groups[0].representative.text == "p=0"
    assert found.groups[0].table.is_perfect
    assert found.decided == found.groups[:1]
    assert found.more == 1 or found.more is None or found.more > 0


def test_choices_made_together_are_one_group_and_one_test_and_what_a_person_can_set_stands_for_it():
    texts = ("n|precision|bfloat16", "n|kernel|jit_bf16", "|option|precision=bf16", "m|precision|bfloat16")
    builds = [build(number < 5, *(texts if number < 5 else ())) for number in range(10)]
    found = difference(builds)
    assert found.groups_compared == 1
    assert [choice.text for choice in found.groups[0].choices][:2] == ["precision=bf16", "m: precision bfloat16"]
    assert summarized(found.groups[0].choices)["precision", "bfloat16"] == ["m", "n"]


def test_what_every_build_has_is_no_choice():
    found = difference([build(True, "|option|a=1", "|option|b=1"), build(False, "|option|a=1")])
    assert [group.representative.text for group in found.groups] == ["b=1"]


def test_a_choice_of_most_bad_builds_and_few_good_ones_is_found_though_sets_do_not_differ():
    builds = [build(number < 20, *(("n|kernel|k",) if number < 18 or number > 37 else ())) for number in range(40)]
    found = difference(builds)
    assert found.only_in_bad == ()
    assert [group.representative.text for group in found.decided] == ["n: kernel k"]


def test_few_builds_do_not_decide_even_if_the_sets_differ():
    found = difference([build(True, "n|kernel|a"), build(True, "n|kernel|a"), build(False), build(False)])
    assert found.only_in_bad
    assert found.decided == ()
    assert found.more is not None


def test_without_good_or_bad_builds_nothing_is_compared():
    assert difference([build(True, "n|kernel|a"), build(True)]).groups == ()
    assert difference([]).decided == ()


def test_outcomes_that_depend_on_no_choice_seldom_convict_one():
    """Of 200 analyses with 8 choices, at most about one in twenty may err; Fisher's and Holm's tests err less."""
    lot = random.Random(1)
    wrong = 0
    for _ in range(200):
        builds = [
            build(lot.random() < 0.5, *(f"n{choice}|kernel|{lot.randrange(2)}" for choice in range(4)))
            for _ in range(20)
        ]
        wrong += bool(difference(builds).decided)
    assert wrong <= 15
