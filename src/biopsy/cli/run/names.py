"""Names on the command line of ``biopsy run`` that the model does not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from biopsy import errors
from biopsy.cli.arguments.comparing import parse_open_shapes, parse_ranges
from biopsy.cli.run.options import RunOptions
from biopsy.comparison.tolerance import require_known_outputs, spoken_of
from biopsy.engines.base import ModelInput
from biopsy.engines.runner import require_inputs_of
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.known_names import may_lack_names
from biopsy.tensors.files import read_feeds
from biopsy.tensors.types import fixed_names, item_of


def require_known_names(options: RunOptions, model: ModelInput, spoken: Mapping[str, Iterable[str]]) -> None:
    """Raise DoesNotFit if anything is said of an output, by name, that is none; before anything is run.

    Inputs are compared too where golden values have them. Of a file that an engine has built nothing is known here.
    """
    if may_lack_names() or options.has_built_model or not any(name for names in spoken.values() for name in names):
        return

    try:
        index = index_bytes(model.data, model.folder)
    except errors.ModelError:
        return  # the engine says what is wrong with it
    outputs = _parts(index, index.outputs)
    inputs = _parts(index, index.inputs) if options.load_outputs else ()
    require_known_outputs(spoken, dict.fromkeys((*outputs, *inputs)), outputs)


def _parts(index: ModelIndex, tensors: Iterable[int]) -> list[str]:
    return [part for number in tensors for part in fixed_names(index.names[number], index.value_type(number))]


def require_names_of_check(
    own_run: RunOptions | None, index: ModelIndex, files: Iterable[Path] = (), made_anew: Path | None = None
) -> None:
    """Raise DoesNotFit or CannotCompare if a check that is ``biopsy run``, or its inputs, speak of another model.

    Inside a check no such name is an error: candidates lack most tensors. What they have, and what is an input or
    output of them, is a tensor somewhere in the original. ``files`` are further inputs, ``made_anew`` a file of inputs
    that belongs to each candidate.
    """
    if own_run is not None:
        spoken = _spoken_of(own_run)
        items = {name for names in spoken.values() for name in names if name and item_of(name, index.ids) is not None}
        computed = [index.names[tensor] for tensor in (*index.outputs, *index.producer)]
        require_known_outputs(spoken, {**index.ids, **dict.fromkeys(items)}, dict.fromkeys(computed))
        files = (*files, *(path for path in own_run.load_inputs or () if path != made_anew))
    _require_samples_of(index, files)


def _spoken_of(own_run: RunOptions) -> dict[str, Iterable[str]]:
    try:
        spoken = spoken_of(*own_run.limits())
        spoken["--noise-ratio"] = own_run.noise_ratios()
        spoken["--input-shapes"] = parse_open_shapes(own_run.input_shapes)
        spoken["--val-range"] = parse_ranges(own_run.val_range)
    except errors.UsageError:
        return {}  # the check itself will tell what is wrong with it
    return spoken


_SOON_READ = 32_000_000
"""Bytes of a file that is read to see what it holds."""


def _require_samples_of(index: ModelIndex, files: Iterable[Path]) -> None:
    """Raise CannotCompare if inputs in these files are of another model.

    They may hold inner tensors of it too. Files that are not there, or are large and not mapped, are left to the check.
    """
    wanted = [index.names[tensor] for tensor in index.fed_inputs()]
    for file in files:
        if file.is_file() and (file.suffix == ".safetensors" or file.stat().st_size < _SOON_READ):
            for feed in read_feeds(file):
                require_inputs_of(wanted, feed, index.ids)
