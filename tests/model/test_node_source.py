"""Where a node comes from, by what its exporter wrote: real exports, other forms, and what strangers may write."""

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from biopsy.model.sources import NodeSource, is_stack, source_of
from support.exporters import FOLDER, exported


def sources(name: str) -> dict[str, NodeSource | None]:
    return {node.op_type: source_of(node.SerializeToString()) for node in exported(name).graph.node}


def noted(doc: str = "", name: str = "", **metadata: str) -> NodeSource | None:
    node = helper.make_node("Mul", ["a", "b"], ["c"], name=name, doc_string=doc)
    for key, value in metadata.items():
        prefix = "" if key == "namespace" else "pkg.torch.onnx."
        node.metadata_props.add(key=f"{prefix}{key}", value=value)
    return source_of(node.SerializeToString())


def test_an_export_of_pytorch_names_the_line_of_the_author_and_the_modules() -> None:
    found = sources("pytorch")
    assert {op: str(source) for op, source in found.items()} == {
        "Gemm": "model.py:11 in Attention.forward",
        "Softmax": "model.py:12 in Attention.forward",
        "Mul": "model.py:12 in Attention.forward",
        "Sigmoid": "model.py:25 in Model.forward",
    }
    gemm = found["Gemm"]
    assert gemm is not None
    assert (gemm.by, gemm.file, gemm.code) == ("pytorch", "/home/me/project/model.py", "y = self.query(x)")
    assert gemm.scopes == ("blocks", "blocks.0", "blocks.0.query")
    assert gemm.classes[-2:] == ("model.Attention", "torch.nn.modules.linear.Linear")


def test_an_export_of_torchscript_names_the_line_of_the_author_too() -> None:
    found = sources("torchscript")
    assert {op: str(source) for op, source in found.items()} == {
        "Gemm": "model.py:11 in forward",
        "Softmax": "model.py:12 in forward",
        "Mul": "model.py:16 in scaled",
        "Sigmoid": "model.py:25 in forward",
    }
    gemm = found["Gemm"]
    assert gemm is not None
    assert (gemm.by, gemm.scopes) == ("torchscript", ("blocks", "blocks.0", "blocks.0.query"))


def test_without_a_stack_the_source_is_the_module() -> None:
    scopes = noted(name_scopes="['', 'encoder', 'encoder.layer', 'mul']", class_hierarchy="['M', 'E', 'L', 'aten.mul']")
    assert (str(scopes), scopes and scopes.classes) == ("module encoder.layer", ("M", "E", "L"))
    assert str(noted(class_hierarchy="['M', 'aten.mul']")) == "class M"
    found = noted(namespace=": model.M/blocks.0: model.Block/mul: aten.mul.Tensor")
    assert found == NodeSource(by="namespace", scopes=("blocks.0",), classes=("model.M", "model.Block"))
    by_name = noted(name="/blocks.0/attention/Mul_3")
    assert by_name == NodeSource(by="torchscript", scopes=("blocks.0", "blocks.0.attention"))


FRAME = '  File "{}", line {}, in {}\n    z = x'


@pytest.mark.parametrize(
    ("files", "line"),
    [
        (["/me/model.py", "/v/site-packages/timm/layers.py", "/v/site-packages/torch/nn/functional.py"], 2),
        (["/v/site-packages/transformers/bert.py", "/v/site-packages/torch/nn/modules/linear.py"], 1),
        (["/me/model.py", "<string>", "<eval_with_key>.1"], 1),
        ([r"C:\me\torch_models\model.py", r"C:\venv\Lib\site-packages\torch\nn\functional.py"], 1),
        (["/me/torch/my_model.py", "/me/other.py", "/usr/lib/python3/dist-packages/onnxscript/x.py"], 2),
    ],
)
def test_the_source_is_the_innermost_frame_of_the_model(files: list[str], line: int) -> None:
    stack = "\n".join(FRAME.format(file, number, "forward") for number, file in enumerate(files, 1))
    found = noted(stack_trace=stack)
    assert found is not None
    assert (found.line, found.code) == (line, "z = x")


def test_a_library_that_a_forward_calls_is_not_the_model() -> None:
    frames = [("/me/model.py", "forward"), ("/v/site-packages/einops/einops.py", "rearrange")]
    stack = "\n".join(f'  File "{file}", line {number}, in {name}' for number, (file, name) in enumerate(frames, 1))
    found = noted(stack_trace=stack)
    assert found is not None and found.line == 1


