"""What searches take on many machines: a cost model of measured parts, held against a simulation of recorded checks.

    python -m benchmarks.scale [--write]              prints the tables of docs/explanation/scale.md, or writes them
    python -m benchmarks.scale --record FOLDER        reduces with real engines, and keeps how long each check took
    python -m benchmarks.scale --measure              measures the parts on a Ray cluster of this machine

What is recorded and measured is kept in ``scale.json``. From there on everything is counted: the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from functools import cache
from heapq import heapreplace
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean, median

import onnx

import biopsy
from benchmarks import models
from benchmarks.own_run import PROGRAM
from benchmarks.rounds import PATTERNS, built
from benchmarks.simulated_clock import SimulatedClock
from biopsy import events
from biopsy.checks.outcome import Evidence
from biopsy.checks.task import Task

HERE = Path(__file__).parent
KEPT = HERE / "scale.json"
PAGE = HERE.parent / "docs" / "explanation" / "scale.md"
BUILDS = HERE / "builds_and_finds.py"
NODES = 1_000
ENGINES = ("openvino", "onnxrt")
RECORDED = "ten scattered"
"""Which nodes the reductions need whose checks are recorded: it asks about models of many sizes."""

BUILD = 60.0
"""Seconds that a check of the whole model is taken to last: an engine build on an accelerator."""

WEIGHTS = 1 << 30
"""Bytes of weights that are sent to each machine."""

_NEAREST = 3
"""Recorded checks that say how long one of their size lasts: as many as there are of the whole model."""

PLACES = (1, 8, 100)
PATTERNS_SHOWN = tuple(PATTERNS)
_WANTED: dict[str, Callable[[list[str]], list[str]]] = {**models.PATTERNS, **PATTERNS}


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What one search costs besides its checks, measured: seconds, and bytes per second.

    ``join``: to join the cluster; ``place``: until the first process on a machine is ready; ``check``: what each check
    takes longer than on the machine itself; ``cancel``: until a check that was stopped has gone, with all that it has
    started; ``sent``: how fast a file comes to a machine, from disk to disk; ``own``: what the search itself takes for
    each check.
    """

    join: float
    place: float
    check: float
    cancel: float
    sent: float
    own: float

    @property
    def before(self) -> float:
        """Seconds before the first check."""
        return self.join + self.place + WEIGHTS / self.sent


@dataclass(frozen=True)
class Recorded:
    """How long the checks of a real reduction took: nodes of the candidate and seconds, for each."""

    checks: tuple[tuple[int, float], ...]

    def scaled(self) -> Recorded:
        """The same as if a check of the whole model had lasted as long as ``BUILD``."""
        whole = median(seconds for nodes, seconds in self.checks if nodes == NODES)
        return Recorded(tuple((nodes, seconds * BUILD / whole) for nodes, seconds in self.checks))

    def times(self) -> Callable[[int], float]:
        """What a check of so many nodes takes: as long as the recorded ones of the nearest size, in turn."""
        by_size: dict[int, list[float]] = {}
        for nodes, seconds in self.checks:
            by_size.setdefault(nodes, []).append(seconds)
        sizes = sorted(by_size)
        turns = {size: cycle(times) for size, times in by_size.items()}

        def lasts(nodes: int) -> float:
            place = bisect_left(sizes, nodes)
            return next(turns[min(sizes[max(0, place - 1) : place + 1], key=lambda size: abs(size - nodes))])

        return lasts

    @property
    def mean(self) -> float:
        """Seconds of a check."""
        return fmean(seconds for _, seconds in self.checks)

    def expected(self, nodes: int) -> float:
        """Seconds of a check of so many nodes: the mean of the three recorded ones that are nearest in size."""
        nearest = sorted(self.checks, key=lambda check: abs(check[0] - nodes))[:_NEAREST]
        return fmean(seconds for _, seconds in nearest)


@dataclass(frozen=True)
class Simulated:
    """A search in simulated time: seconds or rounds; checks that were asked about, and those begun.

    ``bytes`` were sent for these. ``largest`` has, for each moment at which the search learnt something, the nodes of
    the largest candidate that it learnt of: where all checks are equally long, for each round.
    """

    time: float
    checks: int
    begun: int
    bytes: int
    largest: tuple[int, ...]


class _SentBytes(SimulatedClock):
    """A clock that counts what candidates weigh. ``sizes`` are their nodes, filled by who checks them."""

    def __init__(self, lasts: Callable[[int], float] | None) -> None:
        super().__init__((lambda evidence: 1.0) if lasts is None else self._as_recorded)
        self._of_nodes = lasts
        self.sizes: list[int] = []
        self.bytes = 0

    def _as_recorded(self, evidence: Evidence) -> float:
        assert self._of_nodes is not None
        return self._of_nodes(self.sizes[-1])

    def begin(self, task: Task) -> Future[Evidence]:
        """Begin a run, and weigh its candidate."""
        self.bytes += sum(map(len, task.parts or ()))
        return super().begin(task)


