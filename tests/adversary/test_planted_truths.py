"""What a diagnosis says of bugs that are planted in an engine, held against what was planted."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

from support.command_line import BIN
from support.planting import planted as planted

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
layers (float[4,8] x) => (float[4,8] y)
{
    [product] a = MatMul (x, w1)
    [sum] b = Add (a, b1)
    [rectifier] c = Relu (b)
    [tanh] f = Tanh (c)
    [softmax] s = Softmax <axis = -1> (f)
    [scale] m = Mul (s, k)
    [difference] y = Sub (m, f)
}
"""

MATMULS = """
<ir_version: 8, opset_import: ["" : 17]>
layers (float[4,8] x) => (float[4,8] y)
{
    [first] a = MatMul (x, w1)
    [tanh1] b = Tanh (a)
    [second] c = MatMul (b, w1)
    [tanh2] d = Tanh (c)
    [third] e = MatMul (d, w1)
    [tanh3] f = Tanh (e)
    [fourth] g = MatMul (f, w1)
    [tanh4] h = Tanh (g)
    [fifth] y = MatMul (h, w1)
}
"""


class Said(NamedTuple):
    """The status of a diagnosis, the kind of its verdict and its text; its report, and all that can be read of it."""

    status: int
    kind: str
    text: str
    report: Mapping[str, Any]
    everything: str

    @property
    def rest(self) -> Mapping[str, Any]:
        """What the report says of the rest of the model."""
        return self.report.get("rest") or {}

    @property
    def narrower(self) -> Mapping[str, Any]:
        """What the report says of a narrower type."""
        return self.report.get("narrower") or {}

    @property
    def others(self) -> list[list[str]]:
        """The other parts that fail, by the labels of their nodes."""
        return [other["nodes"] for other in self.rest.get("others", ())]


def write_model(folder: Path, text: str = MODEL) -> None:
    """Write a model of this text, with weights for those of its names that have none."""
    model, random = onnx.parser.parse_model(text), np.random.default_rng(0)
    for name, shape in {"w1": (8, 8), "b1": (8,), "k": (8,)}.items():
        values = random.normal(0, 0.5, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    onnx.save(model, folder / "model.onnx")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the model."""
    write_model(tmp_path)
    return tmp_path


def biopsy(folder: Path, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder."""
    env = os.environ | variables
    return subprocess.run([BIN / "biopsy", *words], cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def diagnosed(folder: Path, planted: Callable[..., str]) -> Callable[..., Said]:
    """Diagnoses the model in the engine with planted rules, beside the reference evaluator."""

    def diagnose(*rules: Mapping[str, Any], text: str = "") -> Said:
        if text:
            write_model(folder, text)
        words = ["diagnose", "model.onnx", "--reference", "--engine", planted(*rules)]
        ran = biopsy(folder, *words, "--report", "report.json", "--bundle", "bundle")
        report = json.loads((folder / "report.json").read_text())
        files = [folder / "bundle" / name for name in ("ISSUE.md", "report.html")]
        texts = [ran.stdout, ran.stderr, *(file.read_text() for file in files if file.exists())]
        verdict = report["verdict"]
        text = " ".join((verdict["text"], *verdict["reasons"]))
        return Said(ran.returncode, verdict["kind"], text, report, "\n".join(texts))

    return diagnose


@pytest.mark.slow
def test_a_node_that_is_wrong_only_as_an_output_is_no_failure_of_the_model(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "Tanh", "does": "scale", "marked": True})
    assert (said.status, said.kind) == (0, "passes")
    assert "computes Tanh 'tanh' wrongly only if it is an output of the model" in said.text


@pytest.mark.slow
def test_a_wrong_copy_of_an_inner_tensor_is_no_failure_of_the_model(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "Tanh", "does": "scale", "copy": True})
    assert (said.status, said.kind) == (0, "passes")
    assert "computes Tanh 'tanh' wrongly only if it is an output of the model" in said.text


@pytest.mark.slow
def test_a_wrong_copy_of_an_output_is_a_failure(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "difference", "does": "scale", "copy": True})
    assert (said.status, said.kind) == (1, "reduced")
    assert "Sub 'difference'" in said.text


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.7])
def test_nothing_mends_a_flaky_node_and_no_other_is_blamed(diagnosed: Callable[..., Said], share: float) -> None:
    said = diagnosed({"op": "Softmax", "does": "scale", "share": share})
    assert said.status == 1
    assert "Softmax 'softmax'" in said.text
    assert said.kind != "rounding"
    wrong = ("goes away", "opset", "MatMul", "Add", "Relu", "Mul", "Sub")
    assert not [words for words in wrong if words in said.text]


