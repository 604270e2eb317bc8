"""The installed TensorRT, its error messages, and the engine's options as its flags, limits, caches and shapes."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.engines.base import ModelInput, Option, count, read_built, switch, words
from biopsy.model.index import label
from biopsy.model.tensor_type import TensorType
from biopsy.processes.own_process import install_line
from biopsy.processes.writing import write_whole

ENGINE = "trt"

_MODULES = {
    "tensorrt": ("tensorrt", "tensorrt_bindings"),
    "rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings"),
}
"""Choice of a package -> its possible modules; the second if only the bindings are installed."""

CHOICES = ("auto", *_MODULES)
_OLDEST = 10
"""The oldest major version of TensorRT with this API; TensorRT for RTX has had it since version 1."""


@dataclass(frozen=True)
class Package:
    """An installed TensorRT. ``logged`` collects its messages as (severity, message); a process has one logger."""

    module: Any
    name: str
    logger: Any
    logged: list[tuple[str, str]] = field(default_factory=list)

    @property
    def version(self) -> str:
        """Its version."""
        return str(self.module.__version__)

    @property
    def is_rtx(self) -> bool:
        """Whether it is TensorRT for RTX: it builds without a GPU."""
        return self.name == "TensorRT-RTX"

    @property
    def errors_logged(self) -> list[str]:
        """The error messages since the log was last cleared."""
        return [message for severity, message in self.logged if "ERROR" in severity]

    def flag(self, kind: str, name: str) -> Any:
        """A value of the enumeration ``kind``, by name; None if this version does not have it."""
        return getattr(getattr(self.module, kind, None), name.upper(), None)


def load(wanted: str = "auto") -> Package:
    """The package asked for, or the first one that is installed. Raises EngineMissing."""
    tried = []
    for choice in _MODULES if wanted == "auto" else (wanted,):
        for module in _MODULES[choice]:
            try:
                return _package(module)
            except ModuleNotFoundError as error:
                if error.name != module:
                    tried.append(f"{module}: {error}")
            except (ImportError, OSError, RuntimeError) as error:
                tried.append(f"{module}: {error}")
    reasons = f" ({'; '.join(tried)})" if tried else ""
    raise errors.EngineMissing(
        f"TensorRT is not installed{reasons}",
        next_steps=[
            f"{install_line('biopsy[tensorrt]')}    TensorRT for RTX, which builds without a GPU",
            "biopsy doctor",
        ],
    )


@cache
def _package(module_name: str) -> Package:
    module = importlib.import_module(module_name)
    name = "TensorRT-RTX" if "rtx" in module_name else "TensorRT"
    major = int(str(module.__version__).partition(".")[0])
    if name == "TensorRT" and major < _OLDEST:
        raise errors.EngineMissing(f"TensorRT {module.__version__} is too old: {_OLDEST} or newer is wanted")
    logged: list[tuple[str, str]] = []

    class Logger(module.ILogger):  # type: ignore[misc, name-defined]
        """Keeps warnings and errors instead of printing them."""

        def log(self, severity: Any, message: str) -> None:
            if severity <= module.ILogger.Severity.WARNING:
                logged.append((severity.name, message))

    return Package(module, name, Logger(), logged)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A node that the parser refuses. ``outer`` is the node of the main graph that it is inside of, else empty."""

    kind: str
    reason: str
    number: int
    """Its place in its graph, -1 if the error is about no node."""
    label: str
    outer: str = ""

    @property
    def where(self) -> str:
        """The node in words, or "the model"."""
        inside = f" in {self.outer}" if self.outer else ""
        return f"{self.label}{inside}" if self.number >= 0 else "the model"


def refusals(parser: Any) -> list[Refusal]:
    """The errors of a parser."""
    refused = []
    for error in (parser.get_error(number) for number in range(parser.num_errors)):
        kind, number = str(error.code().name), int(error.node())
        stack = [str(place) for place in error.local_function_stack()] if error.local_function_stack_size() else []
        named = label(error.node_operator(), error.node_name(), number)
        reason = plain_reason(error.desc()) or kind.lower().replace("_", " ")
        outer = stack[0] if stack else ""
        refused.append(Refusal(kind=kind, reason=reason, number=number, label=named, outer=outer))
    return refused


