"""The script of a failure that needs only an engine: calls of the engine's own package with its settings, which
``debug workaround`` also shows as lines of Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biopsy.comparison.tolerance import Criteria, criteria_for
from biopsy.engines.base import Engine, ModelInput
from biopsy.engines.onnxrt import LEVELS
from biopsy.engines.onnxrt_facts import Providers
from biopsy.engines.registry import EngineSpec, create, find_class, without_release
from biopsy.engines.trt_settings import load, profiles_of
from biopsy.findings.bundle.failure import ObservedFailure
from biopsy.findings.bundle.job import RunQuestion
from biopsy.findings.bundle.script import Literal, Script
from biopsy.model.index import ModelIndex
from biopsy.model.tensor_type import STRING, TensorType
from biopsy.tensors.generate import resolve_shapes
from biopsy.tensors.results import Array
from biopsy.tensors.types import dtype_named, is_extended

_LOAD = 'load(str(HERE / "model.onnx"), **SETTINGS)'
_INPUTS = 'read(HERE / "inputs.npz", INPUTS)'


@dataclass(frozen=True, kw_only=True)
class EngineScript:
    """A script that shows a failure by calling the engine.

    ``inputs`` and ``expected`` are keys of tensors in the files by name, for each sample. A run of more than
    ``seconds`` counts as one that does not end.
    """

    question: RunQuestion
    failure: ObservedFailure
    index: ModelIndex
    inputs: Sequence[Mapping[str, str]]
    expected: Sequence[Mapping[str, str]]
    seconds: float

    def script(self) -> Script:
        """The script. Raises OnlyBiopsyError if no script can show the failure without biopsy."""
        if self.failure.engine is None:
            raise OnlyBiopsyError("several engines, any of which may be the one that fails")
        call = scripted_engine(self.failure.engine, self.index)
        constants, work = self._of_kind(call)
        needed = ["numpy", *call.modules] if "INPUTS" in constants else list(call.modules)
        return Script(
            title=f"{self.failure.title}.",
            needs=f"It needs {' and '.join(needed)}, and the files beside it.",
            engine=call.part,
            constants={"SETTINGS": dict(call.settings), **constants},
            work=work,
            modules=needed,
        )

    def _of_kind(self, call: ScriptedEngine) -> tuple[Mapping[str, Literal], Sequence[str]]:
        """The constants of the script, and its work."""
        kind = self.failure.kind
        if kind == "comparison" and not call.runs:
            raise OnlyBiopsyError("running what TensorRT has built")
        if kind == "comparison":
            return self._comparison()
        if kind == "engine failure" and self.failure.stage != "run":
            error: dict[str, Literal] = {"KIND": self.failure.name, "MESSAGE": self.failure.message}
            return error, [f"return expect_failure(lambda: {_LOAD}, kind=KIND, message=MESSAGE)"]
        if kind not in ("crash", "timeout"):
            raise OnlyBiopsyError("a failure that no script judges")
        ends: dict[str, Literal] = {"ENDS_BY": self.failure.name, "SECONDS": self.seconds}
        watch = ["", "return watch_child(work, __file__, ends_by=ENDS_BY, seconds=SECONDS)"]
        if not self.inputs or not call.runs:
            return ends, ["def work():", f"    {_LOAD}", *watch]
        runs = [f"    model = {_LOAD}", f"    for feed in {_INPUTS}:", "        run(model, feed, OUTPUTS)"]
        return {**self._run_constants, **ends}, ["def work():", *runs, *watch]

    @property
    def _run_constants(self) -> dict[str, Literal]:
        require_plain_types(self.index)
        return {"OUTPUTS": [self.index.names[tensor] for tensor in self.index.outputs], "INPUTS": list(self.inputs)}

    def _comparison(self) -> tuple[Mapping[str, Literal], Sequence[str]]:
        judge = self.question.judge
        values = {name: value for sample in self.failure.expected for name, value in sample.items()}
        if self.question.unscriptable:
            raise OnlyBiopsyError(self.question.unscriptable)
        if not values:
            raise OnlyBiopsyError("a comparison of outputs that are missing")
        criteria = {name: criteria_for(name, judge.tolerances, judge.stats, judge.limits) for name in values}
        limits = {name: limits_of_output(name, criteria[name], value) for name, value in values.items()}
        is_plain = all(set(of_output) == {"atol", "rtol"} for of_output in limits.values())
        work = [
            f"model = {_LOAD}",
            f'inputs, expected = {_INPUTS}, read(HERE / "expected.npz", EXPECTED)',
            "outputs_of = lambda feed: run(model, feed, OUTPUTS)",
            f"return compare(outputs_of, inputs, expected, LIMITS{'' if is_plain else ', differs_by'})",
        ]
        if not is_plain:
            limits = {name: _for_differs_by(of_output) for name, of_output in limits.items()}
        return {**self._run_constants, "EXPECTED": list(self.expected), "LIMITS": limits}, work


def require_plain_types(index: ModelIndex) -> None:
    """Raise OnlyBiopsyError if an input or output of the model is not a tensor of a type of NumPy's own."""
    for tensor in (*index.fed_inputs(), *index.outputs):
        name, kind = index.names[tensor], index.value_type(tensor)
        if kind is not None and not isinstance(kind, TensorType):
            raise OnlyBiopsyError(f"{name!r}, which is not a tensor")
        if kind is not None and kind.elem != STRING and is_extended(dtype_named(kind.dtype)):
            raise OnlyBiopsyError(f"{name!r}, whose type {kind.dtype} is not one of NumPy's own")


