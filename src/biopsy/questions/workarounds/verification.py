"""Verifying a change: the whole model must be right with it, and not only free of the symptom."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper

from biopsy import errors, events
from biopsy.checks.outcome import Outcome
from biopsy.checks.task import clear
from biopsy.engines.base import ModelInput
from biopsy.engines.latency import Latency, Side, side_by_side
from biopsy.engines.other_release.classes import RELEASE
from biopsy.engines.registry import parse_spec, release_now
from biopsy.engines.worker import Worker
from biopsy.model import parts, walk
from biopsy.model.tensor_type import DTYPE_OF_ELEM
from biopsy.processes import cleanup
from biopsy.processes.writing import write_whole
from biopsy.questions.builds.flags import SettingProbe
from biopsy.questions.builds.settings import SettingChange
from biopsy.questions.lint.specification import lost_validity
from biopsy.questions.workarounds.question import (
    ChangeCandidate,
    VerifiedChange,
    WorkaroundQuestion,
    interface_objection,
    labels,
    patched,
)
from biopsy.questions.workarounds.trusted_values import CANNOT_RUN, TrustedValues
from biopsy.reduction.passes.common import described
from biopsy.text import count, first_line, printable

_LEAST_TIMEOUT = 60.0
"""Seconds for a run of an engine, if there is no timeout."""

_TIMES_THE_TRUSTED = 20


@dataclass(kw_only=True)
class ChangeTrials:
    """Verifies candidates. Use it in a ``with``: it keeps an engine loaded.

    ``probe`` has seen the failure of the original. ``candidate`` is the path of patched models, ``scratch`` a folder
    for transient files.
    """

    question: WorkaroundQuestion
    probe: SettingProbe
    candidate: Path
    scratch: Path
    trusted: TrustedValues
    model: onnx.ModelProto
    listener: events.Listener
    _worker: Worker | None = None
    _types: Mapping[str, np.dtype[Any]] = field(default_factory=dict)

    def __enter__(self) -> ChangeTrials:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._worker is not None:
            self._worker.close()
        with contextlib.suppress(OSError):
            clear(self.candidate, whole=True)
        cleanup.keep(self.candidate)

    @property
    def timeout(self) -> float:
        """Seconds that an engine may take for all samples; by default far more than the trusted one took."""
        return self.question.timeout or max(_LEAST_TIMEOUT, _TIMES_THE_TRUSTED * self.trusted.seconds)

    def require_symptom(self) -> None:
        """Raise CannotCompare if the outputs of the original are right in as many runs as prove it.

        The values could not distinguish a workaround from a change that hides the symptom.
        """
        original = ChangeCandidate(kind="setting", text="the model as it is")
        for _ in range(self.probe.rate.proof):
            if self.objection(original) is not None:
                return
        suspect, trusted = self.question.template.spec.text, self.trusted
        raise errors.CannotCompare(
            f"cannot tell what is right: the check fails, but {suspect} gives the same as {trusted.engine} on these "
            "inputs",
            details=["a change that mends the model could not be told from one that hides the failure from the check"],
            next_steps=[
                "--load-inputs FILE    the inputs with which it fails, before --check",
                "--atol and --rtol    what counts as different",
                "--reference-engine NAME    an engine that gives the right outputs",
            ],
        )

    def objection(self, candidate: ChangeCandidate) -> str | None:
        """Why the outputs with a candidate are not right, in one line; None if they are."""
        model = self.model if not candidate.patches else patched(self.model, candidate.patches)
        if model is None:
            return "it does not fit the model"
        may_add = candidate.kind == "mark" or any(patch.kind == "mark" for patch in candidate.patches)
        objection = interface_objection(self.model, model, may_add=may_add)
        if objection is not None:
            return objection
        spec, trusted = self.question.template.changed(candidate.change), self.trusted
        if parse_spec(trusted.engine) == spec and trusted.confirmed_by is None:
            return f"{spec.text} is what counts as right here, and nothing confirms it"
        folder = self.question.index.folder
        if model is self.model:
            model_input = ModelInput(model.SerializeToString(), folder, self.question.model)
        else:
            model_input = ModelInput(model.SerializeToString(deterministic=True), folder)
        with self._running(candidate.change) as worker:
            try:
                outputs = worker.run(model_input, trusted.feeds)
            except CANNOT_RUN as error:
                return first_line(error.summary)
        if not self._types and not candidate.change.settings:
            self._types = {name: value.dtype for name, value in outputs[0].items()}
        return trusted.objection(outputs, self.question.right.judge, self._types)

    @contextlib.contextmanager
    def _running(self, change: SettingChange) -> Iterator[Worker]:
        """The engine with a change: the one that is kept loaded, or a new one if settings are changed."""
        template = self.question.template
        if not change.settings and not change.environment:
            if self._worker is None:
                self._worker = Worker(template.spec.text, self.scratch, self.timeout)
            yield self._worker
            return
        changed = template.changed(change).text
        with template.environment(change), Worker(changed, self.scratch, self.timeout) as worker:
            yield worker

    def verified(self, candidate: ChangeCandidate) -> VerifiedChange | str:
        """The workaround, if a candidate is one; otherwise why not, in one line."""
        for _ in range(self.probe.needed):
            if (objection := self.objection(candidate)) is not None:
                return objection
        model = patched(self.model, candidate.patches) if candidate.patches else None
        data = None if model is None else model.SerializeToString(deterministic=True)
        if model is not None and data is not None:
            clear(self.candidate)
            write_whole(self.candidate, [data], transient=True)  # where the check finds it
            lost = lost_validity(model, self.model.SerializeToString(), self.question.index.folder)
            if lost is not None and lost.certain:
                return str(lost)
        probe = self.probe.on(self.candidate) if candidate.patches else self.probe
        judged = probe.fresh(candidate.change, candidate.text, passed=1 + self.probe.needed)
        if judged.outcome is not Outcome.PASSES:
            return f"the check: {judged.outcome.value}: {judged.reason}"
        was_flaky = self.probe.rate.is_flaky
        if not self.probe.still_fails():
            if self.probe.rate.is_flaky and not was_flaky:  # it takes more runs than were known to be needed
                return self.verified(candidate)
            return "the check passes, but now it also passes without the change: nothing can be concluded"
        return VerifiedChange(
            kind=candidate.kind,
            text=candidate.text,
            engine=self.question.template.changed(candidate.change).text,
            environment=candidate.change.environment,
            nodes=labels(candidate.nodes, [node.label for node in self.question.index.nodes]),
            difference=() if model is None else difference(self.model, model),
            holds=tuple(dict.fromkeys(patch.holds for patch in candidate.patches if patch.holds)),
            model=data,
            latency=self._latency(candidate),
            runs=self.probe.needed,
        )

    def check_file(self, path: Path, change: VerifiedChange) -> str | None:
        """Why the check does not pass with the written file, in a fresh process; None if it passes."""
        judged = self.probe.on(path).once(SettingChange(), f"as written: {change.text}", cold=True)
        return None if judged.outcome is Outcome.PASSES else f"{judged.outcome.value}: {judged.reason}"

    def _latency(self, candidate: ChangeCandidate) -> Latency | None:
        """The latency compared with the original, with both engines in environments if the changed one is in one."""
        question, template = self.question, self.question.template
        unchanged = SettingChange()
        if RELEASE in candidate.change.settings and RELEASE not in template.spec.settings:
            unchanged = SettingChange({RELEASE: release_now(template.spec)})
        changed = self.candidate if candidate.patches else question.model
        before, after = (
            Side(
                engine=template.changed(change).text,
                model=model,
                folder=question.index.folder,
                feeds=self.trusted.feeds,
                environment=change.environment,
            )
            for change, model in ((unchanged, question.model), (candidate.change, changed))
        )
        latency = side_by_side(before, after, self.timeout)
        is_alone = latency is not None and latency.ratio is None
        return None if is_alone and RELEASE in candidate.change.settings else latency


_MOST_TEXT = 100
_Path: TypeAlias = str
"""The nodes around a body; "" for the main graph."""

_Key: TypeAlias = "tuple[_Path, str]"
"""The path of a node's graph, and the first tensor that the node writes."""

