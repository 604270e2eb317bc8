"""OpenVINO, by default on the CPU and in float32, so that the comparison is fair."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from biopsy import errors
from biopsy.engines.base import (
    BuiltModel,
    Capabilities,
    Engine,
    Imports,
    LayerRecord,
    ModelInput,
    Option,
    Session,
    count,
    indexed,
    read_built,
    require_ending,
    switch,
)
from biopsy.model import load
from biopsy.model.index import ModelIndex
from biopsy.model.tensor_type import ELEM_OF_DTYPE, TensorType
from biopsy.processes.own_process import install_line, kept_signal_stack
from biopsy.processes.writing import write_whole, written_together
from biopsy.slow_imports import onnx
from biopsy.tensors.results import Array, Feed
from biopsy.tensors.types import dtype_named

PRECISIONS = ("f32", "f16", "bf16")

_OWN_OPTIONS = {"INFERENCE_PRECISION_HINT": "precision", "PERF_COUNT": "profile", "INFERENCE_NUM_THREADS": "threads"}
"""Property of OpenVINO -> the option of this engine that sets it."""

BLOB = ".blob"
"""Ending of an exported compiled model."""
IR = ".xml"
"""Ending of a model in OpenVINO's intermediate representation; its weights are in a .bin file beside it."""


class OpenVino(Engine):
    """OpenVINO on one of its devices."""

    name = "openvino"
    summary = "OpenVINO"
    package = "biopsy[openvino]"
    distributions = ("openvino", "openvino-nightly")
    capabilities = Capabilities(
        layers=True,
        layer_times=True,
        precision_used=True,
        chooses_device=True,
        saves=(BLOB, IR),
        saves_without_ending=True,
        own_memory=1_500_000_000,
    )
    forks_warm = True
    options_declared = (
        Option("device", "device to compile for, such as CPU, GPU.1 or HETERO:GPU\\,CPU", "CPU"),
        Option(
            "precision", "precision of inner computations, read back after compiling", "f32", PRECISIONS, harmless=True
        ),
        Option("threads", "threads for inference; 0: as many as the engine likes", 0, parse=count),
        Option("profile", "measure the time of each layer", False, parse=switch),
        Option("config.KEY", "any property of the device, such as config.EXECUTION_MODE_HINT=ACCURACY"),
    )

    @classmethod
    def version(cls) -> str:
        """The version of the package openvino, without its build number."""
        package = cls.package_imported()
        version = getattr(package, "__version__", None) or package.get_version()
        return str(version).partition("-")[0]

    @classmethod
    def package_imported(cls) -> Any:
        """The module with ``Core``, which old releases have in ``openvino.runtime``.

        Raises EngineMissing, also for a release that computes from wrong memory with the NumPy of this process.
        """
        try:
            package = cls.imports.module("openvino")
            package = package if hasattr(package, "Core") else cls.imports.module("openvino.runtime")
        except ImportError as error:
            raise errors.EngineMissing(
                f"openvino is not installed ({error})", next_steps=[install_line(cls.package), "biopsy doctor"]
            ) from error
        if cls.imports.is_here and not _reads_arrays(package):  # an environment of its own is given another NumPy
            release = str(getattr(package, "__version__", None) or package.get_version()).partition("-")[0]
            raise errors.EngineMissing(
                f"openvino {release} reads arrays of NumPy {np.__version__} from wrong memory, so all its results are "
                "wrong: it was made for NumPy 1",
                next_steps=[
                    f"--engine openvino:release={release}    runs it beside NumPy 1, in its own environment",
                    f"{install_line(cls.package)}    installs a newer release",
                ],
            )
        return package

    @classmethod
    def devices(cls) -> Sequence[str]:
        """The devices that OpenVINO finds."""
        return tuple(_core_and_devices(cls.package_imported())[1])

    def build(self, model: ModelInput) -> Session:
        """Read and compile the model for the device. A remark says so if another precision is used."""
        openvino = self.package_imported()
        index = indexed(model)
        core = self._core(openvino)
        try:
            read = _read(core, model, index, self.imports)
        except Exception as error:
            load.parse(model.data, model.path)  # raises ModelError if it is damaged: the engine is not to blame
            raise _failure(error, "load") from error
        if any(str(port.element_type.get_type_name()) == "string" for port in (*read.inputs, *read.outputs)):
            message = "not tried: OpenVINO crashes on inputs or outputs that are strings"
            raise self.failure(message, "load", "UnsupportedType")
        return self._compiled(openvino, core, read, index)

    def _compiled(self, openvino: Any, core: Any, read: Any, index: ModelIndex | None) -> Session:
        wanted, device = self.options["precision"], self.options["device"]
        properties = {"CACHE_DIR": "", **self._given_properties(openvino)}  # no build comes from a cache
        with _failing("build"):
            compiled = core.compile_model(read, device, properties)
        remarks = [] if index is None else ignored_inputs(core, index, self.imports)
        remarks += precision_remarks(self.imports, read, wanted, _precision(compiled) or wanted, device)
        return OpenVinoSession(self, compiled, index, remarks, uncompiled=read)

    def load(self, path: Path) -> Session:
        """Load a model that ``save`` wrote; a .blob needs the same version of OpenVINO and a similar device."""
        require_ending(OpenVino, path)
        openvino = self.package_imported()
        core = self._core(openvino)
        if path.suffix == IR:
            with _failing("load"):
                read = core.read_model(str(path.absolute()))
            return self._compiled(openvino, core, read, None)
        exported = read_built(path)
        with _failing("load"):
            compiled = core.import_model(exported, self.options["device"], self._given_properties(openvino))
        wanted, used = self.options["precision"], _precision(compiled)
        remarks = [] if used in (wanted, "") else [f"{path.name} computes in {used}: {wanted} does not apply"]
        return OpenVinoSession(self, compiled, None, remarks)

    def refusals(self, model: ModelInput) -> Mapping[int, str] | None:
        """The nodes with operations that the device says it does not support."""
        openvino = self.package_imported()
        index = indexed(model)
        core = self._core(openvino)
        device = self.options["device"]
        try:
            read = _read(core, model, index, self.imports)
            supported = core.query_model(read, device)
        except Exception:
            return None  # the model cannot be read, or the device is a combination of several
        return refused_nodes(read, supported, device, index)

    def warm_up(self) -> None:
        """Load the library, its reader of ONNX and the plug-in of the CPU.

        No model is compiled: the threads of the first inference would not survive a fork, which would then hang. None
        is read either: OpenVINO numbers the objects it makes, and the numbers appear in its messages.
        """
        with kept_signal_stack():
            self.package_imported().Core().get_property("CPU", "FULL_DEVICE_NAME")
        self.imports.module("openvino.frontend").FrontEndManager().load_by_framework("onnx")

    def _core(self, openvino: Any) -> Any:
        """A core that has the device and has the properties of the options set."""
        core, devices = _core_and_devices(openvino)
        device: str = self.options["device"]
        virtual, colon, behind = device.partition(":")
        if virtual not in {"AUTO", "HETERO", "MULTI", "BATCH"}:
            wanted = {device.partition(".")[0]}
        else:  # such as HETERO:GPU,CPU; none of a plain AUTO
            named = behind.split(",") if colon else []
            wanted = {name.partition(".")[0].partition("(")[0].lstrip("-") for name in named}
        if not wanted <= {name.partition(".")[0] for name in devices}:
            raise errors.EngineMissing(f"OpenVINO has no device {device!r} here, only {', '.join(devices)}")
        for key, value in self.options["config"].items():
            if key in _OWN_OPTIONS:
                raise errors.UsageError(
                    f"engine 'openvino': {key} is set by its option {_OWN_OPTIONS[key]!r}",
                    next_steps=["biopsy doctor openvino    explains its options"],
                )
            try:  # first of all, since a wrong property is not a failure of the model
                core.set_property(virtual, {key: value})
            except Exception as error:
                message = " ".join(_failure(error, "build").message.split())
                raise errors.UsageError(f"engine 'openvino': config.{key}={value}: {message}") from error
        return core

    def _given_properties(self, openvino: Any) -> dict[str, Any]:
        """The properties of the options, without CACHE_DIR: OpenVINO 2025 refuses it when it imports a blob."""
        properties: dict[str, Any] = {"INFERENCE_PRECISION_HINT": getattr(openvino.Type, self.options["precision"])}
        if self.options["threads"]:
            properties["INFERENCE_NUM_THREADS"] = self.options["threads"]
        if self.options["profile"]:
            properties["PERF_COUNT"] = True
        return {**properties, **self.options["config"]}


