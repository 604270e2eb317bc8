"""ONNX Runtime, the embedded default engine."""

from __future__ import annotations

import atexit
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.engines.base import (
    BuiltModel,
    Capabilities,
    Engine,
    LayerRecord,
    ModelInput,
    Option,
    Session,
    count,
    require_ending,
    switch,
    words,
)
from biopsy.engines.onnxrt_facts import (
    CPU,
    RECORD_ASSIGNMENT,
    Providers,
    layer_records,
    precision_remarks,
    provider_remarks,
    read_profile,
)
from biopsy.model import load
from biopsy.model.external import resolve
from biopsy.model.index import index_bytes
from biopsy.model.tensor_type import (
    DTYPE_OF_ELEM,
    ELEM_OF_DTYPE,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    ValueType,
)
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import write_whole, written_together
from biopsy.tensors.results import Array, Feed
from biopsy.tensors.types import all_flattened, dtype_named, structured

LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
"""Optimization level as biopsy spells it -> ONNX Runtime's name."""

_SILENT = 4
_LARGEST_MESSAGE = (1 << 31) - 1


class OnnxRuntime(Engine):
    """ONNX Runtime with its execution providers."""

    name = "onnxrt"
    summary = "ONNX Runtime"
    package = "onnxruntime"
    distributions = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "ort-nightly")
    capabilities = Capabilities(
        layers=True,
        layer_times=True,
        precision_used=True,
        chooses_device=True,
        saves=(".onnx", ".ort"),
        own_memory=1_500_000_000,
    )
    forks_warm = True
    options_declared = (
        Option("providers", "execution providers, joined by '+', such as cuda+cpu", ("cpu",), parse=words),
        Option("provider.KEY", "an option of a provider, such as provider.cuda.device_id=1"),
        Option("optimization", "how far the graph is optimized", "all", tuple(LEVELS), harmless=True),
        Option("disabled_optimizers", "optimizers to switch off, joined by '+'", (), parse=words, harmless=True),
        Option("threads", "threads within an operator; 0: as many as the engine likes", 0, parse=count),
        Option("inter_threads", "nodes that run at once with execution=parallel; 0: its own choice", 0, parse=count),
        Option(
            "execution",
            "whether independent nodes may run at once",
            "sequential",
            ("sequential", "parallel"),
            harmless=True,
        ),
        Option("profile", "measure the time of each layer", False, parse=switch),
        Option("config.KEY", "any session config entry, such as config.session.disable_prepacking=1"),
    )

    @classmethod
    def version(cls) -> str:
        """The version of the package onnxruntime."""
        return str(cls.imported().__version__)

    @classmethod
    def imported(cls) -> Any:
        """The package onnxruntime. Raises EngineMissing."""
        try:
            return cls.imports.module("onnxruntime")
        except ImportError as error:
            raise errors.EngineMissing(
                f"onnxruntime cannot be imported: {error}", next_steps=["pip install onnxruntime"]
            ) from error

    @classmethod
    def devices(cls) -> Sequence[str]:
        """The execution providers in the package; they may lack their drivers."""
        return tuple(cls.imported().get_available_providers())

    def build(self, model: ModelInput) -> Session:
        """Load and optimize the model on exactly the providers asked for, never on others instead.

        A remark says so if a provider leaves nodes to others.
        """
        ort = self.imported()
        providers = Providers(ort, self.options)
        options = self.session_options(ort, model.folder)
        if any(name != CPU for name in providers.names):
            options.add_session_config_entry(RECORD_ASSIGNMENT, "1")
        session = self._session(ort, model, options, providers)
        remarks = provider_remarks(session, providers.names, providers.options)
        remarks += precision_remarks(model, session.get_providers(), session.get_provider_options())
        try:
            return OnnxRuntimeSession(ort, session, self, model, remarks)
        except UnicodeDecodeError as error:  # it loads such names, and fails when it returns them
            raise errors.ModelError(f"the model {model.path or 'in memory'} holds a name that is not text") from error

    def warm_up(self) -> None:
        """Build and run a model of one node on one thread of the CPU: neither more threads nor a GPU survive a fork."""
        Engine.warm_up(type(self)({**self.options, "threads": 1, "providers": (CPU,), "provider": {}}, self.label))

    def load(self, path: Path) -> Session:
        """Load a model that ``save`` wrote; it is not optimized again."""
        require_ending(type(self), path)
        ort = self.imported()
        unoptimizing = type(self)({**self.options, "optimization": "none"}, self.label)
        model = ModelInput(load.read_bytes(path), path.parent, path)
        options = unoptimizing.session_options(ort, path.parent)
        if path.suffix == ".ort":
            options.add_session_config_entry("session.load_model_format", "ORT")
        try:
            session = unoptimizing._session(ort, model, options, Providers(ort, self.options))
        except errors.EngineFailure as failure:
            failure.stage = "load"
            raise
        return OnnxRuntimeSession(ort, session, unoptimizing, model, ())

    def write_optimized(self, model: ModelInput, path: Path) -> None:
        """Write the optimized graph, in the format of the path's ending."""
        ort = self.imported()
        options = self.session_options(ort, model.folder)
        options.enable_profiling = False
        options.optimized_model_filepath = str(path)
        if path.suffix == ".ort":
            options.add_session_config_entry("session.save_model_format", "ORT")
        else:
            index = index_bytes(model.data, model.folder)
            if index.has_external_data or index.weight_bytes > _LARGEST_MESSAGE // 2:  # they might not fit into one
                options.add_session_config_entry(
                    "session.optimized_model_external_initializers_file_name", f"{path.name}.data"
                )
        self._session(ort, model, options, Providers(ort, self.options))

    def _session(self, ort: Any, model: ModelInput, options: Any, providers: Providers) -> Any:
        ort.set_default_logger_severity(_SILENT)
        providers.load_libraries(ort)
        try:
            with self.source(model) as source:
                session = ort.InferenceSession(
                    source,
                    options,
                    providers=providers.session_argument,
                    disabled_optimizers=list(self.options["disabled_optimizers"]) or None,
                    enable_fallback=0,
                )
        except errors.ModelError:
            raise
        except Exception as error:
            if model.path is None or model.path.suffix != ".ort":
                load.parse(model.data, model.path)  # raises ModelError if it is damaged: the engine is not to blame
            providers.require_startable(ort)
            raise self.failure(str(error).strip(), _stage(error), type(error).__name__) from error
        providers.require_active(session.get_providers())
        return session

    @contextmanager
    def source(self, model: ModelInput) -> Iterator[bytes | str]:
        """The argument for a session: the bytes that were checked, or the file if they are too many.

        Another release gets a file if the model has external weights: old releases find them only beside it.
        """
        may_need_file = not self.imports.is_here and _LOCATION_KEY in model.data
        if may_need_file and index_bytes(model.data, model.folder).has_external_data:
            with placed(model) as path:
                yield str(path)
        elif len(model.data) > _LARGEST_MESSAGE and model.path is not None:
            yield str(model.path.absolute())
        else:
            yield model.data

    def session_options(self, ort: Any, folder: Path) -> Any:
        """ONNX Runtime's session options for this engine's options; external weights are in ``folder``."""
        options = ort.SessionOptions()
        options.log_severity_level = _SILENT
        optimization = self.options["optimization"]
        level = getattr(ort.GraphOptimizationLevel, LEVELS[optimization], None)
        if level is None:
            raise errors.UsageError(f"onnxruntime {ort.__version__} has no optimization level {optimization!r}")
        options.graph_optimization_level = level
        options.intra_op_num_threads = self.options["threads"]
        options.inter_op_num_threads = self.options["inter_threads"]
        if self.options["execution"] == "parallel":
            options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder.resolve()))
        if self.options["profile"]:
            options.enable_profiling = True
            until_the_end = ExitStack()  # a session may write its profile when it ends
            atexit.register(until_the_end.close)
            folder_of_profile = until_the_end.enter_context(temporary_folder("biopsy-profile-"))
            options.profile_file_prefix = str(folder_of_profile / "profile")
        # Whatever the file looks like: what was checked as ONNX must be read as ONNX.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        for key, value in self.options["config"].items():
            options.add_session_config_entry(key, value)
        return options


