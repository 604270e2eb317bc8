"""OpenVINO: by default on the CPU, and in float32, so that it is compared fairly; and what it really did."""

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
from biopsy.processes.own_process import kept_signal_stack
from biopsy.processes.writing import write_whole, written_together
from biopsy.tensors.results import Array, Feed
from biopsy.tensors.types import dtype_named

PRECISIONS = ("f32", "f16", "bf16")

_OWN_OPTIONS = {"INFERENCE_PRECISION_HINT": "precision", "PERF_COUNT": "profile", "INFERENCE_NUM_THREADS": "threads"}
"""Properties of OpenVINO that an option of ours sets."""

BLOB = ".blob"
"""Ending of the file that a compiled model is exported to."""
IR = ".xml"
"""Ending of a model in OpenVINO's own form, before it is compiled; its weights stand beside it in a .bin file."""


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
        told = getattr(package, "__version__", None) or package.get_version()
        return str(told).partition("-")[0]

    @classmethod
    def package_imported(cls) -> Any:
        """The module that has what we use, which older releases have in another place. Raises EngineMissing."""
        try:
            package = cls.imports.module("openvino")
            return package if hasattr(package, "Core") else cls.imports.module("openvino.runtime")
        except ImportError as error:
            raise errors.EngineMissing(
                f"openvino is not installed ({error})", next_steps=['pip install "biopsy[openvino]"', "biopsy doctor"]
            ) from error

    @classmethod
    def devices(cls) -> Sequence[str]:
        """The devices that OpenVINO finds."""
        return tuple(_core_and_devices(cls.package_imported())[1])

    def build(self, model: ModelInput) -> Session:
        """Read and compile the model for the device. A precision that is not used although it was asked for is told."""
        openvino = self.package_imported()
        index = indexed(model)
        core = self._core(openvino)
        try:
            read = _read(core, model, index, self.imports)
        except Exception as error:
            load.parse(model.data, model.path)  # raises ModelError if it is damaged: the engine is not to blame
            raise _failure(error, "load") from error
        if any(str(port.element_type.get_type_name()) == "string" for port in (*read.inputs, *read.outputs)):
            message = "OpenVINO ends the whole process on inputs or outputs that are strings: not tried"
            raise self.failure(message, "load", "UnsupportedType")
        return self._compiled(openvino, core, read, index)

    def _compiled(self, openvino: Any, core: Any, read: Any, index: ModelIndex | None) -> Session:
        wanted, device = self.options["precision"], self.options["device"]
        properties = {"CACHE_DIR": "", **self._given_properties(openvino)}  # each build is one
        with _failing("build"):
            compiled = core.compile_model(read, device, properties)
        remarks = [] if index is None else ignored_inputs(core, index, self.imports)
        remarks += precision_remarks(self.imports, read, wanted, _precision(compiled) or wanted, device)
        return OpenVinoSession(self, compiled, index, remarks, uncompiled=read)

    def load(self, path: Path) -> Session:
        """A model that ``save`` has written; a .blob needs the same version of OpenVINO, on a like device."""
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
        """The nodes with an operation that the device says it does not have."""
        openvino = self.package_imported()
        index = indexed(model)
        core = self._core(openvino)
        device = self.options["device"]
        try:
            read = _read(core, model, index, self.imports)
            supported = core.query_model(read, device)
        except Exception:
            return None  # it cannot be read as a whole, or the device is several
        return refused_nodes(read, supported, device, index)

    def warm_up(self) -> None:
        """Load the library, its reader of ONNX and the plug-in of the CPU.

        Nothing is compiled: the threads that come with the first inference do not survive a fork, and it would hang.
        Nothing is read either: OpenVINO numbers what it makes, and the numbers stand in its messages.
        """
        with kept_signal_stack():
            self.package_imported().Core().get_property("CPU", "FULL_DEVICE_NAME")
        self.imports.module("openvino.frontend").FrontEndManager().load_by_framework("onnx")

    def _core(self, openvino: Any) -> Any:
        """A core that has the device, told the properties in the options."""
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
            try:  # a wrong one is no failure of the model, so it is tried before anything
                core.set_property(virtual, {key: value})
            except Exception as error:
                said = " ".join(_failure(error, "build").message.split())
                raise errors.UsageError(f"engine 'openvino': config.{key}={value}: {said}") from error
        return core

    def _given_properties(self, openvino: Any) -> dict[str, Any]:
        """What this engine's options ask for. There is nothing to cache of a file: OpenVINO 2025 refuses to be told."""
        properties: dict[str, Any] = {"INFERENCE_PRECISION_HINT": getattr(openvino.Type, self.options["precision"])}
        if self.options["threads"]:
            properties["INFERENCE_NUM_THREADS"] = self.options["threads"]
        if self.options["profile"]:
            properties["PERF_COUNT"] = True
        return {**properties, **self.options["config"]}