def plain_reason(text: str) -> str:
    """The reason in a message, without conditions and places of TensorRT's source; empty if there is none.

    Messages have the forms ``ITensor::f: Error Code 4: API Usage Error (reason In f at /_src/x.cpp:1)``, after a line
    ``Invalid Node - NAME``; ``Assertion failed: condition: reason``; and ``condition && "reason"`` (RTX 1.7).
    """
    lines = [line for line in text.splitlines() if not line.startswith("[checkMacros")]
    if len(lines) > 1 and lines[0].startswith("Invalid Node"):
        lines = lines[1:]
    reason = " ".join(" ".join(lines).split())
    coded = _CODED.search(reason)
    if coded is not None:
        reason = coded[2]
    quoted = re.search(r'&& "([^"]+)"', reason)
    if quoted is not None:
        return quoted[1]
    reason = re.sub(r"^Assertion failed: .*?: ", "", reason)
    of_cuda = _CUDA_ERROR.search(reason)
    reason = re.sub(r"\s*In \w+ at /\S+:\d+\)*( \(cudaError .*)?$", "", reason)
    if not reason and of_cuda is not None:
        return of_cuda[1]
    return "" if reason in {"false", "0"} else reason


_CUDA_ERROR = re.compile(r"\(cudaError \d+: ([^)]*)\)*$")
_CODED = re.compile(r"Error Code (?:\d+): ([^(]*?) \((.*)\)")


def build_failure(package: Package) -> errors.EngineFailure:
    """A failed build, with the first error that was logged: later ones follow from it."""
    messages = package.errors_logged
    first = messages[0] if messages else f"{package.name} does not say why"
    coded = _CODED.search(first)
    kind = coded[1].title().replace(" ", "") if coded is not None else "BuildFailure"
    if not kind.isidentifier():
        kind = "BuildFailure"
    message = f"{package.name} does not build it: {plain_reason(first)}"
    return errors.EngineFailure(message, engine=ENGINE, stage="build", kind=kind)


def parse_failure(package: Package, refused: Sequence[Refusal]) -> errors.EngineFailure:
    """A failed parse, with the first refusal only, so that a smaller model without the others fails in the same way."""
    if not refused:
        reason = plain_reason(" ".join(package.errors_logged[:1])) or "it does not say why"
        message = f"{package.name} does not parse the model: {reason}"
        return errors.EngineFailure(message, engine=ENGINE, stage="load", kind="ParseFailure")
    first, more = refused[0], len(refused) - 1
    steps = [f"biopsy inspect capability MODEL --trt    {more} more refused: lists them all"] if more else []
    message = f"{package.name} does not take {first.where}: {first.reason}"
    return errors.EngineFailure(message, engine=ENGINE, stage="load", kind=first.kind, next_steps=steps)


PRECISIONS = ("fp16", "bf16", "fp8", "int8")
"""Precisions that TensorRT 10 can be allowed to use instead of float32. Later versions use the model's own types."""

Shapes = Mapping[str, tuple[int, ...]]

NEXT_PROFILE = "/"
"""Separates the shapes of optimization profiles."""

_ONE_SHAPE = re.compile(r"(.+?):\[\s*((?:\d+\s*(?:,\s*\d+\s*)*)?)\](\+|/|$)")
_EXPECTED = "shapes such as x:[1,3]+y:[2] are wanted, of several profiles x:[1,3]/x:[8,3]"


def shapes(text: str) -> tuple[Shapes, ...]:
    """Parse ``x:[1,3]+y:[2]`` into shapes by name, for each profile; ``x:[1,3]/x:[8,3]`` has two. Raises ValueError."""
    profiles: list[dict[str, tuple[int, ...]]] = [{}]
    place, end = 0, "+"
    while end:
        match = _ONE_SHAPE.match(text, place)
        if match is None or match[1] in profiles[-1]:
            raise ValueError(_EXPECTED if match is None else f"{match[1]} has two shapes in one profile")
        profiles[-1][match[1]] = tuple(int(size) for size in match[2].split(",") if size.strip())
        place, end = match.end(), match[3]
        profiles += [{}] if end == NEXT_PROFILE else []
    return tuple(profiles)


