"""The contract of an engine.

An engine is a class in one file, declared by one entry point in the group ``biopsy.engines``. It maps every exception
of its package to EngineFailure with the stage it happened in; it never prints, and imports its package only inside its
methods, so that naming an engine costs nothing until it is used.

``version``, ``build`` and ``Session.run`` are what an engine must have. What else it can do (save what it built, tell
its layers) it declares in ``Engine.capabilities``: whoever needs it looks there before anything is built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from biopsy import errors
from biopsy.engines import call_records
from biopsy.engines.imports import Here, Imports
from biopsy.engines.option import Option
from biopsy.model.tensor_type import ValueType
from biopsy.tensors.results import Array, Feed

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
        from biopsy.model.calls import require_bounded
        from biopsy.model.external import require_safe

        try:
            require_safe(self.data, self.folder, self.path)
        except errors.ModelError as error:
            raise _of_model(error, self.path) from error
        require_bounded(self.data, self.path)


_LOOK = "are the files of its weights whole, and of this model? --external-data-dir FOLDER, if others stand elsewhere"


def _of_model(error: errors.ModelError, path: Path | None) -> errors.ModelError:
    """The error with the name of the model in front, where that is known and not told yet."""
    if path is None or str(path) in error.summary:
        return error
    text = f"the model {path}: {error.summary}"
    steps = error.next_steps or (_LOOK,)
    return errors.ModelError(text, details=error.details, kept=error.kept, next_steps=steps)


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
        call_records.record_calls_of_session(cls)

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

        Sequences, optionals and maps are fed and given as the tensors that they hold (tensors/structured_values.py).

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
    imports: ClassVar[Imports] = Here()
    """Where its package is imported. For another release, the registry makes a subclass with other ones."""
    options_declared: ClassVar[tuple[Option, ...]] = ()
    capabilities: ClassVar[Capabilities] = Capabilities()
    forks_warm: ClassVar[bool] = False
    """Whether a process may be forked after ``warm_up``, so that each check is a fork: no thread of the engine lives
    on after it, and its package survives fork()."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        call_records.record_calls_of_engine(cls)

    def __init__(self, options: Mapping[str, Any], label: str) -> None:
        self.options = options
        self.label = label
        """How a person told it apart: the text of ``--engine``, such as ``onnxrt:optimization=none``."""

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

        from biopsy.model.identity import identity_bytes

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
