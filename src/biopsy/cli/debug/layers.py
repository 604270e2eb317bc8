"""``biopsy debug layers``: which layers of a model an engine, the suspect, computes wrongly, and which only pass on an
error. It compares them with an engine to trust or with golden values.
"""

from __future__ import annotations

import argparse

from biopsy.cli.arguments.engines import TensorrtOptions
from biopsy.cli.console import Console
from biopsy.cli.debug import bundling, other_machines
from biopsy.cli.debug.layers_options import ENGINES, LayersOptions

EPILOG = """\
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
    LayersOptions.add(
        parser,
        without=TensorrtOptions.declared,
        titles={"engines": ENGINES, "events": "", **dict.fromkeys(("record_memory", "work_dir"), "memory and files")},
        run_timeout="end a run that takes longer, e.g. 90s",
        events="write what happens as JSON lines",
    )
    bundling.add(parser, "the worst layer or group")
    TensorrtOptions.add(parser)
    other_machines.add_refused(
        parser,
        "layers are compared with each other, so one machine measures them all, and each step needs the last one",
        "debug reduce --on ray    searches for the nodes that fail together on many machines",
    )


@LayersOptions.reading
def execute(options: LayersOptions, console: Console) -> int:
    """Examine the model; returns 0 if all layers are right, 1 if some are wrong."""
    from biopsy.cli.debug.layers_report import examined

    bundling.require_possible(options.bundle)
    options.require_possible()
    report = options.report_file(console)
    return examined(options.settled(console), report)
