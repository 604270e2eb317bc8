"""An engine with its settings as lines of Python that use its own package, for whoever calls it without biopsy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from biopsy.engines.registry import EngineSpec, create, find_class, without_release
from biopsy.model.index import ModelIndex
from biopsy.report.bundle.scripted_engines import OnlyBiopsyError, scripted_engine


def calls_of(spec: EngineSpec, index: ModelIndex) -> tuple[str, ...]:
    """The lines, ``path`` being the model's; the first one may install a release. None where there is no such call.

    Raises what ``create`` raises.
    """
    plain = without_release(spec)
    release = None if "release" in plain.settings else spec.settings.get("release")
    make = _CALLS.get(spec.name)
    try:
        settings = scripted_engine(create(plain), index).settings
    except OnlyBiopsyError:
        return ()
    return () if make is None else (*_installed(release, spec), *make(settings))


def _installed(release: str | None, spec: EngineSpec) -> Iterator[str]:
    if release is not None:
        usual = find_class(spec.name).distributions[0]
        yield f"# pip install {release if '==' in release else f'{usual}=={release}'}"


def _onnxrt(settings: Mapping[str, Any]) -> Iterator[str]:
    yield "options = onnxruntime.SessionOptions()"
    if "level" in settings:
        yield f"options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.{settings['level']}"
    if "mode" in settings:
        yield f"options.execution_mode = onnxruntime.ExecutionMode.{settings['mode']}"
    if "threads" in settings:
        yield f"options.intra_op_num_threads, options.inter_op_num_threads = {settings['threads']!r}"
    for key, value in settings.get("config", ()):
        yield f"options.add_session_config_entry({key!r}, {value!r})"
    named = {key: settings[key] for key in ("providers", "provider_options", "disabled_optimizers") if key in settings}
    more = "".join(f", {key}={value!r}" for key, value in named.items())
    yield f"session = onnxruntime.InferenceSession(path, options{more})"


def _openvino(settings: Mapping[str, Any]) -> Iterator[str]:
    config = {"INFERENCE_PRECISION_HINT": settings.get("precision", "f32"), **settings.get("config", {})}
    yield f"compiled = openvino.compile_model(path, {settings.get('device', 'CPU')!r}, {config!r})"


_CALLS: Mapping[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {"onnxrt": _onnxrt, "openvino": _openvino}
