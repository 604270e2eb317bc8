"""How ``biopsy run`` comes to a session: built from the model or loaded from a file, saved, and perhaps not run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.cli.run.inputs import Feeder
    from biopsy.engines.base import Engine, ModelInput, Session
    from biopsy.engines.feeding import Inputs

_NEEDS_A_RUN = ("load_outputs", "save_outputs", "save_inputs", "compare_with", "record_memory", "validate")
"""Options that ask for what only running gives."""


def require_possible(args: argparse.Namespace, engines: Sequence[Engine]) -> None:
    """Raise UsageError for options that contradict each other, or that no engine here can follow."""
    if args.build_only:
        asked = [f"--{name.replace('_', '-')}" for name in _NEEDS_A_RUN if getattr(args, name)]
        if asked:
            raise errors.UsageError(f"--build-only runs nothing, and {asked[0]} needs outputs")
    if args.save_engine is not None:
        from biopsy.filesystem.write import require_writable

        _saver(args.save_engine, engines)
        require_writable(args.save_engine)
    if is_built_model(args):
        for option in ("save_onnx", "onnx_outputs", "onnx_outputs_by_type", "onnx_exclude_outputs"):
            if getattr(args, option):
                raise errors.UsageError(f"{args.model} is no ONNX model, and --{option.replace('_', '-')} needs one")
        for engine in engines:
            if not engine.capabilities.can_save(args.model):
                raise errors.UsageError(f"{args.model} is no ONNX model, and {engine.name} does not read such files")


def _saver(path: Path, engines: Sequence[Engine]) -> Engine:
    able = [engine for engine in engines if engine.capabilities.can_save(path)]
    if len(able) == 1:
        return able[0]
    if able:
        raise errors.UsageError(
            f"--save-engine {path}: {', '.join(engine.label for engine in able)} would all write it"
        )
    kinds = [f"{engine.name} {' '.join(engine.capabilities.saves) or 'nothing'}" for engine in engines]
    raise errors.UsageError(f"--save-engine {path}: the engines here save {', '.join(kinds)}")


def is_built_model(args: argparse.Namespace) -> bool:
    """Whether the model of a run is what an engine has built: as --model-type says, else by its name."""
    return bool(args.model_type == "engine" if args.model_type else is_built(args.model))


def is_built(path: Path) -> bool:
    """Whether a file is, by its name, what an engine has built and not an ONNX model."""
    return path.suffix in {".engine", ".plan", ".trt", ".blob", ".xml", ".ort"}


def session_of(
    engine: Engine, model: ModelInput, feeder: Feeder, args: argparse.Namespace, console: Console
) -> Session:
    """What the engine makes of the model, saved if that was asked for, its remarks told. Raises EngineFailure."""
    if model.path is not None and is_built_model(args):
        session = engine.load(model.path)
    else:
        if engine.capabilities.wants_shapes:
            model = replace(model, shapes=_shapes(model, feeder, args))
        session = engine.build(model)
    for remark in session.remarks:
        console.warn(remark)
    path: Path | None = args.save_engine
    if path is not None and engine.capabilities.can_save(path):
        session.save(path)
        console.note(f"{engine.label} saved to {path}{'' if path.suffix else ' (--model-type engine to run it)'}")
    return session


def _shapes(model: ModelInput, feeder: Feeder, args: argparse.Namespace) -> Mapping[str, Sequence[tuple[int, ...]]]:
    """Shapes of the inputs to come: what a person has said, and what the feeder chooses where the model is run."""
    said = _said(feeder.inputs)
    if args.build_only:
        return said
    from biopsy.model.index import index_bytes

    index = index_bytes(model.data, model.folder)
    feeder.feeds(index.fed_types())
    return {**{name: [tuple(shape)] for name, shape in feeder.guessed.items()}, **said}


def _said(inputs: Inputs) -> Mapping[str, Sequence[tuple[int, ...]]]:
    if inputs.given is None:
        known = {name: tuple(dim for dim in shape if dim is not None) for name, shape in inputs.shapes.items()}
        return {name: [shape] for name, shape in known.items() if len(shape) == len(inputs.shapes[name])}
    found: dict[str, list[tuple[int, ...]]] = {}
    for feed in inputs.given:
        for name, value in feed.items():
            found.setdefault(name, []).append(value.shape)
    return found
