"""What a hunt knows: what each engine makes of each model, and the distinct bugs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from biopsy.records import plain
from biopsy.text import count, html_table, shortened

VERSION = 1
"""The number in ``hunt.json``."""

RESULT, PAGE, JOURNAL = "hunt.json", "hunt.html", "hunt.jsonl"
"""What a hunt writes into its folder."""

BUG_FOLDER, INPUTS = "bugs", "inputs"
"""Its folders: with a folder for each bug, and with the samples of the models that fail."""

Kind: TypeAlias = Literal[
    "wrong", "differs", "crash", "hang", "refused", "slower", "larger",
    "right", "rounding", "tie",
    "refuted", "unsupported", "random", "not finite", "overflow", "every engine", "invalid model", "limit", "unknown",
    "empty", "alone", "error", "unmeasured",
]  # fmt: skip

BUGS: Mapping[Kind, str] = {
    "wrong": "gives other outputs than those that agree",
    "differs": "differs from another engine, and nothing says which of them is wrong",
    "crash": "ends its process",
    "hang": "gives no answer within the limit of time",
    "refused": "refuses a model that others run",
    "slower": "takes longer than the first engine, by the limit at least",
    "larger": "needs more memory than the first engine, by the limit at least",
}
"""What counts as a bug, the worst first."""

JUDGED: Mapping[Kind, str] = {
    "right": "agrees with the others",
    "rounding": "differs by no more than rounding explains",
    "tie": "chooses another one of equal values",
}
"""What was compared, and is right."""

NOT_JUDGED: Mapping[Kind, str] = {
    "refuted": "fails here, and the diagnosis finds no engine at fault",
    "unsupported": "says that it does not support an operator or a type, or that the machine lacks something",
    "random": "the model has random operators",
    "not finite": "the model itself gives NaN or infinity there, in float64 too",
    "overflow": "the inputs overflow in float32, and not in float64",
    "every engine": "no engine runs the model, or its inputs cannot be read",
    "invalid model": "the file is damaged, or onnx's checker refuses it",
    "limit": "the limit of memory was reached, or that of time by all engines together",
    "unknown": "float64 cannot run the model, and the difference may be rounding",
    "empty": "the outputs have no elements",
    "alone": "no other engine runs the model",
    "error": "biopsy itself fails on the model",
    "unmeasured": "its outputs are right, and whether it is slower or larger cannot be said",
}
"""What says nothing about the engine, or not all that was asked."""

KINDS: Mapping[Kind, str] = {**BUGS, **NOT_JUDGED, **JUDGED}
"""All kinds, from the worst on."""


@dataclass(frozen=True, kw_only=True)
class MatrixCell:
    """What one engine makes of one model.

    ``stage``, ``failure`` (the engine's own name of the error, or the kind of the mismatch) and ``message`` (without
    names and numbers) say how it fails; ``text`` says it for a person, in one line. ``trusted`` is what it was compared
    with: an engine, or ``expected`` for the outputs beside the model. ``operators`` are those of the first layer that
    is wrong. ``sample`` is the number of the sample that shows it.
    """

    engine: str
    kind: Kind
    stage: str = ""
    failure: str = ""
    message: str = ""
    text: str = ""
    trusted: str = ""
    operators: tuple[str, ...] = ()
    sample: int = 0

    @property
    def is_bug(self) -> bool:
        """Whether it counts as a bug."""
        return self.kind in BUGS

    @property
    def signature(self) -> tuple[str, ...]:
        """What cells of the same bug have in common, as far as a sweep can tell."""
        return (self.stage, self.failure, self.message, *self.operators)


@dataclass(frozen=True, kw_only=True)
class ModelResult:
    """One model: its path as it was found, and what each engine makes of it.

    ``state`` changes when the model or its inputs are written to. ``size`` is in bytes, ``inputs`` says where they are
    from, and ``file`` is where the samples were kept because an engine fails; "" for none.
    """

    model: str
    state: str
    cells: tuple[MatrixCell, ...] = ()
    nodes: int = 0
    size: int = 0
    inputs: str = ""
    file: str = ""
    seconds: float = 0.0

    @property
    def worst(self) -> Kind:
        """The worst kind of its cells."""
        return worst(cell.kind for cell in self.cells)


def worst(kinds: Iterable[Kind]) -> Kind:
    """The worst of several kinds."""
    order = list(KINDS)
    return min(kinds, key=order.index)


@dataclass(frozen=True, kw_only=True)
class BugExamination:
    """What the diagnosis of one member says of a bug: the ``verdict`` in words, which ``confirmed`` or ``refuted`` it.

    It is ``cut_short`` if its limit of time left a question open. If it was cut short before the smallest part was
    known, it confirms nothing: only that part shows whether the standard defines a result there. ``piece`` is the file
    of the smallest part that fails, ``nodes`` are its first nodes, ``known`` the known failure that it looks like, with
    its ``issue``, ``switch`` what avoids it, ``right_with`` the same engine with settings that do, as a spec. ``page``
    shows it, ``bundle`` is fit to be sent. Files are relative to the folder of the hunt.
    """

    verdict: str
    confirmed: bool = False
    refuted: bool = False
    cut_short: bool = False
    piece: str | None = None
    nodes: tuple[str, ...] = ()
    known: str | None = None
    issue: str | None = None
    switch: str | None = None
    right_with: str | None = None
    page: str | None = None
    bundle: str | None = None


@dataclass(frozen=True, kw_only=True)
class Bug:
    """One distinct bug: the ``engines`` (specs) that have it, and the ``models`` that show it.

    ``unconfirmed`` are those of the models that fail alike, and may have another bug for all that was seen.
    ``name`` is that of its folder, ``example`` what its smallest model shows, ``fingerprint`` and ``graph`` the pattern
    of the smallest part; "" if that is large. ``examination`` is None if there was no time for it; ``line`` makes or
    repeats it.
    """

    name: str
    engines: tuple[str, ...]
    example: MatrixCell
    models: tuple[str, ...]
    unconfirmed: tuple[str, ...] = ()
    fingerprint: str = ""
    graph: str = ""
    line: str = ""
    examination: BugExamination | None = None

    @property
    def kind(self) -> Kind:
        """How it fails."""
        return self.example.kind

    @property
    def is_confirmed(self) -> bool:
        """Whether a diagnosis has seen it, too."""
        return self.examination is not None and self.examination.confirmed

    @property
    def is_refuted(self) -> bool:
        """Whether a diagnosis has found no engine at fault."""
        return self.examination is not None and self.examination.refuted

    @property
    def text(self) -> str:
        """What it is, in words."""
        said = self.examination
        return said.verdict if said is not None and (said.confirmed or said.refuted) else self.example.text

    @property
    def rank(self) -> tuple[int, int, str]:
        """The worst kinds first, then the most models."""
        return list(BUGS).index(self.kind), -len(self.models), self.name

    def as_json(self) -> dict[str, object]:
        """Its entry in ``hunt.json``: an object without objects in it."""
        tree = plain(self)
        return {**tree.pop("example"), **(tree.pop("examination") or {"verdict": None}), **tree}


@dataclass(frozen=True, kw_only=True)
class Hunt:
    """A whole hunt: its engines with their versions, every model, and the distinct bugs, the worst first.

    ``refuted`` are failures in which a diagnosis found no engine at fault. ``stopped`` says what cut the hunt short,
    ``left`` how many models it has not tried, or not measured, then. ``slower`` and ``larger`` are the limits of time
    and memory; None if they did not count.
    """

    engines: Mapping[str, str]
    models: tuple[ModelResult, ...]
    bugs: tuple[Bug, ...]
    refuted: tuple[Bug, ...] = ()
    seconds: float = 0.0
    stopped: str | None = None
    left: int = 0
    slower: float | None = None
    larger: float | None = None

    @property
    def counts(self) -> Mapping[Kind, int]:
        """How many models have each kind as their worst, the worst first."""
        counted = Counter(model.worst for model in self.models)
        return {kind: counted[kind] for kind in KINDS if counted[kind]}

    @property
    def status(self) -> int:
        """The exit status: 1 if there is a bug, 0 if there is none and everything could be judged, else 4."""
        if self.bugs:
            return 1
        is_judged = (
            self.models and not self.left and all(cell.kind in JUDGED for model in self.models for cell in model.cells)
        )
        return 0 if is_judged else 4

    def __repr__(self) -> str:
        counts = ", ".join(f"{number} {kind}" for kind, number in self.counts.items())
        return f"<Hunt: {count(len(self.bugs), 'distinct bug')} in {count(len(self.models), 'model')}: {counts}>"

    def _repr_html_(self) -> str:
        rows = [(bug.kind, ", ".join(bug.engines), len(bug.models), shortened(bug.text, 200)) for bug in self.bugs]
        caption = f"distinct bugs in {count(len(self.models), 'model')}"
        return html_table(caption, ["kind", "engine", "models", ""], rows)

    def as_json(self) -> dict[str, object]:
        """The object in ``hunt.json`` (docs/reference/hunt.md)."""
        bugs = {"bugs": [bug.as_json() for bug in self.bugs], "refuted": [bug.as_json() for bug in self.refuted]}
        return {"biopsy_hunt": VERSION, "status": self.status, "counts": dict(self.counts), **plain(self), **bugs}
