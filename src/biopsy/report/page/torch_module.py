"""Where in a PyTorch module it goes wrong: the lines of its author, how far it is off, and what was kept."""

from __future__ import annotations

from biopsy.quantities import count
from biopsy.report.page.blocks import Block, Cell, Facts, Listing, Passage, Section
from biopsy.report.page.branch import Branch
from biopsy.report.page.figures import cut, middle_cut

_MOST_PLACES = 20
_MOST_NODES = 12
_MOST_REMARKS = 20


def section(report: Branch) -> Section | None:
    """The lines to look at, with their code; None where the report is not about a PyTorch module."""
    found = report.part("torch")
    if found is None:
        return None
    places = found.parts("places")
    blocks: list[Block] = [_listing(place) for place in places[:_MOST_PLACES]]
    if len(places) > _MOST_PLACES:
        blocks.append(Passage(text=f"{count(len(places) - _MOST_PLACES, 'more line')}: in the file of the report."))
    if rows := _facts(found):
        blocks.append(Facts(rows=rows))
    blocks += [Passage(text=cut(each, 500), tone="unsure") for each in found.texts("remarks")[:_MOST_REMARKS]]
    title = "Lines of the module" if places else "The module"
    return Section(name="torch", title=title, blocks=blocks) if blocks else None


def _listing(place: Branch) -> Block:
    """A line of code below where it stands, the part of the module, and the operators that PyTorch made of it."""
    file, line, module, code = place.text("file"), place.whole("line"), place.text("module"), place.text("code")
    said = [
        f"{middle_cut(file, 200)}:{line}" if file else "",
        f"module {cut(module, 120)}" if module else "",
        " → ".join(cut(operator, 80) for operator in place.texts("operators")[:_MOST_NODES]),
    ]
    caption = " · ".join(filter(None, said)) or "somewhere"
    return Listing(caption=caption, lines=[cut(code, 300)]) if code else Passage(text=caption)


def _facts(found: Branch) -> list[tuple[str, Cell | str]]:
    rows: list[tuple[str, Cell | str]] = []
    for key, term in (("error", "error"), ("reason", "not certain"), ("suspect", "engine asked")):
        if text := found.text(key):
            rows.append((term, cut(text, 600)))
    values, piece = found.part("values"), found.part("piece")
    if values is not None:
        rows.append(("known from PyTorch", f"the values of {values.whole('matched')} of {values.whole('of')} tensors"))
    if piece is not None:
        nodes = piece.texts("nodes")
        named = ", ".join(middle_cut(node, 80) for node in nodes[:_MOST_NODES])
        more = f" and {len(nodes) - _MOST_NODES} more" if len(nodes) > _MOST_NODES else ""
        rows.append(("smallest part", f"{len(nodes)} of {piece.whole('of')} nodes: {named}{more}"))
    for term, path in (
        ("its model", None if piece is None else piece.text("path")),
        ("to send", None if piece is None else piece.text("bundle")),
        ("everything", found.text("folder")),
    ):
        if path:
            rows.append((term, Cell(text=middle_cut(path, 200), code=True)))
    return rows
