"""What a document is built of: sections under headings, and the blocks in them. The page shows all kinds of blocks, an
issue those that Markdown has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class DocumentBlock:
    """A part of a section."""

    @property
    def kind(self) -> str:
        """Its name in templates."""
        return type(self).__name__.lower()


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A text with a sign before it: what a colour says, the sign says too. ``tone``: good, bad, unsure or plain."""

    text: str
    tone: str = "plain"
    sign: str = ""
    code: bool = False


@dataclass(frozen=True, kw_only=True)
class Facts(DocumentBlock):
    """Terms and what they are."""

    rows: Sequence[tuple[str, Cell | str]]


@dataclass(frozen=True, kw_only=True)
class Grid(DocumentBlock):
    """Rows below a head. ``folded``: shown when a person asks for it; ``left`` rows are not shown."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    folded: bool = False
    left: int = 0

    @property
    def filled(self) -> list[int]:
        """The columns in which at least one row says something."""
        texts = [[cell if isinstance(cell, str) else cell.text for cell in row] for row in self.rows]
        return [column for column in range(len(self.head)) if any(row[column] for row in texts)]


@dataclass(frozen=True, kw_only=True)
class Passage(DocumentBlock):
    """A paragraph."""

    text: str
    tone: str = "plain"


@dataclass(frozen=True, kw_only=True)
class Listing(DocumentBlock):
    """Lines as a program has printed them, or as it is to read them; ``language`` is theirs."""

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
    """Blocks beside each other where there is room; those of one column stand below each other."""

    columns: Sequence[Sequence[DocumentBlock]]


@dataclass(frozen=True, kw_only=True)
class AnsweredQuestion(DocumentBlock):
    """A question that was asked, and its answer; ``evidence`` is the key of the report that it rests on."""

    name: str
    question: str
    answer: Cell
    figures: str
    evidence: str | None


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a document under a heading."""

    name: str
    title: str
    blocks: Sequence[DocumentBlock]
