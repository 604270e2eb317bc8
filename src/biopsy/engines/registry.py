"""Loads engines by name, each only when it is used; their titles; and the engines that others are compared with."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.engines.base import RELEASE_SETTINGS, Capabilities, Engine, Option
from biopsy.text import did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "biopsy.engines"

BUILT_IN: dict[str, str] = {
    "onnxrt": "biopsy.engines.onnxrt:OnnxRuntime",
    "reference": "biopsy.engines.reference:Reference",
    "openvino": "biopsy.engines.openvino:OpenVino",
    "trt": "biopsy.engines.trt:TensorRt",
    "recorded": "biopsy.engines.recorded:GoldenValues",
    "fake": "biopsy.engines.fake:Fake",
}
"""Engine name -> class; the entry points in pyproject.toml declare the same."""


@dataclass(frozen=True)
class EngineSpec:
    """The name of an engine and its settings as they were written; None for a key without a value."""

    name: str
    settings: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The spec as it is written on the command line."""
        settings = ",".join(
            key if value is None else f"{key}={value}".replace(",", "\\,") for key, value in self.settings.items()
        )
        return f"{self.name}:{settings}" if settings else self.name


@dataclass(frozen=True, kw_only=True)
class Installed:
    """What ``doctor`` shows of one engine: its ``version`` if it works here, else its ``problem``.

    ``engine`` is its class, None if that cannot be loaded.
    """

    name: str
    summary: str = ""
    package: str = ""
    version: str | None = None
    devices: tuple[str, ...] = ()
    problem: str | None = None
    engine: type[Engine] | None = None


def parse_spec(text: str) -> EngineSpec:
    r"""Split ``NAME[:key=value,...]``; values may hold ``:`` and ``=``, and a comma written as ``\,``.

    A key without a value turns a switch on: ``reference:float64``. Raises UsageError if the name or a key is missing,
    or a key is there twice.
    """
    name, _, settings_text = text.partition(":")
    if not name:
        raise errors.UsageError(f"no engine is named in {text!r}", next_steps=[_FORM])
    settings: dict[str, str | None] = {}
    for part in filter(None, re.split(r"(?<!\\),", settings_text)):
        key, equals, value = part.replace("\\,", ",").partition("=")
        if not key:
            raise errors.UsageError(f"the setting {part!r} of engine {text!r} is not key=value", next_steps=[_FORM])
        if key in settings:
            raise errors.UsageError(f"engine {text!r} sets {key!r} twice")
        settings[key] = value if equals else None
    return EngineSpec(name, settings)


_FORM = "an engine is written NAME[:key=value,...], such as onnxrt:optimization=none,threads=1"


def create(spec: str | EngineSpec) -> Engine:
    """The engine of a spec, with its options parsed. Its package is not imported yet.

    Raises UnknownEngine if there is no such engine, EngineMissing if its plug-in is broken, UsageError for a wrong
    option.
    """
    if not isinstance(spec, str | EngineSpec):
        raise errors.UsageError(f"{spec!r} is not an engine", next_steps=["'onnxrt', or 'onnxrt:optimization=none'"])
    parsed = parse_spec(spec) if isinstance(spec, str) else spec
    engine_class = class_of(parsed)
    return engine_class(_parse_settings(without_release(parsed), engine_class.options_declared), parsed.text)


def class_of(spec: EngineSpec) -> type[Engine]:
    """The class of a spec's engine, of the release that the spec asks for. Nothing is installed yet.

    Raises what ``find_class`` raises, and UsageError if there can be no such release.
    """
    engine_class = find_class(spec.name)
    release_keys = _release_keys(spec, engine_class)
    if not release_keys:
        return engine_class
    if not engine_class.distributions:
        raise errors.UsageError(
            f"engine {spec.name!r} cannot be run from another release: {release_keys[0]} is none of its options",
            next_steps=[f"engines that can: {', '.join(filter(_distributions, names()))}"],
        )
    from biopsy.engines.other_release.classes import class_from, release_of

    return class_from(engine_class, release_of(spec.settings, engine_class.distributions, spec.name))


