"""Whether the rest of a model hides a wrong value inside it, or never gets that value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from biopsy.engines.worker import CANNOT_RUN, Worker
from biopsy.model.index import index_bytes
from biopsy.questions.layers.question import Judge
from biopsy.questions.layers.subgraphs import Subgraphs
from biopsy.tensors.files import write_feeds
from biopsy.tensors.results import Array


def is_hidden(
    subgraphs: Subgraphs, judge: Judge, worker: Worker, wrong: Mapping[str, list[Array]], scratch: Path
) -> bool | None:
    """Whether a model whose outputs are right has the same outputs with the ``wrong`` values inside.

    ``wrong`` has a value per sample for each tensor. ``worker`` runs the nodes behind these tensors, on them and on
    recorded values. If other outputs follow, the nodes behind got the right values in the model: what was wrong is only
    what an engine returns if the tensors are outputs. None if that cannot be found out.
    """
    index, recorded = subgraphs.index, subgraphs.recorded
    tensors = {index.ids[name] for name in wrong}
    if not tensors.isdisjoint(index.outputs):
        return False  # the model gives them itself
    nodes = subgraphs.behind(tensors)
    outputs = [tensor for tensor in index.outputs if index.producer.get(tensor) in nodes]
    judged = [name for name in subgraphs.names(outputs) if name in recorded.outputs]
    closed = subgraphs.closed(nodes)
    if not judged or closed is None:
        return None
    model = subgraphs.model(closed, [index.ids[name] for name in judged])
    part = index_bytes(model.data, model.folder)
    fed = {part.names[tensor] for tensor in part.fed_inputs()}
    read = {index.names[tensor] for tensor in tensors.intersection(subgraphs.inputs(closed))}
    if not read <= fed:  # it looks like a shape, which is frozen
        return None
    file = scratch / "wrong_inside.safetensors"
    samples = recorded.fed.samples
    write_feeds(
        file,
        [
            {name: wrong[name][number] if name in wrong else sample[name] for name in fed}
            for number, sample in enumerate(samples)
        ],
    )
    try:
        runs = worker.run(model, file)
    except CANNOT_RUN:
        return None
    finally:
        file.unlink(missing_ok=True)
    return all(
        judge.error(name, [run[name] for run in runs], recorded.outputs.values(name) or []).passed for name in judged
    )