@pytest.mark.slow
def test_a_node_that_is_always_wrong_is_told_from_one_that_rounds_differently(diagnosed: Callable[..., Said]) -> None:
    varies = {"op": "Softmax", "does": "add", "by": 1e-7, "share": 0.5}
    said = diagnosed({"op": "Add", "does": "scale"}, varies)
    assert (said.status, said.kind) == (1, "reduced")
    assert "one node, Add 'sum'" in said.text
    assert "deterministic" not in said.text


@pytest.mark.slow
def test_an_engine_that_contradicts_itself_in_any_model_is_the_headline(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "any", "does": "scale", "share": 0.5})
    assert (said.status, said.kind) == (1, "flaky")
    assert said.text.startswith("Not deterministic: the engine 'planted'")


@pytest.mark.slow
def test_nodes_that_fail_only_while_nothing_marks_them_are_no_proof_of_a_fusion(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "Tanh", "does": "scale", "marked": False})
    assert (said.status, said.kind) == (1, "reduced")
    assert "but not if the tensors between them are outputs" in said.text
    assert "fusion" not in said.text


HIDDEN_SHAPE = """
<ir_version: 8, opset_import: ["" : 17]>
mean (float[4,8] x) => (float[4] y)
{
    [gate] g = Tanh (x)
    [mean] y = ReduceMean <axes = [1], keepdims = 0> (g)
}
"""


@pytest.mark.slow
def test_a_shape_that_the_outputs_do_not_show_is_told_of_the_node_that_gives_it(
    folder: Path, diagnosed: Callable[..., Said]
) -> None:
    onnx.save(onnx.parser.parse_model(HIDDEN_SHAPE), folder / "model.onnx")
    said = diagnosed({"op": "Tanh", "does": "widen"})
    assert said.kind == "reduced"
    assert "Tanh 'gate', which gives 'g' of shape [4, 9] where the model declares [4, 8]" in said.text
    certainty = json.loads((folder / "report.json").read_text())["verdict"]["certainty"]
    assert "can be left out" not in certainty  # Tanh alone fails too, in another way


KINDS = [
    ("scale", "mismatch", "computes wrong values for one node, Sub 'difference'"),
    ("nan", "nan-mismatch", "gives NaN"),
    ("inf", "+inf-mismatch", "gives infinity"),
    ("-inf", "-inf-mismatch", "gives -infinity"),
    ("widen", "shape-mismatch", "gives 'y' of shape [4, 9] where the model declares [4, 8]"),
    ("cast", "type-mismatch", "gives 'y' of type float64 where the model declares float32"),
    ("leave out", "missing output", "does not give output 'y'"),
    ("refuse build", "NotSupported", "cannot build one node"),
    ("refuse run", "RuntimeError", "cannot run one node"),
    ("crash build", "SIGSEGV", "crashes when it builds one node, Sub 'difference'"),
    ("crash run", "SIGSEGV", "crashes when it runs one node, Sub 'difference'"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("does", "kind", "said"), KINDS, ids=[does for does, _, _ in KINDS])
def test_a_failure_is_of_its_kind_at_every_step(
    folder: Path, planted: Callable[..., str], does: str, kind: str, said: str
) -> None:
    engines = [
        "--reference",
        "--engine",
        planted({"op": "Sub", "does": does, **({"by": "float64"} if does == "cast" else {})}),
    ]

    def kind_of_run(model: str, *words: str) -> str:
        verdict = folder / "verdict.json"
        ran = biopsy(folder, "run", model, *engines, *words, BIOPSY_VERDICT=str(verdict))
        if ran.returncode < 0:
            return signal.Signals(-ran.returncode).name
        assert ran.returncode == 1, ran.stdout + ran.stderr
        return str(json.loads(verdict.read_text())["kind"])

    assert kind_of_run("model.onnx") == kind

    layers = biopsy(folder, "debug", "layers", "model.onnx", *engines, "--report", "layers.json")
    assert layers.returncode == 1
    worst = json.loads((folder / "layers.json").read_text())["layers"]["ranking"][0]
    assert (worst["failure"] or worst["error"])["kind"] == kind
    assert worst["labels"] == ["Sub 'difference'"]

    assert biopsy(folder, "diagnose", "model.onnx", *engines, "--report", "report.json").returncode == 1
    report = json.loads((folder / "report.json").read_text())
    piece = report["piece"]
    assert kind in (report["failure"]["kind"] or report["failure"]["signature"])
    assert said in report["verdict"]["text"]
    assert [node["name"] for node in piece["nodes"]] == ["difference"]
    inputs = ["--load-inputs", piece["inputs_path"]] if piece["inputs_path"] else []
    assert kind_of_run(piece["path"], *inputs) == kind


_OF_VALUES = ("within the tolerance", "outputs are wrong", "wrongly", "wrong by", "more than rounding", "is right")
"""Words that need values, which a model that crashes or is refused does not give."""


@pytest.mark.slow
@pytest.mark.parametrize("after", [{}, {"after": "Relu"}])
@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("crash build", "crashes when it builds"),
        ("crash run", "crashes when it runs"),
        ("refuse build", "cannot build"),
        ("refuse run", "cannot run"),
    ],
)
def test_nothing_is_said_of_values_where_there_are_none(
    does: str, words: str, after: Mapping[str, str], diagnosed: Callable[..., Said]
) -> None:
    said = diagnosed({"op": "Tanh", "does": does, **after})
    failure, whole, piece = (said.report[key] for key in ("failure", "whole", "piece"))
    assert (said.status, failure["engine"], failure["stage"]) == (1, "planted", does.split()[1])
    assert (failure["kind"] == "SIGSEGV") == does.startswith("crash")
    assert words in said.text
    assert [node["op_type"] for node in piece["nodes"]] == [*after.values(), "Tanh"]
    assert (whole["introduced"], whole["propagated"]) == ({}, {})
    assert [words for words in _OF_VALUES if words in said.everything] == []


