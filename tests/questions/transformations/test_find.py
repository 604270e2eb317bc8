"""What breaks a model is found in real tools, run in real processes."""

import sys
import time
import venv
from pathlib import Path

import numpy as np
import onnx
import pytest

from biopsy import errors, events
from biopsy.comparison.tolerance import Tolerances
from biopsy.engines.runner import Inputs, feeds_for, wider_sample
from biopsy.model.index import index_bytes
from biopsy.processes.watch import Limits
from biopsy.questions.transformations import find
from biopsy.questions.transformations.find import find_transformation
from biopsy.questions.transformations.question import CommandQuestion, SameEngine, parse_tool
from biopsy.questions.transformations.tools import OnnxRuntimeOffline
from support import bug, plug_ins
from support.transformations import (
    CAST_OF_INTEGERS,
    CLIP_RELU,
    LAYER_NORM,
    asked,
    graph,
    own_tool,
    question,
    sparse,
)

TWO_PASSES = """
if {"first", "second"} <= set(passes):
    data = data.replace(b"Add", b"Sub")
"""

ADDS = graph(
    "g (float[4] in_x) => (float[4] out_y) <float[4] c = {1, 2, 3, 4}> "
    "{ a = Relu (in_x)  b = Add (a, c)  out_y = Neg (b) }"
)


@pytest.mark.slow
def test_the_fusion_of_onnx_runtime_is_named_with_the_smallest_model_that_it_breaks(tmp_path: Path):
    bug.skip_without_it()
    found = asked(tmp_path, LAYER_NORM, "onnxruntime:level=extended", output=tmp_path / "piece.onnx")
    assert found.fault == "transformation"
    assert found.passes.alone == ("SimplifiedLayerNormFusion",)
    assert found.passes.without == (("SimplifiedLayerNormFusion",),)
    assert found.passes.verified and found.passes.whole_is_right
    assert [name.split()[0] for name in found.piece.nodes] == ["Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul"]
    assert any("SimplifiedLayerNormalization" in line for line in found.piece.after)
    assert "disabled_optimizers=['SimplifiedLayerNormFusion']" in found.passes.omission.python


@pytest.mark.slow
def test_the_files_of_the_piece_show_the_failure_without_biopsy(tmp_path: Path):
    import onnxruntime

    from biopsy.tensors.files import read_feeds

    found = asked(tmp_path, CLIP_RELU, "onnxscript", output=tmp_path / "piece.onnx")
    assert found.passes.alone == ("FuseSuccessiveReluClip",)
    assert found.piece.path and found.piece.after_path and found.piece.inputs
    (feed,) = read_feeds(found.piece.inputs)
    before, after = (
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, dict(feed))[0]
        for path in (found.piece.path, found.piece.after_path)
    )
    assert not np.allclose(before, after)


@pytest.mark.slow
def test_a_model_that_loading_and_saving_breaks_blames_no_pass(tmp_path: Path):
    found = asked(tmp_path, sparse(), "onnxscript")
    assert found.fault == "control"
    assert found.passes.alone == ()
    assert [name.split()[0] for name in found.piece.nodes] == ["MatMul"]


def test_what_is_right_after_it_is_no_failure(tmp_path: Path):
    with pytest.raises(errors.OriginalPasses, match="is right"):
        asked(tmp_path, ADDS, own_tool(tmp_path, ""))


def test_a_model_that_fails_by_itself_blames_no_tool(tmp_path: Path):
    model = graph("g (float[2,3] x) => (float[a,b] y) <float[2,3] w = {1,2,3,4,5,6}> { y = MatMul (x, w) }")
    with pytest.raises(errors.OriginalPasses, match="before it is transformed"):
        asked(tmp_path, model, own_tool(tmp_path, ""))


