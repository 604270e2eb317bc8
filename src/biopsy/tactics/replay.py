"""Polygraphy's tactic replays: which algorithm TensorRT chose for each layer. Read off Polygraphy 0.53.6."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.filesystem.write import write_whole
from biopsy.tensors.polygraphy_json import CLASS, OLD_CLASS

_REPLAY = "TacticReplayData"


@dataclass(frozen=True)
class TensorInfo:
    """How a tensor stands in memory: a type such as ``DataType.FLOAT``, strides in elements, and vectorization."""

    dtype: str
    strides: tuple[int, ...]
    vectorized_dim: int | None = None
    components_per_element: int | None = None

    def __str__(self) -> str:
        """As Polygraphy writes it."""
        return f"TensorInfo({self.dtype}, {self.strides}, {self.vectorized_dim}, {self.components_per_element})"


@dataclass(frozen=True)
class Algorithm:
    """One way to compute a layer."""

    implementation: int
    tactic: int
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()

    def __str__(self) -> str:
        """As Polygraphy writes it."""
        inputs, outputs = (_tuple_text(infos) for infos in (self.inputs, self.outputs))
        return f"(Implementation: {self.implementation}, Tactic: {self.tactic}) | Inputs: {inputs} | Outputs: {outputs}"


def _tuple_text(infos: tuple[TensorInfo, ...]) -> str:
    return f"({', '.join(map(str, infos))}{',' if len(infos) == 1 else ''})"


@dataclass(frozen=True)
class TacticReplay:
    """Algorithms by the name of a layer."""

    algorithms: Mapping[str, Algorithm] = field(default_factory=dict)


def is_replay(tree: object) -> bool:
    """Whether a parsed file is a tactic replay."""
    return isinstance(tree, dict) and (tree.get(CLASS) == _REPLAY or f"{OLD_CLASS}{_REPLAY}" in tree)


def replay_of(tree: Mapping[str, Any], path: Path) -> TacticReplay:
    """The tactic replay that a parsed file holds. Raises DataError if it is damaged."""
    try:
        return TacticReplay({str(name): _algorithm(found) for name, found in tree["replay"].items()})
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise errors.DataError(f"{path} is a damaged tactic replay: {type(error).__name__}: {error}") from error


def _algorithm(tree: Mapping[str, Any]) -> Algorithm:
    inputs, outputs = (tuple(map(_info, tree[key])) for key in ("inputs", "outputs"))
    return Algorithm(int(tree["implementation"]), int(tree["tactic"]), inputs, outputs)


def _info(tree: Mapping[str, Any]) -> TensorInfo:
    strides = tuple(map(int, tree["strides"]))
    return TensorInfo(str(tree["dtype"]), strides, tree.get("vectorized_dim"), tree.get("components_per_element"))


def write_replay(replay: TacticReplay, path: Path) -> None:
    """Write a tactic replay that Polygraphy reads. Raises UsageError if the file cannot be written."""
    tree = {"replay": {name: _algorithm_tree(one) for name, one in replay.algorithms.items()}, CLASS: _REPLAY}
    write_whole(path, [json.dumps(tree, indent=4).encode()])


def _algorithm_tree(one: Algorithm) -> dict[str, Any]:
    infos = {key: [_info_tree(info) for info in getattr(one, key)] for key in ("inputs", "outputs")}
    return {"implementation": one.implementation, "tactic": one.tactic, **infos, CLASS: "Algorithm"}


def _info_tree(info: TensorInfo) -> dict[str, Any]:
    return {
        "dtype": info.dtype,
        "strides": list(info.strides),
        "vectorized_dim": info.vectorized_dim,
        "components_per_element": info.components_per_element,
        CLASS: "TensorInfo",
    }
