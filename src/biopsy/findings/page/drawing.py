"""The drawings of a page (plots, maps and graphs) and the axes of its plots."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from biopsy.findings.document import DocumentBlock
from biopsy.findings.page.wording import figure


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Lines or areas of one style, as the ``d`` of an SVG path. ``count`` is how many things it draws."""

    d: str
    style: str
    count: int | None = None

    @classmethod
    def each(cls, paths: Mapping[str, Sequence[str]]) -> Iterable[Trace]:
        """A trace for each style that has paths."""
        return [cls(d="".join(parts), style=style, count=len(parts)) for style, parts in paths.items() if parts]


@dataclass(frozen=True, kw_only=True)
class Label:
    """A text in a drawing; ``anchor`` is start, middle or end."""

    x: float
    y: float
    text: str
    style: str = "label"
    anchor: str = "start"


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A place in a drawing whose lines are shown under the pointer or with the arrow keys."""

    x: float
    y: float
    lines: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Sign:
    """An entry of a legend: a small drawing (20 by 14) with its style, and its meaning."""

    d: str
    style: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Pointing:
    """How the marks of a drawing are reached.

    A pointer means the mark nearest to it ("xy") or in its column ("x"), as ``nearest`` says. The arrows up and down
    move by ``stride`` marks. ``flags`` are the numbers of the marks that matter most. ``texts_of`` names the drawing
    whose marks have the same texts; "" if the drawing has texts of its own.
    """

    nearest: str = "xy"
    stride: int = 10
    flags: Sequence[int] = ()
    texts_of: str = ""


@dataclass(frozen=True, kw_only=True)
class Drawing(DocumentBlock):
    """A plot or a map. ``name`` is unique within the page; a ``wide`` drawing scrolls on a small screen."""

    name: str
    title: str
    note: str = ""
    width: float
    height: float
    traces: Sequence[Trace]
    words: Sequence[Label] = ()
    marks: Sequence[Mark]
    legend: Sequence[Sign] = ()
    wide: bool = False
    pointing: Pointing = Pointing()


@dataclass(frozen=True, kw_only=True)
class Box:
    """A node, an input or an output of the drawn graph; ``lines`` are shown when it is pointed at.

    ``at_fault``: the node fails by itself.

    ``rows`` are the texts in it, each with its style. ``reads`` and ``writes`` are names of tensors.
    """

    style: str
    title: str
    rows: Sequence[tuple[str, str]]
    lines: Sequence[str]
    reads: Sequence[str]
    writes: Sequence[str]
    at_fault: bool = False
    x: float = 0.0
    y: float = 0.0
    width: float = 236.0

    @property
    def height(self) -> float:
        """Pixels from its title to its last row."""
        return 32 + 17 * len(self.rows) + (6 if self.rows else 0)


@dataclass(frozen=True, kw_only=True)
class DrawnEdge:
    """A tensor that one box writes and another reads."""

    d: str
    style: str
    lines: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Graph(DocumentBlock):
    """The piece as boxes and edges; ``note`` says which node is at fault."""

    title: str
    note: str = ""
    width: float
    height: float
    boxes: Sequence[Box]
    edges: Sequence[DrawnEdge]
    legend: Sequence[Sign] = ()


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A scale from values to pixels. ``begin`` and ``end`` are the pixels of ``low`` and ``high``."""

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value; a value outside of the scale is at its end."""
        low, high, here = self.low, self.high, min(max(value, self.low), self.high)
        if self.logarithmic:
            low, high, here = math.log10(low), math.log10(high), math.log10(here)
        share = (here - low) / (high - low) if high > low else 0.0
        return round(self.begin + share * (self.end - self.begin), 1)

    def ticks(self) -> list[float]:
        """Round values within the scale, about five of them."""
        low, high = self.low, self.high
        if not self.logarithmic:
            power = 10.0 ** math.floor(math.log10((high - low) / 5)) if high > low else 1.0
            step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * 5 >= high - low)
            first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
            return [number * step for number in range(first, last + 1)] if high > low else [low]
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        powers = [10.0**power for power in range(first, last + 1, max(1, math.ceil((last - first + 1) / 5)))]
        if len(powers) >= 3 or high / low > 100:
            return powers
        fine = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in (1, 2, 5)]
        return [value for value in fine if low <= value <= high]


def axes_frame(
    across: Axis, up: Axis, names: tuple[str, str], left: float | None = None
) -> tuple[list[Trace], list[Label]]:
    """Grid lines and labels of both axes. ``names`` are those of the axis below and of the one at the left.

    ``left`` is the pixel of the axis at the left, by default the beginning of the axis below.
    """
    left, bottom, right, top = across.begin if left is None else left, up.begin, across.end, up.end
    lines = "".join(f"M{left} {up.at(value)}H{right}" for value in up.ticks())
    lines += "".join(f"M{across.at(value)} {bottom}v4" for value in across.ticks())
    words = [Label(x=left - 6, y=up.at(value), text=figure(value), anchor="end") for value in up.ticks()]
    words += [
        Label(x=across.at(value), y=bottom + 8, text=figure(value), style="below", anchor="middle")
        for value in across.ticks()
    ]
    words.append(Label(x=right, y=bottom + 46, text=names[0], style="axis", anchor="end"))
    words.append(Label(x=4, y=top - 14, text=names[1], style="axis"))
    return [Trace(d=lines, style="grid"), Trace(d=f"M{left} {bottom}H{right}", style="ground")], words
