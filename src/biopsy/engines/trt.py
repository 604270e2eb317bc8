"""TensorRT 10 and 11, or TensorRT for RTX, which builds engines without a GPU. Running one always needs a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.engines import trt_settings
from biopsy.engines.base import (
    BuiltModel,
    Capabilities,
    Engine,
    ModelInput,
    Session,
    indexed,
    read_built,
    require_ending,
)
from biopsy.engines.trt_execution import Execution, gpu_names, numpy_name, require_gpu
from biopsy.engines.trt_settings import OPTIONS, Package, Settings, ShapeRange, profiles_of, unknown_names
from biopsy.model import load
from biopsy.model.index import ModelIndex
from biopsy.model.slice import identity_bytes
from biopsy.model.tensor_type import ELEM_OF_DTYPE, TensorType
from biopsy.processes.writing import write_whole
from biopsy.tensors.generate import resolve_shapes
from biopsy.tensors.results import Array, Feed
from biopsy.text import printable

ENDINGS = (".engine", ".plan", ".trt")

_LARGEST_MESSAGE = (1 << 31) - 1


class TensorRt(Engine):
    """TensorRT or TensorRT for RTX, whichever is installed."""

    name = trt_settings.ENGINE
    summary = "TensorRT, or TensorRT for RTX"
    package = "biopsy[tensorrt]"
    capabilities = Capabilities(saves=ENDINGS, saves_without_ending=True, wants_shapes=True)
    forks_warm = True
    options_declared = OPTIONS

    @classmethod
    def version(cls) -> str:
        """The version and name of the installed package."""
        package = trt_settings.load()
        return f"{package.version} ({package.name})"

    @classmethod
    def devices(cls) -> Sequence[str]:
        """Names of the GPUs here."""
        return tuple(gpu_names())

    def warm_up(self) -> None:
        """Import the package and no more: objects on a GPU do not survive a fork."""
        self._package()

    @property
    def keeps_types(self) -> bool:
        """TensorRT computes in another type instead of one that it lacks, which a remark says."""
        return False

    def build(self, model: ModelInput) -> Session:
        """Parse the model and build an engine. Raises EngineMissing if this TensorRT needs a GPU for that."""
        package = self._package()
        settings = Settings(package, self.options)
        settings.require_precisions()
        index = indexed(model)
        package.logged.clear()
        builder = self._builder(package)
        network, parser = self._parsed(package, settings, builder, model)
        added, dropped = _mark(network, index, self.options["outputs"], self.options["exclude_outputs"])
        config = builder.create_builder_config()
        settings.apply_to_config(config)
        remarks = [*settings.remarks(), *self._set_shapes(builder, network, config, index, model)]
        package.logged.clear()
        plan = builder.build_serialized_network(network, config)
        del parser  # kept until here, since the network uses its weights
        if plan is None:
            failure = trt_settings.build_failure(package)
            if failure.kind == "CudaRuntime":
                require_gpu(f"what was asked of {package.name} {package.version}")
                require_working(package)
            raise failure
        settings.keep_cache(config)
        ports = [network.get_input(number) for number in range(network.num_inputs)]
        ports += [network.get_output(number) for number in range(network.num_outputs)]
        replaced = {}
        for port in ports:
            declared = index.tensor_type(index.ids[port.name]) if port.name in index.ids else None
            used = numpy_name(port.dtype)
            if declared is not None and declared.elem and used and declared.dtype != used:
                replaced[declared.dtype] = used
        remarks += [f"{package.name} computes the model's {name} tensors in {used}" for name, used in replaced.items()]
        inputs = {index.names[tensor]: index.tensor_type(tensor) for tensor in index.fed_inputs()}
        model_outputs = [index.names[tensor] for tensor in index.outputs]
        outputs = (*(name for name in model_outputs if name not in dropped), *added)
        return TensorRtSession(package, memoryview(plan), inputs, outputs, remarks)

    def load(self, path: Path) -> Session:
        """Load a saved engine. Only a machine with a GPU can read it."""
        require_ending(TensorRt, path)
        package = self._package()
        plan = memoryview(read_built(path))
        require_gpu(f"{path} is an engine of TensorRT: reading it")
        with _no_model_blamed(package):
            engine = deserialized(package, plan)
        names = [engine.get_tensor_name(number) for number in range(engine.num_io_tensors)]
        inputs = {
            name: _type_of(engine, name)
            for name in names
            if bool(engine.get_tensor_mode(name) == package.module.TensorIOMode.INPUT)
        }
        outputs = tuple(name for name in names if name not in inputs)
        return TensorRtSession(package, plan, inputs, outputs, [], engine)

    def refusals(self, model: ModelInput) -> Mapping[int, str]:
        """The nodes that its parser refuses. It stops at some kinds of errors: ask again without those nodes."""
        package = self._package()
        index = indexed(model)
        package.logged.clear()
        builder = self._builder(package)
        settings = Settings(package, self.options)
        network = builder.create_network(settings.network_flags())
        parser = package.module.OnnxParser(network, package.logger)  # it does not keep the network alive
        settings.apply_to_parser(parser)
        if parser.supports_model_v2(model.data, _path_for_weights(model)):
            return {}
        reasons: dict[int, str] = {}
        for refusal in trt_settings.refusals(parser):
            number = _outer_number(index, refusal)
            if number is not None:
                inside = f"{refusal.label}: " if refusal.outer else ""
                reasons.setdefault(number, f"{inside}{refusal.reason}")
        return reasons

    def network_text(self, model: ModelInput, *, with_layers: bool) -> list[str]:
        """The lines that describe the parsed network. Raises EngineFailure with stage "load"."""
        package = self._package()
        package.logged.clear()
        builder = self._builder(package)
        network, parser = self._parsed(package, Settings(package, self.options), builder, model)
        lines = list(network_text(network, with_layers=with_layers))
        del parser  # kept until here, since the network uses its weights
        return lines

    def _package(self) -> Package:
        package = trt_settings.load(self.options["package"])
        register = getattr(package.module, "init_libnvinfer_plugins", None)
        if self.options["plugins"] and register is not None:
            register(package.logger, "")
        return package

    def _builder(self, package: Package) -> Any:
        """A builder with the plug-ins loaded. TensorRT other than RTX needs a GPU for it."""
        if not package.is_rtx:
            require_gpu(
                f"building with {package.name} {package.version}",
                "--engine trt:package=rtx    builds without one, where TensorRT for RTX is installed",
            )
        try:
            builder = package.module.Builder(package.logger)
        except Exception as error:
            raise errors.EngineMissing(f"{package.name} {package.version} does not start: {error}") from error
        for library in self.options["plugins"]:
            if builder.get_plugin_registry().load_library(library) is None:
                reason = "; ".join(map(trt_settings.plain_reason, package.errors_logged)) or "it does not say why"
                raise errors.UsageError(f"{package.name} cannot load the plug-ins in {library}: {reason}")
        return builder

    def _parsed(self, package: Package, settings: Settings, builder: Any, model: ModelInput) -> tuple[Any, Any]:
        """The network of a model and its parser. Raises EngineFailure with stage "load"."""
        network = builder.create_network(settings.network_flags())
        parser = package.module.OnnxParser(network, package.logger)
        settings.apply_to_parser(parser)
        if len(model.data) > _LARGEST_MESSAGE and model.path is not None:
            parsed = parser.parse_from_file(str(model.path))
        else:
            parsed = parser.parse(model.data, _path_for_weights(model))
        if not parsed:
            load.parse(model.data, model.path)  # raises ModelError if it is damaged: the engine is not to blame
            raise trt_settings.parse_failure(package, trt_settings.refusals(parser))
        return network, parser

    def _set_shapes(
        self, builder: Any, network: Any, config: Any, index: ModelIndex, model: ModelInput
    ) -> Sequence[str]:
        """Add the optimization profiles that dynamic inputs need; returns remarks on guessed shapes."""
        ports = [network.get_input(number) for number in range(network.num_inputs)]
        remarks = [
            f"the model has no input {name!r}: the shapes given for it are not used"
            for name in unknown_names(self.options, [port.name for port in ports])
        ]
        dynamic = [port for port in ports if -1 in tuple(port.shape) or port.is_shape_tensor]
        if not dynamic:
            return remarks
        types = {port.name: _declared(index, port) for port in dynamic}
        profiles = profiles_of(types, self.options, model, resolve_shapes(types, {}))
        for spans in profiles:
            profile = builder.create_optimization_profile()
            for port in dynamic:
                span = spans[port.name]
                set_span = profile.set_shape_input if port.is_shape_tensor else profile.set_shape
                set_span(port.name, span.least, span.best, span.most)
            if config.add_optimization_profile(profile) < 0:
                shapes = ", ".join(
                    f"{name} from {list(each.least)} to {list(each.most)}" for name, each in spans.items()
                )
                raise errors.DoesNotFit(f"TensorRT does not take the optimization profile {shapes}")
        return [*remarks, *_guessed(dynamic, profiles)]


def _guessed(dynamic: Sequence[Any], profiles: Sequence[Mapping[str, ShapeRange]]) -> Iterator[str]:
    """A remark on the inputs whose shapes were guessed in any profile."""
    guesses, names = [], []
    for port in dynamic:
        span = next((spans[port.name] for spans in profiles if spans[port.name].is_guess), None)
        if span is not None:
            kind = "the values" if port.is_shape_tensor else "the shape"
            guesses.append(f"{kind} of input {port.name!r}: the engine is built for {list(span.best)}")
            names.append(f"{port.name}:[...]")
    if guesses:
        options = f"--trt-min-shapes, --trt-opt-shapes, --trt-max-shapes {' '.join(names)}"
        yield f"nothing says {'; nor '.join(guesses)} ({options})"


def _mark(
    network: Any, index: ModelIndex, wanted: Sequence[str], unwanted: Sequence[str]
) -> tuple[Sequence[str], Sequence[str]]:
    """Choose the outputs of the network; returns the outputs that were added and those that were dropped.

    ``wanted`` replaces the model's outputs, or adds every tensor with a name in the model if it is ``all``; then
    ``unwanted`` outputs are dropped. Raises DoesNotFit for a name that the network does not have (a reduced model may
    lack it), and if no output is left.
    """
    if not (wanted or unwanted):
        return (), ()
    layers = [network.get_layer(number) for number in range(network.num_layers)]
    tensors = {
        tensor.name: tensor
        for layer in layers
        for tensor in (layer.get_output(number) for number in range(layer.num_outputs))
        if tensor is not None
    }
    model_outputs = [network.get_output(number) for number in range(network.num_outputs)]
    own = [tensor.name for tensor in model_outputs]
    dropped: list[str] = []
    if not wanted:
        chosen = []
    elif tuple(wanted) in (("all",), ("mark", "all")):
        names = [index.names[tensor] for node in index.nodes for tensor in node.writes]
        chosen = [name for name in names if name in tensors and name not in own]
    else:
        missing = [name for name in wanted if name not in tensors and name not in own]
        if missing:
            raise errors.DoesNotFit(f"TensorRT's network has no tensor {missing[0]!r} to mark as an output")
        chosen = [name for name in wanted if name not in own]
        dropped = [name for name in own if name not in wanted]
    chosen, dropped = _without(unwanted, own, chosen, dropped)
    for tensor in model_outputs:
        if tensor.name in dropped:
            network.unmark_output(tensor)
    for name in chosen:
        network.mark_output(tensors[name])
    return chosen, dropped


def _without(
    unwanted: Sequence[str], own: Sequence[str], chosen: Sequence[str], dropped: Sequence[str]
) -> tuple[list[str], list[str]]:
    """``chosen`` and ``dropped`` after the ``unwanted`` outputs are removed; ``own`` are the model's outputs.

    Raises DoesNotFit for a name that is not an output, and if no output is left.
    """
    outputs = [name for name in (*own, *chosen) if name not in dropped]
    missing = [name for name in unwanted if name not in outputs]
    if missing:
        raise errors.DoesNotFit(f"TensorRT's network has no output {missing[0]!r} to exclude")
    if set(outputs) <= set(unwanted):
        step = "--trt-exclude-outputs with fewer names"
        raise errors.DoesNotFit("no output of TensorRT's network is left", next_steps=[step])
    remaining = [name for name in chosen if name not in unwanted]
    return remaining, [*dropped, *(name for name in own if name in unwanted)]


def _path_for_weights(model: ModelInput) -> str:
    """A path in the folder of the external weights; the file need not exist."""
    in_place = model.path is not None and model.path.parent == model.folder
    return str(model.path if in_place else model.folder / "model.onnx")


def _outer_number(index: ModelIndex, refusal: trt_settings.Refusal) -> int | None:
    """The number of the main graph's node that a refusal is about or is inside of; None if it is not known."""
    if not refusal.outer:
        return refusal.number if 0 <= refusal.number < len(index.nodes) else None
    outer = refusal.outer.rpartition(" (")[0]
    for node in index.nodes:
        names = {node.name, *(f"node_of_{index.names[tensor]}" for tensor in node.writes)}
        if outer in names - {""}:
            return node.number
    return None


