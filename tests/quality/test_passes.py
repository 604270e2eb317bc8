"""What a whole reduction ends at where the nodes are not all there is: bodies, options, weights, sizes, names."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import biopsy
from biopsy import errors, events
from biopsy.checks.outcome import FunctionCheck
from biopsy.cli.app import main
from biopsy.model import walk
from biopsy.model.index import index_bytes
from biopsy.reduction.problem import Border
from biopsy.reduction.reduce import ReductionJob, run_job
from biopsy.reduction.result import Reduction, Target
from biopsy.reduction.schedule import MODEL_PASSES, PASSES, Passes, schedule_of
from biopsy.session.checked_search import SearchOptions
from support.control_flow import body, branching, looping
from support.models import chain, info, model, weight
from support.passes import Predicate, assert_valid
from support.predicates import has, names


def reduced(
    original: onnx.ModelProto, fails: Predicate, folder: Path, told: list[events.Event] | None = None, **options: object
) -> tuple[onnx.ModelProto, Reduction]:
    search = SearchOptions(candidate=folder / "c.onnx")
    job = ReductionJob(target=Target(folder / "r.onnx"), search=search, **{"values": "free", **options})  # type: ignore[arg-type]
    listener = events.ignore if told is None else told.append
    check = FunctionCheck(fails, takes="model")
    result = run_job(index_bytes(original.SerializeToString()), check, job, listener)
    return onnx.load(folder / "r.onnx"), result


def operators(made: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in made.graph.node]


def mul_in_then(candidate: onnx.ModelProto) -> bool:
    return any(
        inner.op_type == "Mul"
        for node in candidate.graph.node
        for entry in node.attribute
        if entry.name == "then_branch"
        for inner in entry.g.node
    )


def mul_anywhere(candidate: onnx.ModelProto) -> bool:
    return any(node.op_type == "Mul" for node in walk.nodes(candidate))


def test_of_a_branch_that_matters_one_node_is_left(tmp_path: Path) -> None:
    result, _ = reduced(branching(), mul_in_then, tmp_path)
    assert operators(result) == ["If"]
    assert [node.op_type for node in body(result, "then_branch").node] == ["Mul"]
    assert_valid(result)


@pytest.mark.parametrize("make", [branching, looping])
def test_where_the_check_allows_it_only_the_node_of_the_body_is_left(tmp_path: Path, make) -> None:
    result, _ = reduced(make(), mul_anywhere, tmp_path)
    assert operators(result) == ["Mul"]
    assert not result.graph.initializer
    assert_valid(result)


def test_an_optional_input_that_does_not_matter_is_gone_with_its_weight(tmp_path: Path) -> None:
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="gemm")
    weights = [weight("w", *[1.0] * 4, shape=(2, 2)), weight("b", 1.0, 2.0)]
    result, _ = reduced(model([node], [info("x")], [info("y")], weights), has("gemm"), tmp_path)
    assert list(result.graph.node[0].input) == ["x", "w"]
    assert [entry.name for entry in result.graph.initializer] == ["w"]


def heavy() -> onnx.ModelProto:
    """Three linear layers, 5 MB of weights, with the texts that an exporter leaves."""
    random = np.random.default_rng(1)
    nodes, weights = [], []
    for i in range(3):
        nodes += [
            helper.make_node("MatMul", [f"act{i}", f"proj{i}"], [f"mm{i}"], name=f"/encoder/{i}/MatMul"),
            helper.make_node("Relu", [f"mm{i}"], [f"act{i + 1}"], name=f"/encoder/{i}/Relu"),
        ]
        weights.append(numpy_helper.from_array(random.normal(size=(640, 640)).astype(np.float32), f"proj{i}"))
    made = model(nodes, [info("act0", (4, 640))], [info("act3", (4, 640))], weights)
    made.producer_name, made.doc_string, made.graph.name = "exporter", "of our next product", "confidential"
    return made


def three_layers(candidate: onnx.ModelProto) -> bool:
    return operators(candidate).count("MatMul") == 3 and biopsy.run(candidate) is not None


def test_simplified_five_megabytes_end_under_twenty_kilobytes(tmp_path: Path) -> None:
    result, _ = reduced(heavy(), three_layers, tmp_path, passes=Passes(simplify=True))
    assert operators(result).count("MatMul") == 3
    assert (tmp_path / "r.onnx").stat().st_size < 20_000
    assert_valid(result)


@pytest.mark.slow
def test_without_being_asked_weights_sizes_attributes_and_names_stay(tmp_path: Path) -> None:
    result, _ = reduced(heavy(), three_layers, tmp_path)
    assert list(result.graph.initializer) == list(heavy().graph.initializer)


def test_an_anonymized_file_holds_no_name_and_no_weight_of_the_original(tmp_path: Path) -> None:
    told: list[events.Event] = []
    reduced(heavy(), three_layers, tmp_path, told, passes=Passes(anonymize=True))
    data = (tmp_path / "r.onnx").read_bytes()
    original = heavy()
    for name in ("act", "proj", "encoder", "mm1", "exporter", "product", "confidential"):
        assert name.encode() not in data
    for entry in original.graph.initializer:
        assert entry.raw_data[:64] not in data
    assert not [event for event in told if isinstance(event, events.Remark) and "anonymize" in event.text]


def test_what_could_not_be_made_anonymous_is_told(tmp_path: Path) -> None:
    told: list[events.Event] = []
    reduced(heavy(), has("/encoder/1/MatMul"), tmp_path, told, passes=Passes(anonymize=True))
    remarks = [event.text for event in told if isinstance(event, events.Remark)]
    assert any("names not replaced: /encoder/1/MatMul" in text for text in remarks)


@pytest.mark.parametrize("make", [branching, looping, heavy])
def test_where_values_are_kept_nothing_that_changes_them_is_proposed(tmp_path: Path, make) -> None:
    changing = {named.name for named in MODEL_PASSES if not named.keeps_values}
    told: list[events.Event] = []
    everything = Passes(simplify=True, anonymize=True)
    reduced(make(), lambda candidate: mul_anywhere(candidate) or "MatMul" in operators(candidate), tmp_path, told,
            values="keep", passes=everything)  # fmt: skip
    stages = {event.stage for event in told if isinstance(event, events.Checking)}
    assert "names" in stages
    assert not stages & changing


def test_inputs_and_outputs_that_are_to_be_kept_are_kept(tmp_path: Path) -> None:
    made = branching()
    made.graph.input.append(info("unused"))
    result, _ = reduced(made, mul_in_then, tmp_path, border=Border(keep_inputs=True))
    assert [entry.name for entry in result.graph.input] == ["x", "c", "unused"]
    result, _ = reduced(looping(), mul_anywhere, tmp_path, border=Border(keep_outputs=True))
    assert [entry.name for entry in result.graph.output] == ["last", "y"]


def test_a_result_with_nothing_to_tidy_costs_no_check(tmp_path: Path) -> None:
    told: list[events.Event] = []
    reduced(chain(100), has("n40"), tmp_path, told)
    stages = {event.stage for event in told if isinstance(event, events.Checking)}
    assert not stages & {named.name for named in MODEL_PASSES}


def test_the_same_reduction_gives_the_same_file(tmp_path: Path) -> None:
    everything = Passes(simplify=True, anonymize=True)
    files = []
    for _ in range(2):
        reduced(looping(), mul_anywhere, tmp_path, passes=everything)
        files.append((tmp_path / "r.onnx").read_bytes())
    assert files[0] == files[1]


def test_passes_are_skipped_and_selected_by_name(tmp_path: Path) -> None:
    result, _ = reduced(branching(), mul_anywhere, tmp_path, passes=Passes(skip=("hoist",)))
    assert operators(result) == ["If"]
    result, _ = reduced(chain(20), has("n3"), tmp_path, passes=Passes(only=("linear",)))
    assert names(result) == ["n3"]
    assert [named.name for named in schedule_of("minimal", Passes(only=("weights",))).afterwards] == ["weights"]


def test_a_pass_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(errors.UsageError) as refused:
        schedule_of("minimal", Passes(skip=("wieghts",)))
    assert "wieghts" in refused.value.message
    for named in (*PASSES, *MODEL_PASSES):
        assert any(named.name in step for step in refused.value.next_steps)


def test_the_table_of_passes_is_shown_in_order_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug", "reduce", "--list-passes"]) == 0
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert shown == [named.name for named in (*PASSES, *MODEL_PASSES)]


@pytest.mark.slow
def test_from_python_and_from_the_command_line_the_same_passes_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(heavy(), "model.onnx")
    check = ["biopsy", "inspect", "model", "{}", "--mode=basic"]
    words = ["debug", "reduce", "model.onnx", "-o", "cli.onnx", "--anonymize", "--skip-pass", "weights", "tidy"]
    assert main([*words, "--fail-regex", "MatMul", "--check", *check]) == 0
    biopsy.reduce(
        "model.onnx", lambda candidate: "MatMul" in operators(candidate), "api.onnx", takes="model",
        values="free", anonymize=True, skip_pass=("weights", "tidy"),
    )  # fmt: skip
    assert Path("cli.onnx").read_bytes() == Path("api.onnx").read_bytes()
    assert main([*words[:3], "--only-pass", "nonsense", "--check", *check]) == 2
    assert "names" in capsys.readouterr().err