def test_a_model_that_is_never_twice_the_same_cannot_be_judged(tmp_path: Path):
    model = graph("g (float[4] x) => (float[4] y) { r = RandomUniformLike (x)  y = Add (x, r) }")
    with pytest.raises(errors.CheckError, match="differ from run to run"):
        asked(tmp_path, model, own_tool(tmp_path, ""), decides=same_engine("reference", x=np.ones(4, np.float32)))


def same_engine(engine: str, **feed: np.ndarray) -> SameEngine:
    return SameEngine(feeds=lambda: [feed], engine=engine)


# Commands


def test_passes_that_do_it_together_only_are_named_together(tmp_path: Path):
    by = own_tool(tmp_path, TWO_PASSES)
    found = asked(tmp_path, ADDS, by, passes=("harmless", "first", "other", "second"), reduces=False)
    assert set(found.passes.alone) == {"first", "second"}
    assert {frozenset(one) for one in found.passes.without} == {frozenset({"first"}), frozenset({"second"})}


@pytest.mark.slow
def test_a_tool_whose_passes_have_no_names_is_blamed_as_a_whole(tmp_path: Path):
    by = own_tool(tmp_path, "data = data.replace(b'Add', b'Sub')").replace(" {passes}", " none")
    found = asked(tmp_path, ADDS, by)
    assert found.passes.all == ()
    assert [name.split()[0] for name in found.piece.nodes] == ["Add"]


@pytest.mark.parametrize("name", ["FuseSuccesiveReluClip", "constant_folding_"])
def test_a_pass_that_the_tool_does_not_have_is_refused_and_not_found_harmless(tmp_path: Path, name: str):
    with pytest.raises(errors.UsageError, match=f"no pass '{name}' of onnxscript .* runs on") as caught:
        asked(tmp_path, CLIP_RELU, "onnxscript", passes=("FuseSuccessiveReluClip", name))
    assert caught.value.next_steps[0].startswith("did you mean")


def test_passes_that_a_command_is_not_told_are_refused(tmp_path: Path):
    by = own_tool(tmp_path, "").replace(" {passes}", " none")
    with pytest.raises(errors.UsageError, match="it is not told which passes may run"):
        asked(tmp_path, ADDS, by, passes=("first",))


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("data = data.replace(b'out_y', b'out_z')", "missing-output", "renames output 'out_y' to 'out_z'"),
        ("data = data.replace(b'in_x', b'in_z')", "new-input", "wants an input 'in_z'"),
        ("raise ValueError('no rule for Relu')", "exit status 1", "no rule for Relu"),
        ("os.abort()", "SIGABRT", ""),
        ("time.sleep(60)", "Timeout", "did not end within 1 s"),
        ("data = data.replace(b'Relu', b'ReLU')", "InvalidGraph", "ReLU"),
        ("data = b'no model'", "InvalidModel", ""),
        ("sys.exit(0)", "NoModel", "wrote no model"),
    ],
)
def test_each_way_to_fail_is_a_kind_of_its_own(tmp_path: Path, code: str, kind: str, words: str):
    by = own_tool(tmp_path, f"if passes:\n    {code}")
    found = asked(tmp_path, ADDS, by, passes=("wrong",), reduces=False, limits=Limits(seconds=1))
    assert found.signature.kind == kind
    assert words in found.failure or words in str(found.judged.evidence.verdict.message)