def _declared(index: ModelIndex, port: Any) -> TensorType:
    if port.is_shape_tensor:
        size = tuple(port.shape)
        return TensorType(7, (None,) * (size[0] if size and size[0] > 0 else 1))
    declared = index.tensor_type(index.ids[port.name]) if port.name in index.ids else None
    return declared or TensorType(1, tuple(None if dim < 0 else dim for dim in port.shape))


def deserialized(package: Package, plan: memoryview) -> Any:
    """The engine in a plan. Raises EngineFailure with stage "load"."""
    package.logged.clear()
    engine = package.module.Runtime(package.logger).deserialize_cuda_engine(plan)
    if engine is None:
        failure = trt_settings.build_failure(package)
        reason = failure.message.partition(": ")[2]
        message = f"{package.name} {package.version} cannot read this engine: {reason}"
        raise errors.EngineFailure(message, engine=TensorRt.name, stage="load", kind=failure.kind)
    return engine


@contextmanager
def _no_model_blamed(package: Package) -> Iterator[None]:
    """Raise EngineMissing instead of a failure to start an engine, if this machine starts none."""
    try:
        yield
    except errors.EngineFailure:
        require_working(package)
        raise


def require_working(package: Package) -> None:
    """Raise EngineMissing if an engine of one node does not start here, as with a driver that is too old."""
    builder = package.module.Builder(package.logger)
    network = builder.create_network(0)
    parser = package.module.OnnxParser(network, package.logger)
    parser.parse(identity_bytes())
    package.logged.clear()
    plan = builder.build_serialized_network(network, builder.create_builder_config())
    del parser  # kept until here, since the network uses its weights
    try:
        if plan is None:
            raise trt_settings.build_failure(package)
        Execution(package, deserialized(package, memoryview(plan)))
    except errors.EngineFailure as failure:
        reason = failure.message.partition(": ")[2]
        raise errors.EngineMissing(
            f"{package.name} {package.version} runs nothing here, whatever the model: {reason}",
            next_steps=["nvidia-smi    shows the driver and the GPUs: is the driver new enough for this TensorRT?"],
        ) from failure