_MEASURED = frozenset({"l2", "cosine", "psnr", "snr"})
"""Metrics whose limits a script can check."""


def limits_of_output(name: str, criteria: Criteria, expected: Array) -> dict[str, Literal]:
    """The arguments of ``differs`` or ``differs_by`` for an output. Raises OnlyBiopsyError for other metrics."""
    other = [limit.metric for limit in criteria.limits if limit.metric not in _MEASURED]
    if other:
        raise OnlyBiopsyError(f"the limit on {other[0]} of {name!r}")
    tolerance = criteria.tolerance_of(expected)
    tolerances: dict[str, Literal] = {}
    if criteria.tolerances_decide and criteria.stat == "elemwise":
        tolerances = {"atol": tolerance.atol, "rtol": tolerance.rtol}
    elif criteria.tolerances_decide:
        tolerances = {"errors": [criteria.stat, criteria.quantile, tolerance.atol, tolerance.rtol]}
    limits: list[Literal] = [[limit.metric, limit.value] for limit in criteria.limits]
    return {**tolerances, "limits": limits} if limits else tolerances


def _for_differs_by(limits: Mapping[str, Literal]) -> dict[str, Literal]:
    others = {key: value for key, value in limits.items() if key not in {"atol", "rtol"}}
    return {"elements": [limits["atol"], limits["rtol"]], **others} if "atol" in limits else others


class OnlyBiopsyError(Exception):
    """Something that a script cannot do without biopsy; the text says what."""


@dataclass(frozen=True, kw_only=True)
class ScriptedEngine:
    """A part of ``script_parts`` that calls an engine, and the settings for its ``load``.

    ``modules`` are the packages that it imports. ``runs`` is False if the part can only build the model.
    """

    part: str
    modules: tuple[str, ...]
    settings: Mapping[str, Literal]
    runs: bool = True


def scripted_engine(engine: Engine, index: ModelIndex) -> ScriptedEngine:
    """How a script calls an engine with its options. Raises OnlyBiopsyError if no part of a script can."""
    if not engine.imports.is_here:
        raise OnlyBiopsyError("an engine from another release than the one that is installed")
    make = _CALLS.get(engine.name)
    if make is None:
        raise OnlyBiopsyError(f"the engine {engine.name}, which comes with biopsy or a plug-in of it")
    return make(engine, index)


