"""Reduces every failing model of a folder, one ``biopsy debug reduce`` for each: here, or as tasks of a Ray cluster.

    python reduce_corpus.py MODELS RESULTS [--jobs N | --on ADDRESS] --check COMMAND...

Each model is one ``.onnx`` file with its weights in it. RESULTS gets a folder for each: ``reduced.onnx``,
``report.json``, and ``said.txt``, what biopsy said. A model that has its folder is not reduced again, so the same
line goes on after a stop. On a cluster, programs and files that the check names must be on every machine.
Ends with 0 if each model was reduced or does not fail, else with 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

KEPT = ("reduced.onnx", "report.json")
ENDS = {0: "reduced", 3: "does not fail", 5: "stopped by a limit"}
"""What statuses of ``debug reduce`` mean; all others are troubles."""


def reduce_one(model: bytes, check: Sequence[str]) -> tuple[int, dict[str, bytes]]:
    """Reduce a model in a folder of its own, on whichever machine this runs; the status, and the files that stay."""
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top)
        (folder / "model.onnx").write_bytes(model)
        words = ["debug", "reduce", "model.onnx", "-o", "reduced.onnx", "--report", "report.json", "--jobs", "1"]
        done = subprocess.run(
            [sys.executable, "-m", "biopsy", *words, "--check", *check],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        files = {name: (folder / name).read_bytes() for name in KEPT if (folder / name).is_file()}
        return done.returncode, {**files, "said.txt": done.stdout}


def here(models: Sequence[Path], check: Sequence[str], jobs: int) -> Iterator[tuple[Path, int, dict[str, bytes]]]:
    """The same for many, so many at once on this machine, in their order."""
    with ThreadPoolExecutor(jobs) as threads:
        running = [(path, threads.submit(lambda path=path: reduce_one(path.read_bytes(), check))) for path in models]
        for path, run in running:
            yield path, *run.result()


def there(models: Sequence[Path], check: Sequence[str], address: str) -> Iterator[tuple[Path, int, dict[str, bytes]]]:
    """The same as tasks of a cluster, which runs as many as it has processors for, in the order in which they end."""
    import ray

    ray.init(address=address, log_to_driver=False)
    task = ray.remote(num_cpus=1)(reduce_one)
    waiting, running, room = list(reversed(models)), {}, 2 * int(ray.cluster_resources().get("CPU", 1))
    while waiting or running:
        while waiting and len(running) < room:  # a corpus is larger than memory
            path = waiting.pop()
            running[task.remote(path.read_bytes(), check)] = path
        (ended,), _ = ray.wait(list(running))
        yield running.pop(ended), *ray.get(ended)
    ray.shutdown()


def main() -> int:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="models at once on this machine (default: 1)")
    parser.add_argument("--on", metavar="ADDRESS", help="a Ray cluster: auto for the one of this machine, or HOST:PORT")
    parser.add_argument("--check", nargs=argparse.REMAINDER, required=True)
    args = parser.parse_args()
    models = [path for path in sorted(args.models.glob("*.onnx")) if not (args.results / path.stem).exists()]
    print(f"{len(models)} models", flush=True)
    work = there(models, args.check, args.on) if args.on else here(models, args.check, args.jobs)
    is_trouble = False
    for path, status, files in work:
        made = args.results / f".{path.stem}.part"
        made.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (made / name).write_bytes(content)
        made.rename(args.results / path.stem)
        is_trouble |= status not in ENDS
        print(
            f"{path.name}: {ENDS.get(status, f'status {status}, see {args.results / path.stem}/said.txt')}", flush=True
        )
    return int(is_trouble)


if __name__ == "__main__":
    sys.exit(main())
