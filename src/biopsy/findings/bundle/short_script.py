"""``reproduce.py`` in some ten lines, as a maintainer would write it: the model as text, its inputs, one call of the
engine, and an assertion. It calls the engine's own package and nothing of biopsy.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from biopsy import errors
from biopsy.comparison.tolerance import criteria_for
from biopsy.findings.bundle.engine_script import (
    OnlyBiopsyError,
    PythonCalls,
    limits_of_output,
    require_plain_types,
    scripted_engine,
)
from biopsy.findings.bundle.failure import ObservedFailure
from biopsy.findings.bundle.job import RunQuestion
from biopsy.findings.bundle.script import Ending, docstring
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.tensor_type import DTYPE_OF_ELEM
from biopsy.model.walk import free_name
from biopsy.processes.writing import write_whole
from biopsy.questions.variation.features import values_of
from biopsy.questions.variation.plain import FEW, plain_expression
from biopsy.slow_imports import onnx
from biopsy.tensors.results import Array, Feed
from biopsy.tensors.types import dtype_named, is_extended, is_float
from biopsy.text import printable

_LONGEST_LINE = 110
_MOST_NODES = 30
_MOST_NODES_TOLD = 8
_MOST_LISTED = 64
"""Elements of a weight in the text of a model, if no short expression gives them."""


@dataclass(frozen=True, kw_only=True)
class ShortScript:
    """A script that shows a failure by one call of an engine: its text, the packages that it imports, how it ends."""

    text: str
    modules: Sequence[str]
    ending: Ending


@dataclass(frozen=True, kw_only=True)
class ShownFailure:
    """What a short script shows: the failure of ``question`` by the model at ``path``.

    ``inputs`` and ``expected`` are tensors by name of the sample that fails, ``keys`` those of the inputs and of what
    is expected in the two ``files``. ``judged_as`` is the output by the name that its tolerances have.
    """

    question: RunQuestion
    failure: ObservedFailure
    path: Path
    index: ModelIndex
    inputs: Feed
    expected: Mapping[str, Array]
    keys: tuple[Mapping[str, str], Mapping[str, str]]
    files: tuple[str, str] = ("inputs.npz", "expected.npz")
    judged_as: str = ""

    def in_numpys_types(self, path: Path) -> ShownFailure:
        """The same failure of a model at ``path``, which casts inputs and outputs of types that NumPy lacks.

        It is the same record, and nothing is written, if there are none or a type is what is wrong. Casting to float32
        or int32 changes no value.
        """
        data, names = (b"", {}) if self.failure.right_type else _with_casts(self.path, self.index)
        if not names:
            return self
        write_whole(path, [data])
        return replace(
            self,
            judged_as=self.failure.output,
            failure=replace(self.failure, output=names.get(self.failure.output, self.failure.output)),
            path=path,
            index=index_bytes(data, path.parent),
            inputs=_cast(self.inputs, names),
            expected=_cast(self.expected, names),
        )

    def scripts(self) -> Iterator[ShortScript]:
        """The scripts that may show it, the shortest first: with the model as text, and with the model's file."""
        engine = self.failure.engine
        if engine is None or self.question.unscriptable:
            return
        try:
            require_plain_types(self.index)
            calls = PythonCalls(engine=engine, index=self.index)
            calls.building("")
            ending, runs, judging = self._judging()
        except OnlyBiopsyError:
            return
        loaded = onnx.load(str(self.path), load_external_data=False)
        engine_modules = scripted_engine(engine, self.index).modules
        path = _literal(self.path.name)
        in_file = _ModelLines(lines=_nodes_as_comments(loaded), given=path, evaluated=path)
        for model in filter(None, (_model_as_text(loaded), in_file)):
            output = _literal(self.failure.output or self.index.names[self.index.outputs[0]]) if runs else ""
            feeds = self._feeds() if runs else []
            call = calls.running(output, "feeds" if feeds else "{}") if runs else []
            body = [*model.lines, *feeds, *calls.building(model.given), *call, *self._expected(model), *judging]
            named = {"numpy": "np.", "onnx": "onnx."}
            used = [name for name, prefix in named.items() if any(prefix in line for line in body)]
            modules = list(dict.fromkeys((*used, *engine_modules)))
            imports = [f"import {name}{' as np' if name == 'numpy' else ''}" for name in modules]
            imports += ["import onnx.reference"] if any("onnx.reference." in line for line in body) else []
            text = "\n".join([docstring(f"{self.failure.title}."), *imports, "", *body, ""])
            yield ShortScript(text=text, modules=modules, ending=ending)

    def _judging(self) -> tuple[Ending, bool, Sequence[str]]:
        """How the script ends, whether it runs the model, and the lines that judge.

        Raises OnlyBiopsyError for what no such lines can say.
        """
        failure = self.failure
        if failure.kind == "comparison" and failure.right_type:
            return (
                Ending(text="AssertionError"),
                True,
                [f"assert actual.dtype == {_literal(failure.right_type)}, actual.dtype"],
            )
        if failure.kind == "comparison" and failure.output:
            judge, values = self.question.judge, self.expected[failure.output]
            criteria = criteria_for(self.judged_as or failure.output, judge.tolerances, judge.stats, judge.limits)
            limits = limits_of_output(failure.output, criteria, values)
            if set(limits) != {"atol", "rtol"}:
                raise OnlyBiopsyError("other limits than tolerances")
            how = f"rtol={limits['rtol']!r}, atol={limits['atol']!r}"
            exactly = "np.testing.assert_array_equal(actual, expected)"
            within = f"np.testing.assert_allclose(actual, expected, {how})"
            return Ending(text="AssertionError"), True, [exactly if values.dtype.kind in "OUS" else within]
        if failure.kind == "non-finite" and failure.output:
            test = {"nan": "np.isnan(actual).any()"}.get(failure.name, "np.isinf(actual).any()")
            return Ending(text="AssertionError"), True, [f"assert not {test}, actual"]
        runs = failure.stage not in ("load", "build") and bool(self.inputs or not self.index.fed_inputs())
        if failure.kind == "engine failure":
            return Ending(text=failure.name), runs, [f"# {_comment(failure.message)}"] if failure.message else []
        when = f" when it {errors.STAGE_VERBS[failure.stage]} the model" if failure.stage in errors.STAGE_VERBS else ""
        if failure.kind == "crash" and failure.name in signal.Signals.__members__:
            return Ending(status=-signal.Signals[failure.name].value), runs, [f"# {failure.name}{when}"]
        if failure.kind == "timeout":
            return Ending(status=None), runs, [f"# it does not end{when}"]
        raise OnlyBiopsyError("a failure that is not of one output")

    def _feeds(self) -> list[str]:
        """The lines that make the inputs; none if the model takes none."""
        wanted = {self.index.names[tensor] for tensor in self.index.fed_inputs()}
        parts, load = [], list[str]()
        for name, values in self.inputs.items():
            if name in wanted:
                expression = plain_expression(values)
                load = load if expression is not None else [f"inputs = np.load({_literal(self.files[0])})"]
                parts.append(f"{_literal(name)}: {expression or f'inputs[{_literal(self.keys[0][name])}]'}")
        line = f"feeds = {{{', '.join(parts)}}}"
        lines = [line] if len(line) <= _LONGEST_LINE else ["feeds = {", *(f"    {part}," for part in parts), "}"]
        return [*load, *lines] if parts else []

    def _expected(self, model: _ModelLines) -> list[str]:
        """The line that says what is expected, if values are compared."""
        name = self.failure.output
        if self.failure.kind != "comparison" or not name or self.failure.right_type:
            return []
        values = self.expected[name]
        expression = plain_expression(values)
        if expression is None and values.size > FEW and self.failure.against == "reference":
            expression = f"onnx.reference.ReferenceEvaluator({model.evaluated}).run([{_literal(name)}], feeds)[0]"
        return [f"expected = {expression or f'np.load({_literal(self.files[1])})[{_literal(self.keys[1][name])}]'}"]


