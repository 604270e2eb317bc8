"""ONNX Runtime, the embedded default engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.engines.base import Capabilities, Engine, ModelInput, Option, Session
from biopsy.engines.blame import raise_if_model_is_broken
from biopsy.engines.option import count, words
from biopsy.model.tensor_type import DTYPE_OF_ELEM, TensorType
from biopsy.tensors.results import Array, Feed

LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
"""Optimization level, as biopsy spells it -> the name ONNX Runtime has for it."""

_ELEM_OF_ORT = {
    "float": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "string": 8, "bool": 9,
    "float16": 10, "double": 11, "uint32": 12, "uint64": 13, "complex64": 14, "complex128": 15, "bfloat16": 16,
    "float8e4m3fn": 17, "float8e4m3fnuz": 18, "float8e5m2": 19, "float8e5m2fnuz": 20, "uint4": 21, "int4": 22,
    "float4e2m1": 23, "float8e8m0": 24, "uint2": 25, "int2": 26,
}  # fmt: skip
_PLAIN = frozenset({*range(1, 14)})
"""Element types that the package hands over as NumPy arrays by itself, with their true values."""

_BYTE_WIDE_OR_MORE = frozenset({16, 17, 18, 19, 20, 24})
_SILENT = 4
_LARGEST_MESSAGE = (1 << 31) - 1


class OnnxRuntime(Engine):
    """ONNX Runtime with its execution providers."""

    name = "onnxrt"
    summary = "ONNX Runtime"
    package = "onnxruntime"
    capabilities = Capabilities(chooses_device=True)
    forks_warm = True
    options_declared = (
        Option("providers", "execution providers, joined by '+', such as cuda+cpu", ("cpu",), parse=words),
        Option("optimization", "how far the graph is optimized", "all", tuple(LEVELS)),
        Option("threads", "threads within an operator; 0: as many as the engine likes", 0, parse=count),
        Option("disabled_optimizers", "optimizers to switch off, joined by '+'", (), parse=words),
        Option("execution", "whether independent nodes may run at once", "sequential", ("sequential", "parallel")),
        Option("config.KEY", "any session config entry, such as config.session.disable_prepacking=1"),
    )

    @classmethod
    def version(cls) -> str:
        """The version of the package onnxruntime."""
        return str(_import().__version__)

    @classmethod
    def devices(cls) -> Sequence[str]:
        """The execution providers in the package; one may still lack its driver."""
        return tuple(_import().get_available_providers())

    def build(self, model: ModelInput) -> Session:
        """Load and optimize the model on exactly the providers asked for, never on others instead."""
        ort = _import()
        providers = [_find_provider(ort, word) for word in self.options["providers"]]
        ort.set_default_logger_severity(_SILENT)
        source: bytes | str = model.data
        if len(model.data) > _LARGEST_MESSAGE and model.path is not None:
            source = str(model.path)
        try:
            session = ort.InferenceSession(
                source,
                self._session_options(ort, model),
                providers=providers,
                disabled_optimizers=list(self.options["disabled_optimizers"]) or None,
                enable_fallback=0,
            )
        except Exception as error:
            raise_if_model_is_broken(model)
            raise self._failure(error, _stage(error)) from error
        _require_active(session.get_providers(), providers)
        return OnnxRuntimeSession(ort, session, self, model)

    def _session_options(self, ort: Any, model: ModelInput) -> Any:
        options = ort.SessionOptions()
        options.log_severity_level = _SILENT
        options.graph_optimization_level = _level(ort, self.options["optimization"])
        options.intra_op_num_threads = self.options["threads"]
        if self.options["execution"] == "parallel":
            options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
            options.inter_op_num_threads = self.options["threads"]
        folder = str(model.folder.resolve())
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        for key, value in self.options["config"].items():
            options.add_session_config_entry(key, value)
        return options

    def _failure(self, error: Exception, stage: errors.Stage) -> errors.EngineFailure:
        return errors.EngineFailure(str(error).strip(), engine=self.name, stage=stage, kind=type(error).__name__)


class OnnxRuntimeSession(Session):
    """A model that ONNX Runtime has loaded."""

    def __init__(self, ort: Any, session: Any, engine: OnnxRuntime, model: ModelInput) -> None:
        self._ort = ort
        self._session = session
        self._engine = engine
        self._inputs = _with_true_ranks({node.name: _tensor_type(node) for node in session.get_inputs()}, model)
        self._outputs = {node.name: _tensor_type(node) for node in session.get_outputs()}
        types = [*self._inputs.values(), *self._outputs.values()]
        self._all_plain = all(type_ is None or type_.elem in _PLAIN for type_ in types)
        self._run_options = ort.RunOptions()
        self._run_options.log_severity_level = _SILENT

    @property
    def inputs(self) -> Mapping[str, TensorType | None]:
        """Inputs that must be fed, with the types that the model declares."""
        return self._inputs

    @property
    def outputs(self) -> Sequence[str]:
        """Names of the outputs; sequences, maps and missing optional values are left out of what ``run`` returns."""
        return tuple(self._outputs)

    def run(self, feed: Feed) -> dict[str, Array]:
        """Run once."""
        fetched = [name for name, type_ in self._outputs.items() if type_ is not None] or None
        try:
            if self._all_plain:
                values = self._session.run(fetched, dict(feed), self._run_options)
            else:
                values = self._run_with_any_type(fetched, feed)
        except errors.EngineFailure:
            raise
        except Exception as error:
            raise self._engine._failure(error, "run") from error
        if fetched is None:
            return {}
        return {name: _readable(value) for name, value in zip(fetched, values, strict=True) if value is not None}

    def _run_with_any_type(self, fetched: list[str] | None, feed: Feed) -> list[Array | None]:
        fed = {name: self._to_value(name, array) for name, array in feed.items()}
        return [self._from_value(value) for value in self._session.run_with_ort_values(fetched, fed, self._run_options)]

    def _to_value(self, name: str, array: Array) -> Any:
        declared = self._inputs[name]
        if declared is None or declared.elem in _PLAIN:
            return self._ort.OrtValue.ortvalue_from_numpy(array)
        if declared.elem not in _BYTE_WIDE_OR_MORE:
            raise self._unsupported(f"input {name!r} of type {declared.dtype} cannot be fed from Python")
        return self._ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(array), declared.elem)

    def _from_value(self, value: Any) -> Array | None:
        if not value.has_value():
            return None
        elem = value.element_type()
        if elem in _PLAIN:
            array: Array = value.numpy()
            return array
        if elem not in _BYTE_WIDE_OR_MORE or value.device_name() != "cpu":
            raise self._unsupported(f"an output of type {DTYPE_OF_ELEM.get(elem, elem)} cannot be read from Python")
        return _copy_memory(value.data_ptr(), DTYPE_OF_ELEM[elem], value.shape())

    def _unsupported(self, message: str) -> errors.EngineFailure:
        return errors.EngineFailure(
            f"onnxruntime: {message}", engine=self._engine.name, stage="run", kind="UnsupportedType"
        )


def _import() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise errors.EngineMissing(
            f"onnxruntime cannot be imported: {error}", next_steps=["pip install onnxruntime"]
        ) from error
    return onnxruntime


def _level(ort: Any, word: str) -> Any:
    found = getattr(ort.GraphOptimizationLevel, LEVELS[word], None)
    if found is None:
        raise errors.UsageError(f"onnxruntime {ort.__version__} has no optimization level {word!r}")
    return found


def _find_provider(ort: Any, word: str) -> str:
    """The full name of a provider that is in this package: by its exact name, its beginning, or a part of it."""
    available = ort.get_available_providers()
    match = _best_match(word, available)
    if match is not None:
        return match
    known = _best_match(word, ort.get_all_providers())
    if known is None:
        raise errors.UsageError(f"onnxruntime knows no execution provider {word!r}; here it has {', '.join(available)}")
    raise errors.EngineMissing(
        f"the installed onnxruntime {ort.__version__} has no {known}, only {', '.join(available)}",
        next_steps=["install the onnxruntime package that has it, such as onnxruntime-gpu for CUDA and TensorRT"],
    )


def _best_match(word: str, providers: Sequence[str]) -> str | None:
    wanted = word.lower()
    tests = (
        lambda name: name.lower() in (wanted, f"{wanted}executionprovider"),
        lambda name: name.lower().startswith(wanted),
        lambda name: wanted in name.lower(),
    )
    return next((name for test in tests for name in providers if test(name)), None)


def _require_active(active: Sequence[str], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in active]
    if missing:
        raise errors.EngineMissing(
            f"onnxruntime could not start {', '.join(missing)} here and would have used {', '.join(active)} instead",
            next_steps=["check the driver and the libraries that this provider needs"],
        )


def _stage(error: Exception) -> errors.Stage:
    text = str(error)
    in_model = ("InferenceError]", "during loading", "Type Error", "Invalid model", "invalid model")
    if type(error).__name__ in {"InvalidGraph", "InvalidProtobuf", "NoModel", "NoSuchFile"}:
        return "load"
    return "load" if any(phrase in text for phrase in in_model) else "build"


def _tensor_type(node: Any) -> TensorType | None:
    kind, _, rest = node.type.partition("(")
    elem = _ELEM_OF_ORT.get(rest.removesuffix(")"))
    return TensorType(elem, tuple(node.shape)) if kind == "tensor" and elem is not None else None


def _with_true_ranks(inputs: dict[str, TensorType | None], model: ModelInput) -> dict[str, TensorType | None]:
    """ONNX Runtime shows an unknown rank as no dimensions, like a scalar: only the model itself can tell."""
    unsure = [name for name, type_ in inputs.items() if type_ is not None and type_.shape == ()]
    if unsure:
        from biopsy.model.index import index_bytes

        index = index_bytes(model.data, model.folder)
        inputs |= {name: index.tensor_type(index.ids[name]) for name in unsure}
    return inputs


def _readable(array: Array) -> Array:
    """Strings come as objects, which no store takes: give them NumPy's type for text."""
    return array.astype(np.str_) if array.dtype == object else array


def _copy_memory(address: int, dtype_name: str, shape: Sequence[int]) -> Array:
    import ctypes

    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, dtype_name))
    size = math.prod(shape) * dtype.itemsize
    return np.frombuffer(ctypes.string_at(address, size), dtype=dtype).reshape(shape).copy()
