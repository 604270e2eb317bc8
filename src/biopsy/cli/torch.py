"""``biopsy torch``: finds the line of a PyTorch module that its ONNX model computes wrongly."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.words import as_word
from biopsy.cli.advice import Advice, say_advice
from biopsy.cli.arguments import types
from biopsy.cli.arguments.checks import EventsOption
from biopsy.cli.arguments.declared import option, switch
from biopsy.cli.arguments.groups import FACTORY, ModuleOptions
from biopsy.cli.console import Console, headed
from biopsy.cli.debug.checking import ended_politely
from biopsy.cli.diagnose import DiagnosisProgress
from biopsy.cli.report import ReportOption
from biopsy.findings.report import versions_tree
from biopsy.findings.verdict import Verdict
from biopsy.processes.writing import require_writable
from biopsy.text import first_of, line_of
from biopsy.torch.calls import named_call, surroundings
from biopsy.torch.diagnosing import diagnose, require_folder
from biopsy.torch.exporting import dynamic_shapes_of
from biopsy.torch.facts import GOLDEN, TorchDiagnosis

_DEFAULT_SUSPECT = "onnxrt"
_MOST_PLACES = 5
_MOST_NODES = 6

EPILOG = f"""\
{FACTORY}

Who is to blame? Asked in turn: does the module give the same twice? does what torch.export captures? what torch.onnx
exports, in engines that share no code? the suspect? is it further from float64 than rounding takes PyTorch, at the end
or in a single step? Then the line, the smallest part that still fails, and what else is wrong.

examples:
  biopsy torch shop.models:ranker -o found
  biopsy torch shop.models:ranker --args inputs.pt --suspect openvino -o found --report found.html
  biopsy torch shop.models:ranker --args inputs.safetensors --atol 1e-3 --rtol 1e-3 -o found --json

exit status: 0 nothing fails; 1 the module, its capture, the exporter or the engine fails, or the tolerances are
narrower than rounding: the verdict says which, as far as that is known; 2 wrong usage; 4 nothing was concluded
(PyTorch or an engine is missing, the module itself raises); 5 interrupted"""


_COMPARED = "what is compared, and how"


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
    atol: float | None = option(
        "--atol",
        title=_COMPARED,
        type=types.tolerance,
        metavar="NUMBER",
        meaning="absolute tolerance (default: what rounding explains)",
    )
    rtol: float | None = option(
        "--rtol",
        title=_COMPARED,
        type=types.tolerance,
        metavar="NUMBER",
        meaning="relative tolerance (default: what rounding explains)",
    )
    no_optimize: bool = switch(
        "--no-optimize", title=_COMPARED, meaning="export with optimize=False, without onnxscript's optimizer"
    )
    run_timeout: float | None = option(
        "--run-timeout", title=_COMPARED, type=types.duration, meaning="end a run that takes longer: 90s"
    )
    max_time: float | None = option(
        "--max-time",
        title=_COMPARED,
        type=types.duration,
        meaning="stop after this time (90s, 10m, 2h), and show what is known by then and what is not",
    )
    json: bool = switch("--json", meaning="print the report as JSON on stdout, and nothing else")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``torch``."""
    TorchOptions.add(parser, titles={"events": ""})


@TorchOptions.reading
def execute(options: TorchOptions, console: Console) -> int:
    """Diagnose the module; returns 0 if nothing fails, 1 if something does, 4 if that could not be decided."""
    with surroundings(is_stdout_ours=options.json):
        if options.events is not None:
            require_writable(options.events)
        require_folder(options.output)
        shapes = types.parse_symbolic_shapes(options.dynamic_shapes, "--dynamic-shapes")
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


def _say(console: Console, word: str, diagnosis: TorchDiagnosis) -> None:
    """Show the verdict, the evidence and what to type next."""
    verdict = diagnosis.verdict
    blame = f"{verdict.blame}, its {verdict.part}: " if verdict.part else f"{verdict.blame}: "
    console.note("")
    console.say(f"{word} | {'' if verdict.blame == 'passes' else blame}{verdict.text}")
    for head, text in _facts(diagnosis):
        console.say(headed(head, text))
    for remark in diagnosis.remarks:
        console.warn(remark)
    kept = "nothing was left to keep" if diagnosis.folder is None else diagnosis.folder
    console.note(headed("evidence", f"{kept} · {diagnosis.seconds:.1f} s"))
    say_advice(console, next_lines(diagnosis))


def _sections(diagnosis: TorchDiagnosis) -> Mapping[str, Any]:
    """The sections of the report."""
    tree, verdict = diagnosis.as_json(), diagnosis.verdict
    return {
        "verdict": Verdict(kind=verdict.blame, text=verdict.text, certainty=verdict.reason or None),
        "versions": versions_tree([diagnosis.suspect]),
        "steps": tree.pop("steps"),
        "torch": tree,
        "next": [vars(advice) for advice in next_lines(diagnosis)],
    }


def _facts(diagnosis: TorchDiagnosis) -> Iterator[tuple[str, str]]:
    for place in diagnosis.places[:_MOST_PLACES]:
        yield "at", str(place)
        yield from [("", f"    {place.code}")] if place.code else []
    if len(diagnosis.places) > _MOST_PLACES:
        yield "", f"and {len(diagnosis.places) - _MOST_PLACES} more lines"
    if diagnosis.error and diagnosis.error not in diagnosis.verdict.text:
        yield "error" if diagnosis.failed else "rounding", diagnosis.error
    if diagnosis.verdict.reason:
        yield "reason", diagnosis.verdict.reason
    for fault in diagnosis.further:
        yield "also", f"{fault.verdict.blame}: {fault.verdict.text} {fault.error}"
        yield from (("", f"at {place}: {place.code or ''}") for place in fault.places[:_MOST_PLACES])
    if diagnosis.values is not None:
        yield "values", f"PyTorch's are known for {diagnosis.values.matched} of {diagnosis.values.of} tensors"
    piece = diagnosis.piece
    if piece is not None:
        yield "piece", f"{len(piece.nodes)} of {piece.of} nodes: {first_of(piece.nodes, _MOST_NODES)}"
    if piece is not None and piece.bundle is not None:
        yield "bundle", f"{piece.bundle}, whose reproduce.py fails without PyTorch"


def next_lines(diagnosis: TorchDiagnosis) -> Sequence[Advice]:
    """What to type next."""
    piece = diagnosis.piece
    if piece is None or piece.path is None or diagnosis.folder is None:
        return []
    lines = [Advice(line_of(["biopsy", "inspect", "model", as_word(piece.path), "--mode=full"]), "what is left")]
    if diagnosis.verdict.blame == "engine":
        golden = as_word(diagnosis.folder / GOLDEN)
        words = ["biopsy", "run", as_word(piece.path), "--engine", diagnosis.suspect]
        line = line_of([*words, "--load-inputs", golden, "--load-outputs", golden])
        lines.append(Advice(line, "the failure again, held against PyTorch"))
    return lines
