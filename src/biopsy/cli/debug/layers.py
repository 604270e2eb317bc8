"""``biopsy debug layers``: which layers of a model an engine computes wrongly, and which only pass an error on."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.cli.arguments import comparing, file_kinds, groups, limits, types
from biopsy.cli.arguments.report_option import add_report
from biopsy.cli.debug import bundling, layers_engines, other_machines
from biopsy.cli.report_file import report_file

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.layerwise.examination import Examination
    from biopsy.layerwise.findings import LayerFindings
    from biopsy.layerwise.question import Question
    from biopsy.model.index import ModelIndex
    from biopsy.model.tensor_type import TensorType
    from biopsy.tensors.results import Feed

_DEFAULT_LIMIT = "1GB"

_EPILOG = """\
examples:
  biopsy debug layers model.onnx --onnxrt
  biopsy debug layers model.onnx --reference:float64 --openvino --atol 1e-3 --rtol 1e-3
  biopsy debug layers model.onnx --suspect openvino --load-inputs inputs.npz --report layers.json --csv layers.csv
  biopsy debug layers model.onnx --onnxrt --load-inputs inputs.npz --load-outputs golden.safetensors
  biopsy debug reduce model.onnx -o reduced.onnx --order-by layers.json --check biopsy run {} --onnxrt --openvino

exit status: 0 no tensor is out of tolerance; 1 some layer is wrong, or the suspect fails on the model; 2 wrong usage;
4 nothing was concluded (an engine is missing, the reference cannot run the model, no golden value judges some layers,
or one does not fit the model, and all else is right); 5 interrupted, what was measured until then is shown and
reported"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug layers``."""
    parser.epilog = _EPILOG
    parser.add_argument("model", type=file_kinds.READ, metavar="MODEL", help="the ONNX model")
    layers_engines.add(parser)
    group = parser.add_argument_group("what to measure, and how much to show")
    group.add_argument(
        "--run-timeout", type=types.duration, metavar="TIME", help="end a run that takes longer, e.g. 90s"
    )
    limits.add_to_runs(group)
    group.add_argument(
        "--nodes", metavar="REGEX", help="measure only layers whose name, operator or output matches somewhere"
    )
    group.add_argument(
        "--top", type=types.positive, default=10, metavar="N", help="show the N worst layers (default: 10)"
    )
    add_report(group)
    bundling.add(group, "the worst layer or group")
    group.add_argument("--csv", type=file_kinds.WRITTEN, metavar="FILE.csv", help="write one line per layer as CSV")
    group.add_argument("--events", type=file_kinds.WRITTEN, metavar="FILE", help="write what happens as JSON lines")
    _add_memory(parser)
    groups.add_inputs(parser)
    group = parser.add_argument_group("what is out of tolerance")
    comparing.add_tolerances(group)
    comparing.add_limits(parser)
    other_machines.add_refused(
        parser,
        "layers are compared with each other, so one machine measures them all, and each step needs the last one",
        "debug reduce --on ray    searches for the nodes that fail together on many machines",
    )


