"""What a tool that transforms models is: called in a process of its own, by the interpreter that has it.

Only the standard library is imported here: that interpreter may have neither NumPy nor onnx.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any, ClassVar, Literal

Rounds = Literal["float32", "float16", "int8"]
"""To what a transformation may round the values that a model computes, if it is right."""


class WrongSettingError(Exception):
    """A setting of a tool that cannot be used; the message says why."""


@dataclass(frozen=True, kw_only=True)
class TransformOrder:
    """One transformation: the file to read, the file to write, and what to do.

    ``passes`` are the names of those that may run; None for all that run by themselves, none at all for the control:
    load and save. ``samples`` are files of inputs, one .npz for each sample, with the tensors in the order of
    ``names``, as ``arr_0`` and so on.
    """

    source: str
    target: str
    passes: tuple[str, ...] | None = None
    samples: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Omission:
    """How a user of the tool leaves passes out: ``command`` on its own command line, ``python`` in a script.

    Either is empty where the tool has no such way.
    """

    command: str = ""
    python: str = ""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting of a tool, as in ``onnxruntime:level=extended``: its default, and what it means."""

    default: str
    meaning: str
    choices: tuple[str, ...] = ()


class Tool(ABC):
    """A tool with its settings. ``settings`` has every declared one."""

    summary: ClassVar[str]
    package: ClassVar[str]
    """The distribution that holds it, as pip knows it."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Other distributions that it imports and does not ask for by itself."""
    module: ClassVar[str]
    """What is imported to see whether it is there."""
    declared: ClassVar[Mapping[str, Setting]] = {}
    rounds_to: ClassVar[Rounds] = "float32"
    wants_samples: ClassVar[bool] = False
    """Whether it looks at input samples, as for a calibration."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        """Raises WrongSettingError for a setting that there is not, or a value that is none of its choices."""
        given = dict(settings or {})
        for name, value in given.items():
            if name not in self.declared:
                known = ", ".join(self.declared) or "it has none"
                raise WrongSettingError(f"no setting {name!r} ({known})")
            choices = self.declared[name].choices
            if choices and value not in choices:
                raise WrongSettingError(f"{name}={value}: it is one of {', '.join(choices)}")
        self.settings = {name: given.get(name, setting.default) for name, setting in self.declared.items()}

    def warm_up(self) -> None:
        """Import what every transformation needs. What is raised is that of the import."""
        import_module(self.module)

    def version(self) -> str:
        """The release of the tool."""
        return metadata.version(self.package)

    def passes(self, source: str) -> list[str]:
        """The names of the passes that may run on a model, in their order; none if they have no names."""
        del source
        return []

    @abstractmethod
    def transform(self, order: TransformOrder) -> None:
        """Write the transformed model. Whatever the tool raises is raised."""

    def omission(self, passes: Sequence[str]) -> Omission:
        """How a user leaves these passes out."""
        del passes
        return Omission()


def left_out(all_passes: Sequence[str], order: TransformOrder) -> list[str]:
    """The passes that an order does not allow, of all."""
    return [] if order.passes is None else [name for name in all_passes if name not in order.passes]


def write_model(model: Any, target: str) -> None:
    """Write a ModelProto, its weights inside unless it is too large for one file."""
    import_module("onnx").save(model, target)
