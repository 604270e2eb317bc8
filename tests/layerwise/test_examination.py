"""Which layers an engine computes wrongly: introduced errors, propagated ones, and what neither of them shows.

Wrong layers are made by the fake engine; real faults are those of onnxruntime and OpenVINO.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from biopsy import errors, events
from biopsy.comparison.tolerance import Stats, Tolerances
from biopsy.engines.base import Capabilities, ModelInput
from biopsy.engines.feeding import Inputs, feeds_for
from biopsy.layerwise.examination import Examination, Question
from biopsy.layerwise.findings import Failure, LayerFindings
from biopsy.layerwise.subgraph_faults import SubgraphFault
from biopsy.layerwise.tensor_errors import Judge
from biopsy.model.demonstration import CULPRITS, demonstration_model
from biopsy.model.index import index_file
from support import control_flow
from support.bug import skip_without_it
from support.models import INT64, chain, info, model, save, weight

NONE = "onnxrt:optimization=none"
RANDOM = Inputs()

Examine = Callable[..., LayerFindings]


@pytest.fixture
def examine(tmp_path: Path) -> Examine:
    """Examines a model, given as a proto or a path. ``inputs`` are random unless feeds are given."""

    def run(made: onnx.ModelProto | Path, suspect: str, inputs: Inputs = RANDOM, **more: Any) -> LayerFindings:
        path = made if isinstance(made, Path) else save(made, tmp_path / "model.onnx")
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        index = index_file(path)

        def feeds(wanted: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
            return feeds_for(wanted, inputs).feeds

        listener = more.pop("listener", events.ignore)
        question = Question(
            index=index,
            model=ModelInput(b"", index.folder, path),
            reference=NONE,
            suspect=suspect,
            feeds=feeds,
            limit=10**9,
        )
        return Examination(replace(question, **more), scratch, listener).run()

    return run


def labels(found: LayerFindings) -> list[str]:
    return [" ".join(one.labels) for one in found.suspects]


def verdicts(found: LayerFindings) -> dict[str, str]:
    return {layer.node.name or layer.node.label: layer.verdict for layer in found.layers}


def growing(length: int) -> onnx.ModelProto:
    """A chain in which nothing shrinks an error: Relu, Neg, Neg, again and again, on positive numbers."""
    return chain(length, ["Relu", "Neg", "Neg"])


# What is wrong by itself, and what only hands on


def test_both_introducers_of_300_layers_are_named_the_worst_first_and_none_after_them_is_accused(examine) -> None:
    found = examine(growing(300), "fake:scale.n100=1.01,scale.n200=1.5")
    assert labels(found) == ["Neg 'n200'", "Neg 'n100'"]
    assert found.first_wrong is not None and found.first_wrong[0].name == "n100"
    told = verdicts(found)
    assert [name for name, verdict in told.items() if verdict == "introduces"] == ["n100", "n200"]
    assert {told[f"n{number}"] for number in range(100)} == {"right"}
    assert {told[f"n{number}"] for number in range(101, 300)} == {"propagates", "introduces"}
    assert not found.passed and not found.groups and not found.is_masked


def test_the_errors_are_what_numpy_says(examine) -> None:
    value = np.array([[1, 2], [3, 4]], np.float32)
    found = examine(growing(3), "fake:scale.n0=1.5,offset.n1=1", Inputs([{"t0": value}]))
    first, second, third = found.layers
    assert first.introduced is not None and second.introduced is not None and second.propagated is not None
    assert (first.introduced.absolute, first.introduced.relative) == (2.0, 0.5)
    assert first.introduced.tolerance_ratio == pytest.approx((0.5 * value / (1e-5 + 1e-5 * value)).max(), rel=1e-5)
    assert first.introduced.worst is not None and first.introduced.worst.index == (1, 1)
    assert second.introduced.absolute == 1.0
    assert second.propagated.absolute == np.abs((1 - 1.5 * value) + value).max()
    assert third.introduced is not None and third.introduced.absolute == 0.0


def test_a_model_that_is_right_passes_and_nobody_is_accused(examine) -> None:
    found = examine(growing(20), "fake")
    assert found.passed and found.suspects == [] and set(verdicts(found).values()) == {"right"}


def test_an_error_that_a_softmax_or_an_argmax_hides_is_not_missed(examine) -> None:
    for last, elem in (("Softmax", 1), ("ArgMax", INT64)):
        nodes = [
            helper.make_node("Mul", ["x", "big"], ["a"], name="mul"),
            helper.make_node("Exp", ["a"], ["b"], name="exp"),
            helper.make_node(last, ["b"], ["y"], name="last", axis=-1),
        ]
        made = model(nodes, [info("x")], [info("y", None, elem)], [weight("big", 100, 1, dtype="float32")])
        found = examine(made, "fake:scale.exp=1.5", Inputs([{"x": np.array([[0.1, 0.5], [0.2, 0.3]], np.float32)}]))
        assert all(output.passed for output in found.outputs)
        assert labels(found) == ["Exp 'exp'"] and found.is_masked and not found.passed


def test_tolerances_and_statistics_by_name_decide(examine) -> None:
    suspect = "fake:scale.n1=1.5,scale.n2=1.5"
    loose = Judge(Tolerances({"t2": 10.0}, {}))
    assert labels(examine(growing(3), suspect, judge=loose)) == ["Neg 'n2'"]
    mean = Judge(Tolerances({"": 0.6}, {"": 0.0}), Stats({"": "mean"}))
    assert examine(growing(3), suspect, judge=mean, nodes=re.compile("n1")).suspects == []


def test_a_reference_that_is_more_precise_than_the_model_is_fed_in_the_types_of_the_model(examine) -> None:
    found = examine(growing(20), "fake:scale.n7=1.001", reference="reference:float64")
    assert labels(found) == ["Neg 'n7'"]
    assert {layer.failure for layer in found.layers} == {None}


def test_rounding_that_adds_up_is_no_layers_fault(examine) -> None:
    """Each layer is off by half a bit; two hundred of them together are out of the tolerances."""
    nodes = [helper.make_node("Mul", [f"t{i}", "w"], [f"t{i + 1}"], name=f"n{i}") for i in range(200)]
    made = model(nodes, [info("t0")], [info("t200")], [weight("w", 1.01)])
    judge = Judge(Tolerances({"": 0.0}, {"": 3e-7}))
    found = examine(made, "onnxrt", reference="reference:float64", judge=judge)
    assert not found.outputs[0].passed and found.suspects == [] and not found.passed
    assert any("accumulated or amplified rounding" in remark for remark in found.remarks)


# Failures


def test_a_layer_that_kills_the_engine_is_named_and_the_others_are_measured(examine) -> None:
    found = examine(growing(40), "fake:crash.n7=run")
    assert labels(found) == ["Neg 'n7'"] and found.suspects[0].failure is not None
    assert (found.suspects[0].failure.kind, found.failure and found.failure.kind) == ("SIGSEGV", "SIGSEGV")
    assert list(verdicts(found).values()).count("right") == 39


def test_layers_that_the_engine_refuses_are_all_named(examine) -> None:
    found = examine(chain(12, ["Relu", "Abs", "Neg"]), "fake:refuse.Abs=build")
    assert [label.split()[0] for label in labels(found)] == ["Abs"] * 4


def test_layers_that_fail_only_together_are_found_as_a_group(examine) -> None:
    found = examine(growing(60), "fake:crash.n7~n8=run")
    assert [group.labels for group in found.groups] == [("Neg 'n7'", "Neg 'n8'")]
    assert found.groups[0].failure is not None and found.groups[0].failure.kind == "SIGSEGV"


def test_a_suspect_that_is_not_there_is_told_before_anything_is_recorded(examine) -> None:
    told: list[events.Event] = []
    with pytest.raises(errors.EngineMissing):
        examine(growing(3), "nobody", listener=told.append)
    assert told == []


def test_a_reference_that_cannot_run_the_model_ends_it_without_a_verdict(examine) -> None:
    with pytest.raises(errors.CannotCompare, match="reference engine fake:crash"):
        examine(growing(3), "onnxrt", reference="fake:crash.n1=run")


# Observing, and faults of fusion


def test_a_failure_that_marking_a_tensor_hides_is_told_and_located_by_cuts(examine) -> None:
    found = examine(growing(40), "fake:scale.n7=1.5,unless_marked=t8")
    assert [(one.change, one.output, one.tensors) for one in found.marking_effects] == [("gone", "t40", ("t8",))]
    (group,) = found.groups
    assert len(group.nodes) == 2 and "Neg 'n7'" in group.labels and group.hides
    assert labels(found) == [" ".join(group.labels)]
    assert {layer.verdict for layer in found.layers} == {"right"}


def test_it_is_found_too_where_what_follows_hides_it(examine) -> None:
    found = examine(chain(200, ["Softplus", "Relu", "Tanh"]), "fake:scale.n100=1.5,unless_marked=t101")
    assert all(output.passed for output in found.outputs) and found.is_masked
    (group,) = found.groups
    assert len(group.nodes) == 2 and 100 in group.nodes


def test_the_real_bug_of_onnxruntime_is_located_to_its_six_layers(examine) -> None:
    skip_without_it()
    found = examine(demonstration_model(), "onnxrt", judge=Judge(Tolerances({"": 1e-3}, {"": 1e-3})))
    (group,) = found.groups
    assert [label.split()[0] for label in group.labels] == list(CULPRITS)
    assert all("adapter" in label for label in group.labels) and group.hides
    assert [one.change for one in found.marking_effects] == ["gone"]


def test_the_real_failure_of_openvino_is_located_to_its_two_layers(examine) -> None:
    pytest.importorskip("openvino")
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("Relu", ["x"], ["t0"], name="first")]
    nodes += [helper.make_node("Sigmoid", [f"t{i}"], [f"t{i + 1}"], name=f"s{i}") for i in range(20)]
    nodes += [
        helper.make_node("MatMul", ["t20", "w"], ["m"], name="matmul"),
        helper.make_node("PRelu", ["m", "slope"], ["p"], name="prelu"),
        helper.make_node("Abs", ["p"], ["y"], name="last"),
    ]
    weights = [
        numpy_helper.from_array(rng.normal(size=(4, 6)).astype(np.float32), "w"),
        numpy_helper.from_array(rng.uniform(size=(3, 1, 1)).astype(np.float32), "slope"),
    ]
    made = model(nodes, [info("x", (1, 3, 5, 4))], [info("y", (1, 3, 5, 6))], weights)
    found = examine(made, "openvino", judge=Judge(Tolerances({"": 1e-3}, {"": 1e-3})))
    if found.failure is None:
        pytest.skip("the installed OpenVINO compiles it")
    assert [group.labels for group in found.groups] == [("MatMul 'matmul'", "PRelu 'prelu'")]


def test_an_engine_that_gives_no_inner_tensors_is_examined_layer_by_layer(examine) -> None:
    found = examine(growing(12), "fake:scale.n3=2", suspect_can=Capabilities(marks_any_tensor=False))
    assert labels(found) == ["Relu 'n3'"] and all(layer.propagated is None for layer in found.layers)


# NaN and infinities


def test_nan_begins_at_the_layer_whose_inputs_are_finite(examine) -> None:
    found = examine(growing(30), "fake:nan.n7=0.5,seed=1")
    assert [(one.engine, one.label, one.tensor) for one in found.non_finite_origins] == [
        ("fake:nan.n7=0.5,seed=1", "Neg 'n7'", "t8")
    ]
    assert found.non_finite_origins[0].nan > 0 and labels(found) == ["Neg 'n7'"]


def test_nan_that_both_engines_have_is_told_and_is_no_error(examine) -> None:
    nodes = [helper.make_node(op, [x], [y], name=op) for op, x, y in (("Log", "x", "a"), ("Neg", "a", "y"))]
    found = examine(model(nodes, [info("x")], [info("y")]), "onnxrt", Inputs([{"x": -np.ones((2, 2), np.float32)}]))
    assert found.passed and [(one.engine, one.label) for one in found.non_finite_origins] == [
        (NONE, "Log 'Log'"),
        ("onnxrt", "Log 'Log'"),
    ]


def test_a_weight_that_is_not_finite_is_an_origin_by_itself(examine) -> None:
    nodes = [helper.make_node("Add", ["x", "mask"], ["y"], name="add")]
    made = model(nodes, [info("x")], [info("y")], [weight("mask", 0, -np.inf, dtype="float32")])
    assert examine(made, "onnxrt").non_finite_origins == ()


# All that models have


@pytest.mark.parametrize(
    ("made", "layer"),
    [(control_flow.branching(), "if"), (control_flow.looping(), "loop"), (control_flow.scanning(), "scan")],
)
def test_a_node_with_bodies_is_one_layer(examine, made: onnx.ModelProto, layer: str) -> None:
    found = examine(made, f"fake:scale.{layer}=1.5")
    assert [one.labels[0].split("'")[1] for one in found.suspects] == [layer]


def dynamic() -> onnx.ModelProto:
    """A batch of any size, reshaped by what Shape says; an initializer and a Constant as outputs; no names."""
    minus = numpy_helper.from_array(np.array([-1], np.int64))
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["b"]),
        helper.make_node("Unsqueeze", ["b", "axis"], ["b1"]),
        helper.make_node("Constant", [], ["minus"], value=minus),
        helper.make_node("Concat", ["b1", "minus"], ["sh"], axis=0),
        helper.make_node("Reshape", ["x", "sh"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["y"]),
        helper.make_node("Softmax", ["y"], ["z"]),
    ]
    weights = [
        weight("zero", 0, dtype="int64", shape=()),
        weight("axis", 0, dtype="int64", shape=(1,)),
        weight("w", *range(24), shape=(6, 4)),
    ]
    outputs = [info("z", ("N", 4)), info("w", (6, 4)), info("minus", (1,), INT64)]
    return model(nodes, [info("x", ("N", 2, 3))], outputs, weights)


def test_dynamic_shapes_nameless_nodes_and_several_samples_of_different_sizes(examine) -> None:
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.uniform(size=(size, 2, 3)).astype(np.float32)} for size in (1, 5, 2)]
    found = examine(dynamic(), "fake:offset.z=0.5", Inputs(feeds))
    assert labels(found) == ["Softmax #7"]
    assert [output.tensor for output in found.outputs if not output.passed] == ["z"]
    assert len(found.layers) == 7  # a Constant is no layer


def test_the_sample_counts_in_which_a_tensor_is_farthest_off(examine) -> None:
    feeds = [{"t0": np.full((2, 2), value, np.float32)} for value in (1, 3, 2)]
    found = examine(growing(2), "fake:offset.n1=0,scale.n1=2", Inputs(feeds))
    assert found.layers[1].introduced is not None
    assert (found.layers[1].introduced.sample, found.layers[1].introduced.absolute) == (1, 3.0)


def test_layers_that_hand_on_sequences_are_run_with_those_that_need_them(examine) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["q"], axis=0, name="split"),
        helper.make_node("SequenceAt", ["q", "one"], ["a"], name="at"),
        helper.make_node("Relu", ["a"], ["y"], name="relu"),
    ]
    made = model(nodes, [info("x", (2, 3))], [info("y", None)], [weight("one", 1, dtype="int64", shape=())])
    found = examine(made, "fake:scale.at=1.5")
    assert labels(found) == ["SequenceAt 'at'"]
    assert verdicts(found)["split"] == "unknown" and found.layers[0].note == "its outputs were not recorded"


def test_random_layers_are_not_judged_and_what_wavers_with_them_is_no_effect_of_observing(examine) -> None:
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["r"], name="random"),
        helper.make_node("Add", ["x", "r"], ["y"], name="add"),
    ]
    found = examine(model(nodes, [info("x")], [info("y")]), "reference")
    assert found.suspects == [] and found.layers[0].note == "it is random: not judged"
    assert found.marking_effects == () and any("from run to run" in remark for remark in found.remarks)


def test_external_weights_are_found(examine, tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")]
    made = model(nodes, [info("x")], [info("y")], [weight("w", *range(1, 5), shape=(2, 2))])
    path = tmp_path / "external.onnx"
    onnx.save(made, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert labels(examine(path, "fake:scale.matmul=2")) == ["MatMul 'matmul'"]
    assert examine(path, "onnxrt").passed


def test_initializers_that_are_inputs_too_as_in_ir_3(examine) -> None:
    nodes = [helper.make_node("Add", ["x", "w"], ["a"], name="add"), helper.make_node("Exp", ["a"], ["y"], name="exp")]
    made = model(nodes, [info("x"), info("w", (1,))], [info("y")], [weight("w", 1)], opset=8)
    made.ir_version = 3
    assert labels(examine(made, "fake:scale.add=2")) == ["Add 'add'"]


def test_a_tensor_that_is_input_and_output_or_read_by_many(examine) -> None:
    nodes = [helper.make_node("Abs", ["x"], ["a"], name="abs")]
    nodes += [helper.make_node("Add", ["a", "x"], [f"y{i}"], name=f"add{i}") for i in range(30)]
    made = model(nodes, [info("x")], [info("x"), *(info(f"y{i}") for i in range(30))])
    assert labels(examine(made, "fake:scale.add7=2")) == ["Add 'add7'"]


# Memory


def test_batches_give_the_same_findings_as_one_run(examine) -> None:
    suspect = "fake:scale.n100=1.01,scale.n200=1.5"
    told: list[events.Event] = []
    at_once, in_batches = (
        examine(growing(300), suspect, limit=limit, listener=listener)
        for limit, listener in ((10**9, events.ignore), (480, told.append))
    )
    assert labels(at_once) == labels(in_batches) and verdicts(at_once) == verdicts(in_batches)
    batches = {event.stage: event.total for event in told if isinstance(event, events.Measured)}
    assert batches["record"] >= 10 and batches["whole"] >= 10


def test_only_chosen_layers_are_measured(examine) -> None:
    found = examine(growing(40), "fake:scale.n7=2,scale.n30=2", nodes=re.compile("^n3[0-9]$"))
    assert [layer.node.name for layer in found.layers] == [f"n{number}" for number in range(30, 40)]
    assert labels(found) == ["Relu 'n30'"]


def failing(message: str, kind: str = "Error") -> SubgraphFault:
    return SubgraphFault(failure=Failure("load", kind, message))


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("no kernel for 'a'", "no kernel for 'b'", True),
        ("refused:\n- Add: f16\n- Mul: f16", "refused:\n- Mul: f16", True),
        ("refused:\n- Add: f16", "refused:\n- Mul: f16", False),
        ("refused operations: Add, Mul", "refused operations: Mul", True),
        ("out of memory", "no kernel", False),
    ],
)
def test_pieces_fail_alike_as_a_reduction_has_it_if_their_messages_have_an_item_in_common(
    one: str, other: str, alike: bool
) -> None:
    assert failing(one).is_like(failing(other)) is alike


def test_what_a_dying_process_printed_does_not_matter() -> None:
    assert failing("core dumped", "SIGSEGV").is_like(failing("Aborted", "SIGSEGV"))
    assert not failing("", "SIGSEGV").is_like(failing("", "SIGABRT"))
    assert not failing("", "SIGSEGV").is_like(SubgraphFault())