def _with_casts(path: Path, index: ModelIndex) -> tuple[bytes, Mapping[str, str]]:
    """A model that casts its inputs and outputs of types that NumPy lacks, and their new names by the old ones."""
    model, names = onnx.load(str(path), load_external_data=False), dict[str, str]()
    ends = [*((each, True) for each in model.graph.input), *((each, False) for each in model.graph.output)]
    fed = {index.names[tensor] for tensor in index.fed_inputs()}
    for info, is_input in ends:
        kind, name = info.type.tensor_type, info.name
        dtype = DTYPE_OF_ELEM.get(kind.elem_type, "string")
        is_kept = name in names or (is_input and name not in fed)
        if is_kept or dtype == "string" or not is_extended(dtype_named(dtype)):
            continue
        plain = onnx.TensorProto.FLOAT if "float" in dtype else onnx.TensorProto.INT32
        info.name = names[name] = free_name(f"{name}_cast", {*index.names, *names.values()})
        to, read, written = (kind.elem_type, info.name, name) if is_input else (plain, name, info.name)
        kind.elem_type = plain
        cast = onnx.helper.make_node("Cast", [read], [written], to=to)
        model.graph.node.insert(0 if is_input else len(model.graph.node), cast)
    return model.SerializeToString(deterministic=True), names