_Nodes: TypeAlias = "Mapping[_Key, onnx.NodeProto]"


def difference(before: onnx.ModelProto, after: onnx.ModelProto) -> tuple[str, ...]:
    """The differences in the nodes and outputs of two models, in printable lines.

    Lines begin with ``- `` for what was removed, ``+ `` for what was added, ``~ `` for what was changed. A node is the
    same if it has the same operator and writes the same tensors, or else if it has the same operator and the same name
    or inputs. The order of nodes does not matter.
    """
    old, new = dict(_nodes(before.graph, "")), dict(_nodes(after.graph, ""))
    pairs = _pairs(old, new)
    kept = set(pairs.values())
    added = [(key[0], node) for key, node in new.items() if key not in kept]
    added.sort(key=lambda place: place[1].op_type == "Cast")
    lines = [f"- {_node_text(key[0], node)}" for key, node in old.items() if key not in pairs]
    lines += [f"+ {_node_text(path, node)}" for path, node in added if node.op_type != "Constant"]
    for key, twin in pairs.items():
        if changes := list(_changes(old[key], new[twin])):
            lines.append(f"~ {_node_text(key[0], new[twin])}: {', '.join(changes)}")
    constants = sum(node.op_type == "Constant" for _, node in added)
    lines += [f"+ {count(constants, 'constant')}"] if constants else []
    names = [[info.name for info in model.graph.output] for model in (before, after)]
    for info in after.graph.output:
        if info.name not in names[0]:
            kind = parts.tensor_type(info.SerializeToString())
            lines.append(f"+ output {_short(info.name)}{f' {printable(str(kind))}' if kind is not None else ''}")
    lines += [f"- output {printable(name)}" for name in names[0] if name not in names[1]]
    functions, remaining = (
        Counter(walk.function_key(each)[1] for each in model.functions) for model in (before, after)
    )
    lines += [f"~ function {_short(name)}: its nodes in place of the calls" for name in functions - remaining]
    return tuple(lines)


