"""The layout of Polygraphy's ``inspect model``: its lines, and ours where it has none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from biopsy import errors
from biopsy.model.describe import description
from support.models import info, model, save, weight

EVERYTHING = ("layers", "attrs", "weights")

BODIES = """
<ir_version: 9, opset_import: ["" : 17, "com.x" : 1]>
g (bool c, float[2] x) => (float[2] y, float z)
{
   y = If (c) <then_branch = a () => (float[2] q) { q = Relu(x) },
               else_branch = b () => (float[2] r) <float[2] w = {1, 2}> { r = Add(x, w) }>
   k = Constant <value = float[2] {3, 4}> ()
   [foo] z = com.x.Foo <alpha = 1.5, names = ["a", "b"], st = "hello", ii = [1, 2, 3]> (x, k, "")
}"""

TEXT_OF_BODIES = """\
[I] ==== ONNX Model ====
    Name: g | ONNX Opset: 17 | Other Opsets: {'com.x': 1}

    ---- 2 Graph Input(s) ----
    {c [dtype=bool, shape=()],
     x [dtype=float32, shape=(2,)]}

    ---- 2 Graph Output(s) ----
    {y [dtype=float32, shape=(2,)],
     z [dtype=float32, shape=()]}

    ---- 0 Initializer(s) ----
    {}

    ---- 3 Node(s) ----
    Node 0    |  [Op: If]
        {c [dtype=bool, shape=()]}
         -> {y [dtype=float32, shape=(2,)]}
        ---- Attributes ----
        then_branch =
                ---- 0 Subgraph Input(s) ----
                {}

                ---- 1 Subgraph Output(s) ----
                {q [dtype=float32, shape=(2,)]}

                ---- 0 Initializer(s) ----
                {}

                ---- 1 Node(s) ----
                Node 0    |  [Op: Relu]
                    {x [dtype=float32, shape=(2,)]}
                     -> {q [dtype=float32, shape=(2,)]}

        else_branch =
                ---- 0 Subgraph Input(s) ----
                {}

                ---- 1 Subgraph Output(s) ----
                {r [dtype=float32, shape=(2,)]}

                ---- 1 Initializer(s) ----
                Initializer | w [dtype=float32, shape=[2]] | Values:
                    [1. 2.]

                ---- 1 Node(s) ----
                Node 0    |  [Op: Add]
                    {x [dtype=float32, shape=(2,)],
                     Initializer | w [dtype=float32, shape=(2,)]}
                     -> {r [dtype=float32, shape=(2,)]}


    Node 1    |  [Op: Constant]
        {} -> {k}
        ---- Attributes ----
        value = Tensor: [dtype=float32, shape=[2]] | Values:
            [3. 4.]

    Node 2    | foo [Op: Foo] [Domain: com.x]
        {x [dtype=float32, shape=(2,)],
         k,
         }
         -> {z [dtype=float32, shape=()]}
        ---- Attributes ----
        foo.alpha = 1.5
        foo.names = ['a', 'b']
        foo.st = hello
        foo.ii = [1, 2, 3]"""


def text_of(made: onnx.ModelProto, folder: Path, show: Sequence[str] = EVERYTHING) -> str:
    lines = [line.rstrip() for line in description(save(made, folder / "m.onnx"), show)]
    return "\n".join(lines[lines.index("[I] ==== ONNX Model ====") :])


def test_nodes_attributes_bodies_and_weights_are_in_polygraphys_layout(tmp_path: Path) -> None:
    assert text_of(onnx.parser.parse_model(BODIES), tmp_path) == TEXT_OF_BODIES


def test_open_dimensions_are_names_or_minus_one_and_an_unknown_shape_is_none(tmp_path: Path) -> None:
    made = model([helper.make_node("Relu", ["x"], ["y"])], [info("x", ["N", None, 3])], [info("y", None)])
    shown = text_of(made, tmp_path)
    assert "{x [dtype=float32, shape=('N', -1, 3)]}" in shown
    assert "{y [dtype=float32, shape=None]}" in shown


def test_a_weight_that_is_also_an_input_has_a_line_of_its_own(tmp_path: Path) -> None:
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    made = model([node], [info("x"), info("w")], [info("y")], [weight("w", 1, 2, 3, 4, shape=[2, 2])])
    shown = text_of(made, tmp_path, [])
    assert "---- 1 Graph Input(s) ----\n    {x [" in shown
    assert shown.endswith("\n    ---- 1 Initializer(s) that are Graph Input(s) too, as defaults: w ----")


def test_large_weights_are_shortened_as_numpy_does(tmp_path: Path) -> None:
    values = np.arange(6000, dtype="float32").reshape(60, 100)
    made = model([], [], [], [numpy_helper.from_array(values, "w")])
    assert all(line in text_of(made, tmp_path) for line in str(values).split("\n"))


def test_values_of_types_that_numpy_lacks_are_never_shown_as_bits(tmp_path: Path) -> None:
    made = model([], [], [], [helper.make_tensor("w", TensorProto.FLOAT8E4M3FN, [2], [1, 2])])
    shown = text_of(made, tmp_path)
    assert "Initializer | w [dtype=float8e4m3fn, shape=[2]] | Values:" in shown
    assert "[56 64]" not in shown


def test_names_of_strangers_are_escaped_once(tmp_path: Path) -> None:
    strange = "a\x1b[31m\nb"
    told = {"name": strange, "domain": strange, "text": strange, "texts": [strange]}
    made = model(
        [helper.make_node("Relu", [strange], [strange + "y"], **told)],
        [info(strange, [strange])],
        [info("o")],
        [weight(strange + "w", 1.0)],
        domains=[strange],
    )
    made.graph.name = made.graph.doc_string = strange
    shown = text_of(made, tmp_path)
    assert "\x1b" not in shown
    assert "\\\\" not in shown
    assert len([line for line in shown.split("\n") if line.startswith("b")]) == 0


def test_a_damaged_model_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    data = onnx.parser.parse_model(BODIES).SerializeToString()
    for end in range(0, len(data), 7):
        (tmp_path / "m.onnx").write_bytes(data[:end])
        try:
            list(description(tmp_path / "m.onnx", EVERYTHING))
        except errors.ModelError as error:
            assert "m.onnx" in error.message
