"""Whether a model that was made of another one is still accepted by those who accept that one."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.linting import specification
from biopsy.linting.engine_message import plain_message
from biopsy.text import printable

if TYPE_CHECKING:
    import onnx

_ENGINE = "onnxrt:optimization=none"
_INFERENCE = "strict shape inference"
_LARGEST = 256 << 20
"""Bytes of a model, its weights included, that is loaded to see whether it can be."""
_SECONDS = 60.0
"""For loading it. A model that takes longer is not judged."""
_MOST_LOOKED_AT = 5000
"""Nodes of a model that are asked about one by one."""


@dataclass(frozen=True, kw_only=True)
class LostValidity:
    """Who refuses a model, ``judge``, and why; ``node`` is the first node to blame, "" if none is known.

    ``certain`` is False where it is not the model that is wrong: an engine lacks an implementation.
    """

    judge: str
    reason: str
    node: str = ""
    certain: bool = True

    def __str__(self) -> str:
        at = f" at {self.node}" if self.node else ""
        return f"{self.judge} refuses it{at}: {self.reason}"


def lost_validity(
    result: onnx.ModelProto, original: bytes, folder: Path, *, filled: Collection[str] = (), loads: bool = True
) -> LostValidity | None:
    """The first judge that accepts ``original`` and refuses ``result``, which was made of it; None if there is none.

    Asked are onnx's checker, its strict shape inference and, if it is installed and can know all operators, ONNX
    Runtime without optimizations. ``folder`` holds the external weights of both; ``filled`` names weights of ``result``
    that will get their values later. ``loads``: whether the engine may be asked; a model without values cannot be
    loaded. Raises ModelError if ``original`` is damaged.
    """
    found = _by_onnx(result, original, filled)
    if found is None and loads and not filled:
        found = _by_loading(result, original, folder)
    return found


def _by_onnx(result: onnx.ModelProto, original: bytes, filled: Collection[str]) -> LostValidity | None:
    from biopsy.model import load, validity

    judges: dict[str, Callable[[onnx.ModelProto], str | None]] = {
        "onnx.checker": validity.checker_objection,
        _INFERENCE: validity.inference_objection,
    }
    made = validity.judged_form(result, filled)
    before: onnx.ModelProto | None = None
    for judge, objection in judges.items():
        reason = objection(made)
        if reason is None:
            continue
        before = before or validity.judged_form(load.parse(original, None))
        accepted = objection(before) is None
        nodes = _new_findings(made, before)
        if nodes:
            node, reason = nodes[0]
            return LostValidity(judge=judge, reason=reason, node=node)
        if accepted:
            return LostValidity(judge=judge, reason=reason)
    if before is not None or not validity.has_unknown(made):
        return None
    nodes = _new_findings(made, validity.judged_form(load.parse(original, None)))  # inference stops at an unknown one
    return LostValidity(judge=_INFERENCE, reason=nodes[0][1], node=nodes[0][0]) if nodes else None


def _new_findings(made: onnx.ModelProto, before: onnx.ModelProto) -> list[tuple[str, str]]:
    """Nodes of ``made`` that are wrong alone, with the reason, but for those that were wrong ``before``."""
    if max(len(made.graph.node), len(before.graph.node)) > _MOST_LOOKED_AT:
        return []
    known = {tuple(before.graph.node[place].output) for place, _ in specification.of_nodes(before)}
    found = []
    for place, reason in specification.of_nodes(made):
        node = made.graph.node[place]
        if tuple(node.output) not in known:
            name = repr(node.name) if node.name else f"the {printable(node.op_type)} that computes {list(node.output)}"
            found.append((name, reason))
    return found


def _by_loading(result: onnx.ModelProto, original: bytes, folder: Path) -> LostValidity | None:
    from biopsy.engines.worker import Worker
    from biopsy.isolation.cleanup import temporary_folder
    from biopsy.model import validity, walk

    if importlib.util.find_spec("onnxruntime") is None or max(result.ByteSize(), len(original)) > _LARGEST:
        return None
    if any(map(validity.is_unknown, walk.nodes(result))):
        return None
    made, before = _loadable(result.SerializeToString(), folder), _loadable(original, folder)
    if made is None or before is None:
        return None
    with temporary_folder("biopsy-") as scratch, Worker(_ENGINE, scratch, _SECONDS) as worker:
        try:
            refusal = _refusal(worker.build, made)
            if refusal is None or refusal.kind == "Timeout" or _refusal(worker.build, before) is not None:
                return None
        except errors.BiopsyError:  # the engine does not work here, or cannot be given this model
            return None
    reason = plain_message(refusal.message)[:500]
    return LostValidity(judge="onnxruntime", reason=reason, certain=refusal.kind != "NotImplemented")


def _refusal(build: Callable[[ModelInput], None], model: ModelInput) -> errors.EngineFailure | None:
    try:
        build(model)
    except errors.EngineFailure as failure:
        return failure
    return None


def _loadable(data: bytes, folder: Path) -> ModelInput | None:
    """The model, if the engine may know all its operators, its weights are there, and they are not too many."""
    from biopsy.model.index import index_bytes
    from biopsy.recording.runnable_nodes import unknown_operators

    try:
        index = index_bytes(data, folder)
        if index.weight_bytes > _LARGEST or unknown_operators(index):
            return None
        return ModelInput(data, folder.resolve())
    except errors.ModelError:
        return None
