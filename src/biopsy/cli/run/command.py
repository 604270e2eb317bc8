"""``biopsy run MODEL``: run a model in one or more engines and compare what they give.

Every check of a reduction may be one such process: what is not needed is not imported.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from biopsy.cli.arguments import absent_options, comparing, engine_options, file_kinds, groups, packages, tensorrt
from biopsy.cli.run import options
from biopsy.cli.run.comparisons import compare, find_not_finite, judge_rounding, pairs_of, warn_of_random
from biopsy.cli.run.conclusion import conclude, conclude_crash, hinted
from biopsy.cli.run.execution import ModelExecution, save_outputs
from biopsy.cli.run.files import compare_files, is_of_files
from biopsy.cli.run.findings import Findings
from biopsy.cli.run.functions import are_given, functions_of
from biopsy.cli.run.inputs import Feeder, require_same

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.engines.base import Engine, ModelInput
    from biopsy.tensors.results import RunnerResult

__all__ = ["conclude_crash", "configure", "derived_files", "execute"]

EXAMPLES = """\
examples:
  biopsy run model.onnx --onnxrt                                       does it run?
  biopsy run model.onnx --engine onnxrt:optimization=none --onnxrt     an engine against itself
  biopsy run model.onnx --reference --onnxrt --openvino --atol 1e-3    two engines against a third
  biopsy run model.onnx --onnxrt --save-inputs inputs.json --onnx-outputs mark all --save-outputs golden.json
  biopsy run model.onnx --openvino --load-inputs inputs.json --load-outputs golden.json
  biopsy run model.onnx --openvino --compare-with noise                a bug, or only rounding?
  biopsy run model.onnx --onnxrt --onnx-outputs mark all --save-outputs golden.safetensors --memory-limit 500MB
  biopsy run model.onnx --engine onnxrt:release=1.20.1 --onnxrt        a release against the one installed here
  biopsy run model.onnx --trt --build-only --save-engine model.engine  does it build? (TensorRT-RTX: without a GPU)

exit status: 0 every engine runs and all results agree; 1 a mismatch, or an engine fails on the model;
2 wrong usage; 4 nothing was concluded (an engine is missing, or the values do not fit the model)"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``run``."""
    parser.epilog = EXAMPLES
    groups.add_model(parser)
    engine_options.add_engines(parser)
    packages.add_packages(parser, "other releases", "run the engines of this package from this release of it")
    groups.add_inputs(parser)
    comparing.add_comparing(parser)
    comparing.add_limits(parser)
    options.add(parser)
    tensorrt.add(parser)
    absent_options.add(parser, "run")


def derived_files(args: argparse.Namespace) -> file_kinds.Derived:
    """The file for weights beside the model that is saved."""
    return groups.derived_weights(args, "save_onnx")


def execute(args: argparse.Namespace, console: Console) -> int:
    """Run, save, compare, report."""
    from biopsy.checks import verdict
    from biopsy.cli.run.settings import golden_values, inputs_of, model_of, save_model, tolerances_of

    if is_of_files(args):
        return compare_files(args, console)
    engines = _engines(args, console)
    tolerances, stats = tolerances_of(args)
    golden = golden_values(args.load_outputs or ())
    functions = functions_of(args, console)
    inputs = inputs_of(args)
    for engine in engines:
        engine.version()  # imports its package
    verdict.report_looking()
    model = model_of(args)
    feeder = Feeder(inputs, args.save_inputs, console, lambda feeds: require_same(feeds, golden, tolerances, stats))
    _require_names(args, model)
    save_model(args, model, console)
    execution = ModelExecution(model, feeder, args, console)
    recorder = execution.recorder(engines, args.save_outputs)
    ran = execution.run_all(engines, recorder)
    save_outputs(args.save_outputs, ran, recorder, console)
    done = [replace(each.result, runner=each.engine.label) for each in ran if each.result is not None]
    done, golden = functions.postprocessed(done), functions.postprocessed(golden)
    not_finite = find_not_finite(done, console) if args.validate else []
    pairs = pairs_of(done, golden, first_worked=ran[0].result is not None and not args.compare_with)
    if pairs or args.compare_with:
        warn_of_random(model, console)
    limits = tolerances, stats, comparing.limits_of(args)
    compared = compare(pairs, golden, limits, args, console, function=functions.compare)
    noise = judge_rounding(done, execution, options.noise_ratios_of(args)) if args.compare_with else []
    findings = Findings(ran, compared, noise, not_finite)
    findings = hinted(findings, golden, feeder.guessed, console, validated=args.validate)
    return conclude(_reported(findings, pairs, execution), console, args)


def _engines(args: argparse.Namespace, console: Console) -> list[Engine]:
    """The engines to run. Raises UsageError for options that no engine here can follow, or files not to be written."""
    from biopsy.cli.installing import install
    from biopsy.cli.run.building import require_possible
    from biopsy.cli.run.settings import require_writable
    from biopsy.engines.registry import create

    specs = engine_options.specs_to_run(args)
    if not (args.engines or args.packages):
        console.note(f"no engine is named: {specs[0].text} is used")
    engines = [create(spec) for spec in specs]
    require_possible(args, engines)
    require_writable(args)
    install(engines, console)
    return engines


def _require_names(args: argparse.Namespace, model: ModelInput) -> None:
    """Raise UsageError for limits that are none, and DoesNotFit for names that the model does not have."""
    from biopsy.cli.run.names import require_known_names
    from biopsy.cli.run.settings import tolerances_of
    from biopsy.comparison.spoken_of import spoken_of

    spoken = spoken_of(*tolerances_of(args), comparing.limits_of(args))
    require_known_names(args, model, {**spoken, "--noise-ratio": options.noise_ratios_of(args)})


def _reported(
    findings: Findings, pairs: Sequence[tuple[RunnerResult, RunnerResult]], execution: ModelExecution
) -> Findings:
    """The findings, sized where a reduction asks for that, and written where a person does."""
    from biopsy.checks import verdict

    args = execution.args
    if verdict.is_wanted():
        from biopsy.cli.run.mismatch import Arbiter, sized

        decides = args.tell_rounding and not are_given(args)  # rounding is no excuse before a function
        arbiter = Arbiter(execution.run_again, execution.feeder) if decides else None
        findings = sized(findings, pairs, arbiter)
    if args.report is not None:
        from biopsy.cli.run.report import write_report

        write_report(args, findings, execution.console)
    return findings