def size(text: str) -> int:
    """Parse a number of bytes; K, M and G are powers of 1024, as in Polygraphy. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if match is None:
        raise ValueError("a size in bytes is wanted, such as 16M")
    return int(float(match[1]) * 1024 ** " KMG".index(match[2].upper() or " "))


def level(text: str) -> int:
    """Parse a builder optimization level. Raises ValueError."""
    if text not in {"0", "1", "2", "3", "4", "5"}:
        raise ValueError("a level from 0 to 5 is wanted")
    return int(text)


_ALLOWED = "allow {} for what the model has in float32; TensorRT 10 only"
_CHOSEN_BY_NAME = {
    "hardware_compatibility": ("HardwareCompatibilityLevel", "hardware_compatibility_level"),
    "profiling_verbosity": ("ProfilingVerbosity", "profiling_verbosity"),
    "tiling_optimization": ("TilingOptimizationLevel", "tiling_optimization_level"),
    "runtime_platform": ("RuntimePlatform", "runtime_platform"),
}
"""Option -> TensorRT's enumeration of its values, and the attribute of a configuration that it sets."""

OPTIONS = (
    Option("package", "which TensorRT, where both are installed", "auto", CHOICES),
    *(Option(name, _ALLOWED.format(name), False, parse=switch, harmless=True) for name in PRECISIONS),
    Option("tf32", "allow TF32 for float32", False, parse=switch, harmless=True),
    Option(
        "strongly_typed",
        "compute in the model's types; always so but for TensorRT 10",
        False,
        parse=switch,
        harmless=True,
    ),
    Option(
        "min_shapes",
        "smallest shapes of inputs, such as x:[1,3]+y:[2]; of several profiles, x:[1,3]/x:[8,3]",
        None,
        parse=shapes,
        takes="shapes",
        harmless=True,
    ),
    Option("opt_shapes", "input shapes to optimize for", None, parse=shapes, takes="shapes", harmless=True),
    Option("max_shapes", "greatest shapes of inputs", None, parse=shapes, takes="shapes", harmless=True),
    Option("outputs", "tensors to mark in TensorRT's network, joined by '+'; all: every one", (), parse=words),
    Option("exclude_outputs", "tensors of the network not to return, joined by '+'", (), parse=words),
    Option("optimization", "builder optimization level, 0 to 5", None, parse=level, takes="level", harmless=True),
    Option("pool.KEY", "limit of a memory pool, such as pool.workspace=16M", parse=size, takes="size"),
    Option("flags", "builder flags by TensorRT's names, joined by '+'", (), parse=words),
    Option("onnx_flags", "flags of its ONNX parser, joined by '+'", (), parse=words),
    Option("tactic_sources", "tactic sources to use and no others, joined by '+'", None, parse=words),
    Option("hardware_compatibility", "level by TensorRT's name, such as ampere_plus", None),
    Option("profiling_verbosity", "how much of its layers an engine tells, such as detailed", None),
    Option("tiling_optimization", "level by TensorRT's name, such as moderate", None),
    Option("runtime_platform", "what the engine is to run on, such as windows_amd64", None),
    Option("max_aux_streams", "most auxiliary streams to run on", None, parse=count),
    Option("compute", "GPUs to build for, such as sm89, joined by '+'; TensorRT-RTX only", (), parse=words),
    Option("plugins", "libraries of plug-ins to load, joined by '+'", (), parse=words),
    Option("load_timing_cache", "file with a timing cache to begin with", None),
    Option("save_timing_cache", "file to write the timing cache to", None),
)


_SHAPES = ("min_shapes", "opt_shapes", "max_shapes")


