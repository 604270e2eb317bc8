"""``biopsy convert``: write a model as an engine builds or optimizes it, or in fp16."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from biopsy import errors
from biopsy.checks import verdict
from biopsy.cli.arguments import groups, types
from biopsy.cli.arguments.declared import option, switch
from biopsy.cli.arguments.engines import EngineOptions, TensorrtOptions
from biopsy.cli.arguments.types import parse_shapes
from biopsy.cli.console import Console
from biopsy.cli.model_files import ResultOptions
from biopsy.cli.run.execution import with_engine
from biopsy.engines.base import Engine, ModelInput
from biopsy.engines.registry import EngineSpec, create
from biopsy.model import index, infer, weights_file
from biopsy.model.load import parse
from biopsy.processes import writing
from biopsy.processes.writing import written_together
from biopsy.questions.precision.mixed_models import in_fp16
from biopsy.text import count

EPILOG = """\
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
"""Values of --convert-to: an engine, or onnx -> the file endings that only it writes."""


class ConvertOptions(groups.ModelOptions, groups.ModelTypeOption, ResultOptions, EngineOptions):
    """All options of ``convert``."""

    output: Path = option(
        "-o",
        "--output",
        type=types.WRITTEN,
        required=True,
        meaning="write the result to this file; its ending says what it is: .engine, .plan or .trt (TensorRT), .xml or "
        ".blob (OpenVINO), .ort (ONNX Runtime), .onnx",
    )
    convert_to: str | None = option(
        "--convert-to", choices=tuple(FORMATS), meaning="what to make (default: what the ending says)"
    )
    fp_to_fp16: bool = switch(
        "--fp-to-fp16",
        meaning="first make every layer that can compute in fp16; inputs and outputs keep their types",
    )
    input_shapes: Sequence[str] | None = option(
        "--input-shapes",
        "--inputs",
        "--model-input-shapes",
        "--model-inputs",
        nargs="+",
        metavar="NAME:[d0,d1,...]",
        meaning="shapes to build for, where the model leaves them open and the engine must know",
    )

    def derived(self) -> types.Derived:
        """The files of weights that are written beside the output."""
        if self.output.suffix == ".xml":
            return {"the .bin file beside it": (self.output.with_suffix(".bin"), types.WRITTEN)}
        if self.output.suffix == ".onnx" and (self.engines or self.convert_to == "onnxrt"):
            return {"the weights beside it": (self.output.with_name(f"{self.output.name}.data"), types.WRITTEN)}
        return self.derived_weights(self.output)

    def engine(self) -> Engine | None:
        """The engine that writes the output; None for an ONNX model that no engine changes.

        Raises UsageError if no engine can write the output, or the options contradict each other.
        """
        wanted = self.convert_to or next((name for name, ends in FORMATS.items() if self.output.suffix in ends), None)
        spec = self.only_spec()
        if spec is None:
            if wanted is None and self.output.suffix != ".onnx":
                raise errors.UsageError(
                    f"the ending of {self.output} does not say what to make of the model",
                    next_steps=[
                        f"--convert-to {{{','.join(FORMATS)}}}",
                        "-o FILE.engine, FILE.xml, FILE.ort or FILE.onnx",
                    ],
                )
            if wanted in (None, "onnx"):
                return None
            spec = EngineSpec(wanted)
        engine = create(spec)
        saves = engine.capabilities.can_save(self.output)
        if not saves or (wanted is not None and wanted not in ("onnx", engine.name)):
            saved = " and ".join(engine.capabilities.saves) or "no"
            raise errors.UsageError(
                f"{self.output}: {engine.label} writes {saved} files", next_steps=["choose another -o"]
            )
        if self.save_external_data is not None:
            raise errors.UsageError(
                f"--save-external-data has no effect on what {engine.label} writes: it decides where weights go",
                next_steps=["leave out --save-external-data"],
            )
        return engine


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``convert``."""
    ConvertOptions.add(
        parser,
        without=TensorrtOptions.declared,
        titles={"engines": "the engine that converts (default: the one that the ending says)"},
    )
    TensorrtOptions.add(parser)


derived_files = ConvertOptions.reading(ConvertOptions.derived)


@ConvertOptions.reading
def execute(options: ConvertOptions, console: Console) -> int:
    """Convert the model, write the result, and read it again."""
    engine = options.engine()
    if groups.is_built_model(options.model, options.model_type):
        raise errors.UsageError(f"{options.model} is not an ONNX model: only those can be converted")
    writing.require_writable(options.output)
    if engine is not None:
        type(engine).version()  # imports its package
    verdict.report_looking()
    model = options.model_input()
    original = model.data
    if options.fp_to_fp16:
        model = replace(model, data=_in_fp16(model, console), path=None)
    if engine is not None:
        _write_built(model, engine, options, console)
        return 0
    index.require_sound(model.data, model.path)
    name = options.weights_file(options.output)
    proto = parse(model.data, model.path)
    infer.type_untyped_outputs(proto)
    options.require_as_valid(proto, original, model.folder, console)
    weights_file.save_with_weights(proto, options.output, model.folder, name, options.external_data_size_threshold)
    nodes = len(index.index_file(options.output).nodes)
    console.say(f"{options.output}: an ONNX model of {count(nodes, 'node')}, written and read again")
    return 0


def _in_fp16(model: ModelInput, console: Console) -> bytes:
    """The model with all layers in fp16 that can be; shows how many, and which values fp16 cannot hold."""
    data, layers, losses = in_fp16(parse(model.data, model.path), model.folder)
    if not layers:
        console.warn("no node of the model can compute in fp16: --fp-to-fp16 has no effect")
    else:
        console.note(f"{count(layers, 'node')} in fp16; inputs and outputs keep their types")
    for loss in losses:
        of, fates = f"of {count(loss.count, 'value')}", ((loss.saturated, "infinite"), (loss.vanished, "zero"))
        lost = ", ".join(f"{number} {of} become {fate}" for number, fate in fates if number)
        console.warn(f"fp16 cannot hold all values of {loss.name!r}: {lost}")
    return data


def _write_built(model: ModelInput, engine: Engine, options: ConvertOptions, console: Console) -> None:
    """Build the model with an engine and save it; the file replaces the output once it has been loaded again."""
    shapes = {name: [tuple(shape)] for name, shape in parse_shapes(options.input_shapes).items()}
    try:
        session = engine.build(replace(model, shapes=shapes))
        for remark in session.remarks:
            console.warn(remark)
        with written_together(options.output) as written:
            session.save(written)
            proof = "loaded again"
            try:
                engine.load(written)
            except errors.EngineMissing as error:
                proof = "NOT loaded again"
                why = error.message.replace(str(written), str(options.output))
                console.warn(f"whether it can be loaded is not known: {why}")
    except errors.EngineFailure as failure:
        raise with_engine(failure, engine) from failure
    console.say(f"{options.output}: written by {engine.label} {type(engine).version()} and {proof}")
