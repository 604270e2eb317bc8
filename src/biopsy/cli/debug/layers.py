"""``biopsy debug layers``: which layers of a model an engine computes wrongly, and which only pass an error on. Two
engines, the suspect and the one to trust; with ``--bundle``, the worst layer alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.checks.command import CommandCheck
from biopsy.checks.judge import Rules
from biopsy.cli import advice
from biopsy.cli.arguments import checks, comparing, engines, groups, types
from biopsy.cli.arguments.declared import Options, option
from biopsy.cli.arguments.limits import MORE_MEMORY, RunLimits
from biopsy.cli.arguments.tensorrt import TensorrtOptions
from biopsy.cli.console import Console
from biopsy.cli.debug import bundling, checking, other_machines
from biopsy.cli.debug.checking import ended_politely
from biopsy.cli.report import ReportOption
from biopsy.cli.run.execution import save, settled
from biopsy.engines.registry import PLAIN
from biopsy.model.extract import Wanted, extract
from biopsy.model.index import index_file
from biopsy.model.load import require_file
from biopsy.model.tensor_type import TensorType
from biopsy.model.weights_file import save_with_weights
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import folders_of, require_writable, write_whole
from biopsy.tensors.results import Array, Feed

if TYPE_CHECKING:
    from biopsy.questions.layers.findings import LayerFindings, Suspect
    from biopsy.questions.layers.question import Question

DEFAULT_REFERENCE = PLAIN[0]

_SPEC = "NAME[:key=value,...]"
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


class RoleOptions(Options):
    """The two engines: the suspect, and the one to trust, or golden values in its place."""

    suspect: str | None = option(
        "--suspect",
        metavar=_SPEC,
        meaning="the engine to examine, such as openvino; 'biopsy doctor' lists all (default: as below)",
    )
    reference_engine: str | None = option(
        "--reference-engine",
        metavar=_SPEC,
        meaning=f"the engine to trust, preferably one that does not optimize (default: {DEFAULT_REFERENCE})",
    )
    golden: Path | None = option(
        "--load-outputs",
        type=types.READ,
        meaning="golden values of some of the model's tensors, whoever recorded them, instead of an engine to trust; "
        "layers without one are measured as one piece with the next that have (inputs: --load-inputs, or the same "
        "file)",
    )


class MeasuredOptions(Options):
    """What is measured, how much is shown and written, and where tensors stand meanwhile."""

    nodes: str | None = option(
        "--nodes", metavar="REGEX", meaning="measure only layers whose name, operator or output matches somewhere"
    )
    top: int = option("--top", type=types.positive, default=10, meaning="show the N worst layers (default: 10)")
    csv: Path | None = option(
        "--csv", type=types.WRITTEN, metavar="FILE.csv", meaning="write one line per layer as CSV"
    )
    record_memory: int = option(
        "--record-memory",
        type=types.byte_size,
        default=_DEFAULT_LIMIT,
        metavar="SIZE",
        meaning="keep at most this much tensor data in memory; the tensors are computed in batches and kept in a "
        f"temporary file (default: {_DEFAULT_LIMIT})",
    )
    work_dir: Path | None = option(
        "--work-dir",
        type=types.FOLDER_WRITTEN,
        meaning="folder for that temporary file: it holds every tensor of every sample (default: the system's "
        "folder for such files)",
    )


class LayersOptions(
    groups.ModelOption,
    RoleOptions,
    engines.EngineOptions,
    RunLimits,
    MeasuredOptions,
    ReportOption,
    checks.EventsOption,
    groups.WeightsFolderOption,
    groups.SavedInputOptions,
    comparing.JudgeOptions,
):
    """All options of ``debug layers``."""

    bundle: Path | None = None

    @property
    def engine_roles(self) -> tuple[str, str]:
        """The reference and the suspect, once both are ``settled``."""
        assert self.reference_engine is not None and self.suspect is not None
        return self.reference_engine, self.suspect

    def settled(self, console: Console) -> LayersOptions:
        """The same with both engines, whichever way they are named, and with the inputs of golden values.

        Raises UsageError if one is named twice, or if there are more than two; and if there are golden values besides
        an engine to trust, or none of the inputs that they belong to.
        """
        roles = {"reference_engine": self.reference_engine, "suspect": self.suspect}
        inputs = {"load_inputs": self.load_inputs, "load_outputs": None}
        if self.golden is not None:
            self._require_inputs_of_golden_values(self.golden)
            roles["reference_engine"] = advice.spec_of(self.golden, *list(self.load_inputs or ())[:1])
            inputs = {"load_inputs": self.load_inputs or [self.golden], "load_outputs": [self.golden]}
        texts = [spec.text for spec in self.specs()] if self.names_engine else []
        unnamed = [role for role, text in roles.items() if text is None]
        if len(texts) > len(unnamed):
            told = self.given(RoleOptions.declared)
            given = [f"{spelling} {told[spelling]}" for spelling in sorted(told)]
            raise errors.UsageError(
                f"too many engines: {', '.join([*given, *texts])}; there is one suspect, and one engine to trust",
                next_steps=["--engine REFERENCE --engine SUSPECT", "or --reference-engine REFERENCE --suspect SUSPECT"],
            )
        roles.update(zip(reversed(unnamed), reversed(texts), strict=False))
        if roles["suspect"] is None:
            roles["suspect"] = engines.default_engine(runs=True).text
            console.note(f"no engine is named: {roles['suspect']} is the suspect")
        roles["reference_engine"] = roles["reference_engine"] or DEFAULT_REFERENCE
        return LayersOptions(**{**vars(self), **roles, **inputs})

    def _require_inputs_of_golden_values(self, golden: Path) -> None:
        if self.reference_engine is not None:
            raise errors.UsageError(
                f"--load-outputs {golden}, and --reference-engine {self.reference_engine}: trust one of them"
            )
        if self.data_loader_script is not None:
            raise errors.UsageError(
                "--load-outputs: golden values belong to inputs in a file, not to those that a script makes",
                next_steps=["--load-inputs FILE    the inputs that they were recorded with"],
            )
        if len(self.load_inputs or ()) > 1:
            raise errors.UsageError(
                "--load-outputs takes the inputs from one file",
                next_steps=["biopsy data concat FILE FILE -o inputs.npz    puts them into one"],
            )

    def require_sense(self) -> None:
        """Raise UsageError if there is no model, or if a file could not be written at the end."""
        require_file(self.model)
        for path in filter(None, (self.csv, self.events, self.work_dir and self.work_dir / "a file")):
            require_writable(path)
        if self.save_inputs is not None and self.save_inputs.suffix:
            require_writable(self.save_inputs)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug layers``."""
    parser.epilog = _EPILOG
    groups.ModelOption.add(parser)
    RoleOptions.add(parser.add_argument_group("engines"))
    engines.EngineOptions.add_groups(
        parser, "engines, as for run: one alone is the suspect; the first of two is the one to trust"
    )
    TensorrtOptions.add_tensorrt(parser)
    group = parser.add_argument_group("what to measure, and how much to show")
    RunLimits.add(group, run_timeout="end a run that takes longer, e.g. 90s")
    MeasuredOptions.add(group, only=["nodes", "top"])
    ReportOption.add(group)
    bundling.add(group, "the worst layer or group")
    MeasuredOptions.add(group, only=["csv"])
    checks.EventsOption.add(group, events="write what happens as JSON lines")
    group = parser.add_argument_group("memory and files")
    MeasuredOptions.add(group, only=["record_memory", "work_dir"])
    groups.WeightsFolderOption.add(group)
    groups.SavedInputOptions.add_group(parser)
    group = parser.add_argument_group("what is out of tolerance")
    comparing.ToleranceOptions.add(group)
    comparing.MetricOptions.add_group(parser)
    other_machines.add_refused(
        parser,
        "layers are compared with each other, so one machine measures them all, and each step needs the last one",
        "debug reduce --on ray    searches for the nodes that fail together on many machines",
    )


