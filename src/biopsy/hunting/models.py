"""Finds models and the inputs that lie beside them."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import onnx

from biopsy import errors
from biopsy.diagnosis.evidence import STATE as EVIDENCE
from biopsy.engines.runner import Inputs, feeds_for, wider_sample
from biopsy.hunting.records import BUG_FOLDER, JOURNAL, RESULT
from biopsy.model.index import ModelIndex, Node
from biopsy.model.nodes import is_constant_node
from biopsy.model.tensor_type import SequenceType, TensorType, ValueType
from biopsy.processes.reading import read_plain, state_at
from biopsy.tensors.files import read_feeds
from biopsy.tensors.results import Array, Feed
from biopsy.tensors.types import flattened

_SUFFIX = ".onnx"
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z")
_FORMATS = (".npz", ".safetensors", ".json")
_DATA_SET = "test_data_set_"
_MOST_BYTES = 1 << 30
_MOST_SAMPLES = 4

_FEW_NODES = 3
"""Up to this many nodes, all operators of a model are those of its first wrong layer."""

_OPEN_SIZE = 8
"""The size of open dimensions in one of the samples that are made up; the batch is 2 there, all are 1 in the others."""


@dataclass(frozen=True)
class FoundModel:
    """A model's path as it is shown, and the files and folders of its inputs, none if they must be made up."""

    path: Path
    inputs: tuple[Path, ...] = ()

    @cached_property
    def state(self) -> str:
        """A text that changes when the model or a file of its inputs is written to or replaced; it is read once."""
        files = [self.path, *(file for place in self.inputs for file in files_of(place))]
        return " ".join(f"{state.size}-{state.modified}" for file in files if (state := state_at(file)) is not None)


def files_of(place: Path) -> list[Path]:
    """The files of an input: itself, or those in its folder."""
    return sorted(place.iterdir()) if place.is_dir() else [place]


def find_models(places: Sequence[str]) -> Iterator[FoundModel]:
    """The models that are meant by folders, files and patterns such as ``zoo/*/model.onnx``, in order, each once.

    Folders are searched to their bottom, but for what hunts and diagnoses have left there; links to folders are not
    followed, and links to files not read. Raises UsageError for an archive, if there is no such file or no model in it,
    and for a folder that cannot be read.
    """
    seen: set[str] = set()
    beside = cache(_inputs_in)
    for place in places:
        if place.lower().endswith(_ARCHIVES):
            raise errors.UsageError(f"{place} is an archive: unpack it, and name the folder")
        given = Path(place)
        matches = [given] if given.exists() else sorted(map(Path, glob.glob(place, recursive=True)))  # noqa: PTH207 -- of any root
        if matches != [given]:
            matches = [match for match in matches if match.is_dir() or match.suffix == _SUFFIX]
        try:
            files = [file for match in matches for file in (_below(match) if match.is_dir() else [match])]
            found = [
                FoundModel(file, tuple(sorted({each for stem in (file.stem, "") for each in near.get(stem, ())})))
                for file in files
                if file.is_file() and (near := beside(file.parent)) is not None
            ]
        except OSError as error:
            raise errors.UsageError(f"{error.filename} cannot be read: {error.strerror}") from error
        if not found:
            what = f"no {_SUFFIX} file is in" if given.is_dir() else "there is no file or folder"
            raise errors.UsageError(f"{what} {place}")
        for model in found:
            if str(model.path) not in seen:
                seen.add(str(model.path))
                yield model


def _below(folder: Path) -> Iterator[Path]:
    """The models below a folder, sorted in each folder, without what links lead to, or hunts and diagnoses leave."""
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    names = {entry.name for entry in ordered}
    if EVIDENCE in names:
        return
    for entry in ordered:
        if entry.is_dir(follow_symlinks=False):
            if entry.name != BUG_FOLDER or not names & {JOURNAL, RESULT}:
                yield from _below(Path(entry.path))
        elif entry.name.endswith(_SUFFIX) and entry.is_file(follow_symlinks=False):
            yield Path(entry.path)