@pytest.mark.slow
def test_a_piece_of_one_crash_is_no_piece_of_another(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "Tanh", "does": "crash run"}, {"op": "Relu", "does": "crash build"})
    assert said.report["failure"]["stage"] == "build"
    assert [node["op_type"] for node in said.report["piece"]["nodes"]] == ["Relu"]
    assert "crashes when it builds one node, Relu 'rectifier' (SIGSEGV)" in said.text


@pytest.mark.slow
def test_one_wrong_node_is_said_to_be_all_that_fails(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "Softmax", "does": "scale"})
    assert (said.rest["answer"], said.others) == ("passes", [])
    assert "With that part cut out, and fed with what the reference evaluator of onnx computes there" in said.text
    assert "agree on the rest of the model; float64 agrees with both" in said.text
    assert "the whole model passes" not in said.everything


@pytest.mark.slow
def test_one_of_five_wrong_nodes_is_not_said_to_be_all(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "MatMul", "does": "scale"}, text=MATMULS)
    assert "one of at least 5 that fail in this way, each by itself (MatMul: 5 nodes)" in said.text
    assert said.rest["answer"] == "passes"


@pytest.mark.slow
def test_another_operator_that_is_wrong_too_is_named(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "MatMul", "does": "scale"}, {"op": "Softmax", "does": "scale"})
    assert "(MatMul: 1 node; Softmax: 1 node)" in said.text or "(Softmax: 1 node; MatMul: 1 node)" in said.text
    assert (said.rest["answer"], len(said.others)) == ("passes", 1)


@pytest.mark.slow
def test_a_wrong_node_that_another_one_hides_is_named(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "Add", "does": "scale"}, {"op": "Tanh", "does": "scale", "by": 0.0})
    assert "Add: 1 node" in said.text and "Tanh: 1 node" in said.text
    assert (said.rest["answer"], len(said.others)) == ("passes", 1)


@pytest.mark.slow
def test_every_node_that_cannot_be_built_is_counted(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "MatMul", "does": "refuse build"}, text=MATMULS)
    assert "one of at least 5 that fail in this way" in said.text
    assert said.rest["answer"] == "passes"


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "types"), [("fp16", ["float16", "tf32"]), ("bf16", ["bfloat16"])])
def test_the_error_of_a_narrower_type_is_known(diagnosed: Callable[..., Said], rule: str, types: list[str]) -> None:
    said = diagnosed({"op": "MatMul", "does": rule})
    assert (said.narrower["types"], said.narrower["rounded"]) == (types, "results")
    assert f"The error is that of {' or '.join(types)} arithmetic" in said.text


