"""biopsy and Polygraphy side by side: the same models, the same failures, each as a whole process.

    python -m benchmarks.side_by_side --peer FOLDER [--quick] [-o FILE]

``FOLDER`` is an environment with Polygraphy 0.53.6. The check is a Python script that looks for nodes by their names;
a failure needs one, two or three of them at given places. Counts of checks are the same on every machine; seconds are
not, so look at the ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import onnx

from benchmarks import big_models, candidates, golden_json, models, own_run, rounds, stores
from benchmarks.attempts import NotMeasured, attempt, times_faster
from benchmarks.running import LIMIT, Run, Tool, biopsy, one_at_a_time, run

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """A failure: the kind and size of the model, and where the nodes stand that it needs.

    ``alone`` says why the peer is not run on it; "" if it is.
    """

    kind: str
    nodes: int
    pattern: str
    alone: str = ""


SECTION_LIMIT = 7_200.0
"""Seconds after which a section is given up."""

PEER_EXTERNAL = ("--external-data-dir", ".", "--save-external-data")
"""What Polygraphy wants to be told about weights in other files."""

CASES = (
    Case("chain", 5, "middle"),
    Case("inception", 100, "two far apart"),
    *(Case("transformer", nodes, "middle") for nodes in (105, 641, 1_746, 10_046)),
    *(Case("transformer", 1_000, pattern) for pattern in ("middle", "two far apart", "three")),
    Case("inception", 1_000, "two far apart"),
    Case("control flow", 1_000, "middle"),
    Case("transformer", 50_000, "middle"),
    Case("transformer", 100_000, "middle", alone="it does not end at 50,000"),
    Case("4 GB", 128, "middle"),
    Case("4 GB", 128, "two far apart", alone="it gives no result with 4 GB"),
)
QUICK = (
    Case("chain", 5, "middle"),
    Case("transformer", 105, "middle"),
    Case("inception", 100, "two far apart"),
    Case("transformer", 641, "middle"),
)


@contextlib.contextmanager
def built(cases: Sequence[Case]) -> Iterator[dict[tuple[str, int], Path]]:
    """The models of the cases, each in a folder of its own."""
    with tempfile.TemporaryDirectory() as top:
        paths = {}
        for kind, nodes in dict.fromkeys((case.kind, case.nodes) for case in cases):
            folder = Path(top) / f"{kind}-{nodes}"
            folder.mkdir()
            if kind == "4 GB":
                paths[kind, nodes] = models.big(folder)
            else:
                paths[kind, nodes] = folder / "model.onnx"
                paths[kind, nodes].write_bytes(models.KINDS[kind](nodes).SerializeToString())
        yield paths


Made: TypeAlias = Run | NotMeasured
"""What one tool did with one case, or why nobody knows."""


def compare(cases: Sequence[Case], tools: Sequence[Tool]) -> list[tuple[Case, list[Made]]]:
    """Every tool on every case; the last one is the peer, which is not run on all."""
    found = []
    with built(cases) as paths:
        for case in cases:
            path = paths[case.kind, case.nodes]
            names = models.names(onnx.load(path, load_external_data=False))
            wanted = models.PATTERNS[case.pattern](names)
            runs: list[Made] = []
            for tool in tools[: -1 if case.alone else None]:
                runs.append(attempt(partial(run, tool, path, wanted), 2 * LIMIT))
                print(line(case, tool.name, runs[-1], None), flush=True)
            found.append((case, [*runs, NotMeasured(case.alone)] if case.alone else runs))
    return found


PAGE = """\
# Results

Written by `make bench`. {versions}.

Counts of checks are the same on every machine, and pinned by `tests/quality/test_counts.py`. Seconds are not: compare
the two tools with each other. Other work on the machine can double any of them.

## Reductions

Each run is a whole process, `debug reduce` from start to end, in the same folder on the same model. The check is
the same for both, a Python script that loads the candidate without its weights and looks for one, two or three nodes by
their names (`finds_nodes.py`). biopsy runs as many checks at once as it chooses, and once more with `--jobs 1`: own
time is what is left of the wall time without the checks, and can be told only there. Its checks include those that
Polygraphy does not make: the original three times, a model of one Identity node, which should pass, a result of several
nodes eight times, and the result as it was written. Memory is that of the reducing process at its highest. A run is
stopped after {limit} s; "no result" is a traceback. Times faster: Polygraphy's wall time by that of the row. "Not
measured" says why a row is empty.

{reductions}

## Rounds by checks at once

The transformer-like model, and a simulated clock on which every check takes one round and nothing else takes time: the
same on every machine, and pinned by `tests/quality/test_rounds.py`. Times faster: than one check after the other.

{rounds}

## Searches on a Ray cluster

A cluster of this machine with 16 logical processors, and a check that sleeps 2 s: whole processes, which join the
cluster and start a process in each place (on the cores that there are). At best: what the same search takes on the
simulated clock. Times faster: than the checks of one after the other sleep, without anything else. A failure of some
nodes of the transformer-like model with 1,000 nodes, or 100 with `--mode linear`.

{ray}

## Checks that are our own `run`

Transformer-like models, one node of which computes something else than its golden values say; the check is
`run ... --load-inputs --load-outputs` with JSON files, of biopsy for biopsy and of Polygraphy for Polygraphy. Below
them, one check of a model of one node, as a fork of the warm process and as a process of its own; and a model of 1,000
nodes with a check that sleeps 200 ms and needs two nodes far apart.

{own}

## Golden values of 500 MB