def _precision(compiled: Any) -> str:
    """The precision that OpenVINO says a compiled model computes in; empty if it does not say."""
    try:
        name: str = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    except Exception:
        return ""
    return name


class OpenVinoSession(BuiltModel):
    """A compiled model. ``index`` is None for a loaded one; ``uncompiled`` is the model that was compiled, if known."""

    gives_new_arrays = True

    def __init__(
        self,
        engine: OpenVino,
        compiled: Any,
        index: ModelIndex | None,
        remarks: Sequence[str],
        uncompiled: Any = None,
    ) -> None:
        self._openvino, self._imports = engine.package_imported(), engine.imports
        self._uncompiled = uncompiled
        self._compiled = compiled
        self._index = index
        self._request = compiled.create_infer_request()
        self._profiles: list[Sequence[Any]] | None = [] if engine.options["profile"] else None
        if index is None:
            types = {_any_name(port): _type_of(port) for port in compiled.inputs}
            super().__init__(types, [_any_name(port) for port in compiled.outputs], tuple(remarks))
            self._input_ports = dict(zip(self._inputs, compiled.inputs, strict=True))
            self._output_ports = dict(zip(self._outputs, compiled.outputs, strict=True))
            return
        fed = {tensor: index.names[tensor] for tensor in index.fed_inputs()}
        declared = {name: index.tensor_type(tensor) for tensor, name in fed.items()}
        super().__init__(declared, [index.names[tensor] for tensor in index.outputs], tuple(remarks))
        read = [name for tensor, name in fed.items() if tensor in index.consumers or tensor in index.outputs]
        self._input_ports = matched(read, compiled.inputs)
        self._output_ports = matched(self._outputs, compiled.outputs)

    def run(self, feed: Feed) -> dict[str, Array]:
        """Run once."""
        with _failing("run"):
            fed = {name: self._tensor(feed[name], port) for name, port in self._input_ports.items()}
            for name, tensor in fed.items():  # ``fed`` keeps the tensors, which may share the arrays' memory, alive
                self._request.set_tensor(self._input_ports[name], tensor)
            self._request.infer()
            if self._profiles is not None:
                self._profiles.append(self._request.profiling_info)
            outputs = {}
            for name, port in self._output_ports.items():
                tensor = self._request.get_tensor(port)
                array, of_type = np.array(tensor.data), tensor.element_type.get_type_name()
                if of_type in _PACKED:
                    elem, dims = ELEM_OF_DTYPE[_NUMPY_NAMES[of_type]], list(tensor.shape)

                    packed = onnx.TensorProto(data_type=elem, dims=dims, raw_data=array.tobytes())
                    array = onnx.numpy_helper.to_array(packed)
                elif of_type in _ML_DTYPES:
                    array = array.view(dtype_named(_ML_DTYPES[of_type]))
                outputs[name] = array
            return outputs

    def _tensor(self, array: Array, port: Any) -> Any:
        """An array as OpenVINO's tensor for a port."""
        plain = np.ascontiguousarray(array).reshape(array.shape)
        if port.element_type.get_type_name() not in _ML_DTYPES:
            return self._openvino.Tensor(plain)
        bits = plain.view(f"u{plain.dtype.itemsize}")
        return self._openvino.Tensor(bits, self._openvino.Shape(list(array.shape)), port.element_type)

    def layers(self) -> Sequence[LayerRecord]:
        """The layers that the device runs, from the runtime model, with their times if ``profile`` is on."""
        with _failing("build"):
            return layer_records(self._compiled, self._index, median_times(self._profiles or ()))

    def save(self, path: Path) -> None:
        """Export the compiled model as ``.blob``, or write the uncompiled one as ``.xml`` and ``.bin``."""
        require_ending(OpenVino, path)
        if path.suffix == IR and self._uncompiled is None:
            raise errors.UsageError(f"{path}: a compiled model cannot be written as {IR}: begin with the ONNX model")
        with _failing("build"):
            if path.suffix == IR:
                with written_together(path) as temporary:
                    self._openvino.save_model(self._uncompiled, str(temporary), compress_to_fp16=False)
                return
            # Without a stream as argument, old versions return bytes and new ones a stream.
            exported = self._imports.module("io").BytesIO()
            self._compiled.export_model(exported)
        write_whole(path, [exported.getvalue()])