def test_a_pass_that_never_ends_is_named_without_waiting_long_for_each_run(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(find, "_LEAST_LIMIT", 1.0)
    monkeypatch.setattr(find, "_TIMES_THE_CONTROL", 1)
    heard: list[str] = []
    started = time.monotonic()
    found = asked(
        tmp_path,
        ADDS,
        own_tool(tmp_path, "if 'endless' in passes:\n    time.sleep(600)"),
        lambda event: heard.append(event.text) if isinstance(event, events.Remark) else None,
        passes=("harmless", "endless", "other"),
        reduces=False,
        limits=Limits(seconds=8),
    )
    assert (found.signature.kind, found.passes.alone, found.passes.without) == (
        *("Timeout", ("endless",)),
        (("endless",),),
    )
    assert any("counts as not ending" in text for text in heard)
    assert time.monotonic() - started < 60


def test_a_file_with_an_ending_that_the_tool_adds_is_what_the_check_gets(tmp_path: Path):
    (tmp_path / "check.py").write_text("import sys; sys.exit(b'Sub' in open(sys.argv[1], 'rb').read())")
    check = CommandQuestion(words=(sys.executable, str(tmp_path / "check.py"), "{}"))
    for ending in (".xml", ""):
        by = own_tool(
            tmp_path,
            f"data = data.replace(b'Add', b'Sub') if passes else data\nopen(sys.argv[2] + '.bin', 'w').write('1')\n"
            f"sys.argv[2] += {ending!r}",
        )
        found = asked(tmp_path, ADDS, by, passes=("wrong",), decides=check, reduces=False)
        assert (found.fault, found.passes.alone) == ("transformation", ("wrong",))
    by = own_tool(tmp_path, "sys.argv[2] += '.xml'")
    with pytest.raises(errors.CheckError, match=r"wrote a \.xml file, which no engine here compares"):
        asked(tmp_path, ADDS, by, passes=("wrong",))


def test_a_release_of_a_tool_that_biopsy_cannot_call_is_not_blamed(tmp_path: Path):
    venv.create(tmp_path / "other", with_pip=False)
    python = tmp_path / "other/bin/python"
    [packages] = (tmp_path / "other").glob("lib/python*/site-packages")
    plug_ins.install(packages, "onnxslim", "", "")
    (packages / "onnxslim.py").unlink()
    for file, code in (("__init__", ""), ("core/__init__", ""), ("core/optimization", "")):
        place = packages / "onnxslim" / f"{file}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(code)
    with pytest.raises(errors.CheckError, match=r"biopsy cannot call onnxslim 1\.0: AttributeError: .*Optimiz"):
        asked(tmp_path, ADDS, "onnxslim", python=python)


def test_the_passes_of_onnx_runtime_have_names_though_it_cannot_build_the_model(tmp_path: Path):
    onnx.save(graph("g (float[4] x) => (float[4] y) { y = Nonesuch (x) }"), tmp_path / "m.onnx")
    assert {"ConstantFolding", "EliminateIdentity"} <= {*OnnxRuntimeOffline().passes(str(tmp_path / "m.onnx"))}


@pytest.mark.slow
def test_a_check_of_the_user_decides_about_the_transformed_model(tmp_path: Path):
    check = tmp_path / "check.py"
    check.write_text("import onnx, sys\nsys.exit(any(n.op_type == 'Sub' for n in onnx.load(sys.argv[1]).graph.node))")
    by = own_tool(tmp_path, TWO_PASSES)
    decides = CommandQuestion(words=(sys.executable, str(check), "{}"))
    found = asked(tmp_path, ADDS, by, passes=("first", "second"), decides=decides, output=tmp_path / "piece.onnx")
    assert set(found.passes.alone) == {"first", "second"}
    assert found.where.engine == ""


@pytest.mark.slow
def test_a_tool_gets_a_model_with_its_weights_inside(tmp_path: Path):
    """Some write where in which file a weight stands, and the result stands in another folder."""
    path = tmp_path / "model.onnx"
    model = onnx.ModelProto.FromString(ADDS.SerializeToString())
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.float32([1, 2, 3, 4]), "c"))
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    by = own_tool(tmp_path, "assert b'weights.bin' not in data\n" + TWO_PASSES)
    asking = question(path, by, passes=("first", "second"), output=tmp_path / "piece.onnx")
    found = find_transformation(asking)
    assert [name.split()[0] for name in found.piece.nodes] == ["Add"]
    assert found.passes.whole_is_right
    assert {file.name for file in tmp_path.iterdir()} == {
        "model.onnx", "weights.bin", "tool.py", "piece.onnx", "piece.after.onnx", "piece.onnx.inputs.safetensors",
    }  # fmt: skip


