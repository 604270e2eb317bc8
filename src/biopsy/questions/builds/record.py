"""Records of builds, with the settings of the engine and its choice for each layer; Polygraphy's tactic replays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from biopsy import errors, records
from biopsy.engines.base import LayerRecord
from biopsy.processes.reading import open_delivering
from biopsy.processes.writing import write_whole

KEY = "biopsy_tactics"
VERSION = 1

_LAYER_TEXTS = ("kind", "implementation", "precision", "layout", "device")


@dataclass(frozen=True, kw_only=True)
class TacticRecord:
    """One build. ``varied`` names the ``settings`` and ``environment`` variables that differ from build to build, as
    ``key`` or ``env.NAME``. Builds of the same ``seed`` and ``block`` were shuffled together. ``outcome`` is ``good``,
    ``bad``, ``other``, or empty before the build is judged. ``machine`` is the kind of another machine that made it.
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
    tree = {KEY: VERSION, **asdict(record), "layers": []}
    for layer in record.layers:  # without its name, which the engine made up: its nodes identify it
        entry = {"nodes": layer.nodes, **{key: getattr(layer, key) for key in _LAYER_TEXTS if getattr(layer, key)}}
        tree["layers"].append(entry if layer.time_us is None else {**entry, "time_us": round(layer.time_us, 3)})
    if not record.machine:
        del tree["machine"]
    write_whole(path, [json.dumps(tree, indent=4).encode(), b"\n"])


def record_of(tree: Mapping[str, Any], path: Path) -> TacticRecord:
    """The record in a parsed file. Raises DataError if it is damaged or of another version."""
    if tree.get(KEY) != VERSION:
        raise errors.DataError(
            f"{path} is a tactic record of version {tree.get(KEY)!r}, and this biopsy reads {VERSION}"
        )
    try:
        layers = [{**layer, "name": "".join(layer["nodes"][:1])} for layer in tree["layers"]]
        return records.record_of(TacticRecord, {**tree, "layers": layers})
    except _DAMAGED as error:
        raise errors.DataError(f"{path} is a damaged tactic record: {type(error).__name__}: {error}") from error


_DAMAGED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


_REPLAY = "TacticReplayData"
"""The class name in the files of Polygraphy 0.53.6, whose form the following classes have."""


@dataclass(frozen=True)
class TensorInfo:
    """The layout of a tensor in memory: a type such as ``DataType.FLOAT``, strides in elements, and vectorization."""

    dtype: str
    strides: tuple[int, ...]
    vectorized_dim: int | None = None
    components_per_element: int | None = None

    def __str__(self) -> str:
        """As Polygraphy writes it."""
        return f"TensorInfo({self.dtype}, {self.strides}, {self.vectorized_dim}, {self.components_per_element})"


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of TensorRT for a layer."""

    implementation: int
    tactic: int
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()

    def __str__(self) -> str:
        """As Polygraphy writes it."""
        inputs, outputs = (
            f"({', '.join(map(str, infos))}{',' if len(infos) == 1 else ''})" for infos in (self.inputs, self.outputs)
        )
        return f"(Implementation: {self.implementation}, Tactic: {self.tactic}) | Inputs: {inputs} | Outputs: {outputs}"


@dataclass(frozen=True)
class TacticReplay:
    """The algorithms that TensorRT chose, by the names of layers."""

    algorithms: Mapping[str, Algorithm] = field(default_factory=dict)


def is_replay(tree: object) -> bool:
    """Whether a parsed file is a tactic replay."""
    from biopsy.tensors.polygraphy_json import CLASS, OLD_CLASS

    return isinstance(tree, dict) and (tree.get(CLASS) == _REPLAY or f"{OLD_CLASS}{_REPLAY}" in tree)


def replay_of(tree: Mapping[str, Any], path: Path) -> TacticReplay:
    """The tactic replay in a parsed file. Raises DataError if it is damaged."""
    try:
        return records.record_of(TacticReplay, {"algorithms": tree["replay"]})
    except _DAMAGED as error:
        raise errors.DataError(f"{path} is a damaged tactic replay: {type(error).__name__}: {error}") from error


_BLANK = b" \t\r\n"


def read_tactics(path: Path) -> TacticRecord | TacticReplay:
    """The record or replay in a file. Raises DataError if it is neither or damaged, UsageError if it cannot be read."""
    tactics = _read(path)
    if tactics is None:
        raise errors.DataError(
            f"{path} is neither a tactic record of biopsy nor a tactic replay of Polygraphy",
            next_steps=["biopsy debug build MODEL --save-tactics FILE ...    writes records"],
        )
    return tactics


def _read(path: Path) -> TacticRecord | TacticReplay | None:
    """The record or replay in a file; None for any other file, of which only the beginning may be read.

    Raises UsageError if it cannot be read, DataError if it is damaged or called .json without being JSON.
    """
    try:
        with open_delivering(path) as stream:
            beginning = stream.read(64)
            if beginning.lstrip(_BLANK)[:1] not in (b"{", b""):
                return None
            data = beginning + stream.read()
    except OSError as error:
        raise errors.UsageError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        if path.suffix == ".json":
            raise errors.DataError(f"{path} is damaged: it is not JSON ({error})") from error
        return None
    if isinstance(tree, dict) and KEY in tree:
        return record_of(tree, path)
    return replay_of(tree, path) if is_replay(tree) else None


def tactics_below(path: Path) -> dict[Path, TacticRecord | TacticReplay]:
    """The records and replays in a folder and its subfolders, by path, without other files; or those of one file.

    Raises UsageError if there is nothing at ``path``, DataError for a damaged file.
    """
    if not path.is_dir():
        return {path: read_tactics(path)}
    contents = {file: _read(file) for file in sorted(path.rglob("*")) if file.is_file()}
    return {file: tactics for file, tactics in contents.items() if tactics is not None}
