"""The contract of an engine: its options, the models that it builds, and where it imports its package."""

from __future__ import annotations

import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from biopsy import errors, events
from biopsy.engines import run_contract
from biopsy.model import load
from biopsy.model.external import require_safe
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.tensor_type import ValueType
from biopsy.model.walk import require_bounded
from biopsy.processes.reading import read_whole
from biopsy.tensors.results import Array, Feed


def count(text: str) -> int:
    """Parse a whole number, 0 or more. Raises ValueError."""
    if not text.isdecimal():
        raise ValueError("a whole number from 0 on is wanted")
    return int(text)


def number(text: str) -> float:
    """Parse a number. Raises ValueError."""
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number is wanted") from None


def switch(text: str) -> bool:
    """Parse a switch: true or false. Raises ValueError."""
    word = text.lower()
    if word not in _SWITCH:
        raise ValueError("true or false is wanted")
    return _SWITCH[word]


_SWITCH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def words(text: str) -> tuple[str, ...]:
    """Split words joined by ``+``, since a comma ends a setting."""
    return tuple(filter(None, text.split("+")))


_KINDS: dict[Any, str] = {
    str: "text", int: "whole number", float: "number", bool: "switch",
    count: "whole number", number: "number", switch: "switch", words: "words joined by +",
}  # fmt: skip


@dataclass(frozen=True)
class Option:
    """An option of an engine, as in ``--engine NAME:key=value``.

    ``parse`` turns text into a value; its ValueError says what is accepted. A name such as ``config.KEY`` accepts any
    key, and the value is a dictionary. ``takes`` describes a value in a word or two, if ``parse`` is a function of the
    engine's own.
    """

    name: str
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    parse: Callable[[str], Any] = str
    takes: str = ""
    harmless: bool = False
    """Whether a stranger's settings file may choose its value: no value runs code, reads or writes a file, installs
    something, hides an output, or takes more time or memory than a model could."""

    @property
    def is_switch(self) -> bool:
        """Whether its values are on and off, so that its name alone turns it on."""
        return self.parse in (switch, bool)

    @property
    def is_family(self) -> bool:
        """Whether it accepts any key, as ``config.KEY`` accepts ``config.a=1,config.b=2``."""
        return self.name.endswith(".KEY")

    @property
    def stem(self) -> str:
        """Its key in ``Engine.options``: the name, without the ``.KEY`` of a family."""
        return self.name.removesuffix(".KEY")

    @property
    def kind(self) -> str:
        """What its value is, for people: "whole number"."""
        return self.takes or ("choice" if self.choices else _KINDS.get(self.parse, "text"))

    @property
    def default_text(self) -> str:
        """The default as a spec spells it; empty if there is none."""
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, tuple | list):
            return "+".join(map(str, self.default))
        return "" if self.default is None else str(self.default)

    def value_of(self, text: str | None) -> Any:
        """The value of a setting's text; None is an option named without a value, which turns a switch on.

        Raises ValueError if the text is missing, is not among the choices, or cannot be parsed.
        """
        if text is None:
            if not self.is_switch:
                raise ValueError(f"it needs a value ({self.kind})")
            return True
        if self.choices and text not in self.choices:
            raise ValueError(f"it can be {', '.join(self.choices)}")
        return switch(text) if self.parse is bool else self.parse(text)


RELEASE_SETTINGS = ("release", "with", "python")
"""Settings, besides its own options, of every engine that can be run from another release."""


Result = TypeVar("Result")