def simulated(pattern: str, places: int, lasts: Callable[[int], float] | None = None) -> Simulated:
    """A search of a failure that needs some nodes of the transformer-like model: in rounds, or as each check lasts."""
    clock, original = _SentBytes(lasts), built(NODES)
    wanted = set(_WANTED[pattern](models.names(original)))
    largest: dict[float, int] = {}

    def listener(event: events.Event) -> None:
        if isinstance(event, events.CheckedCandidate):
            largest[clock.now] = max(event.nodes, largest.get(clock.now, 0))

    def fails(model: onnx.ModelProto) -> bool:
        clock.sizes.append(len(model.graph.node))
        return wanted <= set(models.names(model))

    with tempfile.TemporaryDirectory() as folder:
        found = biopsy.reduce(
            original,
            fails,
            Path(folder) / "r.onnx",
            takes="model",
            jobs=places,
            executor=clock,
            listener=listener,
        )
    return Simulated(clock.now, found.checks, clock.begun, clock.bytes, tuple(largest.values()))


@cache
def predicted(parts: Parts, recorded: Recorded, pattern: str, places: int) -> float:
    """The cost model, in seconds: what comes before, and for each round its largest check and what it costs besides."""
    checks = [recorded.expected(nodes) for nodes in rounds(pattern, places).largest]
    return parts.before + sum(checks) + len(checks) * (parts.check + parts.own)


@cache
def rounds(pattern: str, places: int) -> Simulated:
    """The search with all checks equally long."""
    return simulated(pattern, places)


@cache
def replayed(parts: Parts, recorded: Recorded, pattern: str, places: int) -> Simulated:
    """The same search with each check as long as a recorded one of its size."""
    lasts = recorded.times()
    found = simulated(pattern, places, lambda nodes: lasts(nodes) + parts.check + parts.own)
    return replace(found, time=parts.before + found.time)


