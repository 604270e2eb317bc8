"""``biopsy convert``: a model in another form: built by an engine, optimized by one, or in fp16."""

from __future__ import annotations

import argparse
from dataclasses import replace

from biopsy import errors
from biopsy.checks import verdict
from biopsy.cli import model_files
from biopsy.cli.arguments import absent_options, engines, groups, types
from biopsy.cli.arguments.comparing import parse_shapes
from biopsy.cli.arguments.tensorrt import TensorrtOptions
from biopsy.cli.console import Console
from biopsy.cli.run.execution import with_engine
from biopsy.engines.base import Engine, ModelInput
from biopsy.engines.registry import EngineSpec, create
from biopsy.model import index, infer, load, weights_file
from biopsy.model.load import parse
from biopsy.processes import writing
from biopsy.processes.writing import written_together
from biopsy.text import count

EXAMPLES = """\
examples:
  biopsy convert model.onnx -o model.engine                  build with TensorRT (RTX needs no GPU)
  biopsy convert model.onnx -o model.engine --trt-min-shapes x:[1,3] --trt-opt-shapes x:[8,3] --trt-max-shapes x:[32,3]
  biopsy convert model.onnx -o model.xml                     OpenVINO's own form, with its weights in model.bin
  biopsy convert model.onnx -o model.ort                     ONNX Runtime's own form
  biopsy convert model.onnx -o optimized.onnx --onnxrt       as ONNX Runtime optimizes it
  biopsy convert model.onnx -o half.onnx --fp-to-fp16        in fp16, as far as layers can be

exit status: 0 written; 1 the engine refuses the model; 4 nothing was concluded"""

FORMATS = {
    "onnx": (),
    "trt": (".engine", ".plan", ".trt"),
    "openvino": (".xml", ".blob"),
    "onnxrt": (".ort",),
}
"""What --convert-to may name, an engine or onnx -> endings of files that nothing else writes."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``convert``."""
    parser.epilog = EXAMPLES
    groups.ModelOptions.add_group(parser)
    groups.ModelTypeOption.add(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=types.WRITTEN,
        required=True,
        metavar="FILE",
        help="write the result to this file; its ending says what it is: .engine, .plan or .trt (TensorRT), .xml or "
        ".blob (OpenVINO), .ort (ONNX Runtime), .onnx",
    )
    parser.add_argument("--convert-to", choices=tuple(FORMATS), help="what to make (default: what the ending says)")
    parser.add_argument(
        "--fp-to-fp16",
        action="store_true",
        help="first make every layer that can compute in fp16; inputs and outputs keep their types",
    )
    parser.add_argument(
        "--input-shapes",
        "--inputs",
        "--model-input-shapes",
        "--model-inputs",
        nargs="+",
        metavar="NAME:[d0,d1,...]",
        help="shapes to build for, where the model leaves them open and the engine must know",
    )
    groups.WeightsFileOptions.add(parser)
    model_files.add_allow_invalid(parser)
    engines.EngineOptions.add_groups(parser, "the engine that converts (default: the one that the ending says)")
    TensorrtOptions.add_tensorrt(parser)
    absent_options.add(parser, "convert")


def derived_files(args: argparse.Namespace) -> types.Derived:
    """The files for weights beside the output."""
    if args.output is not None and args.output.suffix == ".xml":
        return {"the .bin file beside it": (args.output.with_suffix(".bin"), types.WRITTEN)}
    if args.output is not None and args.output.suffix == ".onnx" and (args.engines or args.convert_to == "onnxrt"):
        return {"the weights beside it": (args.output.with_name(f"{args.output.name}.data"), types.WRITTEN)}
    return groups.WeightsFileOption.of(args).derived_weights(args.output)


def execute(args: argparse.Namespace, console: Console) -> int:
    """Convert, write, load what was written."""
    from biopsy.questions.precision.mixed_models import in_fp16

    engine = _engine(args)
    if groups.is_built_model(args.model, args.model_type):
        raise errors.UsageError(f"{args.model} is no ONNX model: only those can be converted")
    writing.require_writable(args.output)
    if engine is not None:
        type(engine).version()  # imports its package
    verdict.report_looking()
    model = groups.ModelOptions.of(args).model_input()
    original = model.data
    if args.fp_to_fp16:
        data, layers, losses = in_fp16(parse(model.data, model.path), model.folder)
        if not layers:
            console.warn("no node of the model can compute in fp16: --fp-to-fp16 has no effect")
        else:
            console.note(f"{count(layers, 'node')} in fp16; inputs and outputs keep their types")
        for loss in losses:
            of, fates = f"of {count(loss.count, 'value')}", ((loss.saturated, "infinite"), (loss.vanished, "zero"))
            lost = ", ".join(f"{number} {of} become {fate}" for number, fate in fates if number)
            console.warn(f"fp16 cannot hold all values of {loss.name!r}: {lost}")
        model = replace(model, data=data, path=None)
    if engine is None:
        index.require_sound(model.data, model.path)
        name = groups.WeightsFileOption.of(args).weights_file(args.output)
        made = load.parse(model.data, model.path)
        infer.type_untyped_outputs(made)
        model_files.require_as_valid(args, made, original, model.folder, console)
        weights_file.save_with_weights(made, args.output, model.folder, name, args.external_data_size_threshold)
        nodes = len(index.index_file(args.output).nodes)
        console.say(f"{args.output}: an ONNX model of {count(nodes, 'node')}, written and read again")
    else:
        _write_built(model, engine, args, console)
    return 0


def _engine(args: argparse.Namespace) -> Engine | None:
    """The engine that writes the output; None for an ONNX model as it is. Raises UsageError for what no engine does."""
    wanted = args.convert_to or next((name for name, ends in FORMATS.items() if args.output.suffix in ends), None)
    spec = engines.EngineOptions.of(args).only_spec()
    if spec is None:
        if wanted is None and args.output.suffix != ".onnx":
            raise errors.UsageError(
                f"the ending of {args.output} does not say what to make of the model",
                next_steps=[f"--convert-to {{{','.join(FORMATS)}}}", "-o FILE.engine, FILE.xml, FILE.ort or FILE.onnx"],
            )
        if wanted in (None, "onnx"):
            return None
        spec = EngineSpec(wanted)
    engine = create(spec)
    if not engine.capabilities.can_save(args.output) or (wanted is not None and wanted not in ("onnx", engine.name)):
        saved = " and ".join(engine.capabilities.saves) or "no"
        raise errors.UsageError(f"{args.output}: {engine.label} writes {saved} files", next_steps=["choose another -o"])
    if args.save_external_data is not None:
        raise errors.UsageError(
            f"--save-external-data has no effect on what {engine.label} writes: it decides where weights go",
            next_steps=["leave out --save-external-data"],
        )
    return engine


def _write_built(model: ModelInput, engine: Engine, args: argparse.Namespace, console: Console) -> None:
    """Have an engine build the model, save it, and load what it has saved, before that takes its place."""
    shapes = {name: [tuple(shape)] for name, shape in parse_shapes(args.input_shapes).items()}
    try:
        session = engine.build(replace(model, shapes=shapes))
        for remark in session.remarks:
            console.warn(remark)
        with written_together(args.output) as made:
            session.save(made)
            proof = "loaded again"
            try:
                engine.load(made)
            except errors.EngineMissing as error:
                proof = "NOT loaded again"
                why = error.message.replace(str(made), str(args.output))
                console.warn(f"whether it can be loaded is not known: {why}")
    except errors.EngineFailure as failure:
        raise with_engine(failure, engine) from failure
    console.say(f"{args.output}: written by {engine.label} {type(engine).version()} and {proof}")
