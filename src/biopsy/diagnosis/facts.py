"""What a diagnosis knows: one record for each question that has an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.judge import UNKNOWN_RATE, MeasuredRate
from biopsy.comparison.mismatch import ONE_SIDED, ErrorSize, Mismatch
from biopsy.findings.verdict import Verdict
from biopsy.questions.builds.flags import Switch
from biopsy.text import html_table, printable

Outcome = Literal["done", "skipped", "stopped", "failed"]
"""The end of a step: answered; not asked; ended by a limit or a person; impossible to answer."""


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """A question, its outcome, and its answer in one line. ``seconds`` and ``checks`` are what it took."""

    name: str
    question: str
    outcome: Outcome
    answer: str
    seconds: float = 0.0
    checks: int = 0
    evidence: str | None = None


@dataclass(frozen=True, kw_only=True)
class FailureReport:
    """What the failing check reported (see ``checks.verdict``), and the failure's signature in words."""

    signature: str
    engine: str = ""
    stage: str = ""
    kind: str = ""
    message: str = ""
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FaultBeforeEngines:
    """A failure that no engine causes. ``every`` lists the engines that show it.

    ``kind`` is the cause: ``input``, engines fail with inputs of these ``shapes`` and pass with those of
    ``passes_with``; ``not-finite``, all engines give NaN; ``random``, the model is random, so that comparing outputs
    is meaningless; ``invalid``, the model breaks the ONNX standard; ``undefined``, a node is given what ONNX defines no
    result for; ``refused``, no engine runs the model. ``origin`` says in a sentence where NaN begins, if known.
    """

    kind: Literal["input", "invalid", "not-finite", "random", "refused", "undefined"]
    every: tuple[str, ...]
    text: str
    shapes: tuple[str, ...] = ()
    passes_with: tuple[str, ...] = ()
    origin: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelFailure:
    """How the model fails ``check``, a command whose words hold ``{}`` for the model.

    ``trusted`` and ``suspect`` are specs of engines; None if unknown. ``mismatch`` is the worst one as the check sees
    it, ``error`` the same in words, ``output`` the end of what the check printed. The model passes with inputs of the
    shapes ``passes_with``, which the file ``passing_inputs`` holds. ``masked``: the outputs are right, but an inner
    tensor is wrong. ``fault`` is set if no engine is at fault.
    """

    check: tuple[str, ...]
    report: FailureReport
    status: int = 1
    output: str = ""
    error: str = ""
    mismatch: Mismatch | None = None
    trusted: str | None = None
    suspect: str | None = None
    passes_with: tuple[str, ...] = ()
    passing_inputs: str | None = None
    masked: bool = False
    fault: FaultBeforeEngines | None = None

    @property
    def swapped(self) -> ModelFailure:
        """The same failure with the trusted engine as the suspect, which the check then names last."""
        kind = ONE_SIDED.get(self.report.kind, self.report.kind)  # it is told from the side of the suspect
        swapped = replace(self, suspect=self.trusted, trusted=self.suspect, report=replace(self.report, kind=kind))
        command, trusted, suspect = parse(self.check), self.trusted, self.suspect
        if not isinstance(command, OwnRun) or not (trusted and suspect) or command.engines != [trusted, suspect]:
            return swapped
        report = replace(swapped.report, engine=trusted, signature=self.report.signature.replace(suspect, trusted))
        worst = None if self.mismatch is None else self.mismatch.from_other_side
        return replace(swapped, check=command.with_engines_exchanged.words, report=report, mismatch=worst)

    def by_suspect(self, mismatch: Mismatch) -> Mismatch:
        """A mismatch of its check, as the suspect's."""
        is_swapped = self.trusted is not None and self.report.engine == self.trusted
        return mismatch.from_other_side if is_swapped else mismatch

    @property
    def is_of_values(self) -> bool:
        """Whether the model gives outputs, as far as is known: it neither crashes nor is refused, nor does it hang."""
        return self.report.stage == "compare" or (not self.report.stage and self.status >= 0)

    @property
    def is_mismatch(self) -> bool:
        """Whether values of outputs differ, not their shapes or types: rounding may explain that."""
        return self.report.stage == "compare" and self.report.kind == "mismatch"

    @property
    def is_non_finite_mismatch(self) -> bool:
        """Whether only one of two engines gives NaN or infinity: no rounding, but float64 may show which is wrong."""
        return self.report.stage == "compare" and self.report.kind in ONE_SIDED and self.trusted is not None


