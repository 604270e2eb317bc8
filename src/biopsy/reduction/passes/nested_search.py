"""The search over nodes once more, on a model whose nodes have changed: those of a branch, a trip or a function."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import events
from biopsy.model.index import index_bytes
from biopsy.model.load import parse
from biopsy.model.slice import candidate_bytes
from biopsy.recording.cut_types import CutTypes
from biopsy.recording.reference_run import Recording
from biopsy.reduction.candidate import Candidate, Proposal
from biopsy.reduction.change import Change
from biopsy.reduction.named_pass import Pass
from biopsy.reduction.pass_context import PassContext
from biopsy.reduction.passes.bypass import bypass
from biopsy.reduction.passes.forms import forms
from biopsy.reduction.passes.linear import linear
from biopsy.reduction.passes.sets import sets
from biopsy.reduction.problem import Problem
from biopsy.search.drive import nest
from biopsy.search.rounds import Round, Search

if TYPE_CHECKING:
    import onnx


def nodes_again(
    model: onnx.ModelProto, *, keep_values: bool = False
) -> Search[Change, onnx.ModelProto, onnx.ModelProto]:
    """Cut and bypass nodes of a model until no single one can go; returns the model that is left.

    Nothing is recorded of the new tensors, so a cut is fed unless it is a constant. To ``keep_values`` nothing is
    bypassed.
    """
    index = index_bytes(model.SerializeToString(deterministic=True))
    recording = Recording(index, tuple, Path(), events.ignore)
    types = CutTypes(index, recording)
    problem = Problem(index, types, recording)
    context = PassContext(problem, may_change_values=lambda: not keep_values)
    target, before = problem.whole, None
    while target != before and target.size > 1:
        before = target
        for search in (sets, bypass, linear, forms):
            target = yield from _searched(context, search, target)
    return model if target == problem.whole else _model_of(problem, target)


def _searched(context: PassContext, search: Pass, target: Candidate) -> Search[Change, onnx.ModelProto, Candidate]:
    """Run a pass over nodes, its candidates proposed as models."""

    def answer(proposals: Round[Proposal]) -> Search[Change, onnx.ModelProto, Candidate | None]:
        nonlocal target
        reproducing = yield from _first(context.problem, proposals, target)
        target = reproducing or target
        return reproducing

    yield from nest(search(context, target), answer)
    return target


def _first(
    problem: Problem, proposals: Round[Proposal], target: Candidate
) -> Search[Change, onnx.ModelProto, Candidate | None]:
    for proposal in proposals:
        candidate = problem.closed(proposal.candidate)
        if candidate == target:
            return target
        if candidate is not None and candidate.size < target.size:
            answer = yield [Change(_model_of(problem, candidate), proposal.description)]
            if answer is not None:
                return candidate
    return None


def _model_of(problem: Problem, candidate: Candidate) -> onnx.ModelProto:
    return parse(candidate_bytes(problem.subset(candidate), problem.boundary(candidate)), None)
