"""``biopsy debug layers``: which layers of a model an engine computes wrongly, and which only pass an error on. Two
engines, the suspect and the one to trust; with ``--bundle``, the worst layer alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.checks.command import CommandCheck
from biopsy.checks.judge import Rules
from biopsy.cli import advice
from biopsy.cli.arguments import checks, comparing, engines, groups, types
from biopsy.cli.arguments.engines import TensorrtOptions
from biopsy.cli.arguments.groups import MORE_MEMORY, RunLimits
from biopsy.cli.console import Console
from biopsy.cli.debug import bundling, checking, other_machines
from biopsy.cli.debug.checking import ended_politely
from biopsy.cli.report import ReportOption, report_file
from biopsy.cli.run.execution import save, settled
from biopsy.engines.registry import PLAIN
from biopsy.engines.worker import Worker
from biopsy.model.extract import Wanted, extract
from biopsy.model.index import ModelIndex
from biopsy.model.load import require_file
from biopsy.model.tensor_type import TensorType
from biopsy.model.weights_file import save_with_weights
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import folders_of, require_writable, write_whole
from biopsy.tensors.results import Array, Feed

if TYPE_CHECKING:
    from biopsy.questions.layers.examination import Examination
    from biopsy.questions.layers.findings import LayerFindings, Suspect
    from biopsy.questions.layers.question import Question

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
    groups.ModelOption.add(parser)
    add(parser)
    group = parser.add_argument_group("what to measure, and how much to show")
    RunLimits.add(group, run_timeout="end a run that takes longer, e.g. 90s")
    group.add_argument(
        "--nodes", metavar="REGEX", help="measure only layers whose name, operator or output matches somewhere"
    )
    group.add_argument(
        "--top", type=types.positive, default=10, metavar="N", help="show the N worst layers (default: 10)"
    )
    ReportOption.add(group)
    bundling.add(group, "the worst layer or group")
    group.add_argument("--csv", type=types.WRITTEN, metavar="FILE.csv", help="write one line per layer as CSV")
    checks.EventsOption.add(group, events="write what happens as JSON lines")
    _add_memory(parser)
    groups.SavedInputOptions.add_group(parser)
    group = parser.add_argument_group("what is out of tolerance")
    comparing.ToleranceOptions.add(group)
    comparing.MetricOptions.add_group(parser)
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
        type=types.FOLDER_WRITTEN,
        metavar="DIR",
        help="folder for that temporary file: it holds every tensor of every sample (default: the system's "
        "folder for such files)",
    )
    groups.WeightsFolderOption.add(group)


def execute(args: argparse.Namespace, console: Console) -> int:
    """Examine the model; returns 0 if all is right, 1 if some layer is wrong."""
    from biopsy.cli.debug.layers_report import LayersReport, say_result
    from biopsy.questions.layers.examination import Examination
    from biopsy.questions.layers.findings import as_csv

    bundling.require_possible(args.bundle)
    _require_sense(args)
    report = report_file(args, console)
    settle(args, console)
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
                raise errors.TooMuchMemory(error.message, next_steps=[MORE_MEMORY]) from error
        status = 0 if findings.passed else 1
        if not findings.passed and findings.nothing_wrong:  # some layers are right, and nobody knows about others
            status = errors.CannotCompare.status
        if interrupted:
            status = errors.Interrupted.status
        sections = partial(_sections, args, findings, examination, question.index)
        report.write(status, sections)
        if args.csv is not None:
            write_whole(args.csv, [as_csv(findings)])
        say_result(console, findings, args)
        progress.ended(status)
    if interrupted:
        kept = ", ".join(str(path) for path in (args.report, args.csv) if path is not None)
        raise errors.Interrupted("what was measured until then is shown above", kept=kept or None)
    if args.bundle is not None:
        _pack(args, question, findings, fed, report.as_bytes(status, sections), console)
    return status


def _require_sense(args: argparse.Namespace) -> None:
    require_file(args.model)
    for path in (args.csv, args.events, args.save_inputs):
        if path is not None and (path.suffix or path != args.save_inputs):
            require_writable(path)
    if args.work_dir is not None:
        require_writable(args.work_dir / "a file")


def _question(args: argparse.Namespace, fed: list[Feed], console: Console) -> Question:
    """The question; once it is known what is fed, that stands in ``fed``."""
    from biopsy.questions.layers.question import Judge, question_about

    def feeds(kinds: Mapping[str, TensorType | None]) -> Sequence[Feed]:
        """The input samples, saved if that is asked for."""
        fed[:], _ = settled(kinds, groups.InputOptions.of(args).inputs(), console)
        save(args.save_inputs, fed)
        return fed

    return question_about(
        args.model,
        args.external_data_dir,
        feeds,
        suspect=args.suspect,
        reference=args.reference_engine,
        judge=Judge(*comparing.JudgeOptions.of(args).limits()),
        nodes=None if args.nodes is None else types.regex("--nodes", args.nodes),
        limit=args.record_memory,
        timeout=args.run_timeout,
        memory=args.run_memory,
    )


def _sections(
    args: argparse.Namespace, findings: LayerFindings, examination: Examination, index: ModelIndex
) -> Mapping[str, Any]:
    """What a report tells."""
    from biopsy.cli.debug.layers_report import advice_of
    from biopsy.findings.answers import layers_sections
    from biopsy.findings.model import model_tree
    from biopsy.findings.report import versions_tree

    return {
        "model": model_tree(index, args.model),
        "versions": versions_tree([args.reference_engine, args.suspect]),
        **layers_sections(findings, index, args.model, examination.engines, examination.samples),
        "next": [vars(one) for one in advice_of(findings, args)],
    }


# The two engines of ``debug layers``: the suspect, and the one to trust.

DEFAULT_REFERENCE = PLAIN[0]

_SPEC = "NAME[:key=value,...]"


def add(parser: argparse.ArgumentParser) -> None:
    """The options that name them."""
    group = parser.add_argument_group("engines")
    group.add_argument(
        "--suspect",
        metavar=_SPEC,
        help="the engine to examine, such as openvino; 'biopsy doctor' lists all (default: as below)",
    )
    group.add_argument(
        "--reference-engine",
        metavar=_SPEC,
        help=f"the engine to trust, preferably one that does not optimize (default: {DEFAULT_REFERENCE})",
    )
    group.add_argument(
        "--load-outputs",
        type=types.READ,
        metavar="FILE",
        help="golden values of some of the model's tensors, whoever recorded them, instead of an engine to trust; "
        "layers without one are measured as one piece with the next that have (inputs: --load-inputs, or the same "
        "file)",
    )
    engines.EngineOptions.add_groups(
        parser,
        "engines, as for run: one alone is the suspect; the first of two is the one to trust",
    )
    TensorrtOptions.add_tensorrt(parser)


def settle(args: argparse.Namespace, console: Console) -> None:
    """Put both into ``args.suspect`` and ``args.reference_engine``, whichever way they are named.

    Raises UsageError if one is named twice, or if there are more than two; and if there are golden values besides an
    engine to trust, or none of the inputs that they belong to.
    """
    if args.load_outputs is not None:
        _take_golden_values(args)
    chosen = engines.EngineOptions.of(args)
    texts = [spec.text for spec in chosen.specs()] if chosen.names_engine else []
    options = {"reference-engine": args.reference_engine, "suspect": args.suspect}
    roles = [option.replace("-", "_") for option, value in options.items() if value is None]
    if len(texts) > len(roles):
        golden = "" if args.load_outputs is None else f"--load-outputs {args.load_outputs}"
        shown = {**options, **({"reference-engine": None} if golden else {})}
        given = [
            *([golden] if golden else []),
            *(f"--{key} {value}" for key, value in shown.items() if value is not None),
        ]
        raise errors.UsageError(
            f"too many engines: {', '.join([*given, *texts])}; there is one suspect, and one engine to trust",
            next_steps=["--engine REFERENCE --engine SUSPECT", "or --reference-engine REFERENCE --suspect SUSPECT"],
        )
    for role, text in zip(reversed(roles), reversed(texts), strict=False):
        setattr(args, role, text)
    if args.suspect is None:
        args.suspect = engines.default_engine(runs=True).text
        console.note(f"no engine is named: {args.suspect} is the suspect")
    args.reference_engine = args.reference_engine or DEFAULT_REFERENCE


def _take_golden_values(args: argparse.Namespace) -> None:
    """Make them the engine to trust, and feed what they belong to: the inputs given, else those in the same file."""
    if args.reference_engine is not None:
        raise errors.UsageError(
            f"--load-outputs {args.load_outputs}, and --reference-engine {args.reference_engine}: trust one of them"
        )
    if args.data_loader_script is not None:
        raise errors.UsageError(
            "--load-outputs: golden values belong to inputs in a file, not to those that a script makes",
            next_steps=["--load-inputs FILE    the inputs that they were recorded with"],
        )
    if len(args.load_inputs or ()) > 1:
        raise errors.UsageError(
            "--load-outputs takes the inputs from one file",
            next_steps=["biopsy data concat FILE FILE -o inputs.npz    puts them into one"],
        )
    args.reference_engine = advice.spec_of(args.load_outputs, args.load_inputs[0] if args.load_inputs else None)
    args.load_inputs = args.load_inputs or [args.load_outputs]


# ``--bundle`` of ``debug layers``: the worst layer or group alone, fed as it was, both engines compared on it.

_LIMITS = (
    "--atol", "--rtol", "--check-error-stat", "--error-quantile", "--cosine", "--psnr", "--snr", "--l2", "--ulp",
    "--top-k", "--index-tolerance", "--compare",
)  # fmt: skip


def _pack(
    args: argparse.Namespace,
    question: Question,
    findings: LayerFindings,
    feeds: Sequence[Feed],
    report: bytes,
    console: Console,
) -> None:
    """Pack the worst suspect; the whole model, which is said, where no layer or group alone is at fault.

    Raises CheckError if that does not fail by itself, or if the script of the bundle does not show it.
    """
    from biopsy.findings.bundle.job import BundleJob
    from biopsy.tensors.files import write_feeds

    if findings.passed:
        console.warn(f"{args.bundle} is not written: nothing is wrong")
        return
    with temporary_folder("biopsy-", args.work_dir) as scratch:
        model, inputs, names = args.model, scratch / "inputs.safetensors", list(question.index.ids)
        if findings.suspects:
            suspect = findings.suspects[0]
            model, names = _piece(question, suspect, scratch), list(suspect.outputs)
            feeds = _fed(question, suspect, feeds, scratch)
        else:
            console.warn("no layer alone is at fault: the bundle holds the whole model ('debug reduce' makes it small)")
        write_feeds(inputs, feeds)
        words = ["biopsy", "run", "{}", "--engine", args.reference_engine, "--engine", args.suspect]
        for option in _LIMITS:  # for all outputs, or for those that are there
            given = getattr(args, option[2:].replace("-", "_")) or ()
            kept = [word for word in given if ":" not in word or word.rpartition(":")[0] in names]
            words += [option, *kept] if kept else []
        job = BundleJob(
            target=args.bundle,
            original=args.model,
            model=model,
            check=CommandCheck(words, "{}", args.run_timeout),
            rules=Rules(),
            inputs=inputs,
            folder=(args.external_data_dir if model is args.model else None) or model.parent,
            reports=bundling.reports_of(report, console),
        )
        bundling.pack(job, checking.own_run(words), console)


def _piece(question: Question, suspect: Suspect, scratch: Path) -> Path:
    """The suspect as a model."""
    inputs = [Wanted(name) for name in suspect.inputs] or None
    part = extract(question.index, inputs, [Wanted(name) for name in suspect.outputs])
    path = scratch / "suspect.onnx"
    save_with_weights(part, path, question.index.folder, None)
    return path


def _fed(question: Question, suspect: Suspect, feeds: Sequence[Feed], scratch: Path) -> list[dict[str, Array]]:
    """What goes into the suspect, as the reference computes it from the samples."""
    from biopsy.tensors.files import write_feeds

    index = question.index
    computed = [name for name in suspect.inputs if index.ids[name] in index.producer]
    inner: list[dict[str, Array]] = [{} for _ in feeds]
    if computed:
        file = scratch / "samples.safetensors"
        write_feeds(file, feeds)
        with Worker(question.reference, scratch, question.timeout, memory=question.memory) as reference:
            inner = [dict(sample) for sample in reference.run(question.model, file, computed)]
    own = [name for name in suspect.inputs if name not in computed]
    return [
        {name: sample[name] for name in own} | {name: values[name] for name in computed}
        for sample, values in zip(feeds, inner, strict=True)
    ]