@dataclass(frozen=True)
class Settings:
    """Applies an engine's options to TensorRT's objects; raises UsageError for what this version does not have."""

    package: Package
    options: Mapping[str, Any]

    def network_flags(self) -> int:
        """The flags for creating a network."""
        flag = self.package.flag("NetworkDefinitionCreationFlag", "STRONGLY_TYPED")
        has_no_precisions = self.package.flag("BuilderFlag", "FP16") is None
        is_wanted = self.options["strongly_typed"] or has_no_precisions
        return 1 << int(flag) if flag is not None and is_wanted else 0

    def require_precisions(self) -> None:
        """Raise UsageError for a precision without a flag in this version."""
        package = self.package
        for name in PRECISIONS:
            if self.options[name] and package.flag("BuilderFlag", name) is None:
                raise errors.UsageError(
                    f"{package.name} {package.version} has no flag for {name}: its networks are strongly typed, they "
                    "compute in the types that the model itself has",
                    next_steps=[_CONVERT[name], f"and leave out --{name}"],
                )

    def apply_to_parser(self, parser: Any) -> None:
        """Set the flags of the ONNX parser."""
        for name in self.options["onnx_flags"]:
            parser.set_flag(self._value("OnnxParserFlag", name, "onnx_flags"))

    def apply_to_config(self, config: Any) -> None:
        """Set flags, limits, sources, levels and the timing cache."""
        trt, options = self.package.module, self.options
        if not options["tf32"]:
            config.clear_flag(trt.BuilderFlag.TF32)
        for name in [*(name for name in (*PRECISIONS, "tf32") if options[name]), *options["flags"]]:
            config.set_flag(self._value("BuilderFlag", name, "flags"))
        for name, limit in options["pool"].items():
            config.set_memory_pool_limit(self._value("MemoryPoolType", name, "pool"), limit)
        if options["optimization"] is not None:
            config.builder_optimization_level = options["optimization"]
        if options["tactic_sources"] is not None:
            sources = [self._value("TacticSource", name, "tactic_sources") for name in options["tactic_sources"]]
            config.set_tactic_sources(sum(1 << int(source) for source in sources))
        for name, (kind, attribute) in _CHOSEN_BY_NAME.items():
            if options[name] is not None:
                setattr(config, attribute, self._value(kind, options[name], name))
        if options["max_aux_streams"] is not None:
            config.max_aux_streams = options["max_aux_streams"]
        self._apply_compute(config)
        self._apply_cache(config)

    def _apply_compute(self, config: Any) -> None:
        wanted = self.options["compute"]
        if not wanted:
            return
        if not hasattr(config, "num_compute_capabilities"):
            raise errors.UsageError(f"{self.package.name} builds for the GPU that is here: it has no option 'compute'")
        config.num_compute_capabilities = len(wanted)
        for number, name in enumerate(wanted):
            config.set_compute_capability(self._value("ComputeCapability", name, "compute"), number)

    @property
    def _has_cache(self) -> bool:
        return bool(self.options["load_timing_cache"] or self.options["save_timing_cache"])

    def _apply_cache(self, config: Any) -> None:
        if not self._has_cache:
            return
        path = self.options["load_timing_cache"]
        data = read_built(Path(path)) if path is not None and Path(path).exists() else b""
        _quietly(lambda: config.set_timing_cache(config.create_timing_cache(data), False))

    def keep_cache(self, config: Any) -> None:
        """Write the timing cache after a build, if the options ask for it."""
        path = self.options["save_timing_cache"]
        if path is not None:
            write_whole(Path(path), [bytes(_quietly(lambda: config.get_timing_cache().serialize()))])

    def remarks(self) -> list[str]:
        """Remarks on options without effect in this TensorRT and on missing files."""
        remarks = []
        if self._has_cache and self.package.is_rtx:
            remarks.append("TensorRT-RTX measures no tactics while it builds: a timing cache changes nothing")
        path = self.options["load_timing_cache"]
        if path is not None and not Path(path).exists():
            remarks.append(f"there is no timing cache {path}: an empty one is used")
        return remarks

    def _value(self, kind: str, name: str, option: str) -> Any:
        value = self.package.flag(kind, name)
        if value is None:
            known = getattr(getattr(self.package.module, kind, None), "__members__", {})
            raise errors.UsageError(
                f"{self.package.name} {self.package.version} has no {kind} {name.upper()} (option {option})",
                next_steps=[f"it has {', '.join(known)}" if known else f"leave out {option}"],
            )
        return value