def test_a_model_and_its_piece_stand_where_they_were_after_an_interrupt(tmp_path: Path):
    def interrupt(event: events.Event) -> None:
        if isinstance(event, events.PassDone):
            raise KeyboardInterrupt

    by = own_tool(tmp_path, TWO_PASSES)
    with pytest.raises((errors.Interrupted, KeyboardInterrupt)):
        asked(tmp_path, ADDS, by, interrupt, passes=("first", "second"), output=tmp_path / "piece.onnx")
    assert {file.suffix for file in tmp_path.iterdir()} <= {".onnx", ".py", ".safetensors"}


# What must not be right, or wrong, by mistake


def test_a_tool_that_writes_into_the_file_that_it_reads_gets_a_copy(tmp_path: Path):
    by = own_tool(tmp_path, "if passes:\n    open(sys.argv[1], 'wb').write(data := data.replace(b'Add', b'Sub'))")
    found = asked(tmp_path, ADDS, by, passes=("wrong",), reduces=False)
    assert (tmp_path / "model.onnx").read_bytes() == ADDS.SerializeToString()
    assert any("Add" in line for line in found.piece.before) and any("Sub" in line for line in found.piece.after)


TWO = graph("g (float[n] x) => (float[n] y, float[n] z) { y = Neg (x)  z = Relu (x) }")

_LOAD = "import onnx\nmodel = onnx.load_from_string(data)\ngraph = model.graph\n"
_SWAPPED = "graph.output.insert(2, graph.output[0])\ndel graph.output[0]"
_DOUBLE = """
graph.node[0].output[0] = 'w'
graph.node.append(onnx.helper.make_node('Cast', ['w'], ['y'], to=11))
graph.output[0].type.tensor_type.elem_type = 11"""
_FIXED = "graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1"


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (_SWAPPED, "other-order", "in another order: 'z', 'y', not 'y', 'z'"),
        (_DOUBLE, "other-type", "output 'y' is float64 now, not float32"),
        (_FIXED, "fixed-size", "dimension 0 of input 'x' is 1 now, and was open"),
    ],
)
def test_an_interface_that_changes_is_a_failure_though_the_values_are_right(
    tmp_path: Path, code: str, kind: str, words: str
):
    code = f"{_LOAD}{code}\ndata = model.SerializeToString()".replace("\n", "\n    ")
    by = own_tool(tmp_path, f"if passes:\n    {code}").replace("-I -S", "-I")
    found = asked(tmp_path, TWO, by, passes=("wrong",), reduces=False)
    assert found.signature.kind == kind and words in found.failure


def test_what_is_wrong_below_zero_only_is_found_with_made_up_inputs(tmp_path: Path):
    model = graph("g (float[64] x) => (float[64] y) { s = Mul (x, x)  r = Relu (x)  y = Mul (r, s) }")
    by = own_tool(tmp_path, _ABS).replace("-I -S", "-I")
    found = asked(tmp_path, model, by, passes=("wrong",), reduces=False, decides=_with_wider(model))
    assert found.fault == "transformation" and found.where.samples == 2


_ABS = f"""if passes:
    {_LOAD.replace(chr(10), chr(10) + "    ")}graph.node[1].op_type = 'Abs'
    data = model.SerializeToString()"""


def _with_wider(model: onnx.ModelProto) -> SameEngine:
    index = index_bytes(model.SerializeToString())
    kinds = {index.names[tensor]: index.value_type(tensor) for tensor in index.fed_inputs()}
    return SameEngine(
        feeds=lambda: feeds_for(kinds, Inputs()).feeds, wider=lambda: wider_sample(index, kinds, Inputs())
    )


def test_a_sequence_among_the_outputs_is_no_lost_output(tmp_path: Path):
    model = graph("g (float[4] x) => (seq(float[4]) y) { t = Neg (x)  y = SequenceConstruct (x, t) }")
    with pytest.raises(errors.OriginalPasses, match="is right"):
        asked(tmp_path, model, own_tool(tmp_path, ""))


