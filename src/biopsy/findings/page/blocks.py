"""What a page is built of: sections, the kinds of blocks that the templates draw, tables of what a report holds, and
axes of plots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from biopsy.findings.page.reading import Branch
from biopsy.findings.page.wording import cut, figure, middle_cut


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A text with a sign before it: what a colour says, the sign says too. ``tone``: good, bad, unsure or plain."""

    text: str
    tone: str = "plain"
    sign: str = ""
    code: bool = False


Rows: TypeAlias = list[list[Cell | str]]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Terms and what they are."""

    kind: ClassVar[str] = "facts"
    rows: Sequence[tuple[str, Cell | str]]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Rows below a head. ``folded``: shown when a person asks for it; ``left`` rows are not shown."""

    kind: ClassVar[str] = "grid"
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    folded: bool = False
    left: int = 0

    @property
    def filled(self) -> list[int]:
        """The columns in which at least one row says something."""
        return [
            column
            for column in range(len(self.head))
            if any(cell if isinstance(cell, str) else cell.text for cell in (row[column] for row in self.rows))
        ]


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A paragraph."""

    kind: ClassVar[str] = "passage"
    text: str
    tone: str = "plain"


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Lines as a program has printed them."""

    kind: ClassVar[str] = "listing"
    caption: str
    lines: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Pasteable:
    """A line to paste into a shell, and why. Without ``line`` only the words."""

    kind: ClassVar[str] = "pasteable"
    line: str | None
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class Bullets:
    """A list of sentences."""

    kind: ClassVar[str] = "bullets"
    caption: str
    items: Sequence[Cell | str]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Lines or areas of one style, as the ``d`` of an SVG path. ``count``: how many things it draws."""

    d: str
    style: str
    count: int | None = None


@dataclass(frozen=True, kw_only=True)
class Words:
    """A text within a drawing; ``anchor``: start, middle or end."""

    x: float
    y: float
    text: str
    style: str = "label"
    anchor: str = "start"


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A place in a drawing that has something to say, under the pointer or reached by arrow keys."""

    x: float
    y: float
    lines: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Sign:
    """An entry of a legend: a small drawing (20 by 14) with its style, and what it means."""

    d: str
    style: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Pointing:
    """How the marks of a drawing are reached.

    ``nearest``: which one a pointer means, the one nearest to it ("xy") or in its column ("x"). ``stride``: how many
    the arrows up and down pass. ``flags``: places of those that matter most. ``alike``: the drawing whose marks say
    the same, if there is one.
    """

    nearest: str = "xy"
    stride: int = 10
    flags: Sequence[int] = ()
    alike: str = ""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A plot or a map. ``name`` is unique within the page; a ``wide`` one scrolls on a small screen."""

    kind: ClassVar[str] = "drawing"
    name: str
    title: str
    note: str = ""
    width: float
    height: float
    traces: Sequence[Trace]
    words: Sequence[Words] = ()
    marks: Sequence[Mark]
    legend: Sequence[Sign] = ()
    wide: bool = False
    pointing: Pointing = Pointing()


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of text in a box of the graph, with its style."""

    text: str
    style: str


@dataclass(frozen=True, kw_only=True)
class DrawnBox:
    """A node, an input or an output of the drawn graph; ``lines`` is what it says when pointed at."""

    x: float
    y: float
    width: float
    height: float
    style: str
    title: str
    rows: Sequence[tuple[float, Row]]
    lines: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class DrawnEdge:
    """A tensor on its way from a box to another."""

    d: str
    style: str
    lines: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class DrawnGraph:
    """The piece as boxes and edges."""

    kind: ClassVar[str] = "graph"
    title: str
    width: float
    height: float
    boxes: Sequence[DrawnBox]
    edges: Sequence[DrawnEdge]
    legend: Sequence[Sign] = ()


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Blocks that stand beside each other where there is room."""

    kind: ClassVar[str] = "columns"
    blocks: Sequence[Block]


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Blocks below each other, as one of the blocks that stand beside each other."""

    kind: ClassVar[str] = "stack"
    blocks: Sequence[Block]


@dataclass(frozen=True, kw_only=True)
class AnsweredQuestion:
    """A question that was asked, and its answer."""

    name: str
    question: str
    answer: Cell
    figures: str
    evidence: str | None


@dataclass(frozen=True, kw_only=True)
class Questions:
    """The questions of ``diagnose``, in order."""

    kind: ClassVar[str] = "questions"
    questions: Sequence[AnsweredQuestion]