@pytest.mark.slow
@pytest.mark.parametrize("by", [1 + 2.0**-11, 1 + 2.0**-8])
def test_another_error_of_that_size_is_not(diagnosed: Callable[..., Said], by: float) -> None:
    said = diagnosed({"op": "MatMul", "does": "scale", "by": by})
    assert said.narrower["types"] == []
    assert said.narrower["tried"] == 9
    assert "error is that of" not in said.text


HALVED = """
<ir_version: 8, opset_import: ["" : 17]>
halved (float[4,8] x) => (float[4,8] y)
{
    [product] a = MatMul (x, w1)
    [half] h = Cast <to = 10> (a)
    [single] s = Cast <to = 1> (h)
    [sum] y = Add (s, b1)
}
"""


@pytest.mark.slow
def test_a_cast_that_an_engine_leaves_out_is_no_rounding(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "half", "does": "skip"}, text=HALVED)
    assert (said.status, said.kind) == (1, "fails")
    assert "computes wrong values for Cast 'half'" in said.text
    assert "It skips the rounding that Casts to a narrower type require" in said.text


TWICE_HALVED = """
<ir_version: 8, opset_import: ["" : 17]>
halved (float[4,8] x) => (float[4,8] y)
{
    [half1] h = Cast <to = 10> (x)
    [single1] s = Cast <to = 1> (h)
    [product] a = MatMul (s, w1)
    [tanh] b = Tanh (a)
    [half2] e = Cast <to = 10> (b)
    [single2] f = Cast <to = 1> (e)
    [last] y = MatMul (f, w1)
}
"""


@pytest.mark.slow
def test_one_cast_of_two_that_an_engine_leaves_out_is_no_rounding(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "half2", "does": "skip"}, text=TWICE_HALVED)
    assert (said.status, said.kind) == (1, "reduced")
    assert "half2" in said.everything and "for Cast" in said.text
    assert "no engine is at fault" not in said.everything


@pytest.mark.slow
def test_a_cast_that_is_left_out_in_the_rest_is_no_rounding(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "half", "does": "skip"}, {"op": "sum", "does": "scale"}, text=HALVED)
    assert "for one node, Add 'sum'" in said.text
    assert "leaves out the rounding of Cast 'half'" in said.text and "by rounding only" not in said.text


@pytest.mark.slow
def test_rounding_beside_a_cast_is_not_called_a_cast_that_is_left_out(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "sum", "does": "scale", "by": 1.00005}, text=HALVED)
    assert "It skips the rounding that Casts" not in said.text


INVALID = {
    "two nodes of one name": "[n] a = Relu (x) [n] y = Sub (a, x)",
    "one tensor computed twice": "a = Relu (x) a = Tanh (x) y = Sub (a, x)",
    "a tensor that nothing computes": "a = Relu (x) y = Sub (a, nowhere)",
    "a lacking input": "a = Relu (x) y = Sub (a)",
    "an attribute that the operator does not have": "a = Relu <axes = 3> (x) y = Sub (a, x)",
    "an operator that is newer than the opset": "a = Gelu (x) y = Sub (a, x)",
    "an output that nothing computes": "a = Relu (x) b = Sub (a, x)",
}


@pytest.mark.slow
@pytest.mark.parametrize("nodes", INVALID.values(), ids=INVALID)
@pytest.mark.parametrize("engine", ["planted", "onnxrt"])
def test_no_engine_is_blamed_for_refusing_an_invalid_model(
    folder: Path, planted: Callable[..., str], engine: str, nodes: str
) -> None:
    header = '<ir_version: 8, opset_import: ["" : 17]> g (float[4,8] x) => (float[4,8] y)'
    onnx.save(onnx.parser.parse_model(f"{header} {{ {nodes} }}"), folder / "model.onnx")
    spec = planted({"op": "any", "does": "refuse build"}) if engine == "planted" else engine
    words = ["diagnose", "model.onnx", "--engine", spec, "--report", "report.json", "--bundle", "bundle"]
    ran = biopsy(folder, *words)
    verdict = json.loads((folder / "report.json").read_text())["verdict"]
    assert (ran.returncode, verdict["kind"]) == (1, "invalid")
    assert verdict["text"].startswith("The model is invalid")
    assert "biopsy check lint model.onnx" in ran.stdout + ran.stderr
    assert not (folder / "bundle" / "ISSUE.md").exists()