def _cast(tensors: Mapping[str, Array], names: Mapping[str, str]) -> dict[str, Array]:
    """Tensors by the new ``names`` of those that are cast: floating-point numbers to float32, others to int32."""
    number = {True: np.float32, False: np.int32}
    return {
        names.get(name, name): value.astype(number[is_float(value.dtype)]) if name in names else value
        for name, value in tensors.items()
    }


@dataclass(frozen=True, kw_only=True)
class _ModelLines:
    """The lines that make a model or tell its nodes, and the expressions for it.

    ``given`` is given to an engine, as bytes or as a path, ``evaluated`` to the reference evaluator.
    """

    lines: Sequence[str]
    given: str
    evaluated: str


def _nodes_as_comments(model: onnx.ModelProto) -> Sequence[str]:
    """The nodes of a model with their attributes, as comments; none if there are many."""
    bare = onnx.GraphProto(name="bare", node=model.graph.node)
    try:
        lines = onnx.printer.to_text(bare).splitlines()
    except Exception:  # what the text has no form for
        return ()
    nodes = lines[1:-1]  # between the names of its ends and the closing brace
    return [f"# {_comment(line)}" for line in nodes] if len(nodes) <= _MOST_NODES_TOLD else ()


def _model_as_text(model: onnx.ModelProto) -> _ModelLines | None:
    """The lines that make a model of its text and of short expressions for its weights; None if that is impossible.

    The text is that of ``onnx.printer``; it is used only if ``onnx.parser`` makes the same nodes and weights of it.
    """
    if len(model.graph.node) > _MOST_NODES:
        return None
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for field in ("producer_name", "producer_version", "domain", "doc_string", "metadata_props", "model_version"):
        bare.ClearField(field)
    for field in ("doc_string", "value_info", "metadata_props"):
        bare.graph.ClearField(field)
    for node in bare.graph.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
    large = [weight for weight in bare.graph.initializer if np.prod(weight.dims) > FEW]
    lines = []
    for weight in large:
        values = values_of(weight)
        expression = None if values is None else plain_expression(values)
        if expression is None:
            if values is None or values.size > _MOST_LISTED:
                return None
            continue
        made = f"onnx.numpy_helper.from_array({expression}, {_literal(weight.name)})"
        lines.append(f"model.graph.initializer.append({made})")
        bare.graph.initializer.remove(weight)
    try:
        text = onnx.printer.to_text(bare)
        parsed = onnx.parser.parse_model(text)
    except Exception:  # an element type, a name or an attribute that the text has no form for
        return None
    is_same = onnx.printer.to_text(parsed) == text and _weights(parsed) == _weights(bare)
    if not is_same or '"""' in text or "\\" in text or not text.replace("\n", "").isprintable():
        return None
    head, _, graph = text.partition(">\n")
    head = " ".join(head.removeprefix("<").split())
    body = [line.rstrip() for line in graph.strip().splitlines()]
    source = ['model = onnx.parser.parse_model("""', f"<{head}>", *body]
    source[-1] += '""")'
    return _ModelLines(lines=[*source, *lines], given="model.SerializeToString()", evaluated="model")


def _weights(model: onnx.ModelProto) -> dict[str, tuple[object, ...]]:
    """The type, shape and bytes of each weight by its name."""
    values = {weight.name: values_of(weight) for weight in model.graph.initializer}
    return {name: () if each is None else (each.dtype, each.shape, each.tobytes()) for name, each in values.items()}


def _literal(text: str) -> str:
    """Text as a Python expression of printable ASCII, in double quotes if that is possible."""
    quoted = ascii(text)
    return f'"{quoted[1:-1]}"' if quoted[0] == "'" and '"' not in quoted else quoted


def _comment(text: str) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."