def created_plain(engine_class: type[Engine]) -> Engine:
    """An engine of a class with default options."""
    return engine_class(
        _parse_settings(EngineSpec(engine_class.name), engine_class.options_declared), engine_class.name
    )


def engines_of_distribution(distribution: str) -> list[str]:
    """Names of the engines that can be run from releases of a distribution on the package index."""
    return [name for name in names() if distribution in _distributions(name)]


def release_settings(
    engine: str, distribution: str, version: str, *, beside: Sequence[str] = (), python: str | None = None
) -> dict[str, str]:
    """The settings for a release of an engine's distribution, installed with the requirements ``beside`` it.

    The distribution is only named if it is not the engine's usual one. Raises what ``find_class`` raises.
    """
    usual = find_class(engine).distributions[:1]
    settings = {"release": version if distribution in usual else f"{distribution}=={version}"}
    if beside:
        settings["with"] = "+".join(beside)
    return settings if python is None else {**settings, "python": python}


def release_now(spec: EngineSpec) -> str:
    """The release of its package that a spec's engine runs, such as "1.20.1"; it need not be installed yet.

    Raises EngineMissing if the spec asks for no release and none is installed.
    """
    release = spec.settings.get("release")
    return release.rpartition("==")[2] if release else class_of(spec).version()


def _release_keys(spec: EngineSpec, engine_class: type[Engine]) -> list[str]:
    """The keys of a spec that ask for another release, unless the engine has an option of that name itself."""
    own = {option.stem for option in engine_class.options_declared}
    return [key for key in spec.settings if key in RELEASE_SETTINGS and key not in own]


def without_release(spec: EngineSpec) -> EngineSpec:
    """The spec without the settings that ask for another release. Raises what ``find_class`` raises."""
    release_keys = _release_keys(spec, find_class(spec.name))
    return EngineSpec(spec.name, {key: value for key, value in spec.settings.items() if key not in release_keys})


def _distributions(name: str) -> tuple[str, ...]:
    try:
        return find_class(name).distributions
    except errors.EngineMissing:
        return ()