def _precision(compiled: Any) -> str:
    """The precision that a compiled model computes in, as OpenVINO tells it; empty if it does not."""
    try:
        name: str = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    except Exception:
        return ""
    return name


class OpenVinoSession(BuiltModel):
    """A model that OpenVINO has compiled; without the model's index it was loaded as such.

    ``uncompiled`` is what it was compiled from, if that is known.
    """

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
            for name, tensor in fed.items():  # they may share the memory of the arrays, and stay until it has run
                self._request.set_tensor(self._input_ports[name], tensor)
            self._request.infer()
            if self._profiles is not None:
                self._profiles.append(self._request.profiling_info)
            outputs = {}
            for name, port in self._output_ports.items():
                tensor = self._request.get_tensor(port)
                array = np.array(tensor.data)
                dtype = _ML_DTYPES.get(tensor.element_type.get_type_name())
                outputs[name] = array if dtype is None else array.view(dtype_named(dtype))
            return outputs

    def _tensor(self, array: Array, port: Any) -> Any:
        """A value as OpenVINO takes it at a port."""
        plain = np.ascontiguousarray(array).reshape(array.shape)
        if port.element_type.get_type_name() not in _ML_DTYPES:
            return self._openvino.Tensor(plain)
        bits = plain.view(f"u{plain.dtype.itemsize}")
        return self._openvino.Tensor(bits, self._openvino.Shape(list(array.shape)), port.element_type)

    def layers(self) -> Sequence[LayerRecord]:
        """The layers that the device runs, from the runtime model, with their times if ``profile`` was asked for."""
        with _failing("build"):
            return layer_records(self._compiled, self._index, mean_times(self._profiles or ()))

    def save(self, path: Path) -> None:
        """Export the compiled model as ``.blob``, or write the model as it was read as ``.xml`` and ``.bin``."""
        require_ending(OpenVino, path)
        if path.suffix == IR and self._uncompiled is None:
            raise errors.UsageError(f"{path}: a compiled model cannot be written as {IR}: begin with the ONNX model")
        with _failing("build"):
            if path.suffix == IR:  # with every weight in the type that it has in the model
                with written_together(path) as made:
                    self._openvino.save_model(self._uncompiled, str(made), compress_to_fp16=False)
                return
            # Without a stream of ours, older versions give bytes and newer ones a stream.
            exported = self._imports.module("io").BytesIO()
            self._compiled.export_model(exported)
        write_whole(path, [exported.getvalue()])


def _core_and_devices(openvino: Any) -> tuple[Any, Sequence[str]]:
    """A core and the devices that it finds, for which it loads the plug-in of each."""
    with kept_signal_stack():
        core = openvino.Core()
        return core, core.available_devices


def _read(core: Any, model: ModelInput, index: ModelIndex, imports: Imports) -> Any:
    """Read from the file when there is one. OpenVINO seeks the weights of bytes in the current directory.

    By another ending of the file's name it might take it for something else than the ONNX model that was checked.
    """
    if model.path is not None and model.folder == model.path.parent and model.path.suffix == ".onnx":
        return core.read_model(str(model.path.absolute()))
    if not index.has_external_data:
        return core.read_model(model.data)
    system = imports.module("os")  # of the interpreter that reads it
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


_SAYS_NOTHING = (
    "Exception from src/",
    "Check 'false' failed at src/frontends/common_translators/src/unconverted_ops_report.cpp",
    "Model wasn't fully converted.",
    "Summary:",
    "To facilitate the conversion of unsupported operations",
)


@contextmanager
def _failing(stage: errors.Stage) -> Iterator[None]:
    """What OpenVINO raises inside is a failure in this stage; what biopsy raises stays what it is."""
    try:
        yield
    except errors.BiopsyError:
        raise
    except Exception as error:
        raise _failure(error, stage) from error


