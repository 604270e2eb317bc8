"""The installed TensorRT, whichever it is: its module, what it logs, and what it says when something fails."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from biopsy import errors
from biopsy.model.index import label

ENGINE = "trt"

_MODULES = {
    "tensorrt": ("tensorrt", "tensorrt_bindings"),
    "rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings"),
}
"""The packages that a person may ask for -> the modules they may have; the second where the metapackage is missing."""

CHOICES = ("auto", *_MODULES)
_OLDEST = 10
"""Major version of TensorRT: older ones have another API. TensorRT for RTX began with 1."""


@dataclass(frozen=True)
class Package:
    """An installed TensorRT. ``logged`` collects what it says: (severity, message); the process has one logger."""

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
        """Messages of errors since the log was last emptied."""
        return [message for severity, message in self.logged if "ERROR" in severity]

    def flag(self, kind: str, name: str) -> Any:
        """A value of one of its enumerations, by name; None if this generation has none such."""
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
    why = f" ({'; '.join(tried)})" if tried else ""
    raise errors.EngineMissing(
        f"TensorRT is not installed{why}",
        next_steps=['pip install "biopsy[tensorrt]"    TensorRT for RTX, which builds without a GPU', "biopsy doctor"],
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


@dataclass(frozen=True)
class Refusal:
    """A node that the parser does not take. ``outer`` is the node of the main graph that it stands in."""

    kind: str
    reason: str
    number: int
    """Its place in its graph, -1 if the error is about no node."""
    label: str
    outer: str = ""

    @property
    def where(self) -> str:
        """What a person calls the node."""
        inside = f" in {self.outer}" if self.outer else ""
        return f"{self.label}{inside}" if self.number >= 0 else "the model"


def refusals(parser: Any) -> list[Refusal]:
    """The errors of a parser."""
    found = [parser.get_error(number) for number in range(parser.num_errors)]
    return [_refusal(error) for error in found]


def _refusal(error: Any) -> Refusal:
    kind = str(error.code().name)
    number = int(error.node())
    stack = [str(place) for place in error.local_function_stack()] if error.local_function_stack_size() else []
    named = label(error.node_operator(), error.node_name(), number)
    return Refusal(kind, plain_reason(error.desc()) or kind.lower().replace("_", " "), number, named, *stack[:1])


def plain_reason(text: str) -> str:
    """What a message says, without conditions of its source and places in it; empty if nothing is left.

    Messages look as ``ITensor::f: Error Code 4: API Usage Error (reason In f at /_src/x.cpp:1)``, after a line
    ``Invalid Node - NAME``; as ``Assertion failed: condition: reason``; or as ``condition && "reason"`` (RTX 1.7).
    """
    lines = [line for line in text.splitlines() if not line.startswith("[checkMacros")]
    if len(lines) > 1 and lines[0].startswith("Invalid Node"):
        lines = lines[1:]
    said = " ".join(" ".join(lines).split())
    inner = _CODED.search(said)
    if inner is not None:
        said = inner[2]
    quoted = re.search(r'&& "([^"]+)"', said)
    if quoted is not None:
        return quoted[1]
    said = re.sub(r"^Assertion failed: .*?: ", "", said)
    said = re.sub(r"\s*In \w+ at /\S+:\d+\)*( \(cudaError .*)?$", "", said)
    return "" if said in {"false", "0"} else said


_CODED = re.compile(r"Error Code (?:\d+): ([^(]*?) \((.*)\)")


def build_failure(package: Package) -> errors.EngineFailure:
    """Why nothing was built, from what was logged: the first error, which the others follow from."""
    found = package.errors_logged
    first = found[0] if found else f"{package.name} does not say why"
    coded = _CODED.search(first)
    kind = coded[1].title().replace(" ", "") if coded is not None else "BuildFailure"
    if not kind.isidentifier():
        kind = "BuildFailure"
    message = f"{package.name} does not build it: {plain_reason(first)}"
    return errors.EngineFailure(message, engine=ENGINE, stage="build", kind=kind)


def parse_failure(package: Package, found: Sequence[Refusal]) -> errors.EngineFailure:
    """The first refusal as a failure; others would make the signature of a smaller model another one."""
    if not found:
        why = plain_reason(" ".join(package.errors_logged[:1])) or "it does not say why"
        return errors.EngineFailure(
            f"{package.name} does not parse the model: {why}", engine=ENGINE, stage="load", kind="ParseFailure"
        )
    first = found[0]
    more = len(found) - 1
    steps = [f"biopsy inspect capability MODEL --trt    {more} more refused: lists them all"] if more else []
    message = f"{package.name} does not take {first.where}: {first.reason}"
    return errors.EngineFailure(message, engine=ENGINE, stage="load", kind=first.kind, next_steps=steps)
