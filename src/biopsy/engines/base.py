"""The contract of an engine: its options, the models that it builds, and where it imports its package."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

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
    """A whole number from 0 on."""
    if not text.isdecimal():
        raise ValueError("a whole number from 0 on is wanted")
    return int(text)


def number(text: str) -> float:
    """Any number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number is wanted") from None


def switch(text: str) -> bool:
    """On or off. A switch that is named alone is on: ``reference:float64``."""
    word = text.lower()
    if word not in _SWITCH:
        raise ValueError("true or false is wanted")
    return _SWITCH[word]


_SWITCH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def words(text: str) -> tuple[str, ...]:
    """Several words, joined by ``+`` because a comma ends a setting."""
    return tuple(filter(None, text.split("+")))


_KINDS: dict[Any, str] = {
    str: "text", int: "whole number", float: "number", bool: "switch",
    count: "whole number", number: "number", switch: "switch", words: "words joined by +",
}  # fmt: skip


@dataclass(frozen=True)
class Option:
    """One option of an engine, as in ``--engine NAME:key=value``.

    ``parse`` turns the text into the value and raises ValueError, whose text says what is accepted. A name such as
    ``config.KEY`` stands for any key: the value is a dictionary. ``takes`` says in a word or two what a value is; it is
    needed only where ``parse`` is a function of the engine's own.
    """

    name: str
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    parse: Callable[[str], Any] = str
    takes: str = ""
    harmless: bool = False
    """Whether a stranger may choose its value, in a settings file that came with a folder: no value of it runs code,
    reads or writes a file, installs something, hides an output, or takes more time or memory than a model could."""

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off, so that its name alone turns it on."""
        return self.parse in (switch, bool)

    @property
    def is_family(self) -> bool:
        """Whether it stands for any key, as ``config.KEY`` does for ``config.a=1,config.b=2``."""
        return self.name.endswith(".KEY")

    @property
    def stem(self) -> str:
        """The name under which its value stands among the options: a family's without ``.KEY``."""
        return self.name.removesuffix(".KEY")

    @property
    def kind(self) -> str:
        """What a value is, in words for a person."""
        return self.takes or ("choice" if self.choices else _KINDS.get(self.parse, "text"))

    @property
    def default_text(self) -> str:
        """The default as it is written in a spec; empty if there is none."""
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, tuple | list):
            return "+".join(map(str, self.default))
        return "" if self.default is None else str(self.default)

    def value_of(self, text: str | None) -> Any:
        """The value that a text stands for; None is an option named alone.

        Raises ValueError if it is none of the choices, cannot be parsed, or lacks its value.
        """
        if text is None:
            if not self.is_switch:
                raise ValueError(f"it needs a value ({self.kind})")
            return True
        if self.choices and text not in self.choices:
            raise ValueError(f"it can be {', '.join(self.choices)}")
        return switch(text) if self.parse is bool else self.parse(text)


# Where an engine imports its package: in this interpreter, or in another one that holds another release of it.

RELEASE_SETTINGS = ("release", "with", "python")
"""Settings of every engine that can be run from another release, besides its own options."""


class Imports:
    """Gives the modules of the interpreter that runs this program.

    A subclass gives objects that stand for those of another interpreter, and do there what is done to them here.
    """

    is_here = True
    """Whether modules are those of this interpreter."""

    def module(self, name: str) -> Any:
        """A module by its full name. Raises ImportError; elsewhere EngineMissing for a package that is not there."""
        return importlib.import_module(name)

    def gathered(self, objects: Sequence[Any], *steps: str) -> list[Any]:
        """What stands at the end of some steps from each object of a package, all in one list.

        A step is an attribute, or a method where ``()`` follows its name; what comes as a list is gone through. From
        another interpreter that is one answer, where a loop would be many.
        """
        from biopsy.engines.other_release.wire import gathered

        return gathered(objects, steps)

    def packages(self) -> Mapping[str, str]:
        """The versions of all packages that stand there, if that is elsewhere, as far as they are known."""
        return {}

    def facts(self) -> Mapping[str, str]:
        """What stands there, if that is elsewhere: versions, of ``python`` and of packages; else nothing."""
        return {}

    def install(self, listener: events.Listener) -> None:
        """Have the packages there, if that is elsewhere. Raises CannotInstall, UsageError."""

    def close(self) -> None:
        """End the interpreter, if that is another one, until something is asked of it again."""

    def warm(self) -> None:
        """Have another interpreter that is warmed up from now on, until ``serve``."""

    def serve(self, trial: Callable[[], None]) -> None:
        """Let each fork of this process have a fork of the warmed interpreter, if ``trial`` works in the first one."""