def _pairs(old: _Nodes, new: _Nodes) -> dict[_Key, _Key]:
    """Nodes that are the same in both models: the old key -> the new one."""
    pairs = {
        key: key
        for key in new
        if key in old
        and walk.operator(old[key]) == walk.operator(new[key])
        and list(old[key].output) == list(new[key].output)
    }
    for trait in ("name", "input"):
        taken = set(pairs.values())
        free: dict[tuple[object, ...], _Key] = {}
        for key, node in new.items():
            if key not in taken and getattr(node, trait):
                free.setdefault((key[0], walk.operator(node), *getattr(node, trait)), key)
        for key, node in old.items():
            if key not in pairs and getattr(node, trait):
                twin = free.pop((key[0], walk.operator(node), *getattr(node, trait)), None)
                pairs |= {} if twin is None else {key: twin}
    return pairs


def _nodes(graph: onnx.GraphProto, path: _Path) -> Iterator[tuple[_Key, onnx.NodeProto]]:
    for place, node in enumerate(graph.node):
        written = next((name for name in node.output if name), f"#{place}")
        yield (path, written), node
        for attribute in node.attribute:
            bodies = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
            for number, body in enumerate(bodies):
                inner = f"{path}{described(node)}, {attribute.name}{f'[{number}]' if number else ''}: "
                yield from _nodes(body, inner)


def _changes(old: onnx.NodeProto, new: onnx.NodeProto) -> Iterator[str]:
    for at in range(max(len(old.input), len(new.input))):
        old_name, name = ((node.input[at] if at < len(node.input) else "") for node in (old, new))
        if old_name != name:
            yield f"input {at} {_short(old_name) or 'none'} -> {_short(name) or 'none'}"
    for old_name, name in zip(old.output, new.output, strict=False):
        if old_name != name:
            yield f"writes {_short(name) or 'nothing'}, not {_short(old_name) or 'nothing'}"
    before, after = _attributes(old), _attributes(new)
    for name in (*before, *(name for name in after if name not in before)):
        if before.get(name) != after.get(name):
            yield f"{_short(name)} {before.get(name, 'not given')} -> {after.get(name, 'not given')}"


def _attributes(node: onnx.NodeProto) -> Mapping[str, str]:
    texts = {}
    for each in node.attribute:
        if each.HasField("t"):
            texts[each.name] = f"a tensor {list(each.t.dims)}"
        elif each.name == "to" and each.i in DTYPE_OF_ELEM:
            texts[each.name] = DTYPE_OF_ELEM[each.i]
        elif not each.HasField("g") and not each.graphs:
            value = helper.get_attribute_value(each)
            texts[each.name] = _short(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))
    return texts


def _node_text(path: _Path, node: onnx.NodeProto) -> str:
    """``Gemm 'fc' (x, w) -> y`` with its attributes."""
    inputs = ", ".join(_short(name) for name in node.input)
    outputs = ", ".join(_short(name) for name in node.output if name)
    attributes = ", ".join(f"{_short(name)}={value}" for name, value in _attributes(node).items())
    domain = f"{node.domain}." if node.domain not in ("", "ai.onnx") else ""
    title = f"{domain}{node.op_type}" + (f" {node.name!r}" if node.name and node.name not in node.output else "")
    text = f"{_short(path, 4 * _MOST_TEXT)}{_short(title)}({inputs}) -> {outputs}"
    return f"{text}  [{attributes}]" if attributes else text


def _short(text: str, most: int = _MOST_TEXT) -> str:
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."
