"""``biopsy torch``: which line of a PyTorch module is to blame for what its ONNX model gives."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from biopsy import errors
from biopsy.checks.words import as_word
from biopsy.cli.advice import Advice, say_advice
from biopsy.cli.arguments import checks, comparing, types
from biopsy.cli.arguments.groups import FACTORY, ModuleOptions
from biopsy.cli.console import COLUMN, Console
from biopsy.cli.debug.checking import ended_politely
from biopsy.cli.report import ReportOption, report_file
from biopsy.processes.writing import require_writable
from biopsy.text import first_of, line_of
from biopsy.torch.facts import TorchDiagnosis

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


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``torch``."""
    parser.epilog = _EPILOG
    ModuleOptions.add(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=types.FOLDER_WRITTEN,
        required=True,
        metavar="DIR",
        help="a folder, new or empty, for the exported model, its inputs, the values of the module, and the smallest "
        "part that still fails as a folder to send",
    )
    parser.add_argument(
        "--suspect",
        default=_DEFAULT_SUSPECT,
        metavar="NAME[:key=value,...]",
        help=f"the engine to examine; 'biopsy doctor' lists all (default: {_DEFAULT_SUSPECT})",
    )
    _add_comparison(parser.add_argument_group("what is compared, and how"))
    group = parser.add_argument_group("what is told")
    ReportOption.add(group)
    group.add_argument("--json", action="store_true", help="print the report as JSON on stdout, and nothing else")
    checks.EventsOption.add(group)


def _add_comparison(group: argparse._ArgumentGroup) -> None:
    for option, which in (("--atol", "absolute"), ("--rtol", "relative")):
        group.add_argument(
            option,
            type=types.tolerance,
            default=_TOLERANCE,
            metavar="NUMBER",
            help=f"{which} tolerance (default: {_TOLERANCE})",
        )
    group.add_argument(
        "--no-optimize", action="store_true", help="export with optimize=False, without onnxscript's optimizer"
    )
    group.add_argument("--run-timeout", type=types.duration, metavar="TIME", help="end a run that takes longer: 90s")
    group.add_argument(
        "--max-time",
        type=types.duration,
        metavar="TIME",
        help="stop after this time (90s, 10m, 2h), and say what is known by then, and what is open",
    )


def execute(args: argparse.Namespace, console: Console) -> int:
    """Diagnose the module; returns 0 if nothing fails, 1 if something does, 4 if not even that is known."""
    from biopsy.torch.loading import surroundings

    with surroundings(is_stdout_ours=args.json):
        from biopsy.cli.diagnose import DiagnosisProgress
        from biopsy.torch.diagnosing import diagnose, require_folder
        from biopsy.torch.exporting import dynamic_shapes_of
        from biopsy.torch.loading import named_call

        if args.events is not None:
            require_writable(args.events)
        require_folder(args.output)
        shapes = comparing.parse_symbolic_shapes(args.dynamic_shapes, "--dynamic-shapes")
        shown = console.on_stderr() if args.json else console
        report = report_file(args, shown)
        module, given = named_call(args.factory, args.arguments)
        with ended_politely(), DiagnosisProgress(shown, args.events) as progress, report.also_of_errors():
            found = diagnose(
                module,
                given.args,
                given.kwargs,
                dynamic_shapes=dynamic_shapes_of(module, given, shapes),
                suspect=args.suspect,
                output=args.output,
                atol=args.atol,
                rtol=args.rtol,
                export={"optimize": False} if args.no_optimize else None,
                run_timeout=args.run_timeout,
                max_time=args.max_time,
                listener=progress,
            )
            status = progress.ended({True: 1, False: 0, None: errors.CannotCompare.status}[found.failed])
        word = {True: "FAILED", False: "PASSED", None: "UNKNOWN"}[found.failed]
        verdict = found.verdict
        blame = f"{verdict.blame}, its {verdict.part}" if verdict.part else verdict.blame
        shown.note("")
        shown.say(f"{word} | {verdict.text if verdict.blame == 'passes' else f'{blame}: {verdict.text}'}")
        for head, text in _facts(found):
            shown.say(f"{head:<{COLUMN}} {text}")
        for remark in found.remarks:
            shown.warn(remark)
        kept = "nothing was left to keep" if found.folder is None else found.folder
        shown.note(f"{'evidence':<{COLUMN}} {kept} · {found.seconds:.1f} s")
        say_advice(shown, next_lines(found))
        report.write(status, lambda: _sections(found))
        if args.json:
            console.program_text(report.as_bytes(status, lambda: _sections(found)).decode("ascii"))
        return status


def _sections(found: TorchDiagnosis) -> Mapping[str, Any]:
    """What a report tells."""
    from biopsy.findings.report import versions_tree
    from biopsy.findings.verdict import Verdict

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
    from biopsy.torch.location import GOLDEN

    if found.piece is None or found.piece.path is None or found.folder is None:
        return []
    lines = [Advice(line_of(["biopsy", "inspect", "model", as_word(found.piece.path), "--mode=full"]), "what is left")]
    if found.verdict.blame == "engine":
        golden = as_word(found.folder / GOLDEN)
        words = ["biopsy", "run", as_word(found.piece.path), "--engine", found.suspect]
        line = line_of([*words, "--load-inputs", golden, "--load-outputs", golden])
        lines.append(Advice(line, "the failure again, held against PyTorch"))
    return lines