@cache
def _reads_arrays(openvino: Any) -> bool:
    """Whether OpenVINO reads the memory of arrays of this NumPy.

    Old releases were made with a pybind11 before 2.12, which knows NumPy 1 only, and do not notice. The environments
    of other releases try the same (``processes/environments/prepared.py``).
    """
    given = np.arange(1, 25, dtype=np.float32).reshape(4, 6)
    return bool(np.array_equal(np.array(openvino.Tensor(given).data), given))


def _core_and_devices(openvino: Any) -> tuple[Any, Sequence[str]]:
    """A core and its devices; finding these loads the plug-in of each."""
    with kept_signal_stack():
        core = openvino.Core()
        return core, core.available_devices


def _read(core: Any, model: ModelInput, index: ModelIndex, imports: Imports) -> Any:
    """Read from the file if there is one, since OpenVINO looks for the weights of bytes in the current directory.

    The file must end in .onnx: with another ending OpenVINO might read it as something else than ONNX.
    """
    if model.path is not None and model.folder == model.path.parent and model.path.suffix == ".onnx":
        return core.read_model(str(model.path.absolute()))
    if not index.has_external_data:
        return core.read_model(model.data)
    system = imports.module("os")  # of the interpreter that reads the model
    before = system.open(".", system.O_RDONLY) if os.supports_fd else None
    home = system.getcwd()
    system.chdir(str(model.folder.absolute()))
    try:
        return core.read_model(model.data)
    finally:
        if before is None:
            system.chdir(home)
        else:
            system.fchdir(before)
            system.close(before)


