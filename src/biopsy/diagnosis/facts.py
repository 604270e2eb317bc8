"""What a diagnosis has found out: one record for each question that has an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from biopsy.findings.verdict import Verdict
from biopsy.questions.builds.flags import Switch
from biopsy.text import html_table, printable

Outcome = Literal["done", "skipped", "stopped", "failed"]
"""What became of a question: it has an answer; it was not asked; a limit or a person ended it; it cannot be answered.
"""


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """A question, what became of it, and its answer in one line. ``seconds`` and ``checks`` are what it took."""

    name: str
    question: str
    outcome: Outcome
    answer: str
    seconds: float = 0.0
    checks: int = 0
    evidence: str | None = None


@dataclass(frozen=True, kw_only=True)
class FailureReport:
    """What a check reported of itself: see ``checks.verdict``; and its signature in words."""

    signature: str
    engine: str = ""
    stage: str = ""
    kind: str = ""
    message: str = ""
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FaultBeforeEngines:
    """A failure that is no engine's: ``every`` engine has it.

    ``kind``: the model is ``random``, so that no comparison says anything; engines fail with these ``shapes`` of
    ``input`` and none with those of ``passes_with``; they all give NaN (``not-finite``); they all refuse the model
    (``refused``).
    """

    kind: Literal["input", "not-finite", "random", "refused"]
    every: tuple[str, ...]
    text: str
    shapes: tuple[str, ...] = ()
    passes_with: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelFailure:
    """How the model fails ``check``, whose words hold ``{}`` for a model.

    ``trusted`` and ``suspect`` are specs of engines; None where nobody knows. ``error`` is the worst error in words,
    ``output`` the end of what the check printed. ``passes_with`` are shapes of inputs with which it does not fail,
    ``passing_inputs`` is the file of them. ``masked``: the outputs are right, an inner tensor is wrong. ``fault``
    is the one that is no engine's, if there is one.
    """

    check: tuple[str, ...]
    said: FailureReport
    status: int = 1
    output: str = ""
    error: str = ""
    tolerance_ratio: float | None = None
    trusted: str | None = None
    suspect: str | None = None
    passes_with: tuple[str, ...] = ()
    passing_inputs: str | None = None
    masked: bool = False
    fault: FaultBeforeEngines | None = None

    @property
    def is_of_values(self) -> bool:
        """Whether values differ, and not shapes, types or whether there are any: what rounding may explain."""
        return self.said.stage == "compare" and self.said.kind == "mismatch"

    @property
    def is_of_not_finite(self) -> bool:
        """Whether only one of two engines gives NaN or infinity: no rounding, but float64 may say which is wrong."""
        return self.said.stage == "compare" and self.said.kind == "not-finite-mismatch" and self.trusted is not None


@dataclass(frozen=True, kw_only=True)
class EngineComparison:
    """Engines that were run on the original: the label of each with its version, and what was said of them.

    ``rows`` are engines that agree; in words, that and more is ``passed``.
    """

    engines: tuple[tuple[str, str], ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    passed: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RoundingFacts:
    """What float64 says of the difference, for each set of inputs that fails: ``rounding``, ``bug`` or ``unknown``.

    There are no ``verdicts`` where the difference is no question of rounding: NaN or infinity.

    ``inputs`` is how many were asked about. ``wrong`` are engines that err by more than rounding themselves, ``right``
    those that do not; of others, nobody can say. ``times`` is the greatest error as a multiple of that of plain
    float32. ``passing_limits`` are options of ``biopsy run`` with which all inputs pass, tried; ``passes_noise``: so
    does ``--compare-with noise``.
    """

    verdicts: tuple[str, ...]
    inputs: int = 1
    wrong: tuple[str, ...] = ()
    right: tuple[str, ...] = ()
    times: float | None = None
    reason: str = ""
    passing_limits: tuple[str, ...] = ()
    passes_noise: bool = False

    @property
    def is_rounding(self) -> bool:
        """Whether all of it is rounding, by float64."""
        return bool(self.verdicts) and set(self.verdicts) == {"rounding"}

    def blames(self, engine: str | None, other: str | None) -> bool:
        """Whether an engine is wrong by itself, and the other one right."""
        return engine in self.wrong and other in self.right

    @property
    def is_more(self) -> bool:
        """Whether some of it is more than rounding, by float64."""
        return "bug" in self.verdicts


@dataclass(frozen=True, kw_only=True)
class Steadiness:
    """In how many runs the model fails, and how the engine contradicts itself, in words, where it does."""

    failed: int
    runs: int
    itself: str = ""
    rows: str = ""

    @property
    def is_flaky(self) -> bool:
        """Whether it fails now and then."""
        return 0 < self.failed < self.runs

    @property
    def how_often(self) -> str:
        """In how many runs it fails, in words; "" if it always does."""
        return f"it fails in {self.failed} of {self.runs} runs" if self.is_flaky else ""


@dataclass(frozen=True, kw_only=True)
class FailingPiece:
    """The smallest part that still fails, as a reduction has left it.

    ``kept`` are numbers of nodes of the original. ``stopped`` is the limit that ended the search, so that a smaller
    part may exist; None if no single node can go. ``other_failures`` were met on the way, each so many times.
    ``places`` are the lines of their author's code that its nodes come from, in words, as far as an exporter says.
    ``variation`` is what may vary in it, in a sentence; "" where nothing was varied, None where that was not asked.
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
    error_after: str = ""
    places: tuple[str, ...] = ()
    variation: str | None = None

    def joined(self, names: Sequence[str]) -> str:
        """Its nodes, by these names, in one line: with arrows where they are a chain."""
        is_chain = all(sources == ((place - 1,) if place else ()) for place, sources in enumerate(self.reads))
        return (" -> " if is_chain else ", ").join(names)


