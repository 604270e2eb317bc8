"""``biopsy torch``: which line of a PyTorch module is to blame for what its ONNX model gives."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.words import as_word
from biopsy.cli.advice import Advice, say_advice
from biopsy.cli.arguments import comparing, types
from biopsy.cli.arguments.checks import EventsOption
from biopsy.cli.arguments.declared import option, switch
from biopsy.cli.arguments.groups import FACTORY, ModuleOptions
from biopsy.cli.console import COLUMN, Console
from biopsy.cli.debug.checking import ended_politely
from biopsy.cli.diagnose import DiagnosisProgress
from biopsy.cli.report import ReportOption
from biopsy.findings.report import versions_tree
from biopsy.findings.verdict import Verdict
from biopsy.processes.writing import require_writable
from biopsy.text import first_of, line_of
from biopsy.torch.calls import named_call, surroundings
from biopsy.torch.exporting import dynamic_shapes_of
from biopsy.torch.facts import GOLDEN, TorchDiagnosis

_DEFAULT_SUSPECT = "onnxrt"
_TOLERANCE = "1e-5"
_MOST_PLACES = 5
_MOST_NODES = 6

_EPILOG = f"""\
{FACTORY}

Who is to blame? Asked in turn: does the module give the same twice? does what torch.export captures? what torch.onnx
exports, in engines that share no code? the suspect? Then the line, and the smallest part that still fails.

examples:
  biopsy torch shop.models:ranker -o found
  biopsy torch shop.models:ranker --args inputs.pt --suspect openvino -o found --report found.html
  biopsy torch shop.models:ranker --args inputs.safetensors --atol 1e-3 --rtol 1e-3 -o found --json

exit status: 0 nothing fails; 1 the module, its capture, the exporter or the engine fails, or the tolerances are
narrower than rounding: whose fault that is, is said as far as it is known; 2 wrong usage; 4 nothing was concluded
(PyTorch or an engine is missing, the module itself raises); 5 interrupted"""


class TorchOptions(ModuleOptions, ReportOption, EventsOption):
    """All options of ``torch``."""

    output: Path = option(
        "-o",
        "--output",
        type=types.FOLDER_WRITTEN,
        required=True,
        meaning="a folder, new or empty, for the exported model, its inputs, the values of the module, and the "
        "smallest part that still fails as a folder to send",
    )
    suspect: str = option(
        "--suspect",
        default=_DEFAULT_SUSPECT,
        metavar="NAME[:key=value,...]",
        meaning=f"the engine to examine; 'biopsy doctor' lists all (default: {_DEFAULT_SUSPECT})",
    )
    atol: float = option(
        "--atol",
        type=types.tolerance,
        default=_TOLERANCE,
        metavar="NUMBER",
        meaning=f"absolute tolerance (default: {_TOLERANCE})",
    )
    rtol: float = option(
        "--rtol",
        type=types.tolerance,
        default=_TOLERANCE,
        metavar="NUMBER",
        meaning=f"relative tolerance (default: {_TOLERANCE})",
    )
    no_optimize: bool = switch("--no-optimize", meaning="export with optimize=False, without onnxscript's optimizer")
    run_timeout: float | None = option(
        "--run-timeout", type=types.duration, metavar="TIME", meaning="end a run that takes longer: 90s"
    )
    max_time: float | None = option(
        "--max-time",
        type=types.duration,
        metavar="TIME",
        meaning="stop after this time (90s, 10m, 2h), and say what is known by then, and what is open",
    )
    json: bool = switch("--json", meaning="print the report as JSON on stdout, and nothing else")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``torch``."""
    parser.epilog = _EPILOG
    TorchOptions.add(parser, only=(*ModuleOptions.declared, "output", "suspect"))
    group = parser.add_argument_group("what is compared, and how")
    TorchOptions.add(group, only=("atol", "rtol", "no_optimize", "run_timeout", "max_time"))
    TorchOptions.add(parser.add_argument_group("what is told"), only=("report", "json", "events"))