def _add_memory(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("memory and files")
    group.add_argument(
        "--record-memory",
        type=types.byte_size,
        default=_DEFAULT_LIMIT,
        metavar="SIZE",
        help="keep at most this much tensor data in memory; the tensors are computed in batches and kept in a "
        f"temporary file (default: {_DEFAULT_LIMIT})",
    )
    group.add_argument(
        "--work-dir",
        type=file_kinds.FOLDER_WRITTEN,
        metavar="DIR",
        help="folder for that temporary file: it holds every tensor of every sample (default: the system's "
        "folder for such files)",
    )
    groups.add_weights_folder(group)


def execute(args: argparse.Namespace, console: Console) -> int:
    """Examine the model; returns 0 if all is right, 1 if some layer is wrong."""
    from contextlib import nullcontext

    from biopsy.cli.debug.checking import ended_politely
    from biopsy.cli.debug.layers_report import LayersReport, say_result
    from biopsy.filesystem.folders import folders_of
    from biopsy.isolation.cleanup import temporary_folder
    from biopsy.layerwise.examination import Examination

    bundling.require_possible(args)
    _require_sense(args)
    report = report_file(args, console)
    layers_engines.settle(args, console)
    fed: list[Feed] = []
    question = _question(args, fed, console)
    interrupted = False
    with LayersReport(console, args.events) as progress, report.also_of_errors():
        with (
            folders_of(args.work_dir / "a file") if args.work_dir else nullcontext(),
            temporary_folder("biopsy-", args.work_dir) as scratch,
            ended_politely(),
        ):
            examination = Examination(question, scratch, progress)
            progress.model(question.index, args.model)
            try:
                findings = examination.run()
            except KeyboardInterrupt:
                findings, interrupted = examination.findings, True
            except errors.TooMuchMemory as error:
                raise errors.TooMuchMemory(error.message, next_steps=[limits.MORE_MEMORY]) from error
        status = errors.Interrupted.status if interrupted else _status(findings)
        report.write(status, lambda: _sections(args, findings, examination, question.index))
        _write_csv(args, findings)
        say_result(console, findings, args)
        progress.ended(status)
    if interrupted:
        kept = ", ".join(str(path) for path in (args.report, args.csv) if path is not None)
        raise errors.Interrupted("what was measured until then is shown above", kept=kept or None)
    if args.bundle is not None:
        made = report.as_bytes(status, lambda: _sections(args, findings, examination, question.index))
        _pack(args, question, findings, fed, made, console)
    return status


def _status(findings: LayerFindings) -> int:
    """The exit status: some layers right, and nobody knows about others, is no answer."""
    if findings.passed:
        return 0
    return errors.CannotCompare.status if findings.nothing_wrong else 1


def _pack(
    args: argparse.Namespace,
    question: Question,
    findings: LayerFindings,
    fed: Sequence[Feed],
    report: bytes,
    console: Console,
) -> None:
    if findings.passed:
        console.warn(f"{args.bundle} is not written: nothing is wrong")
        return
    from biopsy.cli.debug import layers_bundle

    packed = layers_bundle.Packed(question=question, findings=findings, feeds=fed, report=report)
    layers_bundle.pack(args, packed, console)


def _require_sense(args: argparse.Namespace) -> None:
    from biopsy.filesystem.write import require_writable
    from biopsy.model.load import require_file

    require_file(args.model)
    for path in (args.csv, args.events, args.save_inputs):
        if path is not None and (path.suffix or path != args.save_inputs):
            require_writable(path)
    if args.work_dir is not None:
        require_writable(args.work_dir / "a file")


def _question(args: argparse.Namespace, fed: list[Feed], console: Console) -> Question:
    """The question; once it is known what is fed, that stands in ``fed``."""
    from biopsy.cli.arguments.comparing import limits_of
    from biopsy.cli.run.settings import tolerances_of
    from biopsy.layerwise.question import question_about
    from biopsy.layerwise.tensor_errors import Judge

    return question_about(
        args.model,
        args.external_data_dir,
        lambda kinds: _feeds(kinds, args, fed, console),
        suspect=args.suspect,
        reference=args.reference_engine,
        judge=Judge(*tolerances_of(args), limits_of(args)),
        nodes=None if args.nodes is None else types.regex("--nodes", args.nodes),
        limit=args.record_memory,
        timeout=args.run_timeout,
        memory=args.run_memory,
    )


def _feeds(
    kinds: Mapping[str, TensorType | None], args: argparse.Namespace, fed: list[Feed], console: Console
) -> Sequence[Feed]:
    """The input samples, saved if that is asked for."""
    from biopsy.cli.run.inputs import save, settled
    from biopsy.cli.run.settings import inputs_of

    feeds, _ = settled(kinds, inputs_of(args), console)
    save(args.save_inputs, feeds)
    fed[:] = feeds
    return feeds


def _sections(
    args: argparse.Namespace, findings: LayerFindings, examination: Examination, index: ModelIndex
) -> Mapping[str, Any]:
    """What a report tells."""
    from biopsy.cli.debug.layers_next import advice_of
    from biopsy.report.layers import layers_sections
    from biopsy.report.model_summary import model_tree
    from biopsy.report.versions import versions_tree

    return {
        "model": model_tree(index, args.model),
        "versions": versions_tree([args.reference_engine, args.suspect]),
        **layers_sections(findings, index, args.model, examination.engines, examination.samples),
        "next": [vars(one) for one in advice_of(findings, args)],
    }


def _write_csv(args: argparse.Namespace, findings: LayerFindings) -> None:
    from biopsy.filesystem.write import write_whole
    from biopsy.layerwise.report import as_csv

    if args.csv is not None:
        write_whole(args.csv, [as_csv(findings)])