# The contract of an engine.
#
# An engine is a class in one file, declared by one entry point in the group ``biopsy.engines``. It maps every
# exception of its package to EngineFailure with the stage it happened in; it never prints, and imports its package
# only inside its methods, so that naming an engine costs nothing until it is used.
#
# ``version``, ``build`` and ``Session.run`` are what an engine must have. What else it can do (save what it built,
# tell its layers) it declares in ``Engine.capabilities``: whoever needs it looks there before anything is built.

__all__ = ["Capabilities", "Engine", "LayerRecord", "ModelInput", "Option", "Session"]


@dataclass(frozen=True)
class ModelInput:
    """A model handed to an engine: serialized ONNX, and the folder that its external data stands in.

    ``path`` is the file it came from, None for a model that was made in memory.
    """

    data: bytes
    folder: Path
    path: Path | None = None
    shapes: Mapping[str, Sequence[tuple[int, ...]]] = field(default_factory=dict)
    """Shapes of the values that will be fed, by name of the input, as far as they are known before it is built."""

    def __post_init__(self) -> None:
        """Raise ModelError if the model refers to a file that it may not read, or that is not there, or has functions
        that nobody could write out.
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
    """Whether any tensor that is marked as an output of the model comes back; else only the outputs it had."""
    computes: bool = True
    """Whether it computes what a model says; else it has tensors of the model, as ``Engine.tensors_given`` tells."""
    layers: bool = False
    """Whether ``Session.layers`` tells what became of the model."""
    layer_times: bool = False
    """Whether it can measure the time of each layer."""
    precision_used: bool = False
    """Whether it tells the precision that it really computed in: in the layers, or as a remark."""
    chooses_device: bool = False
    """Whether it can run on several devices, and ``Engine.devices`` names them."""
    saves: tuple[str, ...] = ()
    """Endings of the files that ``Session.save`` writes and ``Engine.load`` reads, best first, such as ``.ort``."""
    saves_without_ending: bool = False
    """Whether such a file may also have a name without an ending: there is but one form of it."""
    own_memory: int = 8_000_000_000
    """Bytes of this machine's memory that it may take whatever the model is: for its libraries, and for a device's."""
    wants_shapes: bool = False
    """Whether it builds for ranges of shapes, so that ``ModelInput.shapes`` is worth filling in."""

    def can_save(self, path: Path) -> bool:
        """Whether the name of a file is one that ``Session.save`` writes."""
        return path.suffix in self.saves or (self.saves_without_ending and not path.suffix)


@dataclass(frozen=True)
class GivenTensors:
    """The tensors of a model that an engine has which computes none: by name, the bytes of each.

    ``refused`` are others that go by a name of the model's and cannot be of it, and why.
    """

    sizes: Mapping[str, int]
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerRecord:
    """One layer as the engine runs it. What an engine does not tell is empty or None, never guessed."""

    name: str
    kind: str = ""
    """What it computes, in the engine's word: ``FusedMatMul``, ``FullyConnected``."""
    implementation: str = ""
    """The kernel or tactic that was chosen."""
    precision: str = ""
    """The element type it computes in, as NumPy and ml_dtypes name it: ``float16``, ``bfloat16``, ``int8``."""
    layout: str = ""
    """How its result stands in memory."""
    nodes: tuple[str, ...] = ()
    """The nodes of the model that went into it, by name, or as ``Relu #3`` where they have none."""
    device: str = ""
    time_us: float | None = None
    """Microseconds of one run, the mean where there were several."""


class Session(ABC):
    """A model that an engine has built: ready to run."""

    made_by: str = ""
    """The label of the engine that has built it; set when it is handed over."""
    gives_new_arrays: ClassVar[bool] = False
    """Whether nothing writes to an array that ``run`` has given, so that none need be copied: no buffer is used again.
    An output that is an input as it was fed is copied all the same."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        run_contract.record_calls(cls, run_contract.OF_SESSIONS)

    @property
    @abstractmethod
    def inputs(self) -> Mapping[str, ValueType | None]:
        """Inputs that must be fed, in the model's order; None for what cannot be fed."""

    @property
    @abstractmethod
    def outputs(self) -> Sequence[str]:
        """Names of the outputs, in the model's order."""

    @property
    def remarks(self) -> Sequence[str]:
        """What a reader of the values must know, such as a precision that was not really used; one line each."""
        return ()

    @abstractmethod
    def run(self, feed: Feed) -> dict[str, Array]:
        """Run once. ``feed`` has every input, in arrays that are read-only; returns every tensor output, by name.

        Sequences, optionals and maps are fed and given as the tensors that they hold (tensors/types.py).

        Raises EngineFailure with stage "run"; whoever calls it, too, with kind "missing output" if one is not given,
        and BiopsyError for what is no array of an output (engines/run_contract.py).
        """

    def layers(self) -> Sequence[LayerRecord]:
        """What the engine made of the model, in the order in which it runs.

        Raises UsageError if it cannot tell (``Capabilities.layers``), EngineFailure if it fails to.
        """
        raise errors.UsageError("this engine does not tell its layers")

    def save(self, path: Path) -> None:
        """Write what was built to a file that ``Engine.load`` reads.

        Raises UsageError if it cannot (``Capabilities.saves``), or for another ending of the file's name.
        """
        raise errors.UsageError("this engine cannot save what it has built")


