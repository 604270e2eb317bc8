"""The changes to try: other releases of the engine, and the fewest patches of the model.

Patches are marks, barriers, higher precision and other spellings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import onnx
from onnx import helper
from packaging.version import InvalidVersion, Version

from biopsy import errors
from biopsy.engines.other_release.classes import RELEASE
from biopsy.engines.registry import EngineSpec, find_class, release_now, release_settings
from biopsy.model import infer
from biopsy.processes.environments.interpreter import interpreter_of
from biopsy.processes.environments.releases import releases
from biopsy.questions.builds.settings import SettingChange
from biopsy.questions.precision.caster import Assembly, mixed
from biopsy.questions.precision.formats import BF16, FP16, FP32, FP64, OF_ELEM, Format, Weights
from biopsy.questions.precision.plan import Layer, PlannedGraph, PrecisionPlan, plan_of, without_functions
from biopsy.questions.workarounds.question import ChangeCandidate, Kind, Patch, of_patches
from biopsy.questions.workarounds.spellings.table import barriers, spellings
from biopsy.reduction.passes.common import copied, described
from biopsy.search.drive import drive, first_that
from biopsy.search.subset import minimal_subsets, shortest
from biopsy.text import first_of

_OLDER = (1, 2, 4, 8)
"""How many minor releases back to try: near ones first, and some that may be older than a regression."""


def releases_to_try(spec: EngineSpec) -> list[ChangeCandidate]:
    """The newest release, and the last ones of some older minor releases, near ones first.

    Empty for an engine that cannot be run from another release. Raises CannotInstall if the package index cannot be
    read, EngineMissing if the engine is not installed.
    """
    distributions = find_class(spec.name).distributions
    wanted = spec.settings.get(RELEASE) or ""
    if not distributions or (spec.settings.get("python") and not wanted):
        return []
    distribution = wanted.rpartition("==")[0] or distributions[0]
    try:
        now = Version(release_now(spec))
    except InvalidVersion:
        return []
    known = sorted(
        Version(each.version) for each in releases(distribution, python=interpreter_of(spec.settings.get("python")))
    )
    last_of_minor = {version.release[:2]: version for version in known if version.release[:2] < now.release[:2]}
    back = list(last_of_minor.values())[::-1]
    older = [back[number - 1] for number in _OLDER if number <= len(back)]
    return [
        ChangeCandidate(
            kind="release",
            text=f"{distribution} {version}",
            change=SettingChange(release_settings(spec.name, distribution, str(version))),
        )
        for version in [*(newest for newest in known[-1:] if newest > now), *older]
    ]


def marks(model: onnx.ModelProto, nodes: Sequence[int]) -> list[Patch]:
    """One patch for each tensor that these nodes of the main graph write, which marks it as an output.

    An engine must compute outputs, so it cannot fuse the nodes around them. Tensors of unknown element type or rank are
    skipped, because an output must declare them.
    """
    types = infer.infer_types(model)
    outputs = {info.name for info in model.graph.output}
    return [
        Patch(
            kind="mark",
            name="output-mark",
            text=f"{described(model.graph.node[place])}: its result {name!r} marked as an output",
            cost="one more output of the model, and the fusions that it breaks",
            exact=True,
            nodes=(place,),
            change=partial(marked, name=name),
        )
        for place in nodes
        for name in model.graph.node[place].output
        if name and name not in outputs and name in types and types[name].shape is not None
    ]


def marked(model: onnx.ModelProto, name: str) -> onnx.ModelProto | None:
    """A copy of a model with one more output, the last; None if no node computes it, or its type is not known."""
    kind = infer.infer_types(model).get(name)
    computed = any(name in node.output for node in model.graph.node)
    if kind is None or kind.shape is None or not computed or any(info.name == name for info in model.graph.output):
        return None
    changed = copied(model)
    changed.graph.output.append(helper.make_tensor_value_info(name, kind.elem, list(kind.shape)))
    return changed


_BELOW = {FP32: {BF16, FP16}, FP64: {FP32}}
"""A higher precision -> the precisions that are raised to it."""


def raised_precisions(model: onnx.ModelProto, nodes: Sequence[int]) -> list[Patch]:
    """Patches that compute these nodes of the main graph in a higher precision, with casts: each alone, then together.

    fp16 and bf16 become float32, float32 becomes float64, if the operator has that type. Calls of local functions are
    replaced by their nodes in the patched model. External weights are not read, but cast in the model.
    """
    patches = []
    for high in (FP32, FP64):
        raisable = _raisable(model, high)
        chosen = [
            (place, raisable[name])
            for place in nodes
            for name in [name for name in model.graph.node[place].output if name][:1]
            if name in raisable
        ]
        for group in [[each] for each in chosen] + ([chosen] if len(chosen) > 1 else []):
            names = first_of([layer.label for _, layer in group], 3)
            memory = "as much memory again" if high is FP64 else "twice the memory"
            patches.append(
                Patch(
                    kind="precision",
                    name=f"in-{high.name}",
                    text=f"{names}: computed in {high.name}, with casts around",
                    cost=f"{memory}, and slower, where these nodes compute",
                    exact=False,
                    nodes=tuple(place for place, _ in group),
                    change=partial(raised, writes=[layer.writes for _, layer in group], high=high),
                )
            )
    return sorted(patches, key=lambda patch: len(patch.nodes))


def _raisable(model: onnx.ModelProto, high: Format) -> dict[str, Layer]:
    """The layers of the main graph that can be raised to a precision, by their first outputs."""
    try:
        plan = plan_of(without_functions(model), frozenset({high.elem}))
    except errors.ModelError:
        return {}
    own = _own_formats(plan.graph)
    return {
        layer.writes: layer
        for layer in plan.layers
        if not layer.where and layer.number in own and own[layer.number] in _BELOW[high]
    }


def _own_formats(graph: PlannedGraph) -> dict[int, Format]:
    """The precision of each layer in the model, including those in bodies."""
    formats: dict[int, Format] = {}
    for node in graph.nodes:
        if node.number >= 0:
            elem = graph.elems.get(node.proto.output[node.part.outputs[0]], 0)
            formats.update({node.number: OF_ELEM[elem]} if elem in OF_ELEM else {})
        for _, _, body in node.bodies:
            formats |= _own_formats(body)
    return formats


def raised(model: onnx.ModelProto, writes: Sequence[str], high: Format) -> onnx.ModelProto | None:
    """A copy of a model in which the nodes that write these tensors compute in a higher precision.

    None if one of them is missing, or cannot be raised.
    """
    raisable = _raisable(model, high)
    if any(name not in raisable for name in writes):
        return None
    plan: PrecisionPlan = plan_of(without_functions(model), frozenset({high.elem}))
    own = _own_formats(plan.graph)
    chosen = {raisable[name].number for name in writes}
    changed = mixed(plan, lambda number: high if number in chosen else own[number], "native", Weights(Path()))
    return type(model).FromString(b"".join(Assembly(plan.model, {}).parts(changed)))


Holds: TypeAlias = Callable[[ChangeCandidate], bool]
"""Returns whether the outputs with a candidate are right."""

_MAKERS: dict[Kind, Callable[[onnx.ModelProto, Sequence[int]], list[Patch]]] = {
    "mark": marks,
    "barrier": barriers,
    "precision": raised_precisions,
    "spelling": spellings,
}

MODEL_KINDS: tuple[Kind, ...] = tuple(_MAKERS)

_MOST_CANDIDATES = 3
"""The most changes of a kind that are verified."""

_MOST_PATCHES = 64
"""The most changes of a kind that are tried one by one, and then together."""


def candidates_of(kind: Kind, model: onnx.ModelProto, nodes: Sequence[int], holds: Holds) -> Iterator[ChangeCandidate]:
    """The patches of a kind at these nodes with which the outputs are right, those of the fewest nodes first.

    If no single one is enough, the smallest sets of patches; that search assumes that a further patch does no harm.
    """
    patches = sorted(_MAKERS[kind](model, nodes), key=lambda patch: len(patch.nodes))[:_MOST_PATCHES]
    one_is_enough = False
    for candidate in islice(filter(holds, (of_patches([patch]) for patch in patches)), _MOST_CANDIDATES):
        one_is_enough = True
        yield candidate
    chosen: list[Patch] = []  # of several patches of the same nodes, only the first is combined with others
    for patch in patches:
        if not any(set(patch.nodes) & set(other.nodes) for other in chosen) or patch.kind == "mark":
            chosen.append(patch)
    if one_is_enough or len(chosen) < 2:
        return
    known: dict[tuple[int, ...], bool] = {}

    def right(places: Sequence[int]) -> bool:
        key = tuple(sorted(places))
        if key not in known:
            known[key] = holds(of_patches([chosen[place] for place in key]))
        return known[key]

    if not right(range(len(chosen))):
        return
    sets, _ = drive(minimal_subsets(range(len(chosen)), _MOST_CANDIDATES), first_that(right))
    for places in shortest(sets):
        yield of_patches([chosen[place] for place in sorted(places)])