def _with_changed(part: str, module: str, settings: Mapping[str, tuple[Literal, Literal]]) -> ScriptedEngine:
    """The call with those settings, each given with its default, that are not the default."""
    changed = {key: value for key, (value, usual) in settings.items() if value != usual}
    return ScriptedEngine(part=part, modules=(module,), settings=changed)


def _onnxrt(engine: Engine, index: ModelIndex) -> ScriptedEngine:
    import onnxruntime

    del index
    options = engine.options
    providers = Providers(onnxruntime, options)
    settings: dict[str, tuple[Literal, Literal]] = {
        "level": (LEVELS[options["optimization"]], "ORT_ENABLE_ALL"),
        "mode": (f"ORT_{options['execution'].upper()}", "ORT_SEQUENTIAL"),
        "config": ([list(entry) for entry in options["config"].items()], []),
        "providers": (providers.names, ["CPUExecutionProvider"]),
        "threads": ([options["threads"], options["inter_threads"]], [0, 0]),
        "disabled_optimizers": (list(options["disabled_optimizers"]), []),
        "provider_options": (
            [providers.options.get(name, {}) for name in providers.names],
            [{}] * len(providers.names),
        ),
    }
    return _with_changed("onnxrt", "onnxruntime", settings)


def _openvino(engine: Engine, index: ModelIndex) -> ScriptedEngine:
    del index
    options = engine.options
    threads = {"INFERENCE_NUM_THREADS": options["threads"]} if options["threads"] else {}
    settings: dict[str, tuple[Literal, Literal]] = {
        "device": (options["device"], "CPU"),
        "precision": (options["precision"], "f32"),
        "config": ({**options["config"], **threads}, {}),
    }
    return _with_changed("openvino", "openvino", settings)


def _reference(engine: Engine, index: ModelIndex) -> ScriptedEngine:
    del index
    if engine.options["float64"]:
        raise OnlyBiopsyError("the engine reference:float64, which computes in float64 whatever the model declares")
    return ScriptedEngine(part="reference", modules=("onnx",), settings={})


_TRT_FLAGS = ("fp16", "bf16", "fp8", "int8", "tf32")
_TRT_CALLED = frozenset({"package", "flags", "optimization", "min_shapes", "opt_shapes", "max_shapes", *_TRT_FLAGS})
"""Options of TensorRT that a script can follow."""


def _trt(engine: Engine, index: ModelIndex) -> ScriptedEngine:
    options = engine.options
    declared = {option.stem: {} if option.is_family else option.default for option in engine.options_declared}
    other = [name for name, value in options.items() if name not in _TRT_CALLED and value != declared[name]]
    if other:
        raise OnlyBiopsyError(f"the option {other[0]} of TensorRT")
    module = load(options["package"]).module.__name__
    flags = [name.upper() for name in (*_TRT_FLAGS, *options["flags"]) if name in options["flags"] or options[name]]
    profiles = _trt_profiles(engine, index)
    optional = {"flags": flags or None, "level": options["optimization"], "profiles": profiles or None}
    settings = {"module": module, **{key: value for key, value in optional.items() if value is not None}}
    return ScriptedEngine(part="tensorrt", modules=(module,), settings=settings, runs=False)


def _trt_profiles(engine: Engine, index: ModelIndex) -> list[Literal]:
    """For each profile, the smallest, optimal and largest shape of each input whose shape is open."""
    types = {index.names[tensor]: index.tensor_type(tensor) for tensor in index.fed_inputs()}
    known = {name: type_ for name, type_ in types.items() if type_ is not None and not type_.is_static}
    if None in types.values():
        raise OnlyBiopsyError("an input whose shape the model does not tell")
    if not known:
        return []
    profiles = profiles_of(known, engine.options, ModelInput(b"", Path()), resolve_shapes(known, {}))
    return [
        {name: [list(span.least), list(span.best), list(span.most)] for name, span in profile.items()}
        for profile in profiles
    ]


