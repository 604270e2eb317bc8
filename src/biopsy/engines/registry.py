"""Engines by name: the only place that loads them, and only the one asked for.

An engine is asked for by a text, ``NAME[:key=value,...]``, such as ``onnxrt:optimization=none,threads=1``. Engines of
biopsy itself stand in a small table, since looking through the entry points of every installed package costs more than
a check of a small model (0.1 s). Any other name is looked up among the entry points of the group ``biopsy.engines``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.engines.base import Engine, Option

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "biopsy.engines"

BUILT_IN: dict[str, str] = {
    "onnxrt": "biopsy.engines.onnxrt:OnnxRuntime",
    "reference": "biopsy.engines.reference:Reference",
    "openvino": "biopsy.engines.openvino:OpenVino",
}
"""Engine name -> the class, as the entry points in pyproject.toml declare it too."""

PLANNED: dict[str, str] = {
    "trt": "TensorRT (engine 'trt') is not supported by this version of biopsy: nothing was built or run",
}
"""Engines that people ask for by a known name, and what to tell them."""


@dataclass(frozen=True)
class EngineSpec:
    """An engine asked for: its name, its settings as they were written, and the whole text."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The spec as it is written on the command line."""
        settings = ",".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{self.name}:{settings}" if settings else self.name


@dataclass(frozen=True)
class Installed:
    """What ``doctor`` shows of one engine: ``version`` if it works here, else ``problem`` says why not."""

    name: str
    summary: str = ""
    package: str = ""
    version: str | None = None
    devices: tuple[str, ...] = ()
    problem: str | None = None


def parse_spec(text: str) -> EngineSpec:
    """Split ``NAME[:key=value,...]``; values may hold ``:`` and ``=``, but no comma.

    Raises UsageError if there is no name, a setting has no ``=``, or a key stands twice.
    """
    name, _, rest = text.partition(":")
    if not name:
        raise errors.UsageError(f"no engine is named in {text!r}", next_steps=[_FORM])
    settings: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise errors.UsageError(f"the setting {part!r} of engine {text!r} is not key=value", next_steps=[_FORM])
        if key in settings:
            raise errors.UsageError(f"engine {text!r} sets {key!r} twice")
        settings[key] = value
    return EngineSpec(name, settings)


_FORM = "an engine is written NAME[:key=value,...], such as onnxrt:optimization=none,threads=1"


def create(spec: str | EngineSpec) -> Engine:
    """The engine that a spec asks for, with its options parsed. Its package is not imported yet.

    Raises EngineMissing if there is no such engine or its plug-in is broken, UsageError for a wrong option.
    """
    parsed = parse_spec(spec) if isinstance(spec, str) else spec
    engine_class = find_class(parsed.name)
    return engine_class(_parse_settings(parsed, engine_class.options_declared), parsed.text)


def find_class(name: str) -> type[Engine]:
    """The class of an engine. Raises EngineMissing if there is none or it cannot be loaded."""
    if name in BUILT_IN:
        return _load_built_in(BUILT_IN[name])
    if name in PLANNED:
        raise errors.EngineMissing(PLANNED[name], next_steps=["biopsy doctor    shows the engines that work here"])
    for entry_point in _plug_ins():
        if entry_point.name == name:
            return _load_plug_in(entry_point)
    raise errors.EngineMissing(
        f"there is no engine {name!r}; known here: {', '.join(names())}",
        next_steps=[*_did_you_mean(name, names()), "biopsy doctor    shows the engines that work here"],
    )


def names() -> list[str]:
    """Names of all engines that can be asked for here, whether or not their packages are installed."""
    found = [*BUILT_IN, *(entry_point.name for entry_point in _plug_ins())]
    return list(dict.fromkeys(found))


def installed() -> list[Installed]:
    """Every engine, with its version or why it does not work. A broken plug-in is named, not raised."""
    described = [_describe(name) for name in names()]
    return described + [Installed(name, problem=message) for name, message in PLANNED.items()]


def _describe(name: str) -> Installed:
    try:
        engine_class = find_class(name)
    except errors.EngineMissing as error:
        return Installed(name, problem=error.message)
    about = (name, engine_class.summary, engine_class.package)
    try:
        return Installed(*about, version=engine_class.version(), devices=tuple(engine_class.devices()))
    except errors.EngineMissing as error:
        return Installed(*about, problem=error.message)
    except Exception as error:  # whatever a package does wrong while it is imported
        return Installed(*about, problem=f"{type(error).__name__}: {error}")


def _load_built_in(reference: str) -> type[Engine]:
    module, _, attribute = reference.partition(":")
    engine_class: type[Engine] = getattr(importlib.import_module(module), attribute)
    return engine_class


def _plug_ins() -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return [entry_point for entry_point in entry_points(group=GROUP) if entry_point.name not in BUILT_IN]


def _load_plug_in(entry_point: EntryPoint) -> type[Engine]:
    origin = f"{entry_point.value}{f' of package {entry_point.dist.name}' if entry_point.dist else ''}"
    try:
        loaded = entry_point.load()
    except Exception as error:  # a plug-in may do anything
        raise errors.EngineMissing(
            f"the plug-in of engine {entry_point.name!r} ({origin}) is broken: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, Engine)):
        raise errors.EngineMissing(
            f"the plug-in of engine {entry_point.name!r} ({origin}) is broken: it is no subclass of Engine"
        )
    return loaded


def _parse_settings(spec: EngineSpec, declared: Sequence[Option]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for option in declared:
        values[_stem(option)] = {} if _is_family(option) else option.default
    for key, text in spec.settings.items():
        option = _find_option(spec, key, declared)
        value = _parse_value(spec, key, option, text)
        if _is_family(option):
            values[_stem(option)][key.partition(".")[2]] = value
        else:
            values[key] = value
    return values


def _is_family(option: Option) -> bool:
    """An option declared as ``config.KEY`` stands for any key: ``config.a=1,config.b=2``."""
    return option.name.endswith(".KEY")


def _stem(option: Option) -> str:
    return option.name.removesuffix(".KEY")


def _find_option(spec: EngineSpec, key: str, declared: Sequence[Option]) -> Option:
    for option in declared:
        if key == option.name or (_is_family(option) and key.startswith(f"{_stem(option)}.")):
            return option
    known = [option.name for option in declared]
    raise errors.UsageError(
        f"engine {spec.name!r} has no option {key!r}; its options: {', '.join(known) or 'none'}",
        next_steps=[*_did_you_mean(key, known), f"biopsy doctor {spec.name}    explains them"],
    )


def _parse_value(spec: EngineSpec, key: str, option: Option, text: str) -> Any:
    if option.choices and text not in option.choices:
        raise errors.UsageError(
            f"engine {spec.name!r}: {key} is {text!r}, but it can be {', '.join(option.choices)}",
            next_steps=_did_you_mean(text, option.choices),
        )
    try:
        return option.parse(text)
    except ValueError as error:
        raise errors.UsageError(f"engine {spec.name!r}: {key}={text}: {error}") from error


def _did_you_mean(word: str, known: Iterable[str]) -> list[str]:
    from difflib import get_close_matches

    return [f"did you mean {match!r}?" for match in get_close_matches(word, list(known), n=1)]
