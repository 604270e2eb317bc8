"""``biopsy run``: run a model in one or more engines and compare their outputs.

Only the options are declared here. The work is imported when it begins: a reduction parses such command lines too.
"""

from __future__ import annotations

import argparse

from biopsy import errors
from biopsy.cli.arguments import types
from biopsy.cli.arguments.engines import TensorrtOptions
from biopsy.cli.arguments.groups import CommandLimits
from biopsy.cli.console import Console
from biopsy.cli.run.options import RunOptions

EPILOG = """\
examples:
  biopsy run model.onnx --onnxrt                                       does it run?
  biopsy run model.onnx --engine onnxrt:optimization=none --onnxrt     an engine against itself
  biopsy run model.onnx --reference --onnxrt --openvino --atol 1e-3    two engines against a third
  biopsy run model.onnx --onnxrt --save-inputs inputs.json --onnx-outputs mark all --save-outputs golden.json
  biopsy run model.onnx --openvino --load-inputs inputs.json --load-outputs golden.json
  biopsy run model.onnx --openvino --compare-with noise                a bug, or only rounding?
  biopsy run model.onnx --onnxrt --onnx-outputs mark all --save-outputs golden.safetensors --record-memory 500MB
  biopsy run model.onnx --engine onnxrt:release=1.20.1 --onnxrt        a release against the one installed here
  biopsy run model.onnx --engine onnxrt:release=1.20.1 --onnxrt --slower 1.3     and is it slower?
  biopsy run model.onnx --trt --build-only --save-engine model.engine  does it build? (TensorRT-RTX: without a GPU)

exit status: 0 every engine runs and all results agree; 1 a mismatch, an engine fails on the model or, with --slower, is
slower; 2 wrong usage; 4 nothing was concluded (an engine is missing, the values do not fit the model, or the times are
too uneven for --slower)"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``run``."""
    RunOptions.add(
        parser,
        without=(*CommandLimits.declared, *TensorrtOptions.declared),
        packages="run the engines of this package from this release of it",
    )
    TensorrtOptions.add(parser)


@RunOptions.reading
def derived_files(options: RunOptions) -> types.Derived:
    """The file of weights beside the saved model."""
    return options.derived_weights(options.save_onnx)


@RunOptions.reading
def execute(options: RunOptions, console: Console) -> int:
    """Run the model, or compare saved outputs."""
    from biopsy.cli.run import command

    return command.run(options, console)


@RunOptions.reading
def conclude_crash(options: RunOptions, console: Console, crash: errors.EngineCrash) -> int:
    """Conclude a run whose process an engine has crashed."""
    from biopsy.cli.run import command

    return command.conclude_crash(options, console, crash)
