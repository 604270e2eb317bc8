"""The record of one build: what the engine was told and what it chose for each layer, in files of ours and in
Polygraphy's replays.
"""

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
    tree = {KEY: VERSION, **asdict(record), "layers": []}
    for layer in record.layers:  # a name that the engine has made up is left out: the model's nodes tell it
        told = {"nodes": layer.nodes, **{key: getattr(layer, key) for key in _LAYER_TEXTS if getattr(layer, key)}}
        tree["layers"].append(told if layer.time_us is None else {**told, "time_us": round(layer.time_us, 3)})
    if not record.machine:
        del tree["machine"]
    write_whole(path, [json.dumps(tree, indent=4).encode(), b"\n"])


def record_of(tree: Mapping[str, Any], path: Path) -> TacticRecord:
    """The record that a parsed file holds. Raises DataError if it holds something else, or is newer than this."""
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


# Polygraphy's tactic replays: which algorithm TensorRT chose for each layer. Read off Polygraphy 0.53.6.

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
        inputs, outputs = (
            f"({', '.join(map(str, infos))}{',' if len(infos) == 1 else ''})" for infos in (self.inputs, self.outputs)
        )
        return f"(Implementation: {self.implementation}, Tactic: {self.tactic}) | Inputs: {inputs} | Outputs: {outputs}"


@dataclass(frozen=True)
class TacticReplay:
    """Algorithms by the name of a layer."""

    algorithms: Mapping[str, Algorithm] = field(default_factory=dict)


def is_replay(tree: object) -> bool:
    """Whether a parsed file is a tactic replay."""
    from biopsy.tensors.polygraphy_json import CLASS, OLD_CLASS

    return isinstance(tree, dict) and (tree.get(CLASS) == _REPLAY or f"{OLD_CLASS}{_REPLAY}" in tree)


def replay_of(tree: Mapping[str, Any], path: Path) -> TacticReplay:
    """The tactic replay that a parsed file holds. Raises DataError if it is damaged."""
    try:
        return records.record_of(TacticReplay, {"algorithms": tree["replay"]})
    except _DAMAGED as error:
        raise errors.DataError(f"{path} is a damaged tactic replay: {type(error).__name__}: {error}") from error


# Files of tactics, biopsy's and Polygraphy's: one, or all below a folder.

_BLANK = b" \t\r\n"


def read_tactics(path: Path) -> TacticRecord | TacticReplay:
    """What a file of tactics holds. Raises DataError if it is none or damaged, UsageError if it cannot be read."""
    found = _read(path)
    if found is None:
        raise errors.DataError(
            f"{path} is neither a tactic record of biopsy nor a tactic replay of Polygraphy",
            next_steps=["biopsy debug build MODEL --save-tactics FILE ...    writes records"],
        )
    return found


def _read(path: Path) -> TacticRecord | TacticReplay | None:
    """What a file holds; None if that is something else. A file that begins like no JSON object is not read whole.

    Raises UsageError if it cannot be read, DataError for a file of tactics that is damaged; one called .json that is
    cut short could be one.
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
            raise errors.DataError(f"{path} is damaged: it is no JSON ({error})") from error
        return None
    if isinstance(tree, dict) and KEY in tree:
        return record_of(tree, path)
    return replay_of(tree, path) if is_replay(tree) else None


def tactics_below(path: Path) -> dict[Path, TacticRecord | TacticReplay]:
    """All tactics of a folder and the folders in it, by path; or those of one file. Other files are passed over.

    Raises UsageError if there is nothing there, DataError for a file of tactics that is damaged.
    """
    if not path.is_dir():
        return {path: read_tactics(path)}
    contents = {file: _read(file) for file in sorted(path.rglob("*")) if file.is_file()}
    return {file: tactics for file, tactics in contents.items() if tactics is not None}
