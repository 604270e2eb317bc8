"""An anonymized file holds nothing of the original's that the report does not name: every field of ONNX is tried."""

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from google.protobuf.descriptor import FieldDescriptor
from onnx import helper, numpy_helper

from biopsy import events
from biopsy.reduction.passes.names import former_names, former_names_left, names, names_left
from biopsy.reduction.passes.removal import exporter_notes, tidy
from biopsy.reduction.passes.weights import weights
from support.models import chain, info, model, weight
from support.passes import assert_valid, run_pass
from support.reducer import Reducer, reducer

__all__ = ["reducer"]

Path = tuple[str, ...]

SECRET_TEXT, SECRET_INTEGER, SECRET_FLOAT = "churn_of_customers", 8128, 0.3716

SAYS_HOW_IT_IS_BUILT = {
    *("ModelProto.ir_version", "OperatorSetIdProto.version", "TensorProto.dims", "SparseTensorProto.dims"),
    *("TensorProto.data_type", "Tensor.elem_type", "SparseTensor.elem_type", "Map.key_type", "Dimension.dim_value"),
}
"""Numbers that say of which version, type and size something is: they stay without a word."""

WRITTEN_ANEW = {"TensorProto.external_data"}
"""Where weights stand beside the candidate: the result that is written says where they stand then."""


def _paths(descriptor, seen: tuple[str, ...] = (), path: Path = ()) -> Iterator[Path]:
    """The way to every field below a message that holds text or numbers, through no kind of message twice."""
    for field in descriptor.fields:
        if field.message_type is None:
            if field.type != FieldDescriptor.TYPE_ENUM:
                yield (*path, field.name)
        elif field.message_type.full_name not in seen and f"{descriptor.name}.{field.name}" not in WRITTEN_ANEW:
            yield from _paths(field.message_type, (*seen, field.message_type.full_name), (*path, field.name))


def _put(message, path: Path) -> str:
    """Put a secret there; returns the field in words."""
    *outer, last = path
    for name in outer:
        part = getattr(message, name)
        message = part if hasattr(part, "ListFields") else part.add()
    field = message.DESCRIPTOR.fields_by_name[last]
    secret = _secret(field)
    part = getattr(message, last)
    if isinstance(part, str | bytes | int | float):
        setattr(message, last, secret)
    else:
        part.extend([secret, secret])
    return f"{message.DESCRIPTOR.name}.{last}"


def _secret(field):
    if field.type == FieldDescriptor.TYPE_STRING:
        return SECRET_TEXT
    if field.type == FieldDescriptor.TYPE_BYTES:
        return SECRET_TEXT.encode()
    return SECRET_FLOAT if field.type in {FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE} else SECRET_INTEGER


def _holds_secret(message) -> bool:
    for field, value in message.ListFields():
        for part in (value,) if isinstance(value, str | bytes) or not hasattr(value, "__len__") else value:
            if hasattr(part, "ListFields"):
                if _holds_secret(part):
                    return True
            elif part == _secret(field) or (isinstance(part, float) and abs(part - SECRET_FLOAT) < 1e-6):
                return True
    return False


def clean() -> onnx.ModelProto:
    made = model([helper.make_node("Relu", ["t0"], ["t1"], name="n0")], [info("t0")], [info("t1")])
    made.graph.name = "g0"
    made.ClearField("producer_name")
    return made


def anonymized(made: onnx.ModelProto) -> onnx.ModelProto:
    for search in (tidy, exporter_notes, weights, names):
        made = run_pass(search, made).model
    return made


def test_a_clean_model_has_nothing_to_tell() -> None:
    assert names_left(clean()) == []
    assert anonymized(clean()) == clean()


def test_no_field_of_onnx_keeps_a_secret_without_a_word() -> None:
    paths = list(_paths(onnx.ModelProto.DESCRIPTOR))
    assert len(paths) > 250
    silent = []
    for path in paths:
        made = clean()
        field = _put(made, path)
        result = anonymized(made)
        if _holds_secret(result) and not names_left(result) and field not in SAYS_HOW_IT_IS_BUILT:
            silent.append(".".join(path))
    assert silent == []


def test_what_no_pass_may_touch_is_still_told() -> None:
    """As if tidy and the others were skipped: every secret is then in the report."""
    for path in _paths(onnx.ModelProto.DESCRIPTOR):
        made = clean()
        field = _put(made, path)
        assert names_left(made) or field in SAYS_HOW_IT_IS_BUILT, path


def test_a_field_that_this_version_of_onnx_does_not_know_goes_or_is_told() -> None:
    made = clean()
    made.graph.node[0].MergeFromString(b"\xba\x3e\x12" + SECRET_TEXT.encode())  # field 999, a text of 18 bytes
    assert SECRET_TEXT.encode() in made.SerializeToString()
    assert "field 999" in "\n".join(names_left(made))
    assert SECRET_TEXT.encode() not in anonymized(made).SerializeToString()