@dataclass(frozen=True, kw_only=True)
class LayerFacts:
    """What isolated layers and groups of them say, of the piece or of the whole model.

    ``alone`` are layers that are wrong, or fail, by themselves, ``together`` groups that do although each of their
    layers does not; of either, rounding is left out. ``hides``: the first group is right when the tensors inside are
    outputs. ``of_piece``: the piece was examined. ``suspect`` is the engine.
    """

    alone: tuple[str, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    hides: bool | None = None
    suspect: str = ""
    of_piece: bool = True
    layers: int = 0
    complete: bool = True


@dataclass(frozen=True, kw_only=True)
class MendingSwitch(Switch):
    """A switch that was tried on the original. ``engine`` is the spec with it.

    ``mends_original``: the original passes with it, too; ``right_by_float64``: and errs no more than by rounding, as
    ``--compare-with noise`` has it.
    """

    engine: str
    mends_original: bool = False
    right_by_float64: bool = False


@dataclass(frozen=True, kw_only=True)
class SettingFacts:
    """How many settings were tried, and the switches. ``complete``: no other one of that length is left."""

    tried: int = 0
    switches: tuple[MendingSwitch, ...] = ()
    complete: bool = True


@dataclass(frozen=True, kw_only=True)
class PrecisionFacts:
    """Which layers must be in float32 so that the check ``passes``, of a model whose ``low`` precision is fp16 or bf16.

    ``high`` are these, of so many ``layers``; ``output`` is the model with them, which was checked.
    """

    low: str
    passes: bool
    high: tuple[str, ...] = ()
    layers: int = 0
    output: str | None = None


@dataclass(frozen=True, kw_only=True)
class KnownBug:
    """What the piece looks like, in a sentence without its beginning. ``reference`` is the known bug, "" for none.

    ``issue`` is the address of its report, "" if it has none or is not of the catalogue that comes with biopsy.
    ``evidence`` says what agrees with it, and what does not.
    """

    sentence: str
    reference: str = ""
    issue: str = ""
    evidence: str = ""


@dataclass(frozen=True, kw_only=True)
class TransformationFacts:
    """What a ``tool`` makes of the model, or of the piece (``of_piece``), in a ``sentence``.

    ``breaks``: that is wrong, in an engine that runs the original rightly. ``operators`` are those of what becomes of
    the smallest part that it breaks, in words. ``engine_doubted``: another engine runs both alike.
    """

    tool: str
    sentence: str
    breaks: bool
    of_piece: bool = False
    operators: str = ""
    engine_doubted: bool = False


@dataclass(frozen=True, kw_only=True)
class ReleaseChange:
    """Two releases between which the answer changes, in words; ``right`` is the one without the failure.

    ``engine`` is the spec that runs it. ``verified``: the original, asked once more, says the same of both.
    """

    text: str
    right: str
    engine: str
    verified: bool = False


@dataclass(frozen=True, kw_only=True)
class ReleaseFacts:
    """Which release of the engine's ``package`` broke the model, or mended it, in a sentence: ``text``.

    ``doubt`` is what makes the answer worth less. ``complete``: it was searched to the end.
    """

    package: str
    text: str
    changes: tuple[ReleaseChange, ...] = ()
    doubt: str = ""
    complete: bool = True

    @property
    def is_sure(self) -> bool:
        """Whether the answer holds for the original, on both sides of each change."""
        return self.complete and not self.doubt and all(change.verified for change in self.changes)


@dataclass(frozen=True, kw_only=True)
class RightChange:
    """A change with which the whole model is right, verified: a setting, or another model.

    ``engine`` is the spec with it, ``nodes`` how many nodes of the original are changed. ``latency`` is how many times
    as long the model then takes, in words; "" where nobody can say. ``path`` is the changed model, if it was written.
    """

    kind: str
    text: str
    engine: str
    nodes: int = 0
    latency: str = ""
    path: str | None = None


@dataclass(frozen=True, kw_only=True)
class ChangeFacts:
    """The best changes that make the whole model right, the best one first, and why others of settings do not.

    ``rejected`` are engines with settings that pass the check and are not right, with the reason. ``doubt`` says whose
    word it is that they are right, if only one engine says so.
    """

    best: tuple[RightChange, ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()
    doubt: str = ""


@dataclass(frozen=True, kw_only=True)
class KnownFacts:
    """All that is known so far; None where a question has no answer."""

    compared: EngineComparison | None = None
    failure: ModelFailure | None = None
    rounding: RoundingFacts | None = None
    steadiness: Steadiness | None = None
    piece: FailingPiece | None = None
    known: KnownBug | None = None
    layers: LayerFacts | None = None
    settings: SettingFacts | None = None
    precision: PrecisionFacts | None = None
    transformation: TransformationFacts | None = None
    changes: ChangeFacts | None = None
    releases: ReleaseFacts | None = None

    @property
    def versions(self) -> dict[str, str]:
        """The version of each engine that was run, by its spec."""
        return dict(self.compared.engines) if self.compared is not None else {}

    @property
    def agreeing(self) -> tuple[str, ...]:
        """The first engines that agree, the trusted one first; none if nothing was compared."""
        return self.compared.rows[0] if self.compared is not None and self.compared.rows else ()

    @property
    def failed(self) -> ModelFailure:
        """How the model fails, where it is known to."""
        assert self.failure is not None
        return self.failure

    @property
    def suspect(self) -> str | None:
        """The engine that fails, if that is known."""
        return None if self.failure is None else self.failure.suspect

    @property
    def is_masked(self) -> bool:
        """Whether the outputs do not show the failure."""
        return self.failure is not None and self.failure.masked

    @property
    def fault(self) -> str | None:
        """The kind of the fault that is no engine's, if there is one."""
        return None if self.failure is None or self.failure.fault is None else self.failure.fault.kind

    @property
    def is_rounding(self) -> bool:
        """Whether all of the difference is rounding, by float64."""
        return self.rounding is not None and self.rounding.is_rounding

    @property
    def is_flaky(self) -> bool:
        """Whether the model fails in some runs and passes in others."""
        return self.steadiness is not None and self.steadiness.is_flaky

    @property
    def mending_switches(self) -> tuple[MendingSwitch, ...]:
        """The changes of settings with which the original passes."""
        switches = self.settings.switches if self.settings is not None else ()
        return tuple(switch for switch in switches if switch.mends_original)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The end of a diagnosis. ``stopped`` is what ended it before its end: a person, or the time; None if nothing did.

    ``failed``: the model is known to fail, or one of its layers; None if even that is not known.
    """

    verdict: Verdict
    steps: tuple[StepReport, ...]
    facts: KnownFacts
    folder: str
    seconds: float
    stopped: str | None = None

    @property
    def failed(self) -> bool | None:
        """Whether the model fails; None if that is not known."""
        return None if self.verdict.kind == "unknown" else self.verdict.kind != "passes"

    def __repr__(self) -> str:
        return f"<Diagnosis: {self.verdict.kind}: {printable(self.verdict.text)}>"

    def _repr_html_(self) -> str:
        rows = [(step.name, step.outcome, step.answer) for step in self.steps]
        return html_table(f"{self.verdict.kind}: {self.verdict.text}", ["question", "", "answer"], rows)