_EMPTY_PHRASES = (
    "Exception from src/",
    "Check 'false' failed at src/frontends/common_translators/src/unconverted_ops_report.cpp",
    "Model wasn't fully converted.",
    "Summary:",
    "To facilitate the conversion of unsupported operations",
)


@contextmanager
def _failing(stage: errors.Stage) -> Iterator[None]:
    """Turn what OpenVINO raises into an EngineFailure in this stage."""
    try:
        yield
    except errors.BiopsyError:
        raise
    except Exception as error:
        raise _failure(error, stage) from error


def _failure(error: Exception, stage: errors.Stage) -> errors.EngineFailure:
    """A failure with OpenVINO's message, without empty phrases and places in its source files."""
    lines = [line.strip() for line in str(error).splitlines()]
    informative = [line for line in lines if line and not line.startswith(_EMPTY_PHRASES)]
    failure_name = re.search(r"\bfailed with (\w+Failure)\b", str(error))
    kind = failure_name.group(1) if failure_name else type(error).__name__
    return OpenVino.failure("\n".join(informative) or kind, stage, kind)


_PACKED = frozenset({"i4", "u4", "u2", "f4e2m1"})
"""Types of which OpenVINO gives the bytes, with several elements in one, in the same order as ONNX."""

_ML_DTYPES = {"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e8m0": "float8_e8m0fnu"}
"""OpenVINO's name of a type that NumPy lacks -> the name in ml_dtypes. Tensors of these are read as their bits."""


def matched(names: Sequence[str], ports: Sequence[Any]) -> dict[str, Any]:
    """The port of each name. Those that OpenVINO renamed when it simplified the model are matched in their order."""
    port_of: dict[str, Any] = {}
    remaining_ports = list(ports)
    for name in names:
        port = next((port for port in remaining_ports if name in port.get_names() or name == _own_name(port)), None)
        if port is not None:
            port_of[name] = port
            remaining_ports.remove(port)
    unmatched = [name for name in names if name not in port_of]
    port_of.update(zip(unmatched, remaining_ports, strict=False))
    return {name: port_of[name] for name in names if name in port_of}


