"""``biopsy check lint``: finds the nodes of a model that are invalid or fail, and other errors."""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from biopsy.checks import verdict
from biopsy.cli.arguments import engines, groups, types
from biopsy.cli.arguments.declared import option
from biopsy.cli.arguments.engines import TensorrtOptions
from biopsy.cli.arguments.groups import CommandLimits
from biopsy.cli.console import Console
from biopsy.cli.run.execution import Feeder
from biopsy.engines.registry import EngineSpec, create
from biopsy.engines.runner import feeds_for
from biopsy.model.index import ModelIndex
from biopsy.model.sources import places_of
from biopsy.model.tensor_type import TensorType
from biopsy.processes import writing
from biopsy.questions.lint.lint import lint
from biopsy.questions.lint.rules import Level, Report
from biopsy.tensors.results import Feed
from biopsy.text import count, first_of

EPILOG = """\
examples:
  biopsy check lint model.onnx                                  what is wrong, and with which nodes?
  biopsy check lint model.onnx -o report.json                   the same as JSON, in the form of Polygraphy
  biopsy check lint model.onnx --input-shapes x:[1,3,224,224]   choose the shapes that the model leaves open
  biopsy check lint model.onnx --load-inputs inputs.json        run it with inputs of your own
  biopsy check lint model.onnx --openvino                       ask another engine than ONNX Runtime

exit status: 0 there are no errors; 1 there are some; 4 nothing was concluded"""

_MOST_NAMED = 5
_WORDS = {"exception": "error", "warning": "warning", "info": "info"}


class LintOptions(
    groups.ModelOption,
    groups.OutputOption,
    groups.WeightsFolderOption,
    groups.SavedInputOptions,
    engines.EngineOptions,
    CommandLimits,
):
    """All options of ``check lint``."""

    node_timeout: float = option(
        "--node-timeout",
        type=types.duration,
        default="10m",
        meaning="a node that takes longer fails: 90s, 10m, 1h (default: 10m)",
    )

    @property
    def feeds_random_inputs(self) -> bool:
        """Whether the inputs are random."""
        return not (self.load_inputs or self.data_loader_script)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``check lint``."""
    LintOptions.add(
        parser,
        without=(*CommandLimits.declared, *TensorrtOptions.declared),
        titles={"engines": "the engine that runs the nodes (default: --onnxrt)"},
        output="also write the report to this file, as JSON",
    )
    TensorrtOptions.add(parser)


@LintOptions.reading
def execute(options: LintOptions, console: Console) -> int:
    """Lint the model, show the findings and write the report."""
    spec = options.only_spec() or EngineSpec("onnxrt")
    create(spec)
    if options.output is not None:
        writing.require_writable(options.output)
    verdict.report_looking()

    def samples(index: ModelIndex) -> Iterator[Sequence[Feed]]:
        """The inputs that the options name, then others. They are read only after the model."""
        feeder = Feeder(options.inputs(), options.save_inputs, console, lambda _: None)
        return itertools.chain([feeder.feeds(index.fed_types())], _other_samples(index, options))

    report = lint(
        options.model,
        options.external_data_dir or options.model.parent,
        spec.text,
        samples,
        timeout=options.node_timeout,
        memory=options.memory_limit and int(_FOR_NODES * options.memory_limit),
    )
    _show(report, console)
    if options.output is not None:
        writing.write_whole(options.output, [json.dumps(report.as_json(), indent=4).encode("ascii"), b"\n"])
        console.note(f"report written to {options.output}")
    if report.failing and options.feeds_random_inputs:
        console.note(
            "the inputs were random, and what fails was tried with others too: --load-inputs runs it with yours"
        )
    return 0 if report.is_valid else 1


_FOR_NODES = 0.75
"""The part of ``--memory-limit`` that the engine may use: a node that needs more fails, but not the command."""

_OTHER_RANGE = (1.0, 2.0)
_OTHER_SIZES = (None, 2, 8)


def _other_samples(index: ModelIndex, options: LintOptions) -> Iterator[Sequence[Feed]]:
    """Further random inputs, without zeros and with other sizes of open dimensions; none if inputs were given."""
    if not options.feeds_random_inputs:
        return
    inputs = options.inputs()
    wanted = index.fed_types()
    is_open = False
    for size in _OTHER_SIZES:
        if size is not None and not is_open:
            return
        shapes = dict(inputs.shapes)
        for name, kind in wanted.items():
            given = shapes.get(name)
            if not isinstance(kind, TensorType) or kind.shape is None:
                continue
            dims = [
                kind.shape[at] if given is None or given[at] is None else given[at] for at in range(len(kind.shape))
            ]
            is_open |= any(not isinstance(dim, int) and dim not in inputs.symbols for dim in dims)
            if size is not None:
                shapes[name] = tuple(
                    dim if isinstance(dim, int) else inputs.symbols.get(dim or "", size) for dim in dims
                )
        ranges = {"": _OTHER_RANGE, **inputs.val_range}
        yield feeds_for(wanted, replace(inputs, shapes=shapes, val_range=ranges)).feeds


def _show(report: Report, console: Console) -> None:
    """Show the findings and a summary. Equal findings of several sources share a line."""
    sources: dict[tuple[Level, str, tuple[int, ...]], list[str]] = {}
    for entry in report.entries:
        sources.setdefault((entry.level, entry.message, entry.nodes), []).append(entry.source)
    levels = Counter(level for level, _, _ in sources)
    for (level, message, nodes), finders in sources.items():
        line = f"{_WORDS[level]:<8} {_named(report, nodes)}{message}  [{', '.join(finders)}]"
        say = console.detail if level == "info" else console.say
        say(line)
        for place in places_of(report.sources.get(node) for node in nodes[:_MOST_NAMED]):
            say(f"{'':<8} {place.text}")
    passing, failing = len(report.passing), len(report.failing)
    other = len(report.names) - passing - failing
    findings = f"{count(levels['exception'], 'error')} and {count(levels['warning'], 'warning')}"
    nodes_run = [f"{passing} of {count(len(report.names), 'node')} run"]
    if failing:
        nodes_run.append(f"{failing} {'has' if failing == 1 else 'have'} errors")
    if other:
        nodes_run.append(f"{other} could not be tested")
    console.say(f"{'PASSED' if report.is_valid else 'FAILED'} | {findings} · {', '.join(nodes_run)}")


def _named(report: Report, nodes: Sequence[int]) -> str:
    return f"{first_of([repr(report.names[node]) for node in nodes], _MOST_NAMED)}: " if nodes else ""