def _only(node: onnx.NodeProto, **more) -> onnx.ModelProto:
    made = model([node], [info("t0", (1, 2))], [info("t1", None)], domains=["ai.onnx.ml"], opset=20, **more)
    made.graph.name = "g0"
    return made


VALUES: dict[str, onnx.NodeProto] = {
    "coefficients": helper.make_node(
        "LinearRegressor", ["t0"], ["t1"], domain="ai.onnx.ml", coefficients=[SECRET_FLOAT, 2.5], intercepts=[0.4711]
    ),
    "value_float": helper.make_node("Constant", [], ["t1"], value_float=SECRET_FLOAT),
    "value_floats": helper.make_node("Constant", [], ["t1"], value_floats=[SECRET_FLOAT, 2.5]),
    "value_string": helper.make_node("Constant", [], ["t1"], value_string=SECRET_TEXT),
    "value_strings": helper.make_node("Constant", [], ["t1"], value_strings=[SECRET_TEXT, "b"]),
    "value": helper.make_node(
        "Constant", [], ["t1"], value=helper.make_tensor("s", onnx.TensorProto.STRING, [1], [SECRET_TEXT])
    ),
    "stopwords": helper.make_node("StringNormalizer", ["t0"], ["t1"], stopwords=[SECRET_TEXT, "b"]),
    "cats_strings": helper.make_node(
        "CategoryMapper",
        ["t0"],
        ["t1"],
        domain="ai.onnx.ml",
        cats_strings=[SECRET_TEXT, "b"],
        cats_int64s=[1, 2],
        default_string=f"no {SECRET_TEXT}",
    ),
    "offset": helper.make_node("Scaler", ["t0"], ["t1"], domain="ai.onnx.ml", offset=[SECRET_FLOAT], scale=[2.5]),
    "nodes_values": helper.make_node(
        "TreeEnsembleRegressor", ["t0"], ["t1"], domain="ai.onnx.ml", nodes_values=[SECRET_FLOAT], nodes_modes=["LEAF"]
    ),
    "pattern": helper.make_node("RegexFullMatch", ["t0"], ["t1"], pattern=SECRET_TEXT),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_and_texts_in_attributes_are_replaced(name: str) -> None:
    made = _only(VALUES[name])
    result = anonymized(made)
    assert _holds_secret(made) or SECRET_TEXT.encode() in made.SerializeToString()
    assert not _holds_secret(result)
    assert SECRET_TEXT.encode() not in result.SerializeToString()
    told = "\n".join(names_left(result))
    assert "values" not in told
    assert "texts" not in told


@pytest.mark.parametrize("name", VALUES)
def test_values_and_texts_that_the_failure_needs_are_told_by_name(name: str) -> None:
    made = _only(VALUES[name])
    kept = next(attribute for attribute in made.graph.node[0].attribute if attribute.name == name)

    def needs_it(candidate: onnx.ModelProto) -> bool:
        return any(attribute == kept for attribute in candidate.graph.node[0].attribute)

    for search in (weights, names):
        made = run_pass(search, made, needs_it).model
    held = "s" if name == "value" else f"{made.graph.node[0].op_type}.{name}"  # a tensor has a name of its own
    told = f"weights    not replaced, since the failure or its check needs their values: {held}"
    assert told in names_left(made)


def test_what_stays_under_a_neutral_name_is_told_by_its_former_one_too() -> None:
    before = model(
        [helper.make_node("Mul", ["x", "churn_w"], ["t"], name="n"), helper.make_node("Gather", ["t", "ids"], ["y"])],
        [info("x", [1])],
        [info("y", None)],
        [weight("churn_w", 0.37), numpy_helper.from_array(np.arange(40), "ids")],
    )
    after = run_pass(names, before, lambda _: True).model
    former = former_names(before, after)
    renamed = [after.graph.initializer[0].name, after.graph.initializer[1].name]
    assert former == dict(zip(renamed, ("churn_w", "ids"), strict=True))
    assert former_names_left(after, former) == {renamed[0]: "churn_w", renamed[1]: "ids"}
    filled = run_pass(weights, after, lambda _: True).model
    assert former_names_left(filled, former) == {renamed[1]: "ids"}
    assert former_names_left(before, {}) == {}


def test_the_former_name_of_a_weight_is_told_where_no_report_keeps_it(reducer: Reducer) -> None:
    made = chain(2)
    made.graph.node.append(helper.make_node("Mul", ["t2", "churn_w"], ["y"]))
    made.graph.initializer.append(weight("churn_w", 0.37))
    made.graph.output[0].CopyFrom(info("y", None))
    heard: list[events.Event] = []

    def needs_it(candidate: onnx.ModelProto) -> bool:
        return any(numpy_helper.to_array(tensor).flat[0] == np.float32(0.37) for tensor in candidate.graph.initializer)

    reducer(made, needs_it, anonymize=True, allow_vacuous_check=True, listener=heard.append)
    (told,) = (event for event in heard if isinstance(event, events.FormerNames))
    assert told.names == {reducer.result.graph.initializer[0].name: "churn_w"}
    assert "churn_w" not in "".join(event.text for event in heard if isinstance(event, events.Remark))


def test_the_same_text_stays_the_same_text_everywhere() -> None:
    words = numpy_helper.from_array(np.array([SECRET_TEXT, "other"], object), "words")
    node = helper.make_node("LabelEncoder", ["words"], ["t1"], domain="ai.onnx.ml", keys_strings=["other", SECRET_TEXT],
                            values_strings=["s0", "x"])  # fmt: skip
    result = anonymized(_only(node, weights=[words]))
    keys, values = (next(a for a in result.graph.node[0].attribute if a.name == name).strings
                    for name in ("keys_strings", "values_strings"))  # fmt: skip
    assert list(result.graph.initializer[0].string_data) == [keys[1], keys[0]]
    assert len({*keys, *values}) == 4


def _users_function() -> onnx.ModelProto:
    body = [
        helper.make_node("LeakyRelu", ["in_a"], ["mid"], name="hush"),
        helper.make_node("Shrink", ["mid"], ["out_b"], bias=0.0),
    ]
    body[0].attribute.add(name="alpha", ref_attr_name="churn_rate", type=onnx.AttributeProto.FLOAT)
    function = helper.make_function(
        "corp.churn", "ChurnF", ["in_a"], ["out_b"], body, [helper.make_opsetid("", 18)], attributes=["churn_rate"]
    )
    function.overload = "churn_v2"
    call = helper.make_node("ChurnF", ["t0"], ["t1"], domain="corp.churn", churn_rate=1.0, overload="churn_v2")
    made = model([call], [info("t0")], [info("t1")], functions=[function], domains=["corp.churn"], opset=18)
    made.ir_version = 10
    return made


def test_functions_lose_their_names_domains_overloads_and_attributes_and_still_run() -> None:
    made = _users_function()
    assert_valid(made)
    result = anonymized(made)
    assert_valid(result)
    data = result.SerializeToString()
    assert [told for told in (b"corp", b"hurn", b"in_a", b"out_b", b"hush") if told in data] == []
    assert names_left(result) == []


def test_a_domain_in_which_a_custom_operator_stands_stays_and_is_told() -> None:
    made = _users_function()
    made.graph.node.append(helper.make_node("ChurnScore", ["t1"], ["t2"], domain="corp.churn"))
    made.graph.output.append(info("t2"))
    result = anonymized(made)
    assert result.graph.node[0].domain == "corp.churn"
    told = "\n".join(names_left(result))
    assert "domains not replaced: corp.churn" in told
    assert "corp.churn.ChurnScore" in told


def test_integers_that_stay_are_told_by_name() -> None:
    node = helper.make_node("Conv", ["t0", "w"], ["t1"], name="conv", kernel_shape=[3, 5], group=2)
    shape = helper.make_node("Reshape", ["t1", "shape"], ["t2"], name="reshape")
    made = model([node, shape], [info("t0")], [info("t2")], [weight("shape", 7, 11, dtype="int64")])
    result = anonymized(made)
    told = "\n".join(names_left(result))
    assert "integers kept: they are usually sizes, axes or indices: " in told
    assert all(name in told for name in ("n0.kernel_shape", "n0.group", result.graph.initializer[0].name))


def test_devices_and_how_nodes_are_spread_over_them_are_removed() -> None:
    made = clean()
    made.configuration.add(name="churn_cluster", num_devices=2, device=["churn0", "churn1"])
    spread = made.graph.node[0].device_configurations.add(configuration_id="churn_cluster")
    spread.sharding_spec.add(tensor_name="t0", device=[0, 1])
    assert b"churn" in made.SerializeToString()
    assert anonymized(made) == clean()


def test_a_choice_that_the_standard_gives_is_no_secret_and_any_other_text_is() -> None:
    node = helper.make_node("Pad", ["t0", "p"], ["t1"], name="n0", mode="reflect")
    assert names_left(anonymized(_only(node))) == []
    node.attribute[0].s = SECRET_TEXT.encode()
    assert "n0.mode" in "\n".join(names_left(anonymized(_only(node))))
