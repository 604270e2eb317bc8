"""Golden values of tensors inside a model in lines to type: they stand where an engine to trust is named otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.checks.words import as_word

if TYPE_CHECKING:
    from biopsy.model.index import ModelIndex

CUT_INPUTS = "cut_inputs.npz"
"""Where a reduction writes the inputs of each candidate, for its check to load."""


def spec_of(golden: Path, inputs: Path | None = None) -> str:
    """The engine that gives what a file holds, as it is named; ``inputs``: the file of what they belong to."""
    from biopsy.engines.recorded import GoldenValues
    from biopsy.engines.registry import EngineSpec

    settings = {"file": str(golden)}
    if inputs is not None and inputs != golden:
        settings["inputs"] = str(inputs)
    return EngineSpec(GoldenValues.name, settings).text


def file_of(spec: str | None) -> Path | None:
    """The file behind such an engine; None of another engine."""
    from biopsy.engines.recorded import GoldenValues
    from biopsy.engines.registry import parse_spec

    if spec is None:
        return None
    named = parse_spec(spec)
    file = named.settings.get("file") if named.name == GoldenValues.name else None
    return None if file is None else Path(file)


def recording_options(spec: str, inputs: Sequence[str]) -> list[str]:
    """What a reduction needs to cut where there are golden values, and nowhere else; ``inputs`` are words."""
    return ["--record-with", spec, "--load-inputs", *inputs, "--iter-inputs", CUT_INPUTS]


def holds_inner_values(golden: Path, index: ModelIndex) -> bool:
    """Whether a file has values of tensors between the nodes of a model, and not only of its outputs."""
    outputs = set(index.outputs)
    return not {index.names[tensor] for tensor in index.producer if tensor not in outputs}.isdisjoint(_names(golden))


def lacking(golden: Path, index: ModelIndex) -> list[str]:
    """The inputs of a model of which a file has no value."""
    held = _names(golden)
    return [index.names[tensor] for tensor in index.fed_inputs() if index.names[tensor] not in held]


def merge_words(files: Sequence[Path], output: str) -> list[str]:
    """The line that puts what files hold into one file of inputs."""
    return ["biopsy", "data", "to-input", *dict.fromkeys(map(as_word, files)), "-o", output]


def _names(golden: Path) -> set[str]:
    from biopsy.tensors.files import read_results

    try:
        results = read_results(golden)
    except (errors.BiopsyError, OSError):
        return set()
    return {name for result in results for iteration in result.iterations for name in iteration.outputs}