def execute(args: argparse.Namespace, console: Console) -> int:
    """Examine the model; returns 0 if all is right, 1 if some layer is wrong."""
    from biopsy.cli.debug.layers_report import LayersReport, say_result, sections_of
    from biopsy.questions.layers.examination import Examination
    from biopsy.questions.layers.findings import as_csv

    bundling.require_possible(args)
    options = LayersOptions.of(args)
    options.require_sense()
    report = options.report_file(console)
    options = options.settled(console)
    fed: list[Feed] = []
    question = _question(options, fed, console)
    interrupted = False
    with LayersReport(console, options.events) as progress, report.also_of_errors():
        with (
            folders_of(options.work_dir / "a file") if options.work_dir else nullcontext(),
            temporary_folder("biopsy-", options.work_dir) as scratch,
            ended_politely(),
        ):
            examination = Examination(question, scratch, progress)
            progress.show_model(question.index, options.model)
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
        sections = partial(sections_of, options, findings, examination, question.index)
        report.write(status, sections)
        if options.csv is not None:
            write_whole(options.csv, [as_csv(findings)])
        say_result(console, findings, options)
        progress.ended(status)
    if interrupted:
        kept = ", ".join(str(path) for path in (options.report, options.csv) if path is not None)
        raise errors.Interrupted("what was measured until then is shown above", kept=kept or None)
    if options.bundle is not None and findings.passed:
        console.warn(f"{options.bundle} is not written: nothing is wrong")
    elif options.bundle is not None:
        _pack(options, options.bundle, question, findings, fed, report.as_bytes(status, sections), console)
    return status