class OnnxRuntimeSession(BuiltModel):
    """A model that ONNX Runtime has loaded."""

    gives_new_arrays = True

    def __init__(self, ort: Any, session: Any, engine: OnnxRuntime, model: ModelInput, remarks: Sequence[str]) -> None:
        self._ort = ort
        self._session = session
        self._engine = engine
        self._model = model
        self._profile: Mapping[str, tuple[float, str]] | None = None
        self._is_ort_file = model.path is not None and model.path.suffix == ".ort"
        inputs = {node.name: value_type_of(node.type, node.shape) for node in session.get_inputs()}
        if not self._is_ort_file:
            # ONNX Runtime shows an unknown rank as no dimensions, like a scalar, and no shapes of items.
            unclear = [name for name, type_ in inputs.items() if not isinstance(type_, TensorType) or type_.shape == ()]
            if unclear:
                index = index_bytes(model.data, model.folder)
                inputs |= {name: index.value_type(index.ids[name]) for name in unclear}
        outputs = {node.name: value_type_of(node.type, node.shape) for node in session.get_outputs()}
        types = [*inputs.values(), *outputs.values()]
        self._all_plain = all(type_ is None or element_of(type_) in PLAIN for type_ in types)
        self._fetched = {name: type_ for name, type_ in outputs.items() if type_ is not None}
        if not self._all_plain:
            self._fetched = {name: type_ for name, type_ in self._fetched.items() if isinstance(type_, TensorType)}
        skipped = ", ".join(repr(name) for name in outputs if name not in self._fetched)
        more = [f"outputs not read from onnxruntime, since their types cannot be: {skipped}"] if skipped else []
        super().__init__(inputs, tuple(self._fetched), (*remarks, *more))
        self._run_options = ort.RunOptions()
        self._run_options.log_severity_level = _SILENT

    def save(self, path: Path) -> None:
        """Write the optimized model as ``.onnx`` or ``.ort``; an ``.ort`` file has no layout optimizations."""
        require_ending(type(self._engine), path)
        self._require_model("saved again")
        with written_together(path) as temporary:
            self._engine.write_optimized(self._model, temporary)

    def layers(self) -> Sequence[LayerRecord]:
        """The nodes of the optimized graph, with their times if ``profile`` is on; ends the profile.

        They come from a second build with the same options, since ONNX Runtime only writes the graph to a file.
        """
        self._require_model("told in layers")
        with temporary_folder("biopsy-layers-") as scratch:
            path = scratch / "optimized.onnx"
            self._engine.write_optimized(self._model, path)
            optimized = load.parse(path.read_bytes(), path)
        if self._engine.options["profile"] and self._profile is None:
            self._profile = read_profile(Path(self._session.end_profiling()))
        index = index_bytes(self._model.data, self._model.folder)
        return layer_records(index, optimized, self._profile or {}, self._session.get_providers())

    def _require_model(self, purpose: str) -> None:
        if self._is_ort_file:
            raise errors.UsageError(f"{self._model.path} cannot be {purpose}: an .ort file is not an ONNX model")

    def run(self, feed: Feed) -> dict[str, Array]:
        """Run once."""
        fetched = list(self._fetched) or None
        try:
            fed = {name: structured(feed, name, kind) for name, kind in self._inputs.items()}
            if self._all_plain:
                values = self._session.run(fetched, fed, self._run_options)
            else:
                fed = {name: self._to_value(name, value) for name, value in fed.items()}
                results = self._session.run_with_ort_values(fetched, fed, self._run_options)
                values = [self._from_value(value) for value in results]
        except errors.EngineFailure:
            raise
        except UnicodeError as error:
            raise errors.CannotCompare(
                f"strings that are not UTF-8 cannot be fed to onnxruntime or read from it in Python: {error}"
            ) from error
        except Exception as error:
            raise self._engine.failure(str(error).strip(), "run", type(error).__name__) from error
        return {} if fetched is None else all_flattened(self._fetched, values)

    def _to_value(self, name: str, array: Array) -> Any:
        declared, values = self._inputs[name], self._ort.OrtValue
        if not isinstance(declared, TensorType):
            raise self._unsupported(f"input {name!r}, {declared}, cannot be fed beside types such as bfloat16")
        if declared.elem in PLAIN:
            return values.ortvalue_from_numpy(array)
        cannot = f"input {name!r} of type {declared.dtype} cannot be fed from Python"
        if declared.elem not in BYTE_WIDE_OR_MORE:
            raise self._unsupported(cannot)
        if not hasattr(values, "ortvalue_from_numpy_with_onnx_type"):
            raise self._unsupported(f"{cannot} to {self._ort.__version__}")
        whole = np.ascontiguousarray(array).reshape(array.shape)  # it makes a scalar one-dimensional
        return values.ortvalue_from_numpy_with_onnx_type(whole, declared.elem)

    def _from_value(self, value: Any) -> Array | None:
        if not value.has_value():
            return None
        elem = value.element_type()
        if elem in PLAIN:
            array: Array = value.numpy()
            return array
        if elem not in BYTE_WIDE_OR_MORE or value.device_name() != "cpu":
            raise self._unsupported(f"an output of type {DTYPE_OF_ELEM.get(elem, elem)} cannot be read from Python")
        dtype, shape = dtype_named(DTYPE_OF_ELEM[elem]), value.shape()
        memory = self._engine.imports.module("ctypes").string_at(value.data_ptr(), math.prod(shape) * dtype.itemsize)
        return np.frombuffer(memory, dtype=dtype).reshape(shape).copy()

    def _unsupported(self, message: str) -> errors.EngineFailure:
        return self._engine.failure(f"onnxruntime: {message}", "run", "UnsupportedType")


