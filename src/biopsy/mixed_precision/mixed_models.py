"""What makes the candidates of a search: a model for every choice of layers that are high."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from biopsy import errors
from biopsy.mixed_precision.assembly import Assembly
from biopsy.mixed_precision.caster import Mixed, mixed
from biopsy.mixed_precision.constants import RangeLoss, Weights, range_loss_of
from biopsy.mixed_precision.formats import FLOAT16, FP32, Form, Format
from biopsy.mixed_precision.functions import without_functions
from biopsy.mixed_precision.plan import Layer, PrecisionPlan, plan_of
from biopsy.mixed_precision.stored_values import stored_values

if TYPE_CHECKING:
    import onnx


class MixedModels(Protocol):
    """A model in every mixture of two precisions."""

    @property
    def layers(self) -> Sequence[Layer]:
        """What can be high or low, in the order of the network."""

    @property
    def stays(self) -> Mapping[str, int]:
        """How many other nodes compute but keep their precision, by the reason."""

    @property
    def passive(self) -> Mapping[str, int]:
        """How many nodes have no precision of their own, by the operator."""

    @property
    def low_name(self) -> str: ...  # noqa: D102 -- what a person calls it
    @property
    def high_name(self) -> str: ...  # noqa: D102 -- what a person calls it
    @property
    def form(self) -> Form | None:
        """How the low precision gets into the model; None if it is neither of our own."""

    def parts(self, high: frozenset[int]) -> Sequence[bytes]:
        """The bytes of the model with these layers high and all others low."""

    def range_loss(self, high: frozenset[int]) -> tuple[RangeLoss, ...]:
        """Weights and constants that the low precision cannot hold, among those that low layers read."""


class CastModels:
    """Mixtures by explicit casts; see ``caster``. ``folder`` is where the model finds its external weights."""

    def __init__(
        self, model: onnx.ModelProto, low: Format, high: Format, form: Form, folder: Path, places: Mapping[str, bytes]
    ) -> None:
        """Raises UsageError if the model's opset has no Cast to one of the formats, or its form no nodes for them."""
        _require_sense(low, high, form)
        self._low, self._high, self.form = low, high, form
        needed = frozenset({low.elem, high.elem} - {FP32.elem}) if form == "native" else frozenset({FLOAT16})
        self._plan: PrecisionPlan = plan_of(without_functions(model), needed)
        _require_casts(self._plan.opset, low, high)
        self._folder = folder
        self._weights = Weights(folder)
        self._assembly = Assembly(self._plan.model, places)

    @property
    def layers(self) -> Sequence[Layer]:
        """The nodes that compute."""
        return self._plan.layers

    @property
    def stays(self) -> Mapping[str, int]:
        """Nodes that compute and cannot do so in these precisions."""
        return self._plan.stays

    @property
    def passive(self) -> Mapping[str, int]:
        """Nodes that hand values on, convert them, or give none that is rounded."""
        return self._plan.passive

    @property
    def low_name(self) -> str:
        """The low format."""
        return self._low.name

    @property
    def high_name(self) -> str:
        """The high format."""
        return self._high.name

    def parts(self, high: frozenset[int]) -> Sequence[bytes]:
        """The bytes of the model with these layers high and all others low."""
        return self._assembly.parts(self._mixed(high))

    def _mixed(self, high: frozenset[int]) -> Mixed:
        return mixed(self._plan, lambda number: self._high if number in high else self._low, self.form, self._weights)

    def range_loss(self, high: frozenset[int]) -> tuple[RangeLoss, ...]:
        """Weights and constants with values that become infinite or zero in the low format."""
        stored = stored_values(self._plan.graph, lambda number: number not in high)
        found = {name: range_loss_of(value, self._folder, self._low) for name, value in stored.items()}
        return tuple(replace(loss, name=name) for name, loss in found.items() if loss is not None)

    def lowered(self, high: frozenset[int]) -> int:
        """How many nodes of the model give values of another type than in the model, those in bodies included."""
        return self._mixed(high).lowered


def _require_sense(low: Format, high: Format, form: Form) -> None:
    if low is high:
        raise errors.UsageError(f"--precision {high} is no higher precision than {low}", next_steps=["-p float32"])
    if form == "native" and low.name.startswith("fp8"):
        raise errors.UsageError(
            "no operator of ONNX computes in fp8, so there is no --native form of it",
            next_steps=["--emulate", "--int8    quantizes with QuantizeLinear and DequantizeLinear"],
        )


def _require_casts(opset: int, *formats: Format) -> None:
    for found in formats:
        if opset < found.least_opset:
            raise errors.UsageError(
                f"Cast knows {found} since opset {found.least_opset}, and the model has opset {opset}",
                next_steps=[
                    f"convert it: onnx.version_converter.convert_version(onnx.load(MODEL), {found.least_opset})"
                ],
            )