Block = Facts | Grid | Passage | Listing | Pasteable | Bullets | Drawing | DrawnGraph | Columns | Stack | Questions


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page under a heading."""

    name: str
    title: str
    blocks: Sequence[Block]


# Tables whose rows are objects of a report, and facts of one.

MOST_ROWS = 100
MOST_FACTS = 300
"""Characters of one."""

Column: TypeAlias = Callable[[Branch], "Cell | str"]
"""What stands in a row of the table, from an object of the report."""


def table(
    caption: str,
    entries: Sequence[Branch],
    columns: Mapping[str, Column],
    *,
    most: int = MOST_ROWS,
    folded_above: int | None = None,
    more: int = 0,
) -> Grid:
    """A table with a row for each of the first entries; ``more`` are those that the report itself has left out.

    With more rows than ``folded_above`` it is shown when a person asks for it.
    """
    rows = [[column(entry) for column in columns.values()] for entry in entries[:most]]
    return Grid(
        caption=caption,
        head=list(columns),
        rows=rows,
        folded=folded_above is not None and len(rows) > folded_above,
        left=len(entries) - len(rows) + more,
    )


def words_of(key: str, most: int, otherwise: str = "") -> Column:
    """The text below a key."""
    return lambda entry: cut(entry.text(key) or otherwise, most)


def loose_words_of(key: str, most: int) -> Column:
    """Whatever stands below a key, as text."""
    return lambda entry: cut(entry.loose(key) or "", most)


def code_of(key: str, most: int = 80) -> Column:
    """The name below a key, both of whose ends are shown."""
    return lambda entry: code(middle_cut(entry.text(key) or "", most))


def number_of(key: str, text: Callable[[float], str] = figure) -> Column:
    """The number below a key, as ``text`` writes it."""

    def cell(entry: Branch) -> str:
        value = entry.number(key)
        return "" if value is None else text(value)

    return cell


def whole_of(key: str) -> Column:
    """The whole number below a key."""
    return lambda entry: "" if (value := entry.whole(key)) is None else str(value)


def code(text: str) -> Cell:
    """A text in the type of code."""
    return Cell(text=text, code=True)


def plain_table(caption: str, keys: Sequence[str], entries: Sequence[Branch]) -> Grid:
    """A table with a column for each key, of whatever stands below it."""

    def column(key: str) -> Column:
        return lambda entry: code(middle_cut(entry.loose(key) or "", 80))

    return table(caption, entries, {key: column(key) for key in keys})


def facts(told: Mapping[str, str | None], most: int = MOST_FACTS, in_code: Collection[str] = ()) -> Facts:
    """Terms and what they are, without those of which nothing is known."""
    rows = [(term, Cell(text=cut(text, most), code=term in in_code)) for term, text in told.items() if text]
    return Facts(rows=rows)


# Axes of the plots: where a value stands, and which values are written beside it.


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A scale from values to pixels. ``begin`` and ``end`` are the pixels of ``low`` and ``high``."""

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value; what is outside of the scale stands at its end."""
        low, high, here = self.low, self.high, min(max(value, self.low), self.high)
        if self.logarithmic:
            low, high, here = math.log10(low), math.log10(high), math.log10(here)
        share = (here - low) / (high - low) if high > low else 0.0
        return round(self.begin + share * (self.end - self.begin), 1)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values within the scale."""
        return _powers(self.low, self.high, most) if self.logarithmic else _steps(self.low, self.high, most)


def _powers(low: float, high: float, most: int) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    step = max(1, math.ceil((last - first + 1) / most))
    powers = [10.0**power for power in range(first, last + 1, step)]
    if len(powers) >= 3 or high / low > 100:
        return powers
    fine = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in (1, 2, 5)]
    return [value for value in fine if low <= value <= high]


def _steps(low: float, high: float, most: int) -> list[float]:
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def frame(
    across: Axis,
    up: Axis,
    names: tuple[str, str],
    ticks: tuple[Sequence[float], Sequence[float]],
    left: float | None = None,
) -> tuple[list[Trace], list[Words]]:
    """Grid lines and the words at both axes. ``names``: what the axis below and the one at the left are.

    ``left`` is the pixel of the axis at the left, if that is not where the one below begins.
    """
    left, bottom, right, top = across.begin if left is None else left, up.begin, across.end, up.end
    lines = "".join(f"M{left} {up.at(value)}H{right}" for value in ticks[1])
    lines += "".join(f"M{across.at(value)} {bottom}v4" for value in ticks[0])
    words = [Words(x=left - 6, y=up.at(value), text=figure(value), anchor="end") for value in ticks[1]]
    words += [
        Words(x=across.at(value), y=bottom + 8, text=figure(value), style="below", anchor="middle")
        for value in ticks[0]
    ]
    words.append(Words(x=right, y=bottom + 46, text=names[0], style="axis", anchor="end"))
    words.append(Words(x=4, y=top - 14, text=names[1], style="axis"))
    return [Trace(d=lines, style="grid"), Trace(d=f"M{left} {bottom}H{right}", style="ground")], words
