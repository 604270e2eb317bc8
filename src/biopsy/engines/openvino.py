"""OpenVINO: by default on the CPU, and in float32, so that it is compared fairly."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.engines.base import Capabilities, Engine, ModelInput, Option, Session
from biopsy.engines.blame import raise_if_model_is_broken
from biopsy.engines.option import count
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.tensor_type import TensorType
from biopsy.tensors.results import Array, Feed

PRECISIONS = ("f32", "f16", "bf16")

_ML_DTYPES = {"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e8m0": "float8_e8m0fnu"}
"""OpenVINO's name of a type that NumPy lacks -> the name in ml_dtypes. All are read bit by bit."""

_FLOATS = {"f64", "f32", "f16", "bf16"}


class OpenVino(Engine):
    """OpenVINO on one of its devices."""

    name = "openvino"
    summary = "OpenVINO"
    package = "biopsy[openvino]"
    capabilities = Capabilities(precision_used=True, chooses_device=True)
    options_declared = (
        Option("device", "device to compile for, such as CPU or GPU", "CPU"),
        Option("precision", "precision of inner computations, read back after compiling", "f32", PRECISIONS),
        Option("threads", "threads for inference; 0: as many as the engine likes", 0, parse=count),
    )

    @classmethod
    def version(cls) -> str:
        """The version of the package openvino, without its build number."""
        return str(_import().__version__).partition("-")[0]

    @classmethod
    def devices(cls) -> Sequence[str]:
        """The devices that OpenVINO finds."""
        return tuple(_import().Core().available_devices)

    def build(self, model: ModelInput) -> Session:
        """Read and compile the model for the device, in the precision asked for or not at all."""
        openvino = _import()
        index = _indexed(model)
        core = openvino.Core()
        self._require_device(core)
        try:
            read = _read(core, model, index)
        except Exception as error:
            raise_if_model_is_broken(model)
            raise _failure(error, "load") from error
        if any(str(port.element_type.get_type_name()) == "string" for port in (*read.inputs, *read.outputs)):
            raise errors.EngineFailure(
                "OpenVINO ends the whole process on inputs or outputs that are strings: not tried",
                engine=self.name,
                stage="load",
                kind="UnsupportedType",
            )
        try:
            compiled = core.compile_model(read, self.options["device"], self._properties(openvino))
        except Exception as error:
            raise _failure(error, "build") from error
        self._require_precision(compiled)
        used = self.options["precision"]
        remarks = [f"OpenVINO computes the model's {name} tensors in {used}" for name in _other_floats(read, used)]
        return OpenVinoSession(openvino, compiled, index, remarks)

    def _properties(self, openvino: Any) -> dict[str, Any]:
        properties: dict[str, Any] = {"INFERENCE_PRECISION_HINT": getattr(openvino.Type, self.options["precision"])}
        if self.options["threads"]:
            properties["INFERENCE_NUM_THREADS"] = self.options["threads"]
        return properties

    def _require_device(self, core: Any) -> None:
        device = self.options["device"]
        devices = core.available_devices
        if device.partition(".")[0] not in {name.partition(".")[0] for name in devices}:
            raise errors.EngineMissing(f"OpenVINO has no device {device!r} here, only {', '.join(devices)}")

    def _require_precision(self, compiled: Any) -> None:
        wanted = self.options["precision"]
        used = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        if used != wanted:
            raise errors.EngineMissing(
                f"OpenVINO does not compute in {wanted} on {self.options['device']} here: it would have used {used}",
                next_steps=[f"--engine openvino:precision={used}"],
            )


