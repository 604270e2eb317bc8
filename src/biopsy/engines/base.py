"""The contract of an engine.

An engine is a class in one file, declared by one entry point in the group ``biopsy.engines``. It maps every exception
of its package to EngineFailure with the stage it happened in; it never prints, and imports its package only inside its
methods, so that naming an engine costs nothing until it is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from biopsy.model.tensor_type import TensorType
from biopsy.tensors.results import Array, Feed


@dataclass(frozen=True)
class Option:
    """One option of an engine, as in ``--engine NAME:key=value``.

    ``parse`` turns the text into the value and raises ValueError, whose text says what is accepted.
    """

    name: str
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    parse: type | Any = str


@dataclass(frozen=True)
class ModelInput:
    """A model handed to an engine: serialized ONNX, and the folder that its external data stands in.

    ``path`` is the file it came from, None for a model that was made in memory.
    """

    data: bytes
    folder: Path
    path: Path | None = None


class Session(ABC):
    """A model that an engine has built: ready to run."""

    @property
    @abstractmethod
    def inputs(self) -> Mapping[str, TensorType | None]:
        """Inputs that must be fed, in the model's order; None for what is no plain tensor."""

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
        """Run once. ``feed`` has every input; returns every tensor output, in order.

        Raises EngineFailure with stage "run".
        """


class Engine(ABC):
    """An engine with its options set. ``options`` holds every declared option, parsed, defaults filled in."""

    name: ClassVar[str]
    summary: ClassVar[str]
    package: ClassVar[str]
    """What to pip install: the distribution or the extra, such as ``biopsy[openvino]``."""
    options_declared: ClassVar[tuple[Option, ...]] = ()

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