class Imports:
    """Imports an engine's package in this interpreter.

    A subclass imports it in another interpreter, which holds another release, and returns stand-ins for its objects.
    """

    is_here = True
    """Whether modules are imported in this interpreter."""

    def module(self, name: str) -> Any:
        """A module by its full name. Raises ImportError; EngineMissing if another interpreter lacks the package."""
        return importlib.import_module(name)

    def gathered(self, objects: Sequence[Any], *steps: str) -> list[Any]:
        """Follow the same steps from each object of a package, and return all results in one list.

        A step is an attribute, or a method if its name ends with ``()``; a step that gives a list goes on from each of
        its items. Another interpreter answers all of it at once, where a loop would ask for each object.
        """
        from biopsy.engines.other_release.wire import gathered

        return gathered(objects, steps)

    def packages(self) -> Mapping[str, str]:
        """The known versions of all packages of another interpreter; empty for this one."""
        return {}

    def facts(self) -> Mapping[str, str]:
        """Versions of ``python`` and of packages of another interpreter; empty for this one."""
        return {}

    def install(self, listener: events.Listener) -> None:
        """Install the packages of another interpreter. Raises CannotInstall, UsageError."""

    def timed(self, run: Callable[[], Result], times: int = 1) -> tuple[Result, float]:
        """The result of a run that calls the package, and the seconds that the run takes: the median of some ``times``.

        In another interpreter, only the calls of the package count, and not what it takes to get there.
        """
        seconds = []
        for _ in range(times):
            started = time.perf_counter()
            result = run()
            seconds.append(time.perf_counter() - started)
        return result, sorted(seconds)[times // 2]

    def close(self) -> None:
        """End another interpreter; it starts again when something is asked of it."""

    def warm(self) -> None:
        """From now on, use an interpreter that has been warmed up; see ``serve``."""

    def serve(self, trial: Callable[[], None]) -> None:
        """Give each fork of this process a fork of the warmed interpreter, if ``trial`` works in the first one."""


__all__ = ["Capabilities", "Engine", "LayerRecord", "ModelInput", "Option", "Session"]


@dataclass(frozen=True)
class ModelInput:
    """A model for an engine: serialized ONNX, and the folder of its external data.

    ``path`` is the file it was read from, None for a model made in memory.
    """

    data: bytes
    folder: Path
    path: Path | None = None
    shapes: Mapping[str, Sequence[tuple[int, ...]]] = field(default_factory=dict)
    """Input name -> the shapes that will be fed, as far as they are known before the build."""

    def __post_init__(self) -> None:
        """Raise ModelError if the model refers to a file that is missing or that it may not read, or if its functions
        expand without bound.
        """
        try:
            require_safe(self.data, self.folder, self.path)
        except errors.ModelError as error:
            if self.path is None or str(self.path) in error.summary:
                raise
            text = f"the model {self.path}: {error.summary}"
            steps = error.next_steps or (_LOOK,)
            raise errors.ModelError(text, details=error.details, kept=error.kept, next_steps=steps) from error
        require_bounded(self.data, self.path)


_LOOK = "are the files of its weights whole, and of this model? --external-data-dir FOLDER, if others stand elsewhere"


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What an engine can do beyond building and running a model."""

    marks_any_tensor: bool = True
    """Whether any tensor can be made an output of the model; else only its own outputs come back."""
    computes: bool = True
    """Whether it computes the model; else it only has the tensors that ``Engine.tensors_given`` names."""
    layers: bool = False
    """Whether ``Session.layers`` describes the built layers."""
    layer_times: bool = False
    """Whether it can measure the time of each layer."""
    precision_used: bool = False
    """Whether it reports the precision that it really computed in, in its layers or as a remark."""
    chooses_device: bool = False
    """Whether it can run on several devices, and ``Engine.devices`` names them."""
    saves: tuple[str, ...] = ()
    """Endings of the files that ``Session.save`` writes and ``Engine.load`` reads, best first, such as ``.ort``."""
    saves_without_ending: bool = False
    """Whether such a file may also have a name without an ending."""
    own_memory: int = 8_000_000_000
    """Bytes of main memory that it may take for any model: for its own libraries and those of a device."""
    wants_shapes: bool = False
    """Whether it builds for ranges of shapes, and therefore uses ``ModelInput.shapes``."""

    def can_save(self, path: Path) -> bool:
        """Whether ``Session.save`` can write a file of this name."""
        return path.suffix in self.saves or (self.saves_without_ending and not path.suffix)


@dataclass(frozen=True)
class GivenTensors:
    """The model's tensors that an engine without computation has: name -> bytes.

    ``refused`` are tensors with a name of the model's that cannot belong to it: name -> reason.
    """

    sizes: Mapping[str, int]
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerRecord:
    """One layer as the engine runs it. What the engine does not report is empty or None, never guessed."""

    name: str
    kind: str = ""
    """The operation, as the engine calls it: ``FusedMatMul``, ``FullyConnected``."""
    implementation: str = ""
    """The kernel or tactic that was chosen."""
    precision: str = ""
    """The element type it computes in, as NumPy and ml_dtypes name it: ``float16``, ``bfloat16``, ``int8``."""
    layout: str = ""
    """The memory layout of its result."""
    nodes: tuple[str, ...] = ()
    """The model's nodes that it computes, by name, or as ``Relu #3`` if they have none."""
    device: str = ""
    time_us: float | None = None
    """Microseconds of one run; the median of several."""


class Session(ABC):
    """A built model, ready to run."""

    made_by: str = ""
    """The label of the engine that built it; set when ``build`` or ``load`` returns it."""
    gives_new_arrays: ClassVar[bool] = False
    """Whether ``run`` returns arrays that nothing writes to later, so that they need not be copied. An output that is
    an input array is copied anyway."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        run_contract.record_calls(cls, run_contract.OF_SESSIONS)

    @property
    @abstractmethod
    def inputs(self) -> Mapping[str, ValueType | None]:
        """Name -> type of the inputs that must be fed, in the model's order; None for one that cannot be fed."""

    @property
    @abstractmethod
    def outputs(self) -> Sequence[str]:
        """Names of the outputs, in the model's order."""

    @property
    def remarks(self) -> Sequence[str]:
        """One line for each thing that readers of the values must know, such as a precision that was not used."""
        return ()

    @abstractmethod
    def run(self, feed: Feed) -> dict[str, Array]:
        """Run once. ``feed`` has every input, in read-only arrays; returns every output by name.

        Sequences, optionals and maps are fed and returned as the tensors that they hold (tensors/types.py).

        Raises EngineFailure with stage "run". The wrapper of engines/run_contract.py also raises it, with kind
        "missing output", and BiopsyError if an output is not an array.
        """

    def layers(self) -> Sequence[LayerRecord]:
        """The layers of the built model, in the order in which they run.

        Raises UsageError if the engine does not support it (``Capabilities.layers``), EngineFailure if it fails.
        """
        raise errors.UsageError("this engine does not tell its layers")

    def save(self, path: Path) -> None:
        """Write the built model to a file that ``Engine.load`` reads.

        Raises UsageError if the engine saves nothing or no file with this ending (``Capabilities.saves``).
        """
        raise errors.UsageError("this engine cannot save what it has built")


class Engine(ABC):
    """An engine with its options set. ``options`` holds every declared option, parsed, with defaults.

    An engine is a class in one file, declared by one entry point in the group ``biopsy.engines``. It must define
    ``version``, ``build`` and ``Session.run``, and declares in ``capabilities`` what else it can do. It maps every
    exception of its package to EngineFailure with the stage it happened in, never prints, and imports its package only
    inside its methods, so that naming an engine costs nothing.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    package: ClassVar[str]
    """What to pip install: the distribution or the extra, such as ``biopsy[openvino]``."""
    distributions: ClassVar[tuple[str, ...]] = ()
    """Names of its package on the package index, the usual one first; empty if it cannot be run from another release
    than the installed one. An engine that can uses its package only through ``imports``."""
    imports: ClassVar[Imports] = Imports()
    """Imports its package. For another release, the registry makes a subclass of the engine with other imports."""
    options_declared: ClassVar[tuple[Option, ...]] = ()
    capabilities: ClassVar[Capabilities] = Capabilities()
    forks_warm: ClassVar[bool] = False
    """Whether a process may be forked after ``warm_up``, which then leaves no thread behind and has used no GPU."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        run_contract.record_calls(cls, run_contract.OF_ENGINES)

    def __init__(self, options: Mapping[str, Any], label: str) -> None:
        self.options = options
        self.label = label
        """The text of ``--engine``, such as ``onnxrt:optimization=none``."""

    @property
    def keeps_types(self) -> bool:
        """Whether its outputs have the element types that the model declares: others are then a fault of the engine.

        It is False for an engine that computes in other types on purpose, or instead of types that it lacks.
        """
        return True

    @classmethod
    def failure(cls, message: str, stage: errors.Stage, kind: str) -> errors.EngineFailure:
        """The exception to raise if a model fails in this engine."""
        return errors.EngineFailure(message, engine=cls.name, stage=stage, kind=kind)

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """The version of the engine's package. Raises EngineMissing if it cannot be imported."""

    @classmethod
    def devices(cls) -> Sequence[str]:
        """Names of the devices it can run on here, the best known first; empty if it has no choice."""
        return ()

    @abstractmethod
    def build(self, model: ModelInput) -> Session:
        """Load and compile a model. Raises EngineFailure with stage "load" or "build"."""

    def warm_up(self) -> None:
        """Do once, in a process that is forked afterwards, what every first session would do.

        This builds and runs a model of one node. An engine whose sessions leave threads behind overrides it and does
        less, such as loading its libraries. Raises what ``build`` and ``Session.run`` raise.
        """
        from numpy import ones

        from biopsy.model.slice import identity_bytes

        self.build(ModelInput(identity_bytes(), Path())).run({"x": ones(1, "float32")})

    def refusals(self, model: ModelInput) -> Mapping[int, str] | None:
        """The nodes of the main graph that the engine says it does not support: number -> reason.

        It need not name all at once: the caller leaves them out and asks again. None if the engine cannot be asked or
        the model cannot be read, so that only building tells. Raises what ``build`` raises.
        """
        del model
        return None

    def tensors_given(self, model: ModelInput) -> GivenTensors | None:
        """The results of nodes of the main graph that the engine has; None for an engine that computes them.

        Raises what ``build`` raises.
        """
        del model
        return None

    def load(self, path: Path) -> Session:
        """Load what ``Session.save`` wrote; nothing is compiled or optimized again.

        Raises UsageError if the engine saves nothing, EngineFailure with stage "load".
        """
        raise errors.UsageError(f"engine {self.name!r} cannot load what it has built: it saves nothing")


class BuiltModel(Session):
    """A session with fixed inputs, outputs and remarks; the base of all built-in ones."""

    def __init__(
        self, inputs: Mapping[str, ValueType | None], outputs: Sequence[str], remarks: Sequence[str] = ()
    ) -> None:
        self._inputs = inputs
        self._outputs = tuple(outputs)
        self._remarks = remarks

    @property
    def inputs(self) -> Mapping[str, ValueType | None]:
        """Inputs that must be fed, with the types that the model declares."""
        return self._inputs

    @property
    def outputs(self) -> Sequence[str]:
        """Names of the outputs."""
        return self._outputs

    @property
    def remarks(self) -> Sequence[str]:
        """What was asked for and was not done, or not in that way."""
        return self._remarks


def indexed(model: ModelInput) -> ModelIndex:
    """The index of a model. Raises ModelError, which names the file if that is damaged."""
    try:
        return index_bytes(model.data, model.folder)
    except errors.ModelError:
        load.parse(model.data, model.path)
        raise


def require_ending(engine: type[Engine], path: Path) -> None:
    """Raise UsageError unless the engine saves files with this ending."""
    endings = engine.capabilities.saves
    if not engine.capabilities.can_save(path):
        named = (" and " if len(endings) == 2 else ", ").join(endings)
        raise errors.UsageError(f"{path}: {engine.name} saves and loads {named} files")


def read_built(path: Path) -> bytes:
    """The bytes of a file that an engine saved. Raises UsageError if it cannot be read."""
    try:
        return read_whole(path)
    except OSError as error:
        raise errors.UsageError(f"{path} cannot be read: {error.strerror}") from error
