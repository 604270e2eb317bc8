"""How a script calls an engine: the part of the script that does it, and the settings it is given.

An engine, or an option of one, that no part can follow raises OnlyBiopsyError, which says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from biopsy.engines.base import Engine, ModelInput
from biopsy.model.index import ModelIndex
from biopsy.model.tensor_type import TensorType
from biopsy.report.bundle.literals import Literal


class OnlyBiopsyError(Exception):
    """A script cannot ask this without biopsy; the text says what."""


@dataclass(frozen=True, kw_only=True)
class ScriptedEngine:
    """A part of ``script_parts`` with ``load``, and ``run`` if it ``runs``; ``modules`` are what it imports."""

    part: str
    modules: tuple[str, ...]
    settings: Mapping[str, Literal]
    runs: bool = True


def scripted_engine(engine: Engine, index: ModelIndex) -> ScriptedEngine:
    """The call that does what an engine does with its options to a model. Raises OnlyBiopsyError."""
    if not engine.imports.is_here:
        raise OnlyBiopsyError("an engine from another release than the one that is installed")
    make = _CALLS.get(engine.name)
    if make is None:
        raise OnlyBiopsyError(f"the engine {engine.name}, which comes with biopsy or a plug-in of it")
    return make(engine, index)


def _onnxrt(engine: Engine, index: ModelIndex) -> ScriptedEngine:
    import onnxruntime

    from biopsy.engines.onnxrt.engine import LEVELS
    from biopsy.engines.onnxrt.providers import Providers

    del index
    options = engine.options
    providers = Providers(onnxruntime, options)
    settings: dict[str, Literal] = {
        "level": LEVELS[options["optimization"]],
        "mode": f"ORT_{options['execution'].upper()}",
        "config": [list(entry) for entry in options["config"].items()],
        "providers": providers.names,
        "threads": [options["threads"], options["inter_threads"]],
        "disabled_optimizers": list(options["disabled_optimizers"]),
        "provider_options": [providers.options.get(name, {}) for name in providers.names],
    }
    usual: dict[str, Literal] = {
        "level": "ORT_ENABLE_ALL",
        "mode": "ORT_SEQUENTIAL",
        "config": [],
        "providers": ["CPUExecutionProvider"],
        "threads": [0, 0],
        "disabled_optimizers": [],
        "provider_options": [{}] * len(providers.names),
    }
    changed = {key: value for key, value in settings.items() if value != usual[key]}
    return ScriptedEngine(part="onnxrt", modules=("onnxruntime",), settings=changed)


def _openvino(engine: Engine, index: ModelIndex) -> ScriptedEngine:
    del index
    options = engine.options
    config: dict[str, Literal] = {**options["config"]}
    if options["threads"]:
        config["INFERENCE_NUM_THREADS"] = options["threads"]
    settings: dict[str, Literal] = {"device": options["device"], "precision": options["precision"], "config": config}
    usual: dict[str, Literal] = {"device": "CPU", "precision": "f32", "config": {}}
    changed = {key: value for key, value in settings.items() if value != usual[key]}
    return ScriptedEngine(part="openvino", modules=("openvino",), settings=changed)


def _reference(engine: Engine, index: ModelIndex) -> ScriptedEngine:
    del index
    if engine.options["float64"]:
        raise OnlyBiopsyError("the engine reference:float64, which computes in float64 whatever the model declares")
    return ScriptedEngine(part="reference", modules=("onnx",), settings={})


_TRT_FLAGS = ("fp16", "bf16", "fp8", "int8", "tf32")
_TRT_CALLED = frozenset({"package", "flags", "optimization", "min_shapes", "opt_shapes", "max_shapes", *_TRT_FLAGS})
"""Options of TensorRT that the script follows."""


def _trt(engine: Engine, index: ModelIndex) -> ScriptedEngine:
    from biopsy.engines.trt import package as trt_package

    options = engine.options
    declared = {option.stem: {} if option.is_family else option.default for option in engine.options_declared}
    other = [name for name, value in options.items() if name not in _TRT_CALLED and value != declared[name]]
    if other:
        raise OnlyBiopsyError(f"the option {other[0]} of TensorRT")
    settings: dict[str, Literal] = {"module": trt_package.load(options["package"]).module.__name__}
    flags = [name.upper() for name in (*_TRT_FLAGS, *options["flags"]) if name in options["flags"] or options[name]]
    if flags:
        settings["flags"] = flags
    if options["optimization"] is not None:
        settings["level"] = options["optimization"]
    shapes = _trt_shapes(engine, index)
    if shapes:
        settings["profiles"] = shapes
    return ScriptedEngine(part="tensorrt", modules=(str(settings["module"]),), settings=settings, runs=False)


def _trt_shapes(engine: Engine, index: ModelIndex) -> list[Literal]:
    """Least, best and greatest shape of each open input, of each profile."""
    from biopsy.engines.trt.settings import profiles_of
    from biopsy.tensors.generate import resolve_shapes

    declared = {index.names[tensor]: index.tensor_type(tensor) for tensor in index.fed_inputs()}
    types = {name: type_ for name, type_ in declared.items() if _is_open(type_)}
    if not types:
        return []
    known = {name: type_ for name, type_ in types.items() if type_ is not None}
    if len(known) < len(types):
        raise OnlyBiopsyError("an input whose shape the model does not tell")
    model = ModelInput(b"", Path())
    found = profiles_of(known, engine.options, model, resolve_shapes(known, {}))
    return [
        {name: [list(span.least), list(span.best), list(span.most)] for name, span in profile.items()}
        for profile in found
    ]


def _is_open(type_: TensorType | None) -> bool:
    return type_ is None or type_.shape is None or not all(isinstance(size, int) for size in type_.shape)


_CALLS = {"onnxrt": _onnxrt, "openvino": _openvino, "reference": _reference, "trt": _trt}
