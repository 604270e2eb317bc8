"""Searches on a Ray cluster with a check that sleeps: what many machines save, and what they could save at best.

    python -m benchmarks.other_machines [--seconds S] [--places N] [--quick]

The cluster is one of this machine with as many logical processors as places, and runs before anything is timed. Times
are those of whole processes of ``biopsy``: they include joining the cluster and starting a process for each place. The
best is what the same search takes on a simulated clock, on which nothing but checks takes time. The check only sleeps,
so the searches with one check at a time run beside each other; what that adds to their times counts for nothing, since
*times faster* compares with their checks alone, each as long as it sleeps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx

import biopsy
from benchmarks import models
from benchmarks.attempts import NotMeasured, attempt, times_faster
from benchmarks.own_run import PROGRAM
from benchmarks.rounds import PATTERNS
from benchmarks.simulated_clock import SimulatedClock

SECONDS, PLACES = 2.0, 16
LIMIT = 600.0
"""Seconds after which a search is given up."""

_CHECK = """#!/bin/sh
sleep {seconds}
candidate=$1
shift
for name in "$@"; do grep -qaF "$name\\"" "$candidate" || exit 0; done
exit 1
"""
"""Behind a node's name, its file has the tag of the operator, which is a quotation mark: no longer name is found."""

_WANTED: dict[str, Callable[[list[str]], list[str]]] = {**models.PATTERNS, **PATTERNS}


@dataclass(frozen=True)
class Scenario:
    """A search: how many nodes the model has, which of them the failure needs, the mode; or repeated runs."""

    name: str
    nodes: int = 0
    pattern: str = ""
    mode: biopsy.reduction.schedule.Mode = "minimal"
    runs: int = 0


SCENARIOS = (
    Scenario("reduce, one node", 1_000, "middle"),
    Scenario("reduce, two nodes far apart", 1_000, "two far apart"),
    Scenario("reduce, ten scattered nodes", 1_000, "ten scattered"),
    Scenario("reduce --mode linear, two nodes", 100, "two far apart", "linear"),
    Scenario("repeat --until 64", runs=64),
)
QUICK = (Scenario("reduce, one node", 60, "middle"), Scenario("repeat --until 6", runs=6))


@dataclass(frozen=True)
class Measured:
    """A whole process: its wall time, from its start to the first check on a machine, and its checks."""

    seconds: float
    until_first: float
    checks: int


def best(scenario: Scenario, places: int, folder: Path) -> tuple[float, int]:
    """What a search takes with nothing but checks, in units of one check, and its checks."""
    if scenario.runs:
        return float(-(-scenario.runs // places)), scenario.runs
    clock, original = SimulatedClock(), models.transformer(scenario.nodes)
    wanted = _WANTED[scenario.pattern](models.names(original))
    found = biopsy.reduce(
        original,
        lambda model: set(wanted) <= set(models.names(model)),
        folder / "best.onnx",
        takes="model",
        mode=scenario.mode,
        jobs=places,
        executor=clock,
    )
    return clock.now, found.checks


def measured(scenario: Scenario, cluster: str, places: int, seconds: float, folder: Path) -> Measured:
    """The same with a check that sleeps, on a cluster. Raises RuntimeError if it does not find what is needed."""
    folder.mkdir()
    check = folder / "check.sh"
    check.write_text(_CHECK.format(seconds=seconds))
    check.chmod(0o755)
    on = ["--on", cluster, "--jobs", str(places), "--events", "events.jsonl"]
    wanted: Sequence[str] = ()
    if scenario.runs:
        words = ["debug", "repeat", "--until", str(scenario.runs), *on, "--check", str(check), str(check)]
    else:
        model = models.transformer(scenario.nodes)
        onnx.save(model, folder / "m.onnx")
        wanted = _WANTED[scenario.pattern](models.names(model))
        words = ["debug", "reduce", "m.onnx", "-o", "r.onnx", f"--mode={scenario.mode}", *on]
        words += ["--check", str(check), "{}", *wanted]
    started = time.monotonic()
    done = subprocess.run([PROGRAM, *words], cwd=folder, capture_output=True, text=True, timeout=LIMIT)
    taken = time.monotonic() - started
    if done.returncode or (wanted and models.names(onnx.load(folder / "r.onnx")) != list(wanted)):
        raise RuntimeError(f"{scenario.name} ended with {done.returncode}: {(done.stderr or done.stdout)[-500:]}")
    told = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    checked = [event for event in told if event["event"] == "Checked"]
    after = taken - told[-1]["at"]  # from the start of the process to that of its clock, as good as all
    return Measured(taken, after + checked[0]["at"] - checked[0]["seconds"], len(checked))


@contextmanager
def cluster_of(places: int) -> Iterator[str]:
    """The address of a cluster of this machine with so many logical processors. It shows nothing to other machines."""
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"HOME": home, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        from ray.cluster_utils import Cluster

        arguments = {"num_cpus": places, "object_store_memory": 200 << 20, "include_dashboard": False}
        made = Cluster(initialize_head=True, head_node_args=arguments)
        try:
            yield str(made.address)
        finally:
            made.shutdown()


def table(scenarios: Sequence[Scenario] = SCENARIOS, places: int = PLACES, seconds: float = SECONDS) -> str:
    """One row for each search."""
    lines = [
        f"| search | checks | their sleep, s | one at a time, s | {places} at once, s | at best, s | times faster |"
        " at best | first check begins at, s |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    with (
        tempfile.TemporaryDirectory() as top,
        cluster_of(max(places, len(scenarios))) as cluster,
        ThreadPoolExecutor() as threads,
    ):
        folder = Path(top)
        alone = [
            threads.submit(measured, each, cluster, 1, seconds, folder / f"alone{number}")
            for number, each in enumerate(scenarios)
        ]
        once = [attempt(partial(one.result), LIMIT) for one in alone]
        for number, (scenario, single) in enumerate(zip(scenarios, once, strict=True)):
            many = attempt(partial(measured, scenario, cluster, places, seconds, folder / f"many{number}"), LIMIT)
            lines.append(_row(scenario, single, many, places, seconds, folder))
    return "\n".join(lines)


def _row(
    scenario: Scenario,
    single: Measured | NotMeasured,
    many: Measured | NotMeasured,
    places: int,
    seconds: float,
    folder: Path,
) -> str:
    if isinstance(single, NotMeasured) or isinstance(many, NotMeasured):
        return f"| {scenario.name} |  |  | {single if isinstance(single, NotMeasured) else many} |  |  |  |  |  |"
    (one, checks), (least, _) = (best(scenario, jobs, folder) for jobs in (1, places))
    cells = [
        scenario.name,
        checks if checks == many.checks == single.checks else f"{checks}, {single.checks}, {many.checks}",
        f"{one * seconds:.1f}",
        f"{single.seconds:.1f}",
        f"{many.seconds:.1f}",
        f"{least * seconds:.1f}",
        times_faster(one * seconds, many.seconds),
        times_faster(one, least),
        f"{many.until_first:.1f}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long a check sleeps (default: 2)")
    parser.add_argument("--places", type=int, default=PLACES, help="checks at once (default: 16)")
    parser.add_argument("--quick", action="store_true", help="two small searches")
    args = parser.parse_args()
    print(table(QUICK if args.quick else SCENARIOS, args.places, args.seconds))