@pytest.mark.slow
@pytest.mark.parametrize("does", ["refuse build", "crash build", "scale"])
def test_an_invalid_model_is_no_excuse_for_a_crash_or_wrong_values(
    folder: Path, diagnosed: Callable[..., Said], does: str
) -> None:
    text = MODEL if does == "refuse build" else MODEL.replace("[rectifier]", "[sum]")
    said = diagnosed({"op": "Softmax", "does": does}, text=text)
    assert (said.status, said.kind) == (1, "reduced")
    assert "Softmax 'softmax'" in said.text


@pytest.mark.slow
def test_two_engines_that_agree_are_not_said_to_be_right(folder: Path, planted: Callable[..., str]) -> None:
    both = {"op": "Tanh", "does": "scale", "by": 1.01}
    engines = ["--engine", planted(both), "--engine", planted(both, {"op": "Mul", "does": "scale"})]
    assert biopsy(folder, "diagnose", "model.onnx", *engines, "--report", "report.json").returncode == 1
    report = json.loads((folder / "report.json").read_text())
    assert (report["rest"]["answer"], len(report["rest"]["wrong"])) == ("passes", 2)
    said = " ".join(report["verdict"]["reasons"])
    assert "agree on the rest of the model; but float64 gives other values there" in said
    assert "passes" not in said


@pytest.mark.slow
def test_two_engines_that_share_a_bug_are_not_said_to_be_right(folder: Path, planted: Callable[..., str]) -> None:
    shared = {"op": "Tanh", "does": "scale", "by": 1.01}
    engines = ["--engine", planted(shared), "--engine", planted(shared)]
    assert biopsy(folder, "diagnose", "model.onnx", *engines, "--report", "report.json").returncode == 0
    verdict = json.loads((folder / "report.json").read_text())["verdict"]
    assert "But float64 gives other values than" in verdict["text"]


@pytest.mark.slow
def test_of_two_wrong_engines_each_is_given_its_parts(folder: Path, planted: Callable[..., str]) -> None:
    engines = [planted({"op": op, "does": "scale"}) for op in ("Tanh", "Mul")]
    words = ["diagnose", "model.onnx", "--engine", engines[0], "--engine", engines[1], "--report", "report.json"]
    assert biopsy(folder, *words).returncode == 1
    report = json.loads((folder / "report.json").read_text())
    piece = report["piece"]["nodes"]
    of_others = {tuple(other["nodes"]): other["wrong"] for other in report["rest"]["others"]}
    truth = {"Tanh": engines[0], "Mul": engines[1]}
    assert len(piece) == 1 and report["failure"]["suspect"] == truth[piece[0]["op_type"]]
    ((nodes, wrong),) = of_others.items()
    assert wrong == [truth[nodes[0].partition(" ")[0]]]
    assert "is wrong on 1 of these parts (" in " ".join(report["verdict"]["reasons"])


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["fp16", "bf16"])
def test_a_model_in_float64_may_have_the_error_of_a_narrower_type(
    diagnosed: Callable[..., Said], folder: Path, rule: str
) -> None:
    model = onnx.parser.parse_model(MATMULS.replace("float[", "double["))
    weight = np.random.default_rng(0).normal(0, 0.5, (8, 8))
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w1"))
    onnx.save(model, folder / "model.onnx")
    said = diagnosed({"op": "MatMul", "does": rule})
    assert {"fp16": "float16", "bf16": "bfloat16"}[rule] in said.narrower["types"]


@pytest.mark.slow
def test_a_setting_with_which_another_failure_stays_is_no_workaround(diagnosed: Callable[..., Said]) -> None:
    rare = {"op": "Tanh", "does": "refuse run", "every": 6, "unless": "pass_b"}
    said = diagnosed({"op": "Softmax", "does": "scale", "unless": ["pass_a", "pass_b"]}, rare)
    assert said.status == 1
    workarounds = " ".join(each["text"] for each in said.report["verdict"]["workarounds"])
    assert "pass_a" not in workarounds


