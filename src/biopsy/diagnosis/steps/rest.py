"""The question whether the piece is all that fails: the rest of the model is checked, and searched for more."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.command import ARBITER
from biopsy.checks.command_line import LOAD_INPUTS, OwnRun, parse
from biopsy.checks.judge import Signature, same_failure, signature_of
from biopsy.checks.message import message_of
from biopsy.checks.outcome import Judged
from biopsy.checks.words import as_word
from biopsy.comparison.mismatch import ONE_SIDED
from biopsy.diagnosis.context import (
    NO_PIECE,
    STEP_TIME,
    TIME,
    StepAnswer,
    StepContext,
    TimeUpError,
    diagnosis_step,
    fails,
    passes,
    reason_in_full,
)
from biopsy.diagnosis.facts import FurtherPiece, KnownFacts, ModelFailure, RestFacts, UndefinedFacts
from biopsy.diagnosis.question import Words, feeds_in, feeds_of, without_weights_folder
from biopsy.diagnosis.steps.layers import examined, exceeds_rounding, no_inner_tensors
from biopsy.diagnosis.steps.parts import NOT_SHOWN, reduce_to
from biopsy.diagnosis.steps.rounding import among_casts, engine_without_casts, judged_by_float64, narrowing_casts
from biopsy.diagnosis.steps.undefined import has_rules, undefined_results
from biopsy.engines.registry import PLAIN, create, full_title, parse_spec
from biopsy.model.index import index_bytes, index_file
from biopsy.model.parts import value_info
from biopsy.model.slice import Boundary, Subset, candidate_parts
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import write_whole
from biopsy.questions.layers.findings import LayerFinding, LayerFindings, LayerGroup
from biopsy.recording.reference_run import Recording, random_samples
from biopsy.recording.types import CutTypes
from biopsy.reduction.problem import Candidate, Problem
from biopsy.reduction.result import inputs_file
from biopsy.session.files import write_inputs
from biopsy.session.trial import until_no_pass
from biopsy.tensors.results import Feed
from biopsy.text import count, first_line, first_of

SUSPECTS_REPORT = "suspects.json"
"""The report of ``debug layers`` on the whole model, in the folder of the evidence."""

MOST_PIECES = 4
"""Parts that are reduced, the first included; examining the layers may find more at once."""

PIECES = tuple(f"piece{number}.onnx" for number in range(2, MOST_PIECES + 1))

_MOST_LABELS = 2


@diagnosis_step(
    "rest",
    "is the piece all that fails?",
    unless=lambda facts, context: {
        NO_PIECE: facts.piece is None,
        NOT_SHOWN: facts.is_masked,
        "no engine is at fault": facts.fault not in (None, "refused", "undefined"),
        "the piece is the whole model": facts.piece and len(facts.piece.kept) == len(context.question.index.nodes),
    },
    evidence="rest",
    files=(SUSPECTS_REPORT, *(name for piece in PIECES for name in (piece, inputs_file(Path(piece)).name))),
    share=0.3,
)
def rest_of_model(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """Check the model without the piece, fed with right values in its place; look for more only if that fails too."""
    with temporary_folder("biopsy-") as scratch:
        search = _Rest(facts, context, scratch)
        rest = search.held_against_float64(search.searched())
    ended = TIME if rest.reason == _NO_TIME else None
    return StepAnswer(replace(facts, rest=rest), _line(rest), ended)


NOTHING_LEFT = "no other node is left"
_NO_TIME = f"{STEP_TIME} was over"


def _line(rest: RestFacts) -> str:
    fed = f", fed with what {rest.fed_by} computes there" if rest.fed_by else ""
    answer = f"the rest of the model{fed}: {rest.answer}" if rest.reason != NOTHING_LEFT else ""
    more = f"no, {len(rest.others)} more: {grouped([other.nodes for other in rest.others])} · " if rest.others else ""
    wrong = f"but float64 gives other values there than {', '.join(rest.wrong)}" if rest.wrong else ""
    return more + " · ".join(filter(None, (answer, rest.reason, wrong)))


@dataclass(frozen=True, kw_only=True)
class _WrittenRest:
    """The rest in the file ``path``: these ``nodes`` of the original, and the check of it.

    ``is_fed``: the check loads right values of what the other nodes compute.
    """

    path: Path
    nodes: tuple[int, ...]
    words: Words
    is_fed: bool


class _Rest:
    """The model without the parts that are known to fail.

    A check that is ``biopsy run`` is fed, for what these parts compute, with the values of an engine that is right, on
    the inputs of the check. Any other check gives a smaller model its inputs itself, as in a reduction.
    """

    def __init__(self, facts: KnownFacts, context: StepContext, scratch: Path) -> None:
        assert facts.piece is not None
        question, failure = context.question, facts.known_failure
        self._facts, self._context, self._failure, self._scratch = facts, context, failure, scratch
        self._index = index = question.index
        self._command = parse(without_weights_folder(failure.check))
        self._gone = set(facts.piece.kept)
        self._others: list[FurtherPiece] = []
        self._written: _WrittenRest | None = None
        rivals = (each for each in PLAIN if failure.suspect is None or parse_spec(each) != parse_spec(failure.suspect))
        self._engine = failure.trusted or next(rivals)
        is_own = isinstance(self._command, OwnRun)

        def samples() -> Sequence[Feed]:
            return feeds_of(index, question.samples) if is_own else random_samples(index)

        self._recording = Recording(index, samples, scratch, events.ignore, made_up=not is_own, engines=(self._engine,))
        self._problem = Problem(index, CutTypes(index, self._recording), self._recording)

    def searched(self) -> RestFacts:
        """The answer, after parts that fail too were found and left out, too. Raises TimeUpError if there is none."""
        rest = self._answer()
        if self._facts.fault == "undefined":  # is there more? what it is must be asked once that part is mended
            return rest
        if self._command.has_golden_values is not False and isinstance(self._command, OwnRun):
            is_open = rest.answer == "fails"
            return replace(rest, reason="the check compares with golden values") if is_open else rest
        for find in (self._wrong_by_themselves, *[self._reduced] * len(PIECES)):
            if rest.answer != "fails" or rest.reason:
                return rest
            try:
                further = find()
                self._others += further
                self._gone.update(node for each in further for node in each.kept)
                rest = self._answer() if further else rest
            except TimeUpError:
                answer = rest.answer if len(rest.others) == len(self._others) else "unknown"
                return replace(rest, answer=answer, others=tuple(self._others), reason=_NO_TIME)
            except errors.Interrupted:
                raise
            except errors.BiopsyError as error:
                return replace(rest, reason=first_line(error.message))
        return replace(rest, reason=f"no more than {MOST_PIECES} parts are reduced") if rest.answer == "fails" else rest

    def held_against_float64(self, rest: RestFacts) -> RestFacts:
        """The facts with what float64 says of each engine on the rest: two that agree may both be wrong."""
        failure, written = self._failure, self._written
        if rest.answer != "passes" or written is None or not failure.is_mismatch or not failure.trusted:
            return rest
        command = parse(written.words)
        files = command.input_files if isinstance(command, OwnRun) else []
        with contextlib.suppress(TimeUpError, errors.CheckError):
            wrong, right = judged_by_float64(failure, self._context, written.path, files)
            return replace(rest, wrong=wrong, right=right)
        return rest

    def _answer(self) -> RestFacts:
        """What the check says of the rest. Raises TimeUpError."""
        rest = RestFacts(answer="unknown", others=tuple(self._others))
        try:
            written = self._written = self._write()
            if written is None:
                return replace(rest, answer="passes", reason=NOTHING_LEFT)
            rest = replace(rest, fed_by=self._engine if written.is_fed else "")
            judged = self._judged(written)
        except errors.BiopsyError as error:
            return replace(rest, reason=first_line(error.message))
        if passes(judged):
            return replace(rest, answer="passes")
        rounding = judged.evidence.verdict.rounding
        if fails(judged) and rounding is not None and rounding.verdict == "rounding":
            return self._of_rounding(rest, written)
        if not fails(judged):
            return replace(rest, reason=reason_in_full(judged))
        if (undefined := self._undefined(written)) is not None:
            reason = f"ONNX defines no result there: {undefined.text}"
            return replace(rest, answer="fails" if undefined.explains is False else "unknown", reason=reason)
        report, seen = self._failure.report, judged.evidence.verdict
        if not is_same_failure(judged, self._failure, self._context):
            # An engine may refuse a part of a model, which says nothing of the model.
            is_of_model = seen.stage == "compare" or (report.stage != "compare" and seen.engine == report.engine)
            is_another = is_of_model and isinstance(self._command, OwnRun)
            return replace(rest, answer="another" if is_another else "unknown", reason=reason_in_full(judged))
        is_of_values = self._failure.status >= 0 and report.stage not in ("load", "build", "run")
        if is_of_values and not isinstance(self._command, OwnRun):
            return replace(rest, reason="the check fails, but may give it other inputs than it has in the model")
        return replace(rest, answer="fails")

    def _of_rounding(self, rest: RestFacts, written: _WrittenRest) -> RestFacts:
        """The answer if the rest differs by rounding, unless one of the engines leaves out Casts there."""
        index, command = index_file(written.path, self._index.folder), parse(written.words)
        feeds = feeds_in(command.input_files) if isinstance(command, OwnRun) else ()
        engine, doubt = engine_without_casts(index, feeds, self._failure, self._context)
        if engine:
            casts = among_casts(list(narrowing_casts(index)))
            reason = f"{full_title(engine, '')} leaves out the rounding of {casts}"
            return replace(rest, answer="another", reason=reason)
        return replace(rest, answer="unknown" if doubt else "rounding", reason=doubt)

    def _undefined(self, written: _WrittenRest) -> UndefinedFacts | None:
        """What ONNX defines no result for in the rest, if there is anything of that in the model."""
        command, known = parse(written.words), self._facts.undefined
        index = index_file(written.path, self._index.folder)
        if not isinstance(command, OwnRun) or known is None or not has_rules(index):
            return None
        try:
            return undefined_results(index, feeds_in(command.input_files), self._failure, self._context)
        except errors.CheckError:
            return replace(known, explains=None)

    def _judged(self, written: _WrittenRest) -> Judged:
        """The first run that does not pass, else the last of as many as show that the failure is gone."""
        words, command = written.words, parse(written.words)
        if isinstance(command, OwnRun) and self._failure.report.stage == "compare":
            words = command.with_options(ARBITER).words
        run = partial(self._context.run, words, written.path, description="the model without the piece")
        return until_no_pass(run, self._facts.rate.proof)[0]

    def _write(self) -> _WrittenRest | None:
        """Write the rest, with its inputs if it can be fed; None if no node is left.

        Raises CannotCompare if a part cannot be taken out, or what it computes cannot be fed.
        """
        index, problem, path = self._index, self._problem, self._scratch / f"rest{len(self._others)}.onnx"
        if not create(self._engine).capabilities.computes:
            raise errors.CannotCompare(f"{self._engine} computes nothing that could be fed")
        self._recording.include(tensor for node in self._gone for tensor in index.node_writes[node])
        nodes = tuple(node for node in range(len(index.nodes)) if node not in self._gone)
        candidate = problem.closed(Candidate(nodes)) if nodes else None
        if candidate is None:
            return None
        back = [index.nodes[node].label for node in candidate.nodes if node in self._gone]
        if back:
            raise errors.CannotCompare(f"{first_of(back, _MOST_LABELS)} cannot be taken out of the model")
        subset, boundary = problem.subset(candidate), problem.boundary(candidate)
        boundary = replace(boundary, infos={**boundary.infos, **dict(self._infos_as_recorded(subset))})
        if isinstance(self._command, OwnRun) and self._failure.report.stage == "compare":
            boundary = self._with_what_the_parts_read(subset, boundary)
        data = b"".join(candidate_parts(subset, boundary))
        write_whole(path, [data])
        command, is_fed = self._command, False
        if isinstance(command, OwnRun):
            command, is_fed = self._fed(command, subset, data, inputs_file(path))
        elif any(weight.external for weight in index.weights.values()):
            raise errors.CannotCompare("the weights are in other files, which the check would look for beside it")
        return _WrittenRest(path=path, nodes=candidate.nodes, words=command.words, is_fed=is_fed)

    def _infos_as_recorded(self, subset: Subset) -> Iterator[tuple[int, bytes]]:
        """The recorded types of cuts whose inferred ones they contradict: an engine may be right, and inference not."""
        for tensor in subset.cuts:
            name, inferred = self._index.names[tensor], self._problem.types.tensor_type(tensor)
            recorded = self._recording.tensor_type(name) if tensor not in self._index.infos else None
            shape = None if recorded is None else recorded.shape
            sizes = tuple(size for size in shape or () if isinstance(size, int))
            if recorded is not None and shape is not None and inferred is not None and not inferred.fits(sizes):
                yield tensor, value_info(name, recorded)

    def _fed(self, command: OwnRun, subset: Subset, data: bytes, path: Path) -> tuple[OwnRun, bool]:
        """The command for the model ``data``, and whether it loads right values of its cuts, written to ``path``."""
        index, is_fed = self._index, True
        if any(weight.external for weight in index.weights.values()):
            command = command.with_options("--external-data-dir", as_word(index.folder))
        lacking = [name for tensor in subset.cuts if (name := index.names[tensor]) not in self._recording]
        if lacking and self._failure.report.stage not in ("load", "build"):
            raise errors.CannotCompare(f"{self._engine} gives no value of {first_of(lacking, _MOST_LABELS)}")
        if lacking:  # values do not matter to what cannot be built
            command, is_fed = command.without_option(LOAD_INPUTS), False
        elif index_bytes(data).fed_inputs():
            write_inputs(index, self._recording, data, path)
            command = command.with_inputs(path)
        return command, is_fed

    def _with_what_the_parts_read(self, subset: Subset, boundary: Boundary) -> Boundary:
        """The boundary with the tensors that the parts left out read, as outputs, to be compared too.

        If they are wrong, a part that computes rightly still gives a wrong result. This hardly changes what an engine
        does: in the model, too, they are read from outside of whatever it fuses.
        """
        types, read = self._problem.types, {tensor for node in self._gone for tensor in self._index.node_reads[node]}
        ends = {t: types.end(t) for t in sorted(read & subset.written - {*subset.sinks}) if types.is_sufficient(t)}
        infos = {tensor: info for tensor, info in ends.items() if info is not None}
        return replace(boundary, infos={**boundary.infos, **infos}, outputs=[*subset.sinks, *infos])

    def _wrong_by_themselves(self) -> list[FurtherPiece]:
        """The layers, and groups of layers, of the whole model that are wrong when fed with right values."""
        failure, question = self._failure, self._context.question
        trusted, suspect = failure.trusted, failure.suspect
        is_asked = failure.is_mismatch or failure.report.stage in ("load", "build", "run")
        if trusted is None or suspect is None or not isinstance(self._command, OwnRun) or not is_asked:
            return []
        if failure.fault is not None or any(no_inner_tensors(trusted).values()):
            return []
        try:
            findings = examined(self._context, question.model, None, (trusted, suspect), SUSPECTS_REPORT)
        except errors.Interrupted:
            raise
        except errors.BiopsyError:
            return []  # a reduction may still find what fails
        return list(_alike(findings, failure, self._gone))

    def _reduced(self) -> list[FurtherPiece]:
        """The smallest part of the rest that still fails. Raises TimeUpError if a smaller one may exist."""
        target = self._context.question.folder / PIECES[sum(each.by == "reduction" for each in self._others)]
        written = self._written
        assert written is not None
        words, rest = without_weights_folder(written.words), index_file(written.path, self._index.folder)
        command = parse(words)
        files = command.input_files if isinstance(command, OwnRun) else []
        engines = tuple(dict.fromkeys((self._engine, *PLAIN)))
        samples = (lambda: feeds_in(files)) if files else None
        reduction = reduce_to(
            target, rest, words, self._facts, self._context, self._context.listener, samples=samples, engines=engines
        )
        if reduction.stopped is not None:  # what is left of it by then may be most of the model
            raise TimeUpError
        kept = tuple(written.nodes[node] for node in reduction.kept)
        labels = tuple(self._index.nodes[node].label for node in kept)
        wrong: tuple[str, ...] = ()
        if self._failure.is_mismatch and self._failure.trusted:
            inputs = [] if reduction.inputs is None else [reduction.inputs]
            with contextlib.suppress(TimeUpError, errors.CheckError):
                wrong, _ = judged_by_float64(self._failure, self._context, reduction.output, inputs)
        return [FurtherPiece(nodes=labels, kept=kept, by="reduction", wrong=wrong)]


def is_same_failure(judged: Judged, failure: ModelFailure, context: StepContext) -> bool:
    """Whether a run fails as the model does, by the rules of the diagnosis."""
    report, seen = failure.report, signature_of(judged.evidence)
    if not (report.engine or report.stage or report.kind or report.message):
        return str(seen) == report.signature
    kinds = {report.kind, ONE_SIDED.get(report.kind, report.kind)}  # told from the side of either engine
    known = Signature(
        status=failure.status,
        engine=report.engine,
        stage=report.stage,
        message=message_of(report.message, str(context.question.model)),
    )
    match = context.question.judging.rules.match
    level = match if match in ("any", "status") else "auto"
    return any(same_failure(seen, replace(known, kind=kind), level) for kind in kinds)


def _alike(findings: LayerFindings, failure: ModelFailure, gone: set[int]) -> Iterator[FurtherPiece]:
    """The parts that fail as the model does, by more than rounding, and share no node with each other or ``gone``."""
    report, taken = failure.report, set(gone)
    if_marked = {suspect.nodes for suspect in findings.wrong_if_marked}
    parts: list[LayerFinding | LayerGroup] = [layer for layer in findings.layers if layer.is_suspect]
    for part in (*parts, *findings.groups):
        suspect = part.as_suspect if isinstance(part, LayerFinding) else part
        error, failed = suspect.error, suspect.failure
        if failed is not None:
            means = message_of(failed.message).means(message_of(report.message))
            is_alike = (failed.stage, failed.kind) == (report.stage, report.kind) and means
        else:
            is_alike = failure.is_mismatch and error is not None and math.isfinite(error.absolute)
        if is_alike and exceeds_rounding(part) and part.nodes not in if_marked and taken.isdisjoint(part.nodes):
            taken.update(part.nodes)
            wrong = (failure.suspect,) if failure.suspect and part.rounding_ratio is not None else ()
            yield FurtherPiece(nodes=suspect.labels, kept=part.nodes, by="layers", wrong=wrong)


_MOST_OPERATORS = 8


def grouped(parts: Iterable[Sequence[str]]) -> str:
    """How many parts of a model there are of each kind, by the labels of their nodes: ``MatMul: 5 nodes``."""
    kinds = Counter(tuple(label.partition(" ")[0] for label in labels) for labels in parts)
    return "; ".join(
        f"{first_of(operators, _MOST_OPERATORS)}: {count(times, 'node' if len(operators) == 1 else 'piece')}"
        for operators, times in kinds.most_common()
    )