def _failure(error: Exception, stage: errors.Stage) -> errors.EngineFailure:
    """The first lines of OpenVINO's message that say something, without the places in its source files."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(_SAYS_NOTHING)]
    named = re.search(r"\bfailed with (\w+Failure)\b", str(error))
    kind = named.group(1) if named else type(error).__name__
    return OpenVino.failure("\n".join(told) or kind, stage, kind)


# The inputs and outputs of OpenVINO's models: which is which by name, their types, their values.

_ML_DTYPES = {"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e8m0": "float8_e8m0fnu"}
"""OpenVINO's name of a type that NumPy lacks -> the name in ml_dtypes. All are read bit by bit."""


def matched(names: Sequence[str], ports: Sequence[Any]) -> dict[str, Any]:
    """The port of each name: by name, else in order, since OpenVINO renames what it simplifies while it reads."""
    found: dict[str, Any] = {}
    rest = list(ports)
    for name in names:
        port = next((port for port in rest if name in port.get_names() or name == _own_name(port)), None)
        if port is not None:
            found[name] = port
            rest.remove(port)
    left = [name for name in names if name not in found]
    found.update(zip(left, rest, strict=False))
    return {name: found[name] for name in names if name in found}


def _own_name(port: Any) -> str:
    name: str = port.node.friendly_name
    return name.partition("/sink_port_")[0]


def _any_name(port: Any) -> str:
    """A name of a port of a model whose ONNX file is not known."""
    return min(port.get_names(), default=_own_name(port))


def _type_of(port: Any) -> TensorType | None:
    """The type that a port says it has; None for one that we do not know."""
    elem = ELEM_OF_DTYPE.get(_NUMPY_NAMES.get(port.element_type.get_type_name(), ""))
    shape = port.partial_shape
    if elem is None:
        return None
    if shape.rank.is_dynamic:
        return TensorType(elem, None)
    return TensorType(elem, tuple(None if dim.is_dynamic else dim.get_length() for dim in shape))


# What OpenVINO really did: its types, its layers and their times.

_NUMPY_NAMES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "boolean": "bool", "string": "string",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "i4": "int4",
    "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "u4": "uint4", "u2": "uint2",
    "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e8m0": "float8_e8m0fnu", "f4e2m1": "float4_e2m1fn",
}  # fmt: skip
"""OpenVINO's name of a type -> the one that NumPy or ml_dtypes has."""

_Known = TypeVar("_Known")

_FLOATS = frozenset({"f64", "f32", "f16", "bf16"})
_NO_LAYERS = frozenset({"Const", "Input", "Output"})
"""What stands in a runtime model and is not computed."""


def precision_remarks(imports: Imports, read: Any, wanted: str, used: str, device: str) -> list[str]:
    """Where the types of the computation are not those asked for, or those of the model."""
    found = []
    if used != wanted:
        found.append(f"{wanted} was asked for, and OpenVINO computes in {used} on {device} here")
    nodes = list(read.get_ops())
    kinds = imports.gathered(nodes, "get_type_name()")
    computed = [node for node, kind in zip(nodes, kinds, strict=True) if kind != "Constant"]
    floats = {*imports.gathered(computed, "outputs()", "element_type", "get_type_name()")} & (_FLOATS - {used})
    return found + [f"OpenVINO computes the model's {name} tensors in {used}" for name in sorted(floats)]


def layer_records(compiled: Any, index: ModelIndex | None, times: Mapping[str, float]) -> list[LayerRecord]:
    """The layers that run in each inference. What depends on weights alone is computed once and is no layer.

    ``index`` is that of the model, None if it is not known; ``times`` has microseconds by the name of a layer.
    """
    labels: dict[str, str] = {}  # OpenVINO takes an output's name where a node has none
    if index is not None:
        labels = {index.names[tensor]: node.name or node.label for node in index.nodes for tensor in node.writes}
        labels |= {node.name: node.name for node in index.nodes if node.name}
    devices = compiled.get_property("EXECUTION_DEVICES")
    device = devices[0] if len(devices) == 1 else ""
    fixed: set[str] = set()
    records = []
    for op in compiled.get_runtime_model().get_ordered_ops():
        told = {key: str(value.astype(str)) for key, value in op.get_rt_info().items()}
        name, kind = str(op.friendly_name), told.get("layerType", "")
        sources = [port.get_source_output().get_node().friendly_name for port in op.inputs()]
        if kind == "Const" or (sources and fixed.issuperset(sources)):
            fixed.add(name)
        elif kind not in _NO_LAYERS:
            # A name that holds a comma itself is not told apart.
            originals = (_original(each, labels) for each in told.get("originalLayersNames", "").split(","))
            record = LayerRecord(
                name,
                kind,
                implementation=told.get("primitiveType", ""),
                precision=_NUMPY_NAMES.get(told.get("runtimePrecision", ""), ""),
                layout=told.get("outputLayouts", ""),
                nodes=tuple(dict.fromkeys(label for label in originals if label is not None)),
                device=device,
                time_us=times.get(name),
            )
            records.append(record)
    return records