def test_a_model_that_gives_no_number_cannot_be_judged(tmp_path: Path):
    model = graph("g (float[4] x) => (float[4] y) <float z = {0}> { t = Div (z, z)  y = Add (x, t) }")
    with pytest.raises(errors.CheckError, match="are never finite"):
        asked(tmp_path, model, own_tool(tmp_path, ""))


def test_an_output_far_below_the_tolerance_is_judged_by_its_size(tmp_path: Path):
    model = graph("g (float[4] x) => (float[4] y) <float s = {0.0000001}> { t = Mul (x, s)  y = Neg (t) }")
    by = own_tool(tmp_path, "data = data.replace(b'Neg', b'Abs') if passes else data")
    found = asked(tmp_path, model, by, passes=("wrong",), reduces=False)
    assert found.judged.evidence.verdict.kind == "mismatch"


@pytest.mark.parametrize(("by", "words"), [("onnxruntime", "no pass 'no_such'"), ("tool {} {out}", "has no {passes}")])
def test_passes_that_would_not_run_are_wrong_usage(tmp_path: Path, by: str, words: str):
    with pytest.raises(errors.UsageError, match=words):
        asked(tmp_path, ADDS, by, passes=("no_such",))


def test_a_check_that_does_not_name_the_model_is_wrong_usage(tmp_path: Path):
    with pytest.raises(errors.UsageError, match="the same of every model"):
        asked(tmp_path, ADDS, own_tool(tmp_path, ""), decides=CommandQuestion(words=("true",)))


def test_the_control_that_is_named_is_asked_of_a_command_with_passes_too(tmp_path: Path):
    by = own_tool(tmp_path, "")
    control = parse_tool(f"{sys.executable} -I -S -c 'raise SystemExit(3)' {{}} {{out}}")
    found = asked(tmp_path, ADDS, by, passes=("some",), control=control, reduces=False)
    assert found.fault == "control" and found.signature.kind == "exit status 3"


def test_the_fewest_passes_are_named_though_others_do_it_together(tmp_path: Path):
    by = own_tool(
        tmp_path, "if {'a', 'b', 'c'} <= set(passes) or 'd' in passes:\n    data = data.replace(b'Add', b'Sub')"
    )
    found = asked(tmp_path, ADDS, by, passes=("a", "b", "c", "d"), reduces=False)
    assert found.passes.alone == ("d",)


@pytest.mark.slow
def test_a_failure_that_comes_only_sometimes_is_told(tmp_path: Path):
    """The tool is wrong the first time, and right from then on."""
    mark = tmp_path / "mark"
    by = own_tool(
        tmp_path,
        f"if passes and not os.path.exists({str(mark)!r}):\n"
        f"    open({str(mark)!r}, 'w').close()\n    data = data.replace(b'Add', b'Sub')",
    )
    told: list[events.Event] = []
    asked(tmp_path, ADDS, by, told.append, passes=("wrong",), reduces=False)
    assert any(isinstance(one, events.Remark) and "only sometimes" in one.text for one in told)


@pytest.mark.slow
def test_of_a_flaky_tool_a_model_that_fails_is_shown_and_how_often_it_does(tmp_path: Path):
    """The tool is wrong in each third run: one more run, to show what it makes, would be right."""
    count = tmp_path / "count"
    by = own_tool(
        tmp_path,
        f"if passes:\n    with open({str(count)!r}, 'a') as file:\n        file.write('.')\n"
        "        number = file.tell()\n"
        "    if number % 3 == 0:\n        data = data.replace(b'Add', b'Sub')",
    )
    found = asked(tmp_path, ADDS, by, passes=("wrong",), reduces=False)
    assert any("Sub" in line for line in found.piece.after)
    assert f"in {found.where.rate.failed} of {found.where.rate.runs} runs" in found.sentence