def _own_name(port: Any) -> str:
    name: str = port.node.friendly_name
    return name.partition("/sink_port_")[0]


def _any_name(port: Any) -> str:
    """One name of a port, always the same, for a model whose ONNX file is not known."""
    return min(port.get_names(), default=_own_name(port))


def _type_of(port: Any) -> TensorType | None:
    """The type of a port; None for an unknown one."""
    elem = ELEM_OF_DTYPE.get(_NUMPY_NAMES.get(port.element_type.get_type_name(), ""))
    shape = port.partial_shape
    if elem is None:
        return None
    if shape.rank.is_dynamic:
        return TensorType(elem, None)
    return TensorType(elem, tuple(None if dim.is_dynamic else dim.get_length() for dim in shape))


_NUMPY_NAMES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "boolean": "bool", "string": "string",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "i4": "int4",
    "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "u4": "uint4", "u2": "uint2",
    "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e8m0": "float8_e8m0fnu", "f4e2m1": "float4_e2m1fn",
}  # fmt: skip
"""OpenVINO's name of a type -> the name in NumPy or ml_dtypes."""

_Value = TypeVar("_Value")

_FLOATS = frozenset({"f64", "f32", "f16", "bf16"})
_NO_LAYERS = frozenset({"Const", "Input", "Output"})
"""Entries of a runtime model that compute nothing."""


def precision_remarks(imports: Imports, read: Any, wanted: str, used: str, device: str) -> list[str]:
    """Remarks if the types of the computation are not those asked for, or not those of the model."""
    remarks = []
    if used != wanted:
        remarks.append(f"{wanted} was asked for, and OpenVINO computes in {used} on {device} here")
    nodes = list(read.get_ops())
    kinds = imports.gathered(nodes, "get_type_name()")
    computed = [node for node, kind in zip(nodes, kinds, strict=True) if kind != "Constant"]
    floats = {*imports.gathered(computed, "outputs()", "element_type", "get_type_name()")} & (_FLOATS - {used})
    return remarks + [f"OpenVINO computes the model's {name} tensors in {used}" for name in sorted(floats)]


def layer_records(compiled: Any, index: ModelIndex | None, times: Mapping[str, float]) -> list[LayerRecord]:
    """The layers that run in each inference, without those that depend on weights alone and run once.

    ``index`` is None if the ONNX model is not known; ``times`` are microseconds by layer name.
    """
    labels: dict[str, str] = {}  # OpenVINO uses the name of an output if the node has none
    if index is not None:
        labels = {index.names[tensor]: node.name or node.label for node in index.nodes for tensor in node.writes}
        labels |= {node.name: node.name for node in index.nodes if node.name}
    devices = compiled.get_property("EXECUTION_DEVICES")
    device = devices[0] if len(devices) == 1 else ""
    fixed: set[str] = set()
    records = []
    for op in compiled.get_runtime_model().get_ordered_ops():
        info = {key: str(value.astype(str)) for key, value in op.get_rt_info().items()}
        name, kind = str(op.friendly_name), info.get("layerType", "")
        sources = [port.get_source_output().get_node().friendly_name for port in op.inputs()]
        if kind == "Const" or (sources and fixed.issuperset(sources)):
            fixed.add(name)
        elif kind not in _NO_LAYERS:
            # Wrong for names that contain a comma, which cannot be told apart.
            originals = (_original(each, labels) for each in info.get("originalLayersNames", "").split(","))
            record = LayerRecord(
                name,
                kind,
                implementation=info.get("primitiveType", ""),
                precision=_NUMPY_NAMES.get(info.get("runtimePrecision", ""), ""),
                layout=info.get("outputLayouts", ""),
                nodes=tuple(dict.fromkeys(label for label in originals if label is not None)),
                device=device,
                time_us=times.get(name),
            )
            records.append(record)
    return records


