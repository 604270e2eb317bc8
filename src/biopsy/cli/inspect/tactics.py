"""``biopsy inspect tactics``: shows a file of tactics."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from fnmatch import fnmatchcase

from biopsy.cli.arguments import types
from biopsy.cli.console import Console, headed
from biopsy.questions.builds.record import TacticRecord, TacticReplay, read_tactics

EPILOG = """\
examples:
  biopsy inspect tactics replay.json
  biopsy inspect tactics replay.json --layers 'conv*'     only the layers of these nodes"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``inspect tactics``."""
    parser.add_argument(
        "file", type=types.READ, metavar="FILE", help="a tactic record, or a tactic replay of Polygraphy"
    )
    parser.add_argument(
        "--layers", nargs="+", metavar="NAME", help="only layers with these nodes, or names; '*' stands for anything"
    )


def execute(args: argparse.Namespace, console: Console) -> int:
    """Show the file; a replay of Polygraphy as Polygraphy shows it."""
    tactics, patterns = read_tactics(args.file), args.layers or ["*"]
    if isinstance(tactics, TacticReplay):
        for name, algorithm in tactics.algorithms.items():
            if _matches((name,), patterns):
                console.say(f"Layer: {name}", f"    Algorithm: {algorithm}")
    else:
        for line in _record_lines(tactics, patterns):
            console.say(line)
    return 0


def _matches(names: tuple[str, ...], patterns: list[str]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _record_lines(record: TacticRecord, patterns: list[str]) -> Iterator[str]:
    engine = f"{record.engine} {record.version}".strip()
    yield headed("engine", f"{engine}{f' on {record.device}' if record.device else ''}")
    settings = [*record.settings.items(), *((f"env.{name}", value) for name, value in record.environment.items())]
    for key, value in settings:
        yield headed("", f"{key}={value}{'   (varied)' if key in record.varied else ''}")
    if record.model:
        yield headed("model", record.model)
    iteration = "" if record.iteration is None else f"iteration {record.iteration}"
    seconds = "" if record.build_seconds is None else f"built in {record.build_seconds:.3g} s"
    yield headed("build", " · ".join(filter(None, (iteration, seconds, record.outcome or "not checked"))))
    for remark in record.remarks:
        yield headed("", remark)
    layers = [layer for layer in record.layers if _matches(layer.nodes or (layer.kind,), patterns)]
    yield ""
    yield f"{len(layers)} of {len(record.layers)} layers" if record.layers else "the engine named no layers"
    for layer in layers:
        yield f"Layer: {', '.join(layer.nodes) or f'({layer.kind}, put in by the engine)'}"
        time = "" if layer.time_us is None else f"{layer.time_us:.4g} us"
        known = (layer.kind, layer.implementation, layer.precision, layer.layout, layer.device, time)
        yield f"    {' · '.join(filter(None, known))}"
