"""Whether onnx's own checker accepts a model: what is written must be valid wherever the original was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from biopsy import errors
from biopsy.model import onnx_native, walk

_MOST_BYTES = 2**31 - 1
"""More cannot be given to the checker at once."""


def require_valid(result: Sequence[bytes], original: Sequence[bytes], written: Path | None) -> None:
    """Raise CheckError if onnx.checker refuses a result, and accepts the original; both are models in pieces."""
    refused = objection(result)
    if refused is None or objection(original) is not None:
        return
    raise errors.CheckError(
        f"the result passes the check, but onnx.checker refuses it, and accepts the original: {refused}",
        kept=f"{written}, which is not verified" if written is not None else None,
        next_steps=["report this with the model: what is written must be as valid as what it is made from"],
    )


def objection(parts: Sequence[bytes]) -> str | None:
    """Why onnx.checker refuses a model, in one line; None if it accepts it.

    Weights in other files are left out: they are where the model says, or loading it fails. A model too large for the
    checker is not refused.
    """
    import onnx

    if sum(map(len, parts)) > _MOST_BYTES:
        return None
    model = onnx.ModelProto.FromString(b"".join(parts))
    for tensor in walk.tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _empty(tensor)
    refused = onnx_native.checker_objection(model)
    return None if refused is None else " ".join(refused.split())[:500]


def _empty(tensor: object) -> None:
    import onnx

    assert isinstance(tensor, onnx.TensorProto)
    tensor.ClearField("data_location")
    tensor.ClearField("external_data")
    del tensor.dims[:]
    tensor.dims.append(0)