def _type_of(engine: Any, name: str) -> TensorType | None:
    elem = ELEM_OF_DTYPE.get(numpy_name(engine.get_tensor_dtype(name)))
    if elem is None:
        return None
    return TensorType(elem, tuple(None if dim < 0 else dim for dim in engine.get_tensor_shape(name)))


class TensorRtSession(BuiltModel):
    """An engine that TensorRT has built, as a plan; a GPU reads it at the first run."""

    gives_new_arrays = True

    def __init__(
        self,
        package: Package,
        plan: memoryview,
        inputs: Mapping[str, TensorType | None],
        outputs: Sequence[str],
        remarks: Sequence[str],
        engine: Any = None,
    ) -> None:
        super().__init__(inputs, outputs, tuple(remarks))
        self._package = package
        self._plan = plan
        self._engine = engine
        self._execution: Any = None

    def save(self, path: Path) -> None:
        """Write the engine."""
        require_ending(TensorRt, path)
        write_whole(path, [bytes(self._plan)])

    def run(self, feed: Feed) -> dict[str, Array]:
        """Run once on the first GPU. Raises EngineMissing if there is none."""
        if self._execution is None:
            require_gpu(
                f"{self._package.name} {self._package.version} has built the model; running it",
                "biopsy run MODEL --trt --build-only    asks only whether it can be built",
            )
            with _no_model_blamed(self._package):
                self._execution = Execution(self._package, self._engine or deserialized(self._package, self._plan))
        return dict(self._execution.run({name: np.asarray(value) for name, value in feed.items()}, self._outputs))