@pytest.mark.parametrize("file", ["/src/pytorch/torch/nn/modules/linear.py", "<string>", "<eval_with_key>.1"])
def test_what_is_no_file_of_a_model_is_no_source(file: str) -> None:
    assert noted(stack_trace=FRAME.format(file, 1, "forward")) is None
    found = noted(stack_trace=FRAME.format(file, 1, "forward"), name_scopes="['', 'part', 'mul']")
    assert found is not None and str(found) == "module part"


def test_the_translated_operator_is_named() -> None:
    nodes = onnx.load(FOLDER / "mlp.onnx").graph.node
    found = [source_of(node.SerializeToString()) for node in nodes]
    assert [source and source.operator for source in found[:3]] == [
        "aten.layer_norm.default",
        "aten.linear.default",
        "aten.gelu.default",
    ]
    made = noted(fx_node="%swish = call_function[target=torch.ops.mine.swish.default](args = (%sin,), kwargs = {})",
                 name_scopes="['', 'act', 'swish']")  # fmt: skip
    assert made == NodeSource(by="pytorch", scopes=("act",), operator="mine.swish.default")


def test_a_class_is_named_only_where_every_module_has_its_frame() -> None:
    stack = "\n".join(FRAME.format("model.py", number, "forward") for number in (1, 2))
    sure = noted(stack_trace=stack, class_hierarchy="['a.Model', 'a.Block', 'aten.mul']")
    unsure = noted(stack_trace=stack, class_hierarchy="['a.Model', 'a.Block', 'a.Inner', 'aten.mul']")
    assert (str(sure), str(unsure)) == ("model.py:2 in Block.forward", "model.py:2 in forward")


@pytest.mark.parametrize("name", ["", "Mul_3", "model/dense/Mul", "/Mul", "/blocks/Add", "/a/b"])
def test_other_names_say_nothing(name: str) -> None:
    assert noted(name=name) is None


@given(st.text(max_size=200), st.text(max_size=200), st.text(max_size=60), st.text(max_size=30))
def test_any_text_of_strangers_is_read_without_harm(stack: str, listed: str, doc: str, name: str) -> None:
    clean = [text.encode("utf-8", "replace").decode() for text in (stack, f"['{listed}', '']", doc, name)]
    found = noted(stack_trace=clean[0], name_scopes=clean[1], doc=clean[2], name=clean[3])
    assert found is None or str(found)


def test_megabytes_are_not_read() -> None:
    many = FRAME.format("a.py", 1, "f") + "\n"
    found = noted(stack_trace=many * 100_000, name_scopes="[" + "'x', " * 500_000 + "]")
    assert found is not None
    assert len(found.scopes) < 100
    assert not is_stack("x" * 5_000_000 + "\na.py(1): f")


def stack(*files: str) -> str:
    return "".join(f'File "{file}", line {line}, in forward\n  code\n' for line, file in enumerate(files, 1))


TORCH = "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py"


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (["/home/me/models.py", "/usr/lib/python3.11/contextlib.py"], "/home/me/models.py"),
        (["/home/me/models.py", "<frozen importlib._bootstrap>"], "/home/me/models.py"),
        (["/home/me/models.py", "<eval_with_key>.39"], "/home/me/models.py"),
        (["/home/me/lib/torch/nn/models.py", TORCH], "/home/me/lib/torch/nn/models.py"),
        (
            ["/home/me/lib/torch/nn/models.py", "/home/me/lib/torch/utils/own.py", TORCH],
            "/home/me/lib/torch/utils/own.py",
        ),
        (["/home/me/pytorch/torch/nn/modules/linear.py", "/home/me/models.py"], "/home/me/models.py"),
        (["/home/me/models.py", "/home/me/pytorch/torch/nn/modules/linear.py"], "/home/me/models.py"),
        (["/home/me/.venv/lib/python3.11/site-packages/shop/model.py", TORCH], "shop"),
    ],
)
def test_no_source_is_in_python_itself_or_in_a_folder_like_torch(files: list[str], told: str) -> None:
    found = noted(stack_trace=stack(*files))
    assert found is not None
    assert found.file is not None
    assert told in found.file
    assert found.line == files.index(found.file) + 1


def test_code_generated_by_torch_is_no_source() -> None:
    assert noted(stack_trace=stack("<eval_with_key>.39")) is None
    found = noted(stack_trace=stack("<eval_with_key>.39"), name_scopes="['', 'first', 'linear']")
    assert found is not None
    assert (found.file, str(found)) == (None, "module first")


@pytest.mark.parametrize("files", [["<string>", TORCH], [TORCH]])
def test_code_without_a_file_and_torch_itself_are_no_places(files: list[str]) -> None:
    found = noted(stack_trace=stack(*files))
    assert found is None or found.file is None
