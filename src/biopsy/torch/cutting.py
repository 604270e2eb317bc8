"""An exported model of which some steps are fed with PyTorch's own values instead of what is computed before them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from biopsy.model.load import parse, read_bytes
from biopsy.slow_imports import onnx
from biopsy.tensors.files import read_feeds
from biopsy.tensors.results import Array
from biopsy.torch.arrays import as_array, as_tensor
from biopsy.torch.calls import Arguments
from biopsy.torch.evaluation import COMPUTED, OnnxModel
from biopsy.torch.noise import Noise, Outputs, has_steps, values_in_float64
from biopsy.torch.recording import flat_inputs, named_values

_MOST_BYTES = 1 << 30
"""The size of golden values beyond which steps are not compared all at once."""


def apart(model: OnnxModel, golden: Path) -> OnnxModel | None:
    """A model whose steps do not depend on each other: each is fed with golden values, and its result is an output.

    A step is all that lies between tensors that have a golden value in the file. None if it has none, or is very large.
    """
    if golden.stat().st_size > _MOST_BYTES:
        return None
    values = read_feeds(golden)[0]
    proto = parse(model.data or read_bytes(model.path), model.path)
    computed = {name for node in proto.graph.node for name in node.output if name in values}
    if not computed:
        return None
    _feed(proto, {name: values[name] for name in computed})
    del proto.graph.output[:]
    proto.graph.output.extend(_declared(f"{name}{COMPUTED}", values[name]) for name in sorted(computed))
    return replace(
        model,
        data=proto.SerializeToString(),
        feeds=golden,
        expected={name: values[name] for name in computed},
        noise=_noise_of_steps(model.program, model.sample.given, values),
    )


def _noise_of_steps(onnx_program: Any, given: Arguments, golden: Outputs) -> Noise:
    """The noise of what each step of an exported program gives for the values that PyTorch has before it.

    ``golden`` are PyTorch's values by their names in the model.
    """
    program, names = onnx_program.exported_program, named_values(onnx_program).names

    def fed(node: str) -> Any:
        name = next((name for name in names.get(node, ()) if name in golden), None)
        return None if name is None else as_tensor(golden[name])

    def run(seed: int | None, wanted: Collection[str]) -> Outputs:
        fresh = given.copied()
        values: dict[str, Array] = {}
        for node, value in values_in_float64(program, flat_inputs(program, fresh.args, fresh.kwargs), seed, fed):
            for name in names.get(node.name, ()):
                if name in wanted:
                    values[name] = as_array(value)
        return values

    return Noise(run, has_steps=has_steps(program))


def mended(model: OnnxModel, golden: Path, names: Collection[str]) -> OnnxModel | None:
    """A model whose tensors ``names`` have their golden values; None if no output depends on anything else."""
    values = read_feeds(golden)[0]
    proto = parse(model.data or read_bytes(model.path), model.path)
    kept = [output for output in proto.graph.output if output.name not in names]
    if not kept or not all(name in values for name in names):
        return None
    _feed(proto, {name: values[name] for name in names})
    del proto.graph.output[:]
    proto.graph.output.extend(kept)
    expected = {output.name: model.expected[output.name] for output in kept if output.name in model.expected}
    return replace(model, data=proto.SerializeToString(), feeds=golden, expected=expected) if expected else None


def _feed(proto: onnx.ModelProto, values: Mapping[str, Array]) -> None:
    """Make some tensors inputs; what the nodes compute of them gets another name."""
    for node in proto.graph.node:
        for place, name in enumerate(node.output):
            if name in values:
                node.output[place] = f"{name}{COMPUTED}"
    proto.graph.input.extend(_declared(name, values[name]) for name in sorted(values))
    del proto.graph.value_info[:]


def _declared(name: str, value: Array) -> onnx.ValueInfoProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return onnx.helper.make_tensor_value_info(name, kind, value.shape)