def searches(parts: Parts, recorded: Recorded, patterns: Sequence[str] = PATTERNS_SHOWN) -> str:
    """A row for each search and number of places: the model's time, the simulation's, and what it costs."""
    lines = [
        "| failure needs | places | rounds | model, min | simulated, min | error | times faster | checks begun |"
        " machine time, times |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for pattern in patterns:
        alone = replayed(parts, recorded, pattern, 1).time
        for places in PLACES:
            model, real = predicted(parts, recorded, pattern, places), replayed(parts, recorded, pattern, places)
            cells = [
                pattern,
                places,
                f"{rounds(pattern, places).time:.0f}",
                f"{model / 60:.1f}",
                f"{real.time / 60:.1f}",
                _error(model, real.time),
                f"{alone / real.time:.1f}",
                real.begun,
                f"{places * real.time / alone:.1f}",
            ]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _error(model: float, real: float) -> str:
    return f"{round(100 * (model / real - 1)):+d} %"


def makespan(jobs: Sequence[float], places: int) -> float:
    """How long jobs take on so many places, each begun on the one that is free first, in this order."""
    ends = [0.0] * places
    for job in jobs:
        heapreplace(ends, ends[0] + job)
    return max(ends)


def corpus(parts: Parts, recorded: Recorded, count: int = 1_000, places: int = 100) -> str:
    """So many models on the same places: each with some of them for itself."""
    lines = [
        "| places for each model | models at once | model, h | simulated, h | error | machine hours |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for each in (1, 4, 16, places):
        real = [replayed(parts, recorded, pattern, each).time for pattern in PATTERNS_SHOWN]
        guessed = [predicted(parts, recorded, pattern, each) for pattern in PATTERNS_SHOWN]
        groups = places // each
        whole = makespan(list(islice(cycle(real), count)), groups)
        model = count * fmean(guessed) / groups
        cells = [each, groups, f"{model / 3600:.1f}", f"{whole / 3600:.1f}", _error(model, whole)]
        lines.append(f"| {' | '.join(map(str, [*cells, f'{whole * groups * each / 3600:,.0f}']))} |")
    return "\n".join(lines)


def parts_table(parts: Parts, recorded: Mapping[str, Recorded], sent: Simulated) -> str:
    """What was measured."""
    rows = [
        ("joining the cluster", f"{parts.join:.2f} s"),
        ("the first process on a machine", f"{parts.place:.2f} s"),
        ("what a check takes longer than on the machine itself", f"{1000 * parts.check:.0f} ms"),
        ("what the search itself takes for each check", f"{1000 * parts.own:.0f} ms"),
        ("until a cancelled check has gone, with all that it has started", f"{1000 * parts.cancel:.0f} ms"),
        ("weights to a machine, from disk to disk", f"{parts.sent / 2**20:,.0f} MB/s"),
        (f"a candidate of {NODES:,} nodes or fewer, on average", f"{sent.bytes / sent.begun / 1000:,.0f} kB"),
    ]
    for engine, checks in recorded.items():
        times = [seconds for _, seconds in checks.checks]
        rows.append(
            (f"a check that builds it with {engine}: shortest, mean, longest",
             f"{min(times):.2f}, {checks.mean:.2f}, {max(times):.2f} s")
        )  # fmt: skip
    return "\n".join(["| part | measured |", "|---|--:|", *(f"| {what} | {value} |" for what, value in rows)])


def tables() -> dict[str, str]:
    """The generated parts of the page, by their names."""
    parts, recorded = kept()
    builds = recorded["openvino"].scaled()
    return {
        "parts": parts_table(parts, recorded, rounds("two far apart", 1)),
        "searches": searches(parts, builds),
        "corpus": corpus(parts, builds),
    }


def page_with(made: Mapping[str, str]) -> str:
    """The page with these tables in the places of those of the same names."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in made.items():
        head, rest = text.split(f"<!-- generated: {name} -->\n")
        text = f"{head}<!-- generated: {name} -->\n\n{table}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    return text


def kept() -> tuple[Parts, dict[str, Recorded]]:
    """What was measured and recorded."""
    read = json.loads(KEPT.read_text())
    recorded = {
        engine: Recorded(tuple((nodes, seconds) for nodes, seconds in checks))
        for engine, checks in read["checks"].items()
    }
    return Parts(**read["parts"]), recorded


def keep(**changed: object) -> None:
    """Replace some of what is kept."""
    before = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in {**before, **changed}.items()]
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def record(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Reduce with a check that builds each candidate with an engine; the nodes and seconds of each check."""
    model = built(NODES)
    onnx.save(model, folder / "m.onnx")
    wanted = _WANTED[RECORDED](models.names(model))
    found = {}
    for engine in ENGINES:
        told, output = folder / f"{engine}.jsonl", folder / f"{engine}.onnx"
        words = ["debug", "reduce", "m.onnx", "-o", output.name, "--jobs", "1", "--events", told.name]
        check = ["--check", sys.executable, str(BUILDS), "{}", engine, *wanted]
        subprocess.run([PROGRAM, *words, *check], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        logged = [json.loads(line) for line in told.read_text().splitlines()]
        checks = [event for event in logged if event["event"] == "Checked"]
        found[engine] = [(check["nodes"], round(check["seconds"], 3)) for check in checks]
    return found


def measure() -> Parts:
    """The parts, on a cluster of this machine: medians, but for what happens once."""
    from benchmarks.other_machines import cluster_of
    from biopsy.checks.command import CommandCheck
    from biopsy.session.ray_cluster import RayWorkers

    def lasting(words: Sequence[str], stop: bool = False) -> float:
        """Seconds of a run besides its check; of one that is stopped, until it has gone."""
        began = time.monotonic()
        run = workers.begin(Task(CommandCheck([*words, "{}"], "c.onnx"), folder / "c.onnx", [bytes(200_000)]))
        if stop:
            while not workers.running:
                time.sleep(0.001)
            time.sleep(0.2)  # it has really begun
            began = time.monotonic()
            workers.stop(run)
        workers.wait([run], 60)
        return time.monotonic() - began - (0.0 if stop else run.result().seconds)

    with tempfile.TemporaryDirectory() as top, cluster_of(2) as cluster:
        folder = Path(top)
        began = time.monotonic()
        workers = RayWorkers(cluster)
        joined = time.monotonic()
        lasting(["true"])
        first = time.monotonic()
        check = median(lasting(["true"]) for _ in range(21))
        cancel = median(lasting(["sh", "-c", "sleep 600"], stop=True) for _ in range(7))
        weights = folder / "w.bin"
        weights.write_bytes(bytes(range(256)) * (1 << 20))
        sent = lasting(["sh", "-c", "true", str(weights)]) - check
        workers.close()
    with tempfile.TemporaryDirectory() as top:
        began_own = time.monotonic()
        found = biopsy.reduce(
            built(NODES), lambda model: len(model.graph.node) > 900, Path(top) / "r.onnx", takes="model", mode="bisect"
        )
        own = (time.monotonic() - began_own) / found.checks
    found_parts = Parts(
        join=joined - began, place=first - joined, check=check, cancel=cancel, sent=(256 << 20) / sent, own=own
    )
    return Parts(**{name: float(f"{value:.3g}") for name, value in asdict(found_parts).items()})


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="FOLDER")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--write", action="store_true", help="write the tables into the page")
    args = parser.parse_args()
    if args.record is not None:
        args.record.mkdir(parents=True, exist_ok=True)
        keep(checks=record(args.record))
    if args.measure:
        keep(parts=asdict(measure()))
    made = tables()
    print("\n\n".join(made.values()))
    if args.write:
        PAGE.write_text(page_with(made))


if __name__ == "__main__":
    _main()