@pytest.mark.slow
def test_a_workaround_says_in_how_many_runs_it_held(diagnosed: Callable[..., Said]) -> None:
    said = diagnosed({"op": "Softmax", "does": "scale", "unless": "pass_a"})
    texts = [each["text"] for each in said.report["verdict"]["workarounds"]]
    assert any("pass_a=false" in text and "runs)." in text for text in texts), texts


NOISE = """
<ir_version: 8, opset_import: ["" : 17]>
noisy (float[4,8] x) => (float[4,8] y)
{
    [noise] r = RandomNormalLike <seed = 3.0> (x)
    [nothing] n = Mul (r, zero)
    [sum] a = Add (x, EFFECT)
    [tanh] y = Tanh (a)
}
"""


@pytest.mark.slow
def test_an_output_that_no_random_operator_reaches_is_named(folder: Path, planted: Callable[..., str]) -> None:
    text = NOISE.replace("EFFECT", "r").replace(" <seed = 3.0>", "")
    text = text.replace("=> (float[4,8] y)", "=> (float[4,8] y, float[4,8] z)")
    model = onnx.parser.parse_model(text.replace("y = Tanh (a)", "y = Tanh (a) [other] z = Tanh (x)"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((1,), np.float32), "zero"))
    onnx.save(model, folder / "model.onnx")
    words = ["diagnose", "model.onnx", "--reference", "--engine", planted({"op": "other", "does": "scale"})]
    assert biopsy(folder, *words, "--report", "report.json").returncode == 1
    verdict = json.loads((folder / "report.json").read_text())["verdict"]
    assert verdict["kind"] == "random" and "an engine is wrong" not in verdict["text"]
    assert "'z' also differs without depending on them: mark only this as an output, and ask again" in verdict["text"]


@pytest.mark.slow
@pytest.mark.parametrize(("effect", "kind", "word"), [("n", "reduced", "Tanh 'tanh'"), ("r", "random", "noise")])
def test_random_values_are_blamed_only_where_the_outputs_depend_on_them(
    folder: Path, planted: Callable[..., str], effect: str, kind: str, word: str
) -> None:
    model = onnx.parser.parse_model(NOISE.replace("EFFECT", effect))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((1,), np.float32), "zero"))
    onnx.save(model, folder / "model.onnx")
    words = ["diagnose", "model.onnx", "--reference", "--engine", planted({"op": "Tanh", "does": "scale"})]
    assert biopsy(folder, *words, "--report", "report.json").returncode == 1
    verdict = json.loads((folder / "report.json").read_text())["verdict"]
    assert verdict["kind"] == kind
    assert word in verdict["text"]


@pytest.mark.slow
def test_no_value_is_called_expected_before_it_is_known_which_engine_is_wrong(
    folder: Path, planted: Callable[..., str]
) -> None:
    engine = planted({"op": "Tanh", "does": "scale"})
    ran = biopsy(folder, "diagnose", "model.onnx", "--engine", engine, "--reference", "--max-time", "20s")
    first = next(line for line in ran.stdout.splitlines() if line.startswith("fails "))
    assert re.search(r"of 'y': reference gives -?[\d.]+, planted gives -?[\d.]+ ", first)
    verdict = next(line for line in ran.stdout.splitlines() if line.startswith("FAILED"))
    assert ("expected" in verdict) == ("computes wrong values" in verdict)


@pytest.mark.slow
def test_a_quantizer_that_breaks_ties_the_other_way_is_not_acquitted_as_rounding(
    folder: Path, planted: Callable[..., str]
) -> None:
    ties = (np.arange(32).reshape(4, 8) % 9 * 2 + 0.5).astype(np.float32)
    np.savez(folder / "inputs.npz", x=ties)
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        ties (float[4,8] x) => (float[4,8] y) <float one = {1}>
        { r = Relu (x) q = QuantizeLinear <output_dtype = 3> (r, one) d = DequantizeLinear (q, one) y = Tanh (d) }""")
    onnx.save(model, folder / "model.onnx")
    engine = planted({"op": "QuantizeLinear", "does": "add", "by": 1})  # as all ties lie above even numbers
    words = ["--onnxrt", "--engine", engine, "--load-inputs", "inputs.npz", "--max-time", "25s"]
    biopsy(folder, "diagnose", "model.onnx", *words, "--report", "report.json")
    report = json.loads((folder / "report.json").read_text())
    assert "QuantizeLinear" in report["verdict"]["text"]
    assert report["failure"]["rounding"]["verdict"] == "bug"