_CALLS = {"onnxrt": _onnxrt, "openvino": _openvino, "reference": _reference, "trt": _trt}


def calls_of(spec: EngineSpec, index: ModelIndex) -> tuple[str, ...]:
    """Lines of Python that load the model at ``path`` with the engine's own package; none if no script can do that.

    A comment in the first line may name a release to install. Raises what ``create`` raises.
    """
    plain = without_release(spec)
    release = None if "release" in plain.settings else spec.settings.get("release")
    try:
        lines = tuple(PythonCalls(engine=create(plain), index=index).building("path"))
    except OnlyBiopsyError:
        return ()
    if release is None:
        return lines
    distribution = find_class(spec.name).distributions[0]
    return (f"# pip install {release if '==' in release else f'{distribution}=={release}'}", *lines)


def _building_by_onnxrt(settings: Mapping[str, Any], model: str) -> Iterator[str]:
    attributes = {
        "graph_optimization_level": f"onnxruntime.GraphOptimizationLevel.{settings.get('level')}",
        "execution_mode": f"onnxruntime.ExecutionMode.{settings.get('mode')}",
    }
    lines = [f"options.{name} = {value}" for name, value in attributes.items() if not value.endswith(".None")]
    if "threads" in settings:
        lines.append(f"options.intra_op_num_threads, options.inter_op_num_threads = {settings['threads']!r}")
    lines += [f"options.add_session_config_entry({key!r}, {value!r})" for key, value in settings.get("config", ())]
    yield from ["options = onnxruntime.SessionOptions()", *lines] if lines else []
    given = {"providers": ["CPUExecutionProvider"], **settings}
    if "CUDAExecutionProvider" in given["providers"]:
        yield "onnxruntime.preload_dlls()  # finds CUDA as pip installs it, from 1.21 on"
    names = [name for name in ("providers", "provider_options", "disabled_optimizers") if name in given]
    more = "".join(f", {name}={given[name]!r}" for name in names)
    yield f"session = onnxruntime.InferenceSession({model}{', options' if lines else ''}{more})"


def _building_by_openvino(settings: Mapping[str, Any], model: str) -> Iterator[str]:
    config = {"INFERENCE_PRECISION_HINT": settings.get("precision", "f32"), **settings.get("config", {})}
    yield "core = openvino.Core()"
    yield f"compiled = core.compile_model(core.read_model({model}), {settings.get('device', 'CPU')!r}, {config!r})"


def _building_by_reference(settings: Mapping[str, Any], model: str) -> Iterator[str]:
    del settings
    yield f"evaluator = onnx.reference.ReferenceEvaluator({model})"


_BUILDING: Mapping[str, Callable[[Mapping[str, Any], str], Iterator[str]]] = {
    "onnxrt": _building_by_onnxrt,
    "openvino": _building_by_openvino,
    "reference": _building_by_reference,
}
_RUNNING = {
    "onnxrt": "actual = session.run([{}], {})[0]",
    "openvino": "actual = compiled({1})[{0}]",
    "reference": "actual = evaluator.run([{}], {})[0]",
}


@dataclass(frozen=True, kw_only=True)
class PythonCalls:
    """Lines of Python that use an engine's own package; raises OnlyBiopsyError where there are none for its options."""

    engine: Engine
    index: ModelIndex

    def building(self, model: str) -> list[str]:
        """The lines that build a model, which the expression ``model`` gives as a path or as bytes."""
        settings = scripted_engine(self.engine, self.index).settings
        if self.engine.name not in _BUILDING:
            raise OnlyBiopsyError(f"lines of Python for the engine {self.engine.name}")
        return list(_BUILDING[self.engine.name](settings, model))

    def running(self, output: str, feeds: str) -> list[str]:
        """The lines that compute an output from inputs; both are expressions: the name, and a mapping by name."""
        return [_RUNNING[self.engine.name].format(output, feeds)]
