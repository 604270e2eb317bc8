"""The whole model as a map: where the piece is, and which layers introduce an error or carry it on."""

from __future__ import annotations

import math

from biopsy.quantities import count
from biopsy.report.page.blocks import Passage, Section
from biopsy.report.page.branch import Branch, DamagedReport
from biopsy.report.page.figures import cut, middle_cut, times
from biopsy.report.page.ribbon import Bead, ribbon

_MOST_NODES = 40_000
_NAMES = 400_000
"""Characters of all names together, so that the page stays small."""


def section(report: Branch) -> Section | None:
    """The section on the whole model; None without a map."""
    whole = report.part("whole")
    if whole is None:
        return None
    nodes = _nodes(whole)
    if not nodes:
        return None
    title = "The whole model"
    drawn = nodes[:_MOST_NODES]
    blocks = [
        ribbon("map", f"{count(len(nodes), 'node')}, read from left to right, row below row", drawn, _note(nodes))
    ]
    if len(drawn) < len(nodes):
        more = Passage(text=f"The first {len(drawn)} of {len(nodes)} nodes are drawn.")
        return Section(name="map", title=title, blocks=[more, *blocks])
    return Section(name="map", title=title, blocks=blocks)


def _note(nodes: list[Bead]) -> str:
    measured = sum(node.introduced is not None or node.propagated is not None for node in nodes)
    piece = sum(node.in_piece for node in nodes)
    said = [f"{count(piece, 'node')} in the piece"] if piece else []
    said += [f"{measured} measured"] if measured else []
    return " · ".join(said)


def _nodes(whole: Branch) -> list[Bead]:
    ops, op, names = whole.texts("ops"), whole.wholes("op"), whole.texts("names")
    reads, piece = whole.rows_of_wholes("reads"), set(whole.wholes("piece"))
    introduced, propagated = (_by_number(whole, key) for key in ("introduced", "propagated"))
    if not all(0 <= each < len(ops) for each in op):
        raise DamagedReport("its 'whole.op' has places that 'whole.ops' lacks")
    most = max(12, min(90, _NAMES // max(len(op), 1)))
    nodes = []
    for place, kind in enumerate(op):
        name = names[place] if place < len(names) else ""
        made, carried = introduced.get(place), propagated.get(place)
        lines = [f"{cut(ops[kind], 40)}  {middle_cut(name, most)}".rstrip(), f"node {place}"]
        lines += ["in the piece"] if place in piece else []
        lines += [f"introduces {_ratio(made)}"] if made is not None else []
        lines += [f"carries on {_ratio(carried)}"] if carried is not None else []
        nodes.append(
            Bead(
                lines=lines,
                reads=reads[place] if place < len(reads) else [],
                in_piece=place in piece,
                introduced=made,
                propagated=carried,
            )
        )
    return nodes


def _ratio(value: float) -> str:
    return "an error that is not a number" if math.isnan(value) else f"{times(value)} the tolerance"


def _by_number(whole: Branch, key: str) -> dict[int, float]:
    found = whole.numbers_by_name(key)
    try:
        return {int(number): ratio for number, ratio in found.items()}
    except ValueError as error:
        raise DamagedReport(f"its 'whole.{key}' has a key that is no number of a node") from error