def _original(name: str, values: Mapping[str, _Value]) -> _Value | None:
    """The value of a name, or of its beginning: operations made from one node have names like NODE/SUFFIX."""
    while name not in values and "/" in name:
        name = name.rpartition("/")[0]
    return values.get(name)


def refused_nodes(read: Any, supported: Mapping[str, str], device: str, index: ModelIndex) -> dict[int, str]:
    """The nodes, by number, that became an operation which is not ``supported``, and the reasons."""
    numbers = {index.names[tensor]: node.number for node in index.nodes for tensor in node.writes}
    numbers |= {node.name: node.number for node in index.nodes if node.name}
    reasons: dict[int, str] = {}
    for op in read.get_ops():
        name = op.friendly_name
        if name in supported or op.get_type_name() in {"Parameter", "Result", "Constant"}:
            continue
        number = _original(name, numbers)
        if number is not None:
            reasons.setdefault(number, f"{device} has no {op.get_type_name()} as it stands here")
    return reasons


def median_times(profiles: Iterable[Sequence[Any]]) -> dict[str, float]:
    """Layer name -> median microseconds, from the profiles of several runs."""
    times: dict[str, list[float]] = {}
    for profile in profiles:
        for entry in profile:
            if str(entry.status) == "Status.EXECUTED":
                times.setdefault(entry.node_name, []).append(entry.real_time.total_seconds() * 1e6)
    return {name: float(np.median(each)) for name, each in times.items()}


_SUSPECTS: Mapping[str, tuple[int, str]] = {"LSTM": (7, "the peepholes"), "DFT": (2, "the axis")}
"""Operator -> the place of an input that some version of OpenVINO ignores, and what it is."""


def ignored_inputs(core: Any, index: ModelIndex, imports: Imports) -> list[str]:
    """A remark for each input of a node in the main graph that OpenVINO silently ignores, so that its result is wrong.

    The installed version is tested with a model of one node, only if the model has such an input.
    """
    remarks = []
    for node in index.nodes:
        place, meaning = _SUSPECTS.get(node.op_type, (0, ""))
        if meaning and not node.domain and node.inputs[place : place + 1] and node.inputs[place] >= 0:
            if node.op_type == "DFT" and index.opset < 20:
                continue  # the axis was an attribute, which OpenVINO reads
            operator = node.op_type
            if (imports, operator) not in _IS_IGNORED:
                read = core.read_model(_single(operator))
                queue, used = [*read.get_results()], set[str]()  # nodes that a result depends on
                while queue:
                    each = queue.pop()
                    if each.get_name() not in used:
                        used.add(each.get_name())
                        queue += [port.get_source_output().get_node() for port in each.inputs()]
                tested = [port for port in read.inputs if _TESTED in port.get_names()]
                _IS_IGNORED[imports, operator] = not any(port.get_node().get_name() in used for port in tested)
            if _IS_IGNORED[imports, operator]:
                name = index.names[node.inputs[place]]
                remarks.append(f"OpenVINO ignores {meaning} of {node.label} (its input {name!r}): other engines do not")
    return remarks


_TESTED = "tested"
_IS_IGNORED: dict[tuple[Imports, str], bool] = {}


@cache
def _single(operator: str) -> bytes:
    """A model of one node whose suspect input is called ``tested``."""
    shapes: dict[str, tuple[int, tuple[int, ...]]]
    if operator == "LSTM":
        shapes = {"x": (1, (1, 1, 1)), "w": (1, (1, 4, 1)), "r": (1, (1, 4, 1)), _TESTED: (1, (1, 3))}
        node = onnx.helper.make_node("LSTM", ["x", "w", "r", "", "", "", "", _TESTED], ["y"], hidden_size=1)
    else:
        shapes = {"x": (1, (1, 2, 2, 1)), _TESTED: (onnx.TensorProto.INT64, ())}
        node = onnx.helper.make_node("DFT", ["x", "", _TESTED], ["y"])
    inputs = [onnx.helper.make_tensor_value_info(name, *kind) for name, kind in shapes.items()]
    graph = onnx.helper.make_graph([node], "single", inputs, [onnx.helper.make_tensor_value_info("y", 1, None)])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
    data: bytes = model.SerializeToString()
    return data