_CONVERT = {
    "fp16": "convert the model: python -m modelopt.onnx.autocast --onnx_path MODEL --low_precision_type fp16",
    "bf16": "convert the model: python -m modelopt.onnx.autocast --onnx_path MODEL --low_precision_type bf16",
    "fp8": "put QuantizeLinear and DequantizeLinear into the model, for instance with NVIDIA's ModelOpt",
    "int8": "put QuantizeLinear and DequantizeLinear into the model, for instance with NVIDIA's ModelOpt",
}
"""What to do instead of setting a precision flag (TensorRT's guide for migrating from 10.x to 11.x)."""


def _quietly(work: Callable[[], Any]) -> Any:
    """Call ``work`` without warnings: timing caches are deprecated in TensorRT-RTX, and a remark says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return work()


@dataclass(frozen=True)
class ShapeRange:
    """The shapes of one input that an engine is built for."""

    least: tuple[int, ...]
    best: tuple[int, ...]
    most: tuple[int, ...]
    is_guess: bool = False


def profiles_of(
    types: Mapping[str, TensorType], options: Mapping[str, Any], model: ModelInput, guess: Shapes
) -> list[Mapping[str, ShapeRange]]:
    """The shapes of each optimization profile, by input; the n-th ones of the three shape options are one profile.

    An input that a profile does not name has the shapes of the previous profile; in the first profile, it has those of
    the values to be fed, else guessed ones. Raises DoesNotFit if shapes contradict the model or each other.
    """
    profiles: list[Mapping[str, ShapeRange]] = []
    for number in range(max(1, *(len(options[key] or ()) for key in _SHAPES))):
        before = profiles[-1] if profiles else {}
        for name in () if profiles else types:
            fed = model.shapes.get(name, ())
            if fed and len({len(shape) for shape in fed}) == 1:
                columns = list(zip(*fed, strict=True))
                span = ShapeRange(tuple(map(min, columns)), tuple(fed[0]), tuple(map(max, columns)))
            else:
                span = ShapeRange(guess[name], guess[name], guess[name], is_guess=True)
            before = {**before, name: span}
        profile = {name: _range_of(name, options, number) or before[name] for name in types}
        for name, span in profile.items():
            _require_fitting(name, types[name], span)
        profiles.append(profile)
    return profiles


def _range_of(name: str, options: Mapping[str, Any], number: int) -> ShapeRange | None:
    """The shapes that the options set for an input in one profile; the best shape replaces a missing one."""
    profiles = (options[key] or () for key in _SHAPES)
    least, best, most = (shapes[number].get(name) if number < len(shapes) else None for shapes in profiles)
    default = best or most or least
    return None if default is None else ShapeRange(least or default, default, most or default)


def _require_fitting(name: str, type_: TensorType, span: ShapeRange) -> None:
    for shape in (span.least, span.best, span.most):
        if not type_.fits(shape):
            raise errors.DoesNotFit(f"the shape {list(shape)} for input {name!r} does not fit the model: it is {type_}")
    ordered = len(span.least) == len(span.best) == len(span.most) and all(
        low <= middle <= high for low, middle, high in zip(span.least, span.best, span.most, strict=True)
    )
    if not ordered:
        raise errors.DoesNotFit(
            f"the shapes for input {name!r} are not in order: "
            f"{list(span.least)} to {list(span.most)}, best {list(span.best)}",
            next_steps=["--trt-min-shapes x:[1,8] --trt-opt-shapes x:[4,8] --trt-max-shapes x:[16,8]"],
        )


def unknown_names(options: Mapping[str, Any], inputs: Sequence[str]) -> list[str]:
    """Names in the shape options that are not inputs of this model: a reduced model may lack some."""
    names = dict.fromkeys(name for key in _SHAPES for profile in options[key] or () for name in profile)
    return [name for name in names if name not in inputs]