# Rounding


def test_what_only_rounds_is_no_failure(tmp_path: Path):
    """The weight 40 is one rounding greater, which is more in the output than the tolerances allow."""
    model = graph(
        "g (float[64] x) => (float[64] y) <float k = {40.0}> "
        "{ s = Mul (x, k)  a = Exp (s)  n = Sigmoid (a)  y = Mul (a, n) }"
    )
    by = own_tool(tmp_path, "data = data.replace(bytes([0, 0, 0x20, 0x42]), bytes([1, 0, 0x20, 0x42]))")
    with pytest.raises(errors.OriginalPasses):
        asked(tmp_path, model, by)


@pytest.mark.slow
def test_a_conversion_to_float16_is_held_against_float16(tmp_path: Path):
    pytest.importorskip("onnxruntime.transformers.float16")
    model = graph("g (float[4,64] x) => (float[4,64] y) <float k = {1.001}> { [m] s = Mul (x, k)  [e] y = Exp (s) }")
    with pytest.raises(errors.OriginalPasses):
        asked(tmp_path, model, "onnxruntime.float16")
    feeds = [{"x": np.linspace(0, 1, 256, dtype=np.float32).reshape(4, 64)}]
    told = SameEngine(feeds=lambda: feeds, tolerances=Tolerances({"": 1e-6}, {"": 1e-6}), tolerances_decide=True)
    assert asked(tmp_path, model, "onnxruntime.float16", decides=told, reduces=False).signature.kind == "mismatch"


@pytest.mark.slow
@pytest.mark.parametrize("by", ["onnxruntime.float16", "quantize-static"])
def test_a_step_that_the_rounding_of_a_conversion_moves_over_a_border_is_no_failure(tmp_path: Path, by: str):
    model = graph(
        "g (float[4,64] x) => (float[4,64] y) "
        "{ [s] s = Sigmoid (x)  [m] t = MatMul (s, w)  [f] f = Floor (t)  [a] y = Mul (f, s) }"
    )
    weights = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    with pytest.raises(errors.OriginalPasses):
        asked(tmp_path, model, by)


@pytest.mark.slow
def test_a_correct_quantization_is_no_failure(tmp_path: Path):
    rng = np.random.default_rng(0)
    weights = onnx.numpy_helper.from_array(rng.normal(size=(16, 16)).astype(np.float32), "w")
    model = graph("g (float[8,16] x) => (float[8,16] y) { [m] t = MatMul (x, w)  [r] y = Relu (t) }")
    model.graph.initializer.append(weights)
    with pytest.raises(errors.OriginalPasses):
        asked(tmp_path, model, "quantize-static")


@pytest.mark.slow
def test_the_converter_that_forgets_a_cast_is_found(tmp_path: Path):
    pytest.importorskip("onnxconverter_common")
    found = asked(tmp_path, CAST_OF_INTEGERS, "fp16")
    assert found.passes.alone == ("Cast",)
    assert [name.split()[0] for name in found.piece.nodes] == ["Cast"]


# What is told


@pytest.mark.slow
def test_the_control_comes_first_and_every_check_is_told(tmp_path: Path):
    told: list[events.Event] = []
    asked(tmp_path, CLIP_RELU, "onnxscript", told.append)
    checking = [event.description for event in told if type(event) is events.Checking]
    assert checking[:2] == ["only load and save", "the whole model"]
    assert sum(isinstance(event, events.Checked) for event in told) >= len(checking)


@pytest.mark.slow
def test_findings_are_plain_values(tmp_path: Path):
    import json

    found = asked(tmp_path, CLIP_RELU, "onnxscript")
    tree = json.loads(json.dumps(found.as_json()))
    assert tree["passes"]["alone"] == ["FuseSuccessiveReluClip"]
    assert "Clip" in " ".join(tree["piece"]["text_before"])
    assert "FuseSuccessiveReluClip" in repr(found) and "<table" in found._repr_html_()