def _original(name: str, known: Mapping[str, _Known]) -> _Known | None:
    """What is ``known`` by a name, or by what it begins with: operations made of one node have its name and more."""
    while name not in known and "/" in name:
        name = name.rpartition("/")[0]
    return known.get(name)


def refused_nodes(read: Any, supported: Mapping[str, str], device: str, index: ModelIndex) -> dict[int, str]:
    """Nodes, by number, that became an operation which is not among the ``supported`` ones of a query."""
    numbers = {index.names[tensor]: node.number for node in index.nodes for tensor in node.writes}
    numbers |= {node.name: node.number for node in index.nodes if node.name}
    found: dict[int, str] = {}
    for op in read.get_ops():
        name = op.friendly_name
        if name in supported or op.get_type_name() in {"Parameter", "Result", "Constant"}:
            continue
        number = _original(name, numbers)
        if number is not None:
            found.setdefault(number, f"{device} has no {op.get_type_name()} as it stands here")
    return found


def mean_times(profiles: Iterable[Sequence[Any]]) -> dict[str, float]:
    """Mean microseconds by the name of a layer, from the profiles of several runs."""
    each: dict[str, list[float]] = {}
    for profile in profiles:
        for entry in profile:
            if str(entry.status) == "Status.EXECUTED":
                each.setdefault(entry.node_name, []).append(entry.real_time.total_seconds() * 1e6)
    return {name: sum(found) / len(found) for name, found in each.items()}


# Inputs of nodes that OpenVINO reads over without a word, so that its result is another one.
#
# Whether it does is asked of the installed version, with a model of one node, and only if a model has such an input.

_SUSPECTS: Mapping[str, tuple[int, str]] = {"LSTM": (7, "the peepholes"), "DFT": (2, "the axis")}
"""Operator -> the place of an input that some version of OpenVINO ignores, and what it is."""


def ignored_inputs(core: Any, index: ModelIndex, imports: Imports) -> list[str]:
    """A line for each node of the main graph that has an input which OpenVINO ignores; ``imports`` tell which one."""
    found = []
    for node in index.nodes:
        place, what = _SUSPECTS.get(node.op_type, (0, ""))
        if what and not node.domain and node.inputs[place : place + 1] and node.inputs[place] >= 0:
            if node.op_type == "DFT" and index.opset < 20:
                continue  # it was an attribute, and is read
            operator = node.op_type
            if (imports, operator) not in _ANSWERS:
                read = core.read_model(_single(operator))
                waiting, used = [*read.get_results()], set[str]()  # nodes that a result depends on
                while waiting:
                    each = waiting.pop()
                    if each.get_name() not in used:
                        used.add(each.get_name())
                        waiting += [port.get_source_output().get_node() for port in each.inputs()]
                asked = [port for port in read.inputs if "asked" in port.get_names()]
                _ANSWERS[imports, operator] = not any(port.get_node().get_name() in used for port in asked)
            if _ANSWERS[imports, operator]:
                name = index.names[node.inputs[place]]
                found.append(f"OpenVINO ignores {what} of {node.label} (its input {name!r}): other engines do not")
    return found


_ANSWERS: dict[tuple[Imports, str], bool] = {}


@cache
def _single(operator: str) -> bytes:
    """A model of one node whose input in question is called ``asked``."""
    from onnx import TensorProto, helper

    shapes: dict[str, tuple[int, tuple[int, ...]]]
    if operator == "LSTM":
        shapes = {"x": (1, (1, 1, 1)), "w": (1, (1, 4, 1)), "r": (1, (1, 4, 1)), "asked": (1, (1, 3))}
        node = helper.make_node("LSTM", ["x", "w", "r", "", "", "", "", "asked"], ["y"], hidden_size=1)
    else:
        shapes = {"x": (1, (1, 2, 2, 1)), "asked": (TensorProto.INT64, ())}
        node = helper.make_node("DFT", ["x", "", "asked"], ["y"])
    inputs = [helper.make_tensor_value_info(name, *kind) for name, kind in shapes.items()]
    graph = helper.make_graph([node], "asked", inputs, [helper.make_tensor_value_info("y", 1, None)])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    data: bytes = made.SerializeToString()
    return data