def _question(options: LayersOptions, fed: list[Feed], console: Console) -> Question:
    """The question; once it is known what is fed, that stands in ``fed``."""
    from biopsy.questions.layers.question import Judge, Question

    def feeds(kinds: Mapping[str, TensorType | None]) -> Sequence[Feed]:
        """The input samples, saved if that is asked for."""
        fed[:], _ = settled(kinds, options.inputs(), console)
        save(options.save_inputs, fed)
        return fed

    reference, suspect = options.engine_roles
    return Question(
        index=index_file(options.model, options.external_data_dir),
        feeds=feeds,
        suspect=suspect,
        reference=reference,
        judge=Judge(*options.limits()),
        nodes=None if options.nodes is None else types.regex("--nodes", options.nodes),
        limit=options.record_memory,
        timeout=options.run_timeout,
        memory=options.run_memory,
    )


# ``--bundle`` of ``debug layers``: the worst layer or group alone, fed as it was, both engines compared on it.


def _pack(
    options: LayersOptions,
    target: Path,
    question: Question,
    findings: LayerFindings,
    feeds: Sequence[Feed],
    report: bytes,
    console: Console,
) -> None:
    """Pack the worst suspect; the whole model, which is said, where no layer or group alone is at fault.

    Raises CheckError if that does not fail by itself, or if the script of the bundle does not show it.
    """
    from biopsy.tensors.files import write_feeds

    with temporary_folder("biopsy-", options.work_dir) as scratch:
        model, inputs, names = options.model, scratch / "inputs.safetensors", list(question.index.ids)
        if findings.suspects:
            suspect = findings.suspects[0]
            wanted = [Wanted(name) for name in suspect.inputs] or None
            part = extract(question.index, wanted, [Wanted(name) for name in suspect.outputs])
            model, names = scratch / "suspect.onnx", list(suspect.outputs)
            save_with_weights(part, model, question.index.folder, None)
            feeds = _fed(question, suspect, feeds, scratch)
        else:
            console.warn("no layer alone is at fault: the bundle holds the whole model ('debug reduce' makes it small)")
        write_feeds(inputs, feeds)
        reference, suspected = options.engine_roles
        words = ["biopsy", "run", "{}", "--engine", reference, "--engine", suspected]
        for limit in options.as_typed(comparing.JudgeOptions.declared):  # for all outputs, or for those that are there
            kept = [word for word in limit.values if ":" not in word or word.rpartition(":")[0] in names]
            words += [limit.name, *kept] if kept else []
        packing = bundling.Packing(
            target=target,
            original=options.model,
            model=model,
            check=CommandCheck(words, "{}", options.run_timeout),
            rules=Rules(),
            own_run=checking.own_run(words),
            inputs=inputs,
            folder=options.external_data_dir if model is options.model else None,
            reports=bundling.reports_of(report, console),
        )
        bundling.pack(packing, console)


def _fed(question: Question, suspect: Suspect, feeds: Sequence[Feed], scratch: Path) -> list[dict[str, Array]]:
    """What goes into the suspect, as the reference computes it from the samples."""
    from biopsy.tensors.files import write_feeds

    index = question.index
    computed = [name for name in suspect.inputs if index.ids[name] in index.producer]
    inner: list[dict[str, Array]] = [{} for _ in feeds]
    if computed:
        file = scratch / "samples.safetensors"
        write_feeds(file, feeds)
        with question.worker(question.reference, scratch) as reference:
            inner = [dict(sample) for sample in reference.run(question.model, file, computed)]
    own = [name for name in suspect.inputs if name not in computed]
    return [
        {name: sample[name] for name in own} | {name: values[name] for name in computed}
        for sample, values in zip(feeds, inner, strict=True)
    ]