_TAB = "    "


def network_text(network: Any, *, with_layers: bool) -> Iterator[str]:
    """The lines that describe a network, in the layout of Polygraphy's ``inspect model``.

    ``with_layers`` adds each layer with its inputs and outputs.
    """
    inputs = [network.get_input(number) for number in range(network.num_inputs)]
    outputs = [network.get_output(number) for number in range(network.num_outputs)]
    yield "[I] ==== TensorRT Network ===="
    yield f"{_TAB}Name: {printable(network.name)} | Explicit Batch Network"
    for title, tensors in (("Input(s)", inputs), ("Output(s)", outputs)):
        yield ""
        yield f"{_TAB}---- {len(tensors)} Network {title} ----"
        yield from _braced(tensors, _TAB)
    yield ""
    yield f"{_TAB}---- {network.num_layers} Layer(s) ----"
    for number in range(network.num_layers if with_layers else 0):
        layer = network.get_layer(number)
        yield f"{_TAB}Layer {number:<4} | {printable(layer.name)} [Op: {layer.type}]"
        yield from _braced([layer.get_input(place) for place in range(layer.num_inputs)], 2 * _TAB)
        output_lines = list(_braced([layer.get_output(place) for place in range(layer.num_outputs)], 3 * _TAB))
        yield f"{2 * _TAB} -> {output_lines[0].lstrip()}"
        yield from output_lines[1:]
        yield ""


def _braced(tensors: Sequence[Any], indent: str) -> list[str]:
    texts = [_tensor_text(tensor) for tensor in tensors if tensor is not None]
    return [indent + line for line in ("{" + ",\n ".join(texts) + "}").split("\n")]


def _tensor_text(tensor: Any) -> str:
    try:
        shape = str(tuple(tensor.shape))
    except ValueError:  # TensorRT does not know its number of dimensions
        shape = "None"
    return f"{printable(tensor.name)} [dtype={numpy_name(tensor.dtype) or tensor.dtype.name}, shape={shape}]"
