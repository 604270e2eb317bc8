"""Results that show their report: as a page, as the text of an issue, and in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from os import PathLike
from pathlib import Path

from biopsy.findings.bundle.issue import markdown
from biopsy.findings.document import Bullets, Columns, DocumentBlock, Facts, Listing, Passage
from biopsy.findings.page.document import page_of
from biopsy.findings.page.failure import failure_blocks
from biopsy.findings.page.reading import Branch
from biopsy.findings.page.sections import model_and_versions, top
from biopsy.findings.report import Tree
from biopsy.processes.writing import require_writable, write_whole


@dataclass(frozen=True, kw_only=True, repr=False)
class Reported:
    """A result with its ``report``: what ``--report`` of the command writes (docs/reference/report.md)."""

    report: Tree = field(default_factory=dict, repr=False, compare=False)

    def page(self, path: str | PathLike[str]) -> Path:
        """Write a page that shows the result, one HTML file that loads nothing, and return its path.

        Raises UsageError if it cannot be written, BiopsyError if a package of the extra ``report`` is not installed.
        """
        require_writable(Path(path))
        write_whole(Path(path), [page_of(self.report).encode()])
        return Path(path)

    def issue(self) -> str:
        """The result as Markdown, for an issue: the verdict, how it fails, the piece and the versions.

        Nothing is run for it. ``biopsy diagnose --bundle`` also packs the model, and a script that was seen to fail.
        """
        return issue_of(self.report)

    def framed_page(self) -> str:
        """The page in a frame that runs no script, for a notebook; "" if there is none to show."""
        page = page_of(self.report) if self.report else ""
        style = "width: 100%; height: 40rem; border: 0"
        return page and f'<iframe sandbox title="the report" style="{style}" srcdoc="{escape(page)}"></iframe>'


def issue_of(report: Tree) -> str:
    """A report as Markdown, of those blocks of its page that Markdown has."""
    tree = Branch(report)
    first = top(tree)
    parts = [f"# {markdown(Passage(text=': '.join(filter(None, [first.headline.text, first.model]))))}"]
    parts += [markdown(block) for block in _verdict(tree)]
    piece, failure = tree.part("piece"), tree.part("failure")
    if piece is not None:
        parts += ["## The failing piece", markdown(Listing(lines=nodes_of(report)))]
    for heading, blocks in (
        ("What fails", () if failure is None else failure_blocks(failure)),
        ("Model and versions", model_and_versions(tree)),
    ):
        texts = [markdown(block) for block in _flat(blocks) if isinstance(block, _IN_MARKDOWN)]
        parts += [f"## {heading}", *texts] if texts else []
    return "\n\n".join(parts) + "\n"


def nodes_of(report: Tree) -> list[str]:
    """The nodes of the failing piece in order, by operator and name; none if the report has no piece."""
    nodes = Branch(report).child("piece").parts("nodes")
    return [f"{node.text('op_type')} {node.text('name')!r}" for node in nodes]


_IN_MARKDOWN = (Listing, Bullets, Facts, Passage)
_LABELS = {"sure": "How sure", "workaround": "Workaround", "open": "Not tried", "next": "Next", "repeat": "Repeat"}


def _verdict(tree: Branch) -> Iterator[DocumentBlock]:
    first = top(tree)
    yield Passage(text=first.text)
    if first.reasons:
        yield Bullets(items=first.reasons)
    for note in first.notes:
        yield Passage(text=": ".join(filter(None, [_LABELS[note.label], note.text])))
        if note.code:
            yield Listing(lines=note.code, language="python")
        if note.line:
            yield Listing(lines=[note.line])


def _flat(blocks: Iterable[DocumentBlock]) -> Iterator[DocumentBlock]:
    for block in blocks:
        yield from (each for column in block.columns for each in column) if isinstance(block, Columns) else [block]
