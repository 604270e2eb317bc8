"""The values that attributes get instead of those that are there."""

import re

import onnx
import pytest

from biopsy.questions.variation.elements import attribute_features
from biopsy.questions.variation.features import Feature, FedModel

CHOICE = re.compile(r"\b(whether|boolean|true|set to 1|if 1|if \S+ is 1)(?!-)\b", re.IGNORECASE)


def attributes_of(graph: str, opset: int = 20) -> dict[str, Feature]:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> {graph}')
    return {feature.name.partition(" of ")[0]: feature for feature in attribute_features(FedModel(model, None))}


def flags() -> list[tuple[str, str]]:
    """Attributes that the standard describes as a choice of two, which are 0 or 1, with an operator of each."""
    found = {}
    for schema in onnx.defs.get_all_schemas():
        for name, declared in schema.attributes.items():
            is_choice = CHOICE.search(declared.description)
            default = declared.default_value.i if declared.default_value.name else None
            if declared.type == onnx.defs.OpSchema.AttrType.INT and default in {0, 1} and is_choice:
                found[name] = schema.name, schema.domain
    return sorted((name, *where) for name, where in found.items())


@pytest.mark.parametrize(("name", "op", "domain"), flags())
def test_an_attribute_that_is_a_choice_of_two_is_never_anything_but_0_or_1(name: str, op: str, domain: str):
    node = onnx.helper.make_node(op, ["x"], ["y"], domain=domain, **{name: 1})
    versions = [each.since_version for each in onnx.defs.get_all_schemas() if each.domain == domain]
    opset = onnx.helper.make_opsetid(domain, max(versions))
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], []), opset_imports=[opset])
    [feature] = [each for each in attribute_features(FedModel(model, None)) if each.name == f"{name} of {op}"]
    assert [change.text for change in feature.alternatives][:1] == ["0"]
    assert feature.is_closed and feature.numbers is None


def test_numbers_and_lists_of_sizes_stay_in_the_range_that_the_standard_gives_them():
    found = attributes_of(
        "g (float[1,4,8,8] x) => (float[1,4,8,8] y) { y = MaxPool<kernel_shape = [1, 1], pads = [0, 0, 0, 0]>(x) }"
    )
    assert not [one.text for each in found.values() for one in each.alternatives if "-" in one.text]
    assert "[0, 0]" not in [one.text for one in found["kernel_shape"].alternatives]
    size = attributes_of("g (float[1,4,8] x) => (float[1,4,8] y) { y = LRN<size = 1>(x) }")["size"]
    assert size.numbers is not None and size.numbers.least == 1
    assert min(one.value for one in size.alternatives if one.value is not None) == 2