def _inputs_in(folder: Path) -> Mapping[str, Sequence[Path]]:
    """The inputs in a folder by the stem of their model, for ``model.npz`` and ``model_inputs.json``.

    Under "" are those of the only model there: files named ``inputs``, and the folders ``test_data_set_N`` of the ONNX
    model zoo.
    """
    siblings = sorted(entry for entry in folder.iterdir() if not entry.is_symlink())
    is_alone = sum(entry.suffix == _SUFFIX for entry in siblings) == 1
    found: dict[str, list[Path]] = {}
    for entry in siblings:
        stems: set[str] = set()
        if entry.suffix in _FORMATS and entry.is_file():
            is_of_any = is_alone and entry.stem == "inputs"
            stems = {entry.stem, entry.stem.removesuffix("_inputs"), "" if is_of_any else entry.stem}
        elif is_alone and entry.name.startswith(_DATA_SET) and entry.is_dir() and any(entry.glob("input_*.pb")):
            stems = {""}
        for stem in stems:
            found.setdefault(stem, []).append(entry)
    return found


@dataclass(frozen=True)
class ModelSample:
    """One feed of a model, the outputs that are expected for it (none if unknown), and where it is from."""

    feed: Feed
    source: str
    expected: Mapping[str, Array] | None = None


def computing(index: ModelIndex) -> list[Node]:
    """The nodes but those that give constants."""
    return [node for node in index.nodes if not is_constant_node(index, node.number)]


def operators_of_few(index: ModelIndex) -> tuple[str, ...]:
    """All operators of a small model; none of a larger one."""
    nodes = computing(index)
    return tuple(sorted({node.op_type for node in nodes})) if len(nodes) <= _FEW_NODES else ()


def samples_of(index: ModelIndex, files: Sequence[Path], seed: int) -> list[ModelSample]:
    """The inputs of a model: those in the files, else made-up ones of several ranges and sizes.

    Raises DataError for a damaged file, CannotCompare or DoesNotFit if nothing can be fed.
    """
    wanted = index.fed_types()
    given: list[ModelSample] = []
    for file in files:
        if len(given) >= _MOST_SAMPLES:
            break
        if file.is_dir():
            given.append(_data_set(file, index, wanted))
        else:
            given += [ModelSample(feed, file.name) for feed in read_feeds(file)]
    if given:
        for sample in given[:_MOST_SAMPLES]:
            feeds_for(wanted, Inputs(given=[sample.feed], complete=False))
        return given[:_MOST_SAMPLES]
    drawn = Inputs(seed=seed)
    made = [ModelSample(feed, "random, 0 to 1") for feed in feeds_for(wanted, drawn).feeds]
    wider = wider_sample(index, wanted, drawn)
    if wider is not None:
        made.append(ModelSample(wider, "random, -4 to 4"))
    shapes = {
        name: tuple(
            dim if isinstance(dim, int) else _OPEN_SIZE if place else 2 for place, dim in enumerate(kind.shape or ())
        )
        for name, kind in wanted.items()
        if isinstance(kind, TensorType) and not kind.is_static and kind.shape is not None
    }
    if shapes:
        with contextlib.suppress(errors.BiopsyError):  # sizes that contradict each other
            larger = feeds_for(wanted, replace(drawn, shapes=shapes)).feeds
            made += [ModelSample(feed, f"random, open dimensions {_OPEN_SIZE}") for feed in larger]
    return made


def _data_set(folder: Path, index: ModelIndex, wanted: Mapping[str, ValueType | None]) -> ModelSample:
    """The inputs and expected outputs in a folder of the ONNX model zoo; each file holds the next value in order."""
    outputs = {index.names[tensor]: index.value_type(tensor) for tensor in index.outputs}
    expected = _values(folder, "output", outputs)
    return ModelSample(_values(folder, "input", wanted), folder.name, expected or None)


def _values(folder: Path, stem: str, kinds: Mapping[str, ValueType | None]) -> dict[str, Array]:
    """The tensors in ``input_0.pb`` and so on. Raises DataError if one is damaged or not of its declared type."""
    tensors: dict[str, Array] = {}
    for number, (name, kind) in enumerate(kinds.items()):
        file = folder / f"{stem}_{number}.pb"
        if not file.exists():
            continue
        try:
            data = read_plain(file, _MOST_BYTES)
            if isinstance(kind, TensorType):
                value: object = onnx.numpy_helper.to_array(onnx.TensorProto.FromString(data))
            elif isinstance(kind, SequenceType):
                value = onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(data))
            else:
                value = onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
            tensors |= flattened(name, value, kind)
        except Exception as error:  # whatever protobuf, numpy or the file system raises
            raise errors.DataError(f"{file} cannot be read: {error}") from error
    return tensors
