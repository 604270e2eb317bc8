"""Reducing models with external weights of 4 GB and of 100 GB: the time to write a candidate, and the memory it takes.

python -m benchmarks.big_models
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import onnx

from benchmarks import models
from benchmarks.attempts import NotMeasured, attempt
from benchmarks.candidates import milliseconds, subsets
from benchmarks.running import Run, Tool, biopsy, one_at_a_time, run

LAYERS = {"4 GB": 64, "100 GB": 1_600}
"""How many weights of 64 MB: layers of two nodes."""
LAYOUTS = {"4 GB": ("beside", "sub-folder", "several files"), "100 GB": ("beside", "several files")}
PEER = "Polygraphy has no result"
PLACES = ("the model's folder", "a parent of it", "another folder")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One reduction of the big model. ``write`` is the median to make and write a candidate, in milliseconds."""

    size: str
    layout: str
    place: str
    pattern: str
    write: float = 0.0
    above: float = 0.0
    made: Run | NotMeasured


def measure(tool: Tool, patterns: Sequence[str] = ("middle", "two far apart")) -> list[Measured]:
    """Reduce the big models in every layout, and the smaller one from every place once."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        usual = _five_nodes(tool, top)
        for size, layout in ((size, layout) for size, layouts in LAYOUTS.items() for layout in layouts):
            folder = top / f"{size} {layout}".replace(" ", "-") / "model"
            folder.mkdir(parents=True)
            path = models.big(folder, layout, LAYERS[size])
            for place in PLACES if (size, layout) == ("4 GB", "beside") else PLACES[:1]:
                start = _started_in(place, path)
                for pattern in patterns:
                    row = Measured(size=size, layout=layout, place=place, pattern=pattern, made=NotMeasured(""))
                    made = attempt(partial(_measured, row, tool, path, start, usual))
                    found.append(made if isinstance(made, Measured) else replace(row, made=made))
    return found


def _measured(row: Measured, tool: Tool, path: Path, start: Path, usual: float) -> Measured:
    """A row with its numbers; ``usual`` is the memory, in MB, of reducing next to nothing."""
    made = run(tool, path, _wanted(path, row.pattern), folder=start)
    return replace(row, made=made, above=made.peak - usual, write=_write(path, start))


def _started_in(place: str, path: Path) -> Path:
    if place == "another folder":
        other = path.parent.parent / "elsewhere"
        other.mkdir(exist_ok=True)
        return other
    return path.parent if place == "the model's folder" else path.parent.parent


def _wanted(path: Path, pattern: str) -> list[str]:
    return models.PATTERNS[pattern](models.names(onnx.load(path, load_external_data=False)))


def _five_nodes(tool: Tool, top: Path) -> float:
    """The memory that reducing next to nothing takes: the program itself."""
    folder = top / "five"
    folder.mkdir()
    path = folder / "model.onnx"
    path.write_bytes(models.chain(5).SerializeToString())
    return run(tool, path, ["n2"]).peak


def _write(path: Path, start: Path) -> float:
    from biopsy.model.index import index_file
    from biopsy.model.slice import Boundary, Subset, candidate_parts
    from biopsy.processes.writing import write_whole
    from biopsy.session.workspace import workspace

    index = index_file(path)
    place = workspace(index, start / "timed.onnx", may_move=True)
    boundary = Boundary(infos={}, frozen={}, places=place.places)
    kept = [tuple(nodes) for nodes in subsets(len(index.nodes), 41)]

    def write(nodes: tuple[int, ...]) -> None:
        write_whole(place.candidate, candidate_parts(Subset(index, nodes), boundary))

    try:
        return milliseconds([lambda nodes=nodes: write(nodes) for nodes in kept], 3)  # type: ignore[misc]
    finally:
        place.candidate.unlink(missing_ok=True)
        place.leave()


def table(found: Sequence[Measured]) -> str:
    """The numbers as Markdown."""
    lines = [
        "| weights | they stand | started in | failure needs | checks | wall, s | own time per check, ms "
        "| write a candidate, ms | memory above five nodes, MB | nodes left | times faster |",
        "|---|---|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for one in found:
        where = f"{one.size} | {one.layout} | {one.place} | {one.pattern}"
        if isinstance(one.made, NotMeasured):
            lines.append(f"| {where} |  | {one.made} |  |  |  |  |  |")
            continue
        own = "" if one.made.overhead is None else f"{1000 * one.made.overhead:.0f}"
        numbers = f"{len(one.made.checks)} | {one.made.seconds:.1f} | {own} | {one.write:.2f} | {one.above:.0f}"
        lines.append(f"| {where} | {numbers} | {one.made.ended or one.made.nodes} | {PEER} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(measure(one_at_a_time(biopsy("minimal")))))
