"""Asking which layers of a model an engine computes wrongly.

findings = biopsy.layers("model.onnx", "openvino")
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from biopsy import errors, events
from biopsy.api.arguments import Folder, Model, model_file, require_seconds, require_whole
from biopsy.api.compare import asked_of_outputs
from biopsy.api.inputs import GivenInputs, GivenRanges, fed, inputs_of
from biopsy.comparison.tolerance import DEFAULT_TOLERANCE, Stat
from biopsy.isolation.cleanup import temporary_folder
from biopsy.layerwise.examination import Examination
from biopsy.layerwise.findings import LayerFindings
from biopsy.layerwise.question import DEFAULT_LIMIT, DEFAULT_REFERENCE, question_about
from biopsy.layerwise.tensor_errors import Judge


def layers(
    model: Model,
    suspect: str,
    reference: str = DEFAULT_REFERENCE,
    inputs: GivenInputs = None,
    *,
    atol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
    rtol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
    stat: Stat | Mapping[str, Stat] = "elemwise",
    nodes: str | None = None,
    iterations: int = 1,
    seed: int = 1,
    val_range: GivenRanges = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    folder: Folder = None,
    record_memory: int = DEFAULT_LIMIT,
    run_timeout: float | None = None,
    listener: events.Listener = events.ignore,
) -> LayerFindings:
    """Find which layers of ``model`` the engine ``suspect`` computes wrongly, and which only pass an error on.

    Each layer is run in isolation with the values that ``reference`` gives, and in the whole model; both engines are
    specs such as ``"onnxrt:optimization=none"``, and run in processes of their own. ``inputs``, ``iterations``,
    ``seed``, ``val_range``, ``shapes`` and ``folder`` are those of ``run``, ``atol``, ``rtol`` and ``stat`` those of
    ``compare``, by the names of any tensors. ``nodes`` is a regular expression: only layers whose name, operator or
    output it matches somewhere are measured. ``record_memory`` is in bytes of tensors, ``run_timeout`` in seconds.

    ``passed`` of the result is the verdict; ``suspects`` are the layers and groups that make errors, the worst first.

    Raises UsageError if nothing matches ``nodes`` or the reference gives no inner tensors, CannotCompare if the
    reference cannot run the model or ``inputs`` do not fit it, EngineMissing, ModelError or DataError.
    """
    require_whole(record_memory=record_memory, iterations=iterations)
    require_seconds(run_timeout=run_timeout)
    wanted = inputs_of(inputs, iterations, seed, val_range, shapes)
    with model_file(model, folder) as (path, weights), temporary_folder("biopsy-") as scratch:
        question = question_about(
            path,
            weights,
            lambda kinds: fed(kinds, wanted),
            suspect=suspect,
            reference=reference,
            judge=Judge(*asked_of_outputs(atol, rtol, stat)),
            nodes=_pattern(nodes),
            limit=record_memory,
            timeout=run_timeout,
        )
        return Examination(question, scratch, listener).run()


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise errors.UsageError(f"nodes={text!r}: it is no regular expression: {error}") from error