def _stage(error: Exception) -> errors.Stage:
    in_model = ("InferenceError]", "during loading", "Type Error", "Invalid model", "invalid model")
    is_named = type(error).__name__ in {"InvalidGraph", "InvalidProtobuf", "NoModel", "NoSuchFile"}
    return "load" if is_named or any(phrase in str(error) for phrase in in_model) else "build"


_ELEM_OF_ORT = {name.replace("_", ""): elem for name, elem in ELEM_OF_DTYPE.items()}
_ELEM_OF_ORT |= {"float": 1, "double": 11, "float4e2m1": 23, "float8e8m0": 24}

PLAIN = frozenset({*range(1, 14)})
"""Element types that the package itself returns as NumPy arrays with their true values."""

BYTE_WIDE_OR_MORE = frozenset({16, 17, 18, 19, 20, 24})


def value_type_of(text: str, shape: Sequence[Any] | None = None) -> ValueType | None:
    """The type that ONNX Runtime calls ``tensor(float)``, ``seq(tensor(int64))`` or ``map(string,tensor(float))``."""
    kind, _, arguments = text.partition("(")
    inner = arguments.removesuffix(")")
    if kind == "tensor":
        elem = _ELEM_OF_ORT.get(inner)
        return None if elem is None else TensorType(elem, None if shape is None else tuple(shape))
    if kind == "map":
        key, _, value = inner.partition(",")
        item = value_type_of(value)
        return None if item is None or key not in _ELEM_OF_ORT else MapType(_ELEM_OF_ORT[key], item)
    item = value_type_of(inner)
    if item is None or kind not in ("seq", "optional"):
        return None
    return SequenceType(item) if kind == "seq" else OptionalType(item)


def element_of(kind: ValueType) -> int:
    """The ONNX element type of the tensors in a value."""
    if isinstance(kind, TensorType):
        return kind.elem
    return element_of(kind.value if isinstance(kind, MapType) else kind.item)


_LOCATION_KEY = b"location"
"""Every model with external weights contains it; another model may, too."""


@contextmanager
def placed(model: ModelInput) -> Iterator[Path]:
    """The model's own file if its external weights are beside it, else a temporary file beside links to them.

    Raises ModelError if weights are missing, and OSError.
    """
    if model.path is not None and model.path.parent.resolve() == model.folder.resolve():
        yield model.path.absolute()
        return
    index = index_bytes(model.data, model.folder)
    locations = {weight.external.location for weight in index.weights.values() if weight.external}
    with temporary_folder("biopsy-model-") as folder:
        for location in sorted(locations):
            link = folder / location
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(resolve(model.folder, location).resolve())
        path = folder / "model.onnx"
        write_whole(path, [model.data])
        yield path
