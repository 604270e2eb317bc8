"""Models without local functions: each call replaced by the nodes of the function, so that these are layers too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.model import walk
from biopsy.model.calls import unbounded

if TYPE_CHECKING:
    import onnx


def without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the nodes of local functions in place of their calls; itself if it calls none.

    Raises ModelError if onnx cannot put them there.
    """
    called = walk.called(model)
    if not called:
        return model
    for (_, name, _), why in ((key, why) for key, why in unbounded(model.functions).items() if key in called):
        raise errors.ModelError(
            f"the local functions of the model cannot be put in place of their calls: {name}: {why}"
        )
    from onnx import inliner

    try:
        return inliner.inline_local_functions(model, convert_version=True)
    except Exception as error:  # whatever the C++ side raises
        raise errors.ModelError(
            f"the local functions of the model cannot be put in place of their calls: {error}"
        ) from error
