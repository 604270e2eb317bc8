"""Running a model in one or more engines.

results = biopsy.run("model.onnx", engines=["onnxrt:optimization=none", "onnxrt"])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from biopsy import errors
from biopsy.api.arguments import Folder, Model, model_input, require_choice
from biopsy.api.inputs import GivenInputs, GivenRanges, fed, inputs_of
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create
from biopsy.engines.runner import run_session
from biopsy.model.outputs import mark_outputs
from biopsy.tensors.results import Feed, RunnerResult


def run(
    model: Model,
    engines: str | Sequence[str] = ("onnxrt",),
    inputs: GivenInputs = None,
    outputs: Literal["all"] | Sequence[str] | None = None,
    iterations: int = 1,
    seed: int = 1,
    *,
    val_range: GivenRanges = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    folder: Folder = None,
) -> list[RunnerResult]:
    """Run a model in one or more engines, one after the other, all with the same inputs.

    ``engines`` are specs such as ``"onnxrt:optimization=none"``; the results come in their order, each named by its
    spec, runtimes in seconds. ``inputs`` is one feed (tensor name -> array), several, one per iteration, or a file of
    them; entries that the model does not take are ignored, missing ones are an error, and those of another element type
    are cast with a warning where that only rounds floats. Without ``inputs``, there are
    ``iterations`` random ones: the same for the same ``seed``, within ``val_range`` (default 0 to 1; for all inputs, or
    by name), dimensions that the model leaves open as in ``shapes``, else 1. ``outputs`` are other tensors to return,
    ``"all"`` for every one. ``folder`` is where external weights stand: by default the model's own folder, or the
    current one if the model is not a file.

    Raises EngineFailure if an engine cannot load, build or run the model, EngineMissing if there is no such engine,
    CannotCompare if ``inputs`` do not fit the model, ModelError or DataError for damaged files, UsageError otherwise.
    """
    if isinstance(outputs, str):
        require_choice("outputs", outputs, ("all",), "or a list of names of tensors")
    specs = [engines] if isinstance(engines, str) else list(engines or ())
    if not specs or not all(isinstance(spec, str) for spec in specs):
        raise errors.UsageError(f"engines={engines!r}: they are specs, such as 'onnxrt', and one at least")
    given = model_input(model, folder)
    if outputs is not None:
        given = ModelInput(mark_outputs(given.data, outputs), given.folder)
    wanted = inputs_of(inputs, iterations, seed, val_range, shapes)
    feeds: Sequence[Feed] | None = None
    results = []
    for engine in [create(spec) for spec in specs]:
        session = engine.build(given)
        if feeds is None:
            feeds = fed(session.inputs, wanted)
        results.append(run_session(session, feeds, runner=engine.label))
    return results
