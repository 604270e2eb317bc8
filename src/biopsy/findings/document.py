"""The parts of a document: sections with headings, and the blocks in them. The page renders all kinds of blocks, the
text of an issue those that Markdown has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class DocumentBlock:
    """One block of a section."""

    @property
    def kind(self) -> str:
        """The name of its class in lower case, by which templates choose how to render it."""
        return type(self).__name__.lower()


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A text with a colour, and a sign that says the same. ``tone``: good, bad, unsure or plain.

    ``link`` is where the text leads: a file beside the page, or an issue; "" if nowhere.
    """

    text: str
    tone: str = "plain"
    sign: str = ""
    code: bool = False
    link: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts(DocumentBlock):
    """A list of terms, each with its description."""

    rows: Sequence[tuple[str, Cell | str]]


@dataclass(frozen=True, kw_only=True)
class Grid(DocumentBlock):
    """A table. ``folded``: the reader opens it with a click; ``left`` more rows exist and are left out."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    folded: bool = False
    left: int = 0

    @property
    def filled(self) -> list[int]:
        """The columns that are not empty in every row."""
        texts = [[cell if isinstance(cell, str) else cell.text for cell in row] for row in self.rows]
        return [column for column in range(len(self.head)) if any(row[column] for row in texts)]


@dataclass(frozen=True, kw_only=True)
class Passage(DocumentBlock):
    """A paragraph."""

    text: str
    tone: str = "plain"


@dataclass(frozen=True, kw_only=True)
class Listing(DocumentBlock):
    """Lines in a fixed-width font: output of a program, or code in ``language``."""

    lines: Sequence[str]
    caption: str = ""
    language: str = "text"


@dataclass(frozen=True, kw_only=True)
class Bullets(DocumentBlock):
    """A list of sentences."""

    items: Sequence[Cell | str]
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Columns(DocumentBlock):
    """Columns of blocks, side by side if there is room."""

    columns: Sequence[Sequence[DocumentBlock]]


@dataclass(frozen=True, kw_only=True)
class AnsweredQuestion(DocumentBlock):
    """A question and its answer; ``evidence`` is the key of the report that the answer rests on."""

    name: str
    question: str
    answer: Cell
    figures: str
    evidence: str | None


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and the blocks below it."""

    name: str
    title: str
    blocks: Sequence[DocumentBlock]