def find_class(name: str) -> type[Engine]:
    """The class of an engine. Raises UnknownEngine if there is none, EngineMissing if it cannot be loaded."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        engine_class: type[Engine] = getattr(importlib.import_module(module), attribute)
        return engine_class
    for entry_point in _plug_ins():
        if entry_point.name == name:
            return _load_plug_in(entry_point)
    raise _unknown(name)


def _unknown(name: str) -> errors.UnknownEngine:
    known = names()
    return errors.UnknownEngine(
        f"there is no engine {name!r}; known here: {', '.join(known)}",
        next_steps=[*did_you_mean(name, known, most=1), "biopsy doctor    shows the engines that work here"],
    )


def names() -> list[str]:
    """Names of all built-in engines and plug-ins, whether or not their packages are installed."""
    return list(dict.fromkeys([*BUILT_IN, *(entry_point.name for entry_point in _plug_ins())]))


def installed(only: str | None = None) -> list[Installed]:
    """Describe every engine, or ``only`` one; an engine that cannot be loaded has a ``problem``.

    Raises UnknownEngine if there is no engine ``only``.
    """
    if only is not None and only not in names():
        raise _unknown(only)
    described = []
    for name in names() if only is None else [only]:
        about = Installed(name=name)
        try:
            engine = find_class(name)
            about = replace(about, summary=engine.summary, package=engine.package, engine=engine)
            about = replace(about, version=engine.version(), devices=tuple(engine.devices()))
        except errors.EngineMissing as error:
            about = replace(about, problem=error.message)
        except Exception as error:  # importing a package may raise anything
            about = replace(about, problem=f"{type(error).__name__}: {error}")
        described.append(about)
    return described


def _plug_ins() -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return [entry_point for entry_point in entry_points(group=GROUP) if entry_point.name not in BUILT_IN]


def _load_plug_in(entry_point: EntryPoint) -> type[Engine]:
    try:
        loaded: Any = entry_point.load()
    except (Exception, SystemExit) as error:  # a plug-in may do anything
        raise _broken(entry_point, f"{type(error).__name__}: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, Engine)):
        raise _broken(entry_point, "it is not a subclass of Engine")
    attributes = ("name", "summary", "package")
    missing = [*sorted(loaded.__abstractmethods__), *(name for name in attributes if not hasattr(loaded, name))]
    if missing:
        raise _broken(entry_point, f"it lacks {', '.join(missing)}")
    declared: Any = loaded.options_declared
    capabilities: Any = loaded.capabilities
    if not isinstance(declared, tuple | list) or not all(isinstance(option, Option) for option in declared):
        raise _broken(entry_point, "options_declared is not a tuple of Option")
    stems = [option.stem for option in declared]
    duplicates = sorted({stem for stem in stems if stems.count(stem) > 1})
    if duplicates:
        raise _broken(entry_point, f"it declares the option {', '.join(duplicates)} twice")
    if not isinstance(capabilities, Capabilities):
        raise _broken(entry_point, "capabilities is not a Capabilities")
    return loaded


def _broken(entry_point: EntryPoint, fault: str) -> errors.EngineMissing:
    origin = f"{entry_point.value}{f' of package {entry_point.dist.name}' if entry_point.dist else ''}"
    return errors.EngineMissing(f"the plug-in of engine {entry_point.name!r} ({origin}) is broken: {fault}")


def _parse_settings(spec: EngineSpec, declared: Sequence[Option]) -> dict[str, Any]:
    values: dict[str, Any] = {option.stem: {} if option.is_family else option.default for option in declared}
    for key, text in spec.settings.items():
        fits = (each for each in declared if key == each.name or (each.is_family and key.startswith(f"{each.stem}.")))
        option = next(fits, None)
        if option is None:
            known = [each.name for each in declared]
            raise errors.UsageError(
                f"engine {spec.name!r} has no option {key!r}; its options: {', '.join(known) or 'none'}",
                next_steps=[*did_you_mean(key, known), f"biopsy doctor {spec.name}    explains them"],
            )
        try:
            value = option.value_of(text)
        except ValueError as error:
            setting = key if text is None else f"{key}={text}"
            raise errors.UsageError(
                f"engine {spec.name!r}: {setting}: {error}", next_steps=did_you_mean(text or "", option.choices)
            ) from error
        if option.is_family:
            values[option.stem][key.partition(".")[2]] = value
        else:
            values[key] = value
    return values


TITLES = {
    "onnxrt": "ONNX Runtime",
    "openvino": "OpenVINO",
    "trt": "TensorRT",
    "reference": "the reference evaluator of onnx",
}
"""Engine name -> the name of the product, in a sentence."""


def title_of(name: str) -> str:
    """What to call an engine in a sentence: ``ONNX Runtime``, or ``the engine 'mine'`` for a plug-in."""
    return TITLES.get(name, f"the engine {name!r}")


def full_title(spec: str, version: str) -> str:
    """An engine with its version and its settings, such as ``ONNX Runtime 1.31.1 (threads=1)``."""
    parsed = parse_spec(spec)
    title, settings = " ".join(filter(None, (title_of(parsed.name), version))), parsed.text.partition(":")[2]
    if parsed.name == "onnxrt":
        settings = settings.replace("optimization=none", "all graph optimizations disabled")  # as its own manual says
    return f"{title} ({settings})" if settings else title


PLAIN = ("onnxrt:optimization=none", "reference")
"""Engines to compare others with: they compute in the model's own types without optimizations, which may be broken.

The second is used if the first cannot run a model or is in doubt.
"""


def is_reference(spec: str) -> bool:
    """Whether a spec is of onnx's reference evaluator, whose code float64 is."""
    return parse_spec(spec).name == PLAIN[-1]


EXACT = "reference:float64"
"""The engine that computes in float64 whatever floating type the model declares."""

MOVED = tuple(f"{EXACT},moved={seed}" for seed in range(4))
"""The same engine, with what float32 rounds moved by roundings: what differs among these may be rounding."""