class OpenVinoSession(Session):
    """A model that OpenVINO has compiled."""

    def __init__(self, openvino: Any, compiled: Any, index: ModelIndex, remarks: Sequence[str]) -> None:
        self._openvino = openvino
        self._remarks = tuple(remarks)
        self._request = compiled.create_infer_request()
        self._inputs = {index.names[tensor]: index.tensor_type(tensor) for tensor in index.fed_inputs()}
        self._outputs = tuple(index.names[tensor] for tensor in index.outputs)
        read = [index.names[tensor] for tensor in index.fed_inputs() if _is_read(index, tensor)]
        self._input_ports = _match(read, compiled.inputs)
        self._output_ports = _match(self._outputs, compiled.outputs)

    @property
    def inputs(self) -> Mapping[str, TensorType | None]:
        """Inputs that must be fed, with the types that the model declares; OpenVINO may ignore some of them."""
        return self._inputs

    @property
    def outputs(self) -> Sequence[str]:
        """Names of the outputs."""
        return self._outputs

    @property
    def remarks(self) -> Sequence[str]:
        """Which of the model's floating-point types OpenVINO replaces by another while it computes."""
        return self._remarks

    def run(self, feed: Feed) -> dict[str, Array]:
        """Run once."""
        try:
            for name, port in self._input_ports.items():
                self._request.set_tensor(port, self._to_tensor(feed[name], port))
            self._request.infer()
            return {name: _to_array(self._request.get_tensor(port)) for name, port in self._output_ports.items()}
        except Exception as error:
            raise _failure(error, "run") from error

    def _to_tensor(self, array: Array, port: Any) -> Any:
        plain = np.ascontiguousarray(array).reshape(array.shape)
        if port.element_type.get_type_name() not in _ML_DTYPES:
            return self._openvino.Tensor(plain)
        bits = plain.view(f"u{plain.dtype.itemsize}")
        return self._openvino.Tensor(bits, self._openvino.Shape(list(array.shape)), port.element_type)


def _import() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise errors.EngineMissing(
            f"openvino is not installed ({error})", next_steps=['pip install "biopsy[openvino]"', "biopsy doctor"]
        ) from error
    return openvino


def _indexed(model: ModelInput) -> ModelIndex:
    try:
        return index_bytes(model.data, model.folder)
    except errors.ModelError:
        raise_if_model_is_broken(model)  # the same, and it names the file
        raise


def _read(core: Any, model: ModelInput, index: ModelIndex) -> Any:
    """Read from the file when there is one. OpenVINO seeks the weights of bytes in the current directory."""
    if model.path is not None and model.folder == model.path.parent:
        return core.read_model(str(model.path))
    if index.has_external_data:
        return _within(model.folder, lambda: core.read_model(model.data))
    return core.read_model(model.data)


def _within(folder: os.PathLike[str], work: Callable[[], Any]) -> Any:
    before = os.open(".", os.O_RDONLY) if os.supports_fd else None
    home = os.getcwd()  # noqa: PTH109
    os.chdir(folder)
    try:
        return work()
    finally:
        if before is None:
            os.chdir(home)
        else:
            os.fchdir(before)
            os.close(before)


def _is_read(index: ModelIndex, tensor: int) -> bool:
    """Whether anything reads an input: OpenVINO drops those that nothing reads."""
    return tensor in index.consumers or tensor in index.outputs


def _match(names: Sequence[str], ports: Sequence[Any]) -> dict[str, Any]:
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


def _to_array(tensor: Any) -> Array:
    dtype_name = _ML_DTYPES.get(tensor.element_type.get_type_name())
    array: Array = np.array(tensor.data)
    if dtype_name is None:
        return array
    import ml_dtypes

    return array.view(getattr(ml_dtypes, dtype_name))


def _other_floats(read: Any, used: str) -> list[str]:
    """Floating-point types of the model's tensors that are not the one the device computes in."""
    found = {port.element_type.get_type_name() for node in read.get_ops() for port in _computed(node)}
    return sorted(found & (_FLOATS - {used}))


def _computed(node: Any) -> Sequence[Any]:
    outputs: Sequence[Any] = () if node.get_type_name() == "Constant" else node.outputs()
    return outputs


def _failure(error: Exception, stage: errors.Stage) -> errors.EngineFailure:
    """The first lines of OpenVINO's message that say something, without the places in its source files."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith("Exception from src/")]
    named = re.search(r"\bfailed with (\w+Failure)\b", str(error))
    kind = named.group(1) if named else type(error).__name__
    message = "\n".join(told) or kind
    return errors.EngineFailure(message, engine=OpenVino.name, stage=stage, kind=kind)
