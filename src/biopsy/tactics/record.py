"""The record of one build: what the engine was told, what it chose for each layer, and what the check said of it.

A JSON file, ``{"biopsy_tactics": 1, ...}``; the reference of file formats has its keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.engines.base import LayerRecord
from biopsy.filesystem.write import write_whole

KEY = "biopsy_tactics"
VERSION = 1

_LAYER_TEXTS = ("kind", "implementation", "precision", "layout", "device")


@dataclass(frozen=True, kw_only=True)
class TacticRecord:
    """One build. ``settings`` and ``environment`` are what the engine was told; ``varied`` names those of them that
    differ from build to build, as ``key`` or ``env.NAME``. ``seed`` and ``block`` tell how its place was drawn: builds
    of one block, and one seed, were put in order by lot. ``outcome`` is ``good``, ``bad``, ``other``, or empty as
    long as nobody has said. ``machine`` is the kind of another machine that the build was made on.
    """

    engine: str
    version: str = ""
    device: str = ""
    model: str = ""
    model_digest: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    varied: tuple[str, ...] = ()
    iteration: int | None = None
    outcome: str = ""
    build_seconds: float | None = None
    remarks: tuple[str, ...] = ()
    layers: tuple[LayerRecord, ...] = ()
    seed: int | None = None
    block: int | None = None
    machine: str = ""


def write_record(record: TacticRecord, path: Path) -> None:
    """Write a record. Raises UsageError if the file cannot be written."""
    tree = {KEY: VERSION, **asdict(record)}
    tree["layers"] = [_layer_tree(layer) for layer in record.layers]
    if not record.machine:
        del tree["machine"]
    write_whole(path, [json.dumps(tree, indent=4).encode(), b"\n"])


def _layer_tree(layer: LayerRecord) -> dict[str, Any]:
    """What is known of a layer. A name that the engine has made up is left out where the model's nodes tell it."""
    tree: dict[str, Any] = {"nodes": list(layer.nodes)}
    tree |= {key: getattr(layer, key) for key in _LAYER_TEXTS if getattr(layer, key)}
    if layer.time_us is not None:
        tree["time_us"] = round(layer.time_us, 3)
    return tree


def record_of(tree: Mapping[str, Any], path: Path) -> TacticRecord:
    """The record that a parsed file holds. Raises DataError if it holds something else, or is newer than this."""
    if tree.get(KEY) != VERSION:
        raise errors.DataError(
            f"{path} is a tactic record of version {tree.get(KEY)!r}, and this biopsy reads {VERSION}"
        )
    try:
        return TacticRecord(
            **{key: _text(tree[key]) for key in ("engine", "version", "device", "model", "model_digest", "outcome")},
            settings=_texts(tree["settings"]),
            environment=_texts(tree["environment"]),
            varied=tuple(map(_text, tree["varied"])),
            iteration=_number(tree["iteration"]),
            seed=_number(tree.get("seed")),
            block=_number(tree.get("block")),
            machine=_text(tree.get("machine", "")),
            build_seconds=None if tree["build_seconds"] is None else float(tree["build_seconds"]),
            remarks=tuple(map(_text, tree["remarks"])),
            layers=tuple(map(_layer, tree["layers"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise errors.DataError(f"{path} is a damaged tactic record: {type(error).__name__}: {error}") from error


def _layer(tree: Mapping[str, Any]) -> LayerRecord:
    texts = {key: _text(tree.get(key, "")) for key in _LAYER_TEXTS}
    time_us = tree.get("time_us")
    nodes = tuple(map(_text, tree["nodes"]))
    name = nodes[0] if nodes else ""
    return LayerRecord(name=name, nodes=nodes, time_us=None if time_us is None else float(time_us), **texts)


def _texts(tree: Mapping[str, Any]) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in tree.items()}


def _number(value: object) -> int | None:
    if value is not None and not isinstance(value, int):
        raise TypeError(f"{value!r} is no number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
