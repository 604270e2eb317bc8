"""Which layers are wrong, one by one and together."""

from __future__ import annotations

from collections.abc import Sequence

from biopsy.report.page.blocks import Block, Bullets, Cell, Facts, Grid, Rows, Section
from biopsy.report.page.branch import Branch
from biopsy.report.page.figures import cut, figure, middle_cut, times
from biopsy.report.page.grids import MOST_ROWS, plain_grid

_MOST_PLACES = 3
_MOST_MISFITS = 5


def section(report: Branch) -> Section | None:
    """Which layers are wrong."""
    found = report.part("layers")
    if found is None:
        return None
    blocks: list[Block] = [Facts(rows=_layer_facts(found))]
    grouped = [each.wholes("nodes") for each in found.parts("groups")]
    for key, caption in (("ranking", "What to look at, the worst first"), ("groups", "Wrong only together")):
        entries = [each for each in found.parts(key) if key == "groups" or each.wholes("nodes") not in grouped]
        if entries:
            blocks.append(_grid_of_layers(caption, entries))
    origins = found.parts("non_finite_origins")
    if origins:
        keys = ["engine", "label", "tensor", "nan", "inf"]
        blocks.append(plain_grid("Where NaN or infinity begins", keys, origins))
    remarks = [cut(text, 500) for text in found.texts("remarks")[:30]]
    if remarks:
        blocks.append(Bullets(caption="Remarks", items=remarks))
    return Section(name="layers", title="Layer by layer", blocks=blocks)


def _layer_facts(found: Branch) -> list[tuple[str, Cell | str]]:
    verdict = found.text("verdict") or "unknown"
    tone, sign = {"right": ("good", "✓"), "wrong": ("bad", "✕")}.get(verdict, ("unsure", "?"))
    rows: list[tuple[str, Cell | str]] = [("verdict", Cell(text=cut(verdict, 40), tone=tone, sign=sign))]
    for key in ("suspect", "reference"):
        side = found.part(key)
        if side is not None:
            rows.append((key, cut(" ".join(text for text in (side.text("label"), side.text("version")) if text), 100)))
    golden = found.part("golden")
    if golden is not None:
        rows.append(("golden values", f"of {golden.whole('tensors')} of {golden.whole('of')} tensors"))
        misfits = golden.texts_by_name("misfits")
        told = [f"{middle_cut(name, 60)}: {cut(why, 200)}" for name, why in list(misfits.items())[:_MOST_MISFITS]]
        rows += [("do not fit", Cell(text="; ".join(told), tone="unsure", sign="?"))] if told else []
    first = found.part("first_wrong")
    if first is not None:
        rows.append(("first wrong tensor", Cell(text=middle_cut(first.text("tensor") or "", 100), code=True)))
    if found.flag("masked"):
        rows.append(("masked", "layers are wrong although the outputs are right"))
    if found.flag("complete") is False:
        rows.append(("complete", "no: it was interrupted"))
    return rows


def _told(name: str | None, labels: Sequence[str]) -> str:
    """Layers by what they are together, if they are several and an exporter says so, and one by one."""
    listed = " + ".join(labels)
    return f"{name} ({listed})" if name and len(labels) > 1 else listed


def _grid_of_layers(caption: str, entries: Sequence[Branch]) -> Grid:
    rows: Rows = []
    for place, each in enumerate(entries[:MOST_ROWS], start=1):
        error, failure, rounding = each.part("error"), each.part("failure"), each.number("rounding_ratio")
        ratio = None if error is None else error.number("tolerance_ratio")
        absolute = None if error is None else error.number("absolute")
        labels = [middle_cut(label, 60) for label in each.texts("labels")[:12]]
        origins = each.part("origins")
        name = None if origins is None else origins.text("name")
        places = [] if origins is None else [cut(place, 200) for place in origins.texts("places")[:_MOST_PLACES]]
        said = "" if failure is None else " · ".join(t for t in (failure.text("stage"), failure.text("message")) if t)
        rows.append(
            [
                str(place),
                Cell(text=cut(_told(name, labels), 400), code=True),
                Cell(text=" · ".join(places), code=True),
                Cell(text=times(ratio), tone="bad", sign="✕") if ratio is not None and not ratio <= 1 else
                "" if ratio is None else times(ratio),
                "" if absolute is None else figure(absolute),
                "" if rounding is None else times(rounding),
                cut(said, 200),
            ]
        )  # fmt: skip
    head = ["rank", "layers", "made at", "times tolerance", "greatest error", "times plain float32", "failure"]
    return Grid(caption=caption, head=head, rows=rows, left=len(entries) - len(rows))