@TorchOptions.reading
def execute(options: TorchOptions, console: Console) -> int:
    """Diagnose the module; returns 0 if nothing fails, 1 if something does, 4 if not even that is known."""
    from biopsy.torch.diagnosing import diagnose, require_folder

    with surroundings(is_stdout_ours=options.json):
        if options.events is not None:
            require_writable(options.events)
        require_folder(options.output)
        shapes = comparing.parse_symbolic_shapes(options.dynamic_shapes, "--dynamic-shapes")
        shown = console.on_stderr() if options.json else console
        report = options.report_file(shown)
        module, given = named_call(options.factory, options.arguments)
        with ended_politely(), DiagnosisProgress(shown, options.events) as progress, report.also_of_errors():
            diagnosis = diagnose(
                module,
                given.args,
                given.kwargs,
                dynamic_shapes=dynamic_shapes_of(module, given, shapes),
                suspect=options.suspect,
                output=options.output,
                atol=options.atol,
                rtol=options.rtol,
                export={"optimize": False} if options.no_optimize else None,
                run_timeout=options.run_timeout,
                max_time=options.max_time,
                listener=progress,
            )
            word, status = {True: ("FAILED", 1), False: ("PASSED", 0), None: ("UNKNOWN", errors.CannotCompare.status)}[
                diagnosis.failed
            ]
            status = progress.ended(status)
        _say(shown, word, diagnosis)
        report.write(status, lambda: _sections(diagnosis))
        if options.json:
            console.program_text(report.as_bytes(status, lambda: _sections(diagnosis)).decode("ascii"))
        return status


def _say(console: Console, word: str, found: TorchDiagnosis) -> None:
    """The verdict and what supports it, in lines."""
    verdict = found.verdict
    blame = f"{verdict.blame}, its {verdict.part}: " if verdict.part else f"{verdict.blame}: "
    console.note("")
    console.say(f"{word} | {'' if verdict.blame == 'passes' else blame}{verdict.text}")
    for head, text in _facts(found):
        console.say(f"{head:<{COLUMN}} {text}")
    for remark in found.remarks:
        console.warn(remark)
    kept = "nothing was left to keep" if found.folder is None else found.folder
    console.note(f"{'evidence':<{COLUMN}} {kept} · {found.seconds:.1f} s")
    say_advice(console, next_lines(found))


def _sections(found: TorchDiagnosis) -> Mapping[str, Any]:
    """What a report tells."""
    tree = found.as_json()
    return {
        "verdict": Verdict(kind=found.verdict.blame, text=found.verdict.text, certainty=found.verdict.reason or None),
        "versions": versions_tree([found.suspect]),
        "steps": tree.pop("steps"),
        "torch": tree,
        "next": [vars(one) for one in next_lines(found)],
    }


def _facts(found: TorchDiagnosis) -> Iterator[tuple[str, str]]:
    for place in found.places[:_MOST_PLACES]:
        yield "at", str(place)
        if place.code:
            yield "", f"    {place.code}"
    if len(found.places) > _MOST_PLACES:
        yield "", f"and {len(found.places) - _MOST_PLACES} more lines"
    if found.error and found.error not in found.verdict.text:
        yield "error", found.error
    if found.verdict.reason:
        yield "reason", found.verdict.reason
    if found.values is not None:
        yield "values", f"PyTorch's own are known of {found.values.matched} of {found.values.of} tensors"
    if found.piece is not None:
        yield "piece", f"{len(found.piece.nodes)} of {found.piece.of} nodes: {first_of(found.piece.nodes, _MOST_NODES)}"
    if found.piece is not None and found.piece.bundle is not None:
        yield "bundle", f"{found.piece.bundle}, whose reproduce.py fails without PyTorch"


def next_lines(found: TorchDiagnosis) -> Sequence[Advice]:
    """What to type next, each line as it is."""
    if found.piece is None or found.piece.path is None or found.folder is None:
        return []
    lines = [Advice(line_of(["biopsy", "inspect", "model", as_word(found.piece.path), "--mode=full"]), "what is left")]
    if found.verdict.blame == "engine":
        golden = as_word(found.folder / GOLDEN)
        words = ["biopsy", "run", as_word(found.piece.path), "--engine", found.suspect]
        line = line_of([*words, "--load-inputs", golden, "--load-outputs", golden])
        lines.append(Advice(line, "the failure again, held against PyTorch"))
    return lines