class Engine(ABC):
    """An engine with its options set. ``options`` holds every declared option, parsed, defaults filled in."""

    name: ClassVar[str]
    summary: ClassVar[str]
    package: ClassVar[str]
    """What to pip install: the distribution or the extra, such as ``biopsy[openvino]``."""
    distributions: ClassVar[tuple[str, ...]] = ()
    """Names on the package index of what its package comes from, the usual one first, if it can be run from another
    release than the one installed: it then uses nothing of the package but what ``imports`` gives."""
    imports: ClassVar[Imports] = Imports()
    """Where its package is imported. For another release, the registry makes a subclass with other ones."""
    options_declared: ClassVar[tuple[Option, ...]] = ()
    capabilities: ClassVar[Capabilities] = Capabilities()
    forks_warm: ClassVar[bool] = False
    """Whether a process may be forked after ``warm_up``, so that each check is a fork: no thread of the engine lives
    on after it, and its package survives fork()."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        run_contract.record_calls(cls, run_contract.OF_ENGINES)

    def __init__(self, options: Mapping[str, Any], label: str) -> None:
        self.options = options
        self.label = label
        """How a person told it apart: the text of ``--engine``, such as ``onnxrt:optimization=none``."""

    @classmethod
    def failure(cls, message: str, stage: errors.Stage, kind: str) -> errors.EngineFailure:
        """What an engine of this class raises where a model fails."""
        return errors.EngineFailure(message, engine=cls.name, stage=stage, kind=kind)

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """The version of the engine's package. Raises EngineMissing if it cannot be imported."""

    @classmethod
    def devices(cls) -> Sequence[str]:
        """Names of what the engine can run on here, best known first; empty when it has no choice."""
        return ()

    @abstractmethod
    def build(self, model: ModelInput) -> Session:
        """Load and compile a model. Raises EngineFailure with stage "load" or "build"."""

    def warm_up(self) -> None:
        """Pay in advance for what the first session costs more, in a process that is forked afterwards.

        A model of one node is built and run. An engine whose sessions leave threads behind may have less to do here
        instead, such as loading its libraries. Raises what ``build`` and ``Session.run`` raise.
        """
        from numpy import ones

        from biopsy.model.slice import identity_bytes

        self.build(ModelInput(identity_bytes(), Path())).run({"x": ones(1, "float32")})

    def refusals(self, model: ModelInput) -> Mapping[int, str] | None:
        """The nodes of the main graph that the engine itself says it does not take: their places, and its reasons.

        It need not name all at once: whoever asks leaves them out and asks again. None if it cannot be asked, so that
        only building tells; also where the model as a whole cannot be read. Raises what ``build`` raises.
        """
        del model
        return None

    def tensors_given(self, model: ModelInput) -> GivenTensors | None:
        """The tensors that nodes of the main graph compute and that the engine can give.

        None for an engine that computes: whatever is asked for. Raises what ``build`` raises.
        """
        del model
        return None

    def load(self, path: Path) -> Session:
        """What ``Session.save`` has written, ready to run; nothing is compiled or optimized again.

        Raises UsageError if the engine cannot, EngineFailure with stage "load".
        """
        raise errors.UsageError(f"engine {self.name!r} cannot load what it has built: it saves nothing")


# What a built model is in every engine of ours: its inputs, its outputs, and remarks on how it was built.


class BuiltModel(Session):
    """A session that knows what it takes and gives from the beginning."""

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
        """What was asked for and not done, or done otherwise."""
        return self._remarks


def indexed(model: ModelInput) -> ModelIndex:
    """The index of a model. Raises ModelError, which names the file where it is damaged."""
    try:
        return index_bytes(model.data, model.folder)
    except errors.ModelError:
        load.parse(model.data, model.path)
        raise


def require_ending(engine: type[Engine], path: Path) -> None:
    """Raise UsageError unless a file's name ends as those do that the engine saves."""
    endings = engine.capabilities.saves
    if not engine.capabilities.can_save(path):
        named = (" and " if len(endings) == 2 else ", ").join(endings)
        raise errors.UsageError(f"{path}: {engine.name} saves and loads {named} files")


def read_built(path: Path) -> bytes:
    """The bytes of a file that an engine has saved. Raises UsageError."""
    try:
        return read_whole(path)
    except OSError as error:
        raise errors.UsageError(f"{path} cannot be read: {error.strerror}") from error
