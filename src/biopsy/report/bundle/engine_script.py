"""The script of a failure that an engine shows by itself, without biopsy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from biopsy.comparison.tolerance import Criteria, asked_of
from biopsy.model.index import ModelIndex
from biopsy.model.tensor_type import STRING, TensorType, ValueType
from biopsy.report.bundle.failure import ObservedFailure
from biopsy.report.bundle.job import RunQuestion
from biopsy.report.bundle.literals import Literal
from biopsy.report.bundle.script import Script
from biopsy.report.bundle.scripted_engines import OnlyBiopsyError, ScriptedEngine, scripted_engine
from biopsy.tensors.dtypes import dtype_named, is_extended
from biopsy.tensors.results import Array

_LOAD = 'load(str(HERE / "model.onnx"), **SETTINGS)'
_INPUTS = 'read(HERE / "inputs.npz", INPUTS)'


@dataclass(frozen=True, kw_only=True)
class EngineScript:
    """What stands in such a script besides the failure: keys of tensors in the files, for each sample."""

    question: RunQuestion
    failure: ObservedFailure
    index: ModelIndex
    inputs: Sequence[Mapping[str, str]]
    expected: Sequence[Mapping[str, str]]
    seconds: float

    def script(self) -> Script:
        """The script. Raises OnlyBiopsyError if there can be none."""
        if self.failure.engine is None:
            raise OnlyBiopsyError("several engines, any of which may be the one that fails")
        call = scripted_engine(self.failure.engine, self.index)
        parts, constants, work = self._of_kind(call)
        needed = ["numpy", *call.modules] if "values" in parts else list(call.modules)
        return Script(
            title=f"{self.failure.title}.",
            needs=f"It needs {' and '.join(needed)}, and the files beside it.",
            parts=(call.part, *parts),
            constants={"SETTINGS": dict(call.settings), **constants},
            work=work,
            modules=needed,
        )

    def _of_kind(self, call: ScriptedEngine) -> tuple[Sequence[str], Mapping[str, Literal], Sequence[str]]:
        failure = self.failure
        if failure.kind in ("comparison", "non-finite"):
            if not call.runs:
                raise OnlyBiopsyError("running what TensorRT has built")
            return self._comparison() if failure.kind == "comparison" else self._non_finite()
        if failure.kind == "engine failure":
            return self._engine_failure(call)
        if failure.kind in ("crash", "timeout"):
            return self._child(call)
        raise OnlyBiopsyError("a comparison that is not known")

    @property
    def _outputs(self) -> list[str]:
        return [self.index.names[tensor] for tensor in self.index.outputs]

    @property
    def _fed(self) -> dict[str, Literal]:
        for tensor in (*self.index.fed_inputs(), *self.index.outputs):
            _require_plain(self.index.names[tensor], self.index.value_type(tensor))
        return {"OUTPUTS": self._outputs, "INPUTS": list(self.inputs)}

    def _comparison(self) -> tuple[Sequence[str], Mapping[str, Literal], Sequence[str]]:
        if self.question.beyond:
            raise OnlyBiopsyError(self.question.beyond)
        limits: dict[str, dict[str, Literal]] = {}
        for sample in self.failure.expected:
            for name, value in sample.items():
                limits[name] = _limits(name, self._asked_of(name), value)
        if not limits:
            raise OnlyBiopsyError("a comparison of outputs that are missing")
        plain = all(set(asked) == {"atol", "rtol"} for asked in limits.values())
        work = [
            f"model = {_LOAD}",
            f'inputs, expected = {_INPUTS}, read(HERE / "expected.npz", EXPECTED)',
            "outputs_of = lambda feed: run(model, feed, OUTPUTS)",
            f"return compare(outputs_of, inputs, expected, LIMITS{'' if plain else ', differs_by'})",
        ]
        parts = ("values", "comparison") if plain else ("values", "comparison", "measures")
        if not plain:
            limits = {name: _by_measures(asked) for name, asked in limits.items()}
        return parts, {**self._fed, "EXPECTED": list(self.expected), "LIMITS": limits}, work

    def _asked_of(self, name: str) -> Criteria:
        return asked_of(name, self.question.tolerances, self.question.stats, self.question.limits)

    def _non_finite(self) -> tuple[Sequence[str], Mapping[str, Literal], Sequence[str]]:
        work = [f"model = {_LOAD}", f"return find_non_finite(lambda feed: run(model, feed, OUTPUTS), {_INPUTS})"]
        return ("values", "non_finite"), self._fed, work

    def _engine_failure(self, call: ScriptedEngine) -> tuple[Sequence[str], Mapping[str, Literal], Sequence[str]]:
        constants: dict[str, Literal] = {"KIND": self.failure.name, "SAID": self.failure.message}
        if self.failure.stage != "run":
            work = [f"return expect_failure(lambda: {_LOAD}, None, kind=KIND, said=SAID)"]
            return ("engine_failure",), constants, work
        if not call.runs:
            raise OnlyBiopsyError("running what TensorRT has built")
        work = [
            f"feeds = {_INPUTS}",
            "return expect_failure(",
            f"    lambda: {_LOAD},",
            "    lambda model: [run(model, feed, OUTPUTS) for feed in feeds],",
            "    kind=KIND,",
            "    said=SAID,",
            ")",
        ]
        return ("values", "engine_failure"), {**self._fed, **constants}, work

    def _child(self, call: ScriptedEngine) -> tuple[Sequence[str], Mapping[str, Literal], Sequence[str]]:
        constants: dict[str, Literal] = {"ENDS_BY": self.failure.name, "SECONDS": self.seconds}
        watch = ["", "return watch_child(work, __file__, ends_by=ENDS_BY, seconds=SECONDS)"]
        if not self.inputs or not call.runs:
            return ("ends", "child"), constants, ["def work():", f"    {_LOAD}", *watch]
        work = [
            "def work():",
            f"    model = {_LOAD}",
            f"    for feed in {_INPUTS}:",
            "        run(model, feed, OUTPUTS)",
            *watch,
        ]
        return ("values", "ends", "child"), {**self._fed, **constants}, work


_MEASURED = frozenset({"l2", "cosine", "psnr", "snr"})
"""Limits that a script follows."""


def _limits(name: str, asked: Criteria, expected: Array) -> dict[str, Literal]:
    """What is asked of an output. Raises OnlyBiopsyError for what only biopsy computes."""
    other = [limit.metric for limit in asked.limits if limit.metric not in _MEASURED]
    if other:
        raise OnlyBiopsyError(f"the limit on {other[0]} of {name!r}")
    tolerance = asked.tolerance_of(expected)
    found: dict[str, Literal] = {}
    if asked.tolerances_decide and asked.stat == "elemwise":
        found = {"atol": tolerance.atol, "rtol": tolerance.rtol}
    elif asked.tolerances_decide:
        found = {"errors": [asked.stat, asked.quantile, tolerance.atol, tolerance.rtol]}
    limits: list[Literal] = [[limit.metric, limit.value] for limit in asked.limits]
    return {**found, "limits": limits} if limits else found


def _by_measures(asked: Mapping[str, Literal]) -> dict[str, Literal]:
    """The same for the part of a script that knows other measures too."""
    others = {key: value for key, value in asked.items() if key not in {"atol", "rtol"}}
    return {"elements": [asked["atol"], asked["rtol"]], **others} if "atol" in asked else others


def _require_plain(name: str, kind: ValueType | None) -> None:
    """Raise OnlyBiopsyError for values that NumPy's own files and types cannot hold."""
    if kind is not None and not isinstance(kind, TensorType):
        raise OnlyBiopsyError(f"{name!r}, which is no tensor")
    if kind is not None and kind.elem != STRING and is_extended(dtype_named(kind.dtype)):
        raise OnlyBiopsyError(f"{name!r}, whose type {kind.dtype} is not one of NumPy's own")