@dataclass(frozen=True, kw_only=True)
class UndefinedFacts:
    """What a model, or a piece, computes although ONNX defines no result for it, in words.

    ``explains``: whether all that fails comes of that, None if it is not known; ``extent``: how it was seen, in words.
    """

    text: str
    explains: bool | None = None
    extent: str = ""


@dataclass(frozen=True, kw_only=True)
class EngineComparison:
    """The engines that ran the original model: (label, version) of each, and how they compare.

    ``rows`` are engines that agree; ``passed`` says in words which runs and comparisons passed. ``contradicted``: a run
    in float64 gives other values than engines that agree, by more than the tolerances and rounding allow.
    """

    engines: tuple[tuple[str, str], ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    passed: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    contradicted: bool = False


@dataclass(frozen=True, kw_only=True)
class NarrowerFacts:
    """Which narrower ``types`` give what the engine gives, if the piece is computed in float64 and rounded to them.

    ``rounded``: what each node reads (``inputs``), its ``results``, or ``both`` were rounded. ``left`` is the share of
    the engine's error that is left beside that: 0 if its outputs are the same. ``types`` is empty if none gives that.
    """

    types: tuple[str, ...] = ()
    rounded: Literal["inputs", "results", "both"] = "both"
    left: float | None = None
    tried: int = 0


@dataclass(frozen=True, kw_only=True)
class RoundingFacts:
    """What a comparison with float64 says of the difference.

    ``verdicts`` has ``rounding``, ``bug`` or ``unknown`` for each set of inputs that fails, and is empty if the
    difference is NaN or infinity. ``inputs`` counts the sets of inputs that were run. The error of engines in ``wrong``
    exceeds rounding, that of engines in ``right`` does not; other engines could not be judged. ``times`` is the
    greatest error as a multiple of plain float32's. All inputs were seen to pass with ``passing_limits``, options of
    ``biopsy run``, and with ``--compare-with noise`` if ``passes_noise``. ``narrower``: whether the error is that of a
    narrower type; None if that was not asked. ``leaves_out`` are the labels of the Casts to float16 and bfloat16, if
    the suspect gives what float64 gives without their rounding, and the trusted engine what it gives with it.
    ``has_floats``: the model may have floating-point numbers.
    """

    verdicts: tuple[str, ...]
    inputs: int = 1
    wrong: tuple[str, ...] = ()
    right: tuple[str, ...] = ()
    times: float | None = None
    reason: str = ""
    passing_limits: tuple[str, ...] = ()
    passes_noise: bool = False
    narrower: NarrowerFacts | None = None
    leaves_out: tuple[str, ...] = ()
    has_floats: bool = True

    @property
    def is_rounding(self) -> bool:
        """Whether float64 explains every difference as rounding."""
        return bool(self.verdicts) and set(self.verdicts) == {"rounding"}

    def blames(self, engine: str | None, other: str | None) -> bool:
        """Whether float64 shows that ``engine`` is wrong and ``other`` is right."""
        return engine in self.wrong and other in self.right

    @property
    def exceeds_rounding(self) -> bool:
        """Whether float64 shows a difference that is more than rounding."""
        return "bug" in self.verdicts


@dataclass(frozen=True, kw_only=True)
class Steadiness(MeasuredRate):
    """How often the model fails, in all runs of the failing check on it, of whichever question.

    ``contradicts_itself`` is the engine that gives different outputs for the same input, ``self_difference`` says how
    often, and ``row_difference`` how it treats equal rows of a batch differently; "" if it does not. ``later``: how
    often it showed in a search that first saw it pass, whose ``question`` that was; ``others``: other failures seen.
    """

    contradicts_itself: str = ""
    self_difference: str = ""
    row_difference: str = ""
    later: MeasuredRate = UNKNOWN_RATE
    question: str = ""
    others: tuple[str, ...] = ()

    @property
    def is_flaky(self) -> bool:
        """Whether it fails in some runs and passes in others."""
        return 0 < self.failed < self.runs or self.later.is_flaky

    @property
    def how_often(self) -> str:
        """The failure rate in words; "" if every run fails."""
        later = self.later
        more = f", and in {later.failed} of {later.runs} when asked {self.question!r}" if later.is_flaky else ""
        return f"it fails in {self.failed} of {self.runs} runs{more}" if self.is_flaky else ""


@dataclass(frozen=True, kw_only=True)
class FailingPiece:
    """The smallest part of the model that still fails, as found by a reduction.

    ``reads`` gives for each node the places of the nodes that it reads from, ``kept`` its number in the original.
    ``stopped`` names the limit that ended the search, so that a smaller part may exist; None if no single node can be
    removed. ``other_failures`` are (reason, count) of failures met during the search. ``error`` is that of its check.
    ``types`` are the names of its inputs and outputs, each with its type in words. ``places`` are source lines of the
    nodes, if an exporter noted them. ``plain`` is the file of the piece with the simplest sizes and values that still
    fail, None if there is none; its inputs are beside it. ``variation`` says in short what may vary in that; "" if
    nothing is known of that, None if it was not asked. ``wrong`` are the engines that are wrong on the piece, by
    float64; empty if that is not known. ``undefined``: as in the facts of the whole model.
    """

    path: str
    inputs: str | None
    nodes: tuple[str, ...]
    reads: tuple[tuple[int, ...], ...]
    kept: tuple[int, ...]
    nodes_before: int
    signature: str
    stopped: str | None = None
    other_failures: tuple[tuple[str, int], ...] = ()
    error: ErrorSize | None = None
    types: tuple[tuple[str, str], ...] = ()
    places: tuple[str, ...] = ()
    variation: str | None = None
    plain: str | None = None
    wrong: tuple[str, ...] = ()
    undefined: UndefinedFacts | None = None

    def joined(self, names: Sequence[str]) -> str:
        """The ``names`` of its nodes in one line, with arrows if the nodes are a chain."""
        is_chain = all(sources == ((place - 1,) if place else ()) for place, sources in enumerate(self.reads))
        return (" -> " if is_chain else ", ").join(names)


@dataclass(frozen=True, kw_only=True)
class FurtherPiece:
    """Another part of the model that fails in the same way as the piece, by itself.

    ``nodes`` are labels, ``kept`` their numbers in the original. It was found ``by`` examining the layers of the whole
    model, each fed with right values, or by reducing what is left without the other pieces. ``wrong`` are the engines
    that are wrong on it, by float64; empty if that is not known.
    """

    nodes: tuple[str, ...]
    kept: tuple[int, ...]
    by: Literal["layers", "reduction"]
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RestFacts:
    """Whether the piece is all that fails: how the rest of the model, without the piece and the ``others``, answers.

    An engine may compute the rest otherwise than in the whole model: this is what was seen of the rest.
    ``fed_by`` is the engine whose values take the place of what these parts compute; "" if the check is not ``biopsy
    run``, and so nothing can be fed. ``answer``: it ``passes``; what is left is ``rounding``; it ``fails`` in the same
    way; it fails in ``another`` way; or ``unknown``. ``reason`` says how else it fails, why nothing is known, or why no
    further part was looked for; "" if there is nothing to say. Where two engines agree on the rest, ``wrong`` are those
    that float64 calls wrong there, and ``right`` those whose error is no more than rounding.
    """

    answer: Literal["passes", "rounding", "fails", "another", "unknown"]
    fed_by: str = ""
    others: tuple[FurtherPiece, ...] = ()
    reason: str = ""
    wrong: tuple[str, ...] = ()
    right: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LayerFacts:
    """Which of ``layers`` layers the engine ``suspect`` computes wrongly, in the piece or in the whole model.

    ``alone`` are layers that are wrong, or fail, in isolation, each followed by how if not only values differ;
    ``if_marked``, those that are wrong only if their results are outputs; ``together``, groups that are wrong although
    each of their layers is right. Rounding does not count. ``hides``: the first group is right if its inner tensors are
    marked as outputs. ``of_piece``: the piece was examined, not the whole model. ``of_values``: these layers are
    computed wrongly; if not, the model fails without giving values, and so do they.
    """

    alone: tuple[str, ...] = ()
    if_marked: tuple[str, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    hides: bool | None = None
    suspect: str = ""
    of_piece: bool = True
    of_values: bool = True
    layers: int = 0
    complete: bool = True


@dataclass(frozen=True, kw_only=True)
class MendingSwitch(Switch):
    """A switch, also tried on the original model. ``engine`` is the spec with the changed settings.

    ``mends_original``: the original passes with it; ``right_by_float64``: its error is then no more than rounding, by
    ``--compare-with noise``.
    """

    engine: str
    mends_original: bool = False
    right_by_float64: bool = False


@dataclass(frozen=True, kw_only=True)
class DefinitionFacts:
    """What the definitions of operators give, in a ``sentence``: whose shape is ``right``, or which finite value."""

    right: Literal["suspect", "trusted", ""]
    sentence: str


@dataclass(frozen=True, kw_only=True)
class SettingFacts:
    """The number of settings tried, and the switches. ``complete``: no other switch is as short."""

    tried: int = 0
    switches: tuple[MendingSwitch, ...] = ()
    complete: bool = True


@dataclass(frozen=True, kw_only=True)
class PrecisionFacts:
    """Whether an fp16 or bf16 model ``passes`` with some layers in float32. ``low`` is its own precision.

    ``high`` are these layers, of ``layers`` in all; ``output`` is the file of the changed model, which was checked.
    """

    low: str
    passes: bool
    high: tuple[str, ...] = ()
    layers: int = 0
    output: str | None = None


@dataclass(frozen=True, kw_only=True)
class KnownBug:
    """The known bug that the piece looks like. ``sentence`` says so, as the predicate of a sentence.

    ``reference`` names the bug; "" if none is similar. ``issue`` is the URL of its report; "" if there is none or the
    entry is not from biopsy's own catalogue. ``evidence`` says what agrees with the entry and what does not, ``avoid``
    what is known to avoid the bug. ``is_of_reference``: it is one of the reference evaluator, which judges the engine,
    in float64 too.
    """

    sentence: str
    reference: str = ""
    issue: str = ""
    evidence: str = ""
    avoid: tuple[str, ...] = ()
    is_of_reference: bool = False


@dataclass(frozen=True, kw_only=True)
class TransformationFacts:
    """What a ``tool`` does to the model, or to the piece (``of_piece``), in a ``sentence``.

    ``breaks``: its result is wrong in an engine that is right about the original. ``operators`` lists the operators in
    the transformed form of the smallest part that breaks. ``engine_doubted``: the reference evaluator gives the same
    outputs before and after, so the engine may be wrong.
    """

    tool: str
    sentence: str
    breaks: bool
    of_piece: bool = False
    operators: str = ""
    engine_doubted: bool = False


@dataclass(frozen=True, kw_only=True)
class ReleaseChange:
    """Two releases between which the answer changes, in words. ``right`` is the release that passes.

    ``engine`` is the spec that runs that release. ``verified``: both were checked again with the original model.
    """

    text: str
    right: str
    engine: str
    verified: bool = False


@dataclass(frozen=True, kw_only=True)
class ReleaseFacts:
    """Which release of the engine's ``package`` broke or mended the model; ``text`` says so in a sentence.

    ``doubt`` is a reason not to rely on the answer, "" if there is none. ``complete``: the search came to its end.
    """

    package: str
    text: str
    changes: tuple[ReleaseChange, ...] = ()
    doubt: str = ""
    complete: bool = True

    @property
    def is_sure(self) -> bool:
        """Whether both sides of each change were verified with the original model."""
        return self.complete and not self.doubt and all(change.verified for change in self.changes)


@dataclass(frozen=True, kw_only=True)
class RightChange:
    """A verified change that makes the whole model right: a setting, or a changed model.

    ``engine`` is the spec to run it with, ``nodes`` counts the changed nodes. ``latency`` compares the run time with
    the original's, in words; "" if unknown. ``path`` is the file of the changed model, if it was written.
    """

    kind: str
    text: str
    engine: str
    nodes: int = 0
    latency: str = ""
    path: str | None = None


@dataclass(frozen=True, kw_only=True)
class ChangeFacts:
    """The changes that make the whole model right, the best first.

    ``rejected`` are (engine, reason): settings that pass the check and yet are not right. ``doubt`` names the engine
    that defines what is right, if no other engine confirms it.
    """

    best: tuple[RightChange, ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()
    doubt: str = ""


@dataclass(frozen=True, kw_only=True)
class WayOutRuns:
    """How often the check with the ``line`` of a way out ran after it had passed, and failed in any way.

    ``engine`` is the spec of a switch. ``reason`` is how it failed first. ``gives_other_values``: the model is not
    refused and does not crash any more, as it does otherwise, but outputs differ whenever it failed.
    """

    line: str
    engine: str = ""
    runs: int = 0
    failed: int = 0
    reason: str = ""
    gives_other_values: bool = False


@dataclass(frozen=True, kw_only=True)
class KnownFacts:
    """All that is known so far; None if a question has no answer."""

    compared: EngineComparison | None = None
    failure: ModelFailure | None = None
    undefined: UndefinedFacts | None = None
    rounding: RoundingFacts | None = None
    steadiness: Steadiness | None = None
    piece: FailingPiece | None = None
    known_bug: KnownBug | None = None
    layers: LayerFacts | None = None
    rest: RestFacts | None = None
    settings: SettingFacts | None = None
    precision: PrecisionFacts | None = None
    transformation: TransformationFacts | None = None
    definition: DefinitionFacts | None = None
    changes: ChangeFacts | None = None
    releases: ReleaseFacts | None = None
    ways_out: tuple[WayOutRuns, ...] = ()

    @property
    def versions(self) -> dict[str, str]:
        """The version of each engine that ran, by its spec."""
        return dict(self.compared.engines) if self.compared is not None else {}

    @property
    def agreeing(self) -> tuple[str, ...]:
        """The first engines that agree, the trusted one first; none if nothing was compared."""
        return self.compared.rows[0] if self.compared is not None and self.compared.rows else ()

    @property
    def known_failure(self) -> ModelFailure:
        """``failure``, for steps that are asked only if there is one."""
        assert self.failure is not None
        return self.failure

    @property
    def suspect(self) -> str | None:
        """The spec of the engine that fails, if known."""
        return None if self.failure is None else self.failure.suspect

    @property
    def is_masked(self) -> bool:
        """Whether only inner tensors are wrong, not the outputs."""
        return self.failure is not None and self.failure.masked

    @property
    def fault(self) -> str | None:
        """The kind of ``FaultBeforeEngines``, if no engine is at fault."""
        return None if self.failure is None or self.failure.fault is None else self.failure.fault.kind

    @property
    def may_be_undefined(self) -> UndefinedFacts | None:
        """What ONNX defines no result for, in the piece if there is one, if that may be all that fails."""
        known = self.undefined if self.piece is None else self.piece.undefined
        return known if known and known.explains is not False else None

    @property
    def is_rounding(self) -> bool:
        """Whether float64 explains every difference as rounding."""
        return self.rounding is not None and self.rounding.is_rounding

    @property
    def is_precision(self) -> bool:
        """Whether it passes with layers in a higher precision, and float64 does not call the suspect alone wrong."""
        failure, known = self.failure, self.precision
        is_blamed = self.rounding is not None and failure and self.rounding.blames(failure.suspect, failure.trusted)
        return known is not None and known.passes and bool(known.high) and not is_blamed

    @property
    def rate(self) -> MeasuredRate:
        """How often the model fails, if that question has an answer."""
        known = self.steadiness or Steadiness()
        return known.later if known.later.is_flaky else MeasuredRate(failed=known.failed, runs=known.runs)

    @property
    def flaky_rate(self) -> MeasuredRate:
        """``rate`` for a search that begins with it: nothing is known if the failure seems steady."""
        return self.rate if self.is_flaky else UNKNOWN_RATE

    @property
    def is_flaky(self) -> bool:
        """Whether the model fails in some runs and passes in others."""
        return self.steadiness is not None and self.steadiness.is_flaky

    @property
    def is_self_contradiction(self) -> bool:
        """Whether the engine at fault gives different outputs for the same input."""
        known = self.steadiness
        return known is not None and self.suspect is not None and known.contradicts_itself == self.suspect

    @property
    def mending_switches(self) -> tuple[MendingSwitch, ...]:
        """The changes of settings that make the original pass."""
        switches = self.settings.switches if self.settings is not None else ()
        return tuple(switch for switch in switches if switch.mends_original)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The result of a diagnosis. ``stopped`` says what cut it short: a person or the time limit."""

    verdict: Verdict
    steps: tuple[StepReport, ...]
    facts: KnownFacts
    folder: str
    seconds: float
    stopped: str | None = None

    @property
    def failed(self) -> bool | None:
        """Whether the model, or one of its layers, is known to fail; None if that is not known."""
        return None if self.verdict.kind == "unknown" else self.verdict.kind != "passes"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.verdict.kind}: {printable(self.verdict.in_full)}>"

    def _repr_html_(self) -> str:
        rows = [(step.name, step.outcome, step.answer) for step in self.steps]
        return html_table(f"{self.verdict.kind}: {self.verdict.in_full}", ["question", "", "answer"], rows)