A check of a small candidate needs three of fifty tensors: the time from when everything is imported until they have
been summed, and the memory that this took. Files are in the page cache.

{read}

## Golden values of every tensor as JSON

densenet121 and squeezenet without trained weights, one of 1,746 or 104 nodes wrong; 472 or 45 MB of inputs, and as
much of golden values. The check of both is their own `run` with these files; biopsy reduces in its default mode,
Polygraphy by bisection. Memory is that of the largest process; for the run of one node, a cold process with the larger
files, it is above that of a run without files.

{golden}

## Candidates

Random subsets of the transformer-like model, as bytes in memory: the median over 41 subsets, the best of five for each.
graphsurgeon: copy, choose nodes, clean up, export, as Polygraphy 0.53.6 does.

{candidates}

## 4 GB and 100 GB of external weights

64 weights of 64 MB in sparse files, 128 nodes; and 1,600 of them, 3,200 nodes. One node or two far apart are needed.
Memory is above that of reducing a model of five nodes. Polygraphy has no result on either.

{big}
"""

HEAD = """\
| model | nodes | failure needs | tool | checks | wall, s | own time per check, ms | peak, MB | left | times faster |
|---|--:|---|---|--:|--:|--:|--:|--:|--:|"""


def line(case: Case, tool: str, made: Made, peer: Made | None) -> str:
    """One row of the table; ``peer`` is what it is compared with. Without a run, why there is none."""
    if isinstance(made, NotMeasured):
        cells = [case.kind, f"{case.nodes:,}", case.pattern, tool, "", str(made), "", "", "", ""]
        return f"| {' | '.join(cells)} |"
    wall = f"> {made.seconds:.0f} (stopped)" if made.ended == "stopped" else f"{made.seconds:.1f}"
    overhead = "" if made.overhead is None else f"{1000 * made.overhead:,.0f}"
    left = made.ended if made.ended and made.ended != "stopped" else "" if made.nodes is None else f"{made.nodes:,}"
    known = isinstance(peer, Run) and peer.ended != "no result" and not made.ended
    ratio = times_faster(peer.seconds, made.seconds, at_least=peer.ended == "stopped") if known else ""
    cells = [case.kind, f"{case.nodes:,}", case.pattern, tool, len(made.checks), wall, overhead, f"{made.peak:,.0f}"]
    return "| " + " | ".join(map(str, [*cells, left, ratio])) + " |"


def table(found: Sequence[tuple[Case, list[Made]]], tools: Sequence[Tool]) -> str:
    """All runs; the last column compares each with the last tool of the same case, the peer."""
    rows = [
        line(case, tool.name, made, runs[-1] if tool is not tools[-1] else None)
        for case, runs in found
        for tool, made in zip(tools, runs, strict=True)
    ]
    return "\n".join([HEAD, *rows])


def versions(peer: Path) -> str:
    """Which programs on which machine, and when."""
    code = (
        "from importlib.metadata import version as v;"
        "print(', '.join(f'{n} {v(n)}' for n in ('polygraphy', 'onnx', 'onnx-graphsurgeon', 'onnxruntime')))"
    )
    theirs = subprocess.run([peer / "bin/python", "-c", code], stdout=subprocess.PIPE, check=True, text=True)
    return (
        f"{datetime.date.today().isoformat()} · Linux {platform.machine()}, {os.cpu_count()} cores · Python "
        f"{platform.python_version()} · onnx {onnx.__version__} · beside it {theirs.stdout.strip()}"
    )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--ray", type=Path, metavar="FOLDER", help="an environment with biopsy[ray]")
    parser.add_argument("--quick", action="store_true", help="few and small models; nothing is written")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "RESULTS.md")
    args = parser.parse_args()
    theirs = args.peer.absolute() / "bin"
    polygraphy = Tool("Polygraphy bisect", theirs / "python", theirs / "polygraphy", "bisect", PEER_EXTERNAL)
    alone = one_at_a_time(biopsy("minimal"))
    tools = [biopsy("minimal"), alone, polygraphy]
    peer = args.peer.absolute()
    tables = {
        "reductions": lambda: table(compare(QUICK if args.quick else CASES, tools), tools),
        "rounds": lambda: rounds.table(rounds.QUICK if args.quick else rounds.NODES),
        "candidates": lambda: candidates.table(
            candidates.measure(candidates.SIZES[: 1 if args.quick else None], str(theirs / "python"))
        ),
    }
    if not args.quick:
        tables |= {
            "ray": lambda: _on_ray(args.ray),
            "big": lambda: big_models.table(big_models.measure(alone)),
            "own": lambda: own_run.table(peer),
            "read": lambda: stores.table(peer),
            "golden": lambda: golden_json.table(peer),
        }
    print(HEAD)
    made = {name: _section(make) for name, make in tables.items()}
    if not args.quick:
        args.output.write_text(PAGE.format(versions=versions(args.peer), limit=f"{LIMIT:.0f}", **made))


def _on_ray(folder: Path | None) -> str:
    """The table of ``other_machines``, by the interpreter of an environment that has Ray."""
    if folder is None:
        raise ValueError("--ray FOLDER names no environment")
    program = [folder.absolute() / "bin" / "python", "-m", "benchmarks.other_machines"]
    return subprocess.run(program, cwd=HERE.parent, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _section(make: Callable[[], str]) -> str:
    """A table, or why there is none; shown as soon as it is known. Each of its rows has a limit of its own."""
    made = attempt(make, SECTION_LIMIT)
    text = f"This section was {made}" if isinstance(made, NotMeasured) else made
    print(text, flush=True)
    return text


if __name__ == "__main__":
    main()
