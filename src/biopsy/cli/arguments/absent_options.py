"""Options of Polygraphy that a command lacks: some are refused with a reason, others are accepted without effect."""

from __future__ import annotations

import argparse
import re
from functools import cache
from typing import Any, NamedTuple

from biopsy import errors

TABLE = """\
[run]
--tf --tftrt --use-tftrt --minimum-segment-size --dynamic-op --ckpt --tf-outputs --save-pb --save-tensorboard
    --freeze-graph --gpu-memory-fraction --allow-growth --xla --save-timeline --opset | biopsy runs ONNX models, and
    none of TensorFlow | python -m tf2onnx.convert --saved-model DIR --output model.onnx
--gen --gen-script | biopsy writes no scripts | biopsy.run and biopsy.compare do the same from Python
--pluginref | there is no CPU reference of plug-ins | --reference    onnx's own evaluator
--load-runtime --dla-workspace-allocation-strategy --optimization-profile --allocation-strategy
    --weight-streaming-budget | an engine is run with TensorRT's defaults, in the first optimization profile that
    takes the shapes | leave it out
--use-subprocess | an engine that crashes its process is always noticed, and named
--sequential-runners | engines always run one after the other, each freed before the next
--infinities-compare-equal | infinities of the same sign always compare equal
--save-input-blob | raw binary files say neither type nor shape
    | --save-inputs inputs.npz, and array.tofile(...) in Python
--no-shape-check | outputs of different shapes never agree here | reshape them in the model
--check-average | every iteration must agree | --check-error-stat mean    compares the mean of each iteration
--save-accuracy-results | the findings have a form of our own | --report FILE.json
--save-heatmaps --show-heatmaps --save-error-metrics-plot --show-error-metrics-plot | nothing is drawn
    | --save-outputs outputs.npz, and matplotlib
--lpips-threshold --lpips-tolerance | perceptual metrics need a network of PyTorch's | --psnr or --snr

[run, debug build, debug precision, convert, inspect capability]
--shape-inference --do-shape-inference | types and shapes are inferred where they are needed, by onnx

[run, debug build, debug precision, debug reduce, convert, inspect capability]
--no-onnxruntime-shape-inference | types and shapes are inferred where they are needed, by onnx

[run, debug build, debug precision, debug reduce, convert]
--ignore-external-data | a model cannot be run or built without its weights
    | --external-data-dir DIR, if they are elsewhere

[run, debug build, debug precision, debug reduce, inspect model, inspect capability, inspect sparsity, check lint]
--fp-to-fp16 | this command uses the model as it is, and converts nothing
    | biopsy convert MODEL -o half.onnx --fp-to-fp16    and then the same with half.onnx

[run, debug build, debug precision, debug reduce, convert, check lint, surgeon extract, surgeon sanitize]
--data-loader-backend-module NAME | values are made by NumPy, the same for every engine

[run, debug build, debug precision, convert]
--precision-constraints --layer-precisions | TensorRT 11 and TensorRT-RTX compute in the types of the model, and
    biopsy sets none of layers in TensorRT 10
    | biopsy debug precision writes a model with the precision of each layer in it
--calibration-cache --calib-base-cls --calibration-base-class --quantile --regression-cutoff | calibration is not part
    of a build: TensorRT 11 and TensorRT-RTX take int8 from the model's own QuantizeLinear and DequantizeLinear
    | biopsy debug precision --int8 --load-inputs FILE, or NVIDIA's ModelOpt, writes such a model
--trt-config-script --trt-config-postprocess-script --trt-cpps --trt-network-postprocess-script --trt-npps | scripts
    cannot reach TensorRT's objects here | build the engine with a script of yours, then biopsy run FILE.engine --trt
--use-dla | layers are not put on a DLA here | build with trtexec, then run FILE.engine --trt
--preview-features --quantization-flags | these flags of TensorRT are left at their defaults
    | build with trtexec, then biopsy run FILE.engine --trt
--plugin-instancenorm | flags of the ONNX parser can be set here and not cleared | --onnx-flags NAME    sets one
--enable-uint8-asymmetric-quantization-dla | it is deprecated in Polygraphy, too
    | --onnx-flags enable_uint8_and_asymmetric_quantization_dla
--trt-outputs-by-type | tensors of TensorRT's network are chosen by their names alone
    | --trt-outputs NAME ..., or --onnx-outputs-by-type for those of the model
--decomposable-attentions | layers of TensorRT's network are not changed here
    | build with a script of yours, then biopsy run FILE.engine --trt
--tensor-dtypes --tensor-datatypes --all-tensor-dtypes --all-tensor-datatypes --tensor-formats --all-tensor-formats |
    inputs and outputs of an engine have the types and the plain layout of the model
    | change the types in the model, or build with trtexec, then biopsy run FILE.engine --trt
--mark-debug --mark-unfused-tensors-as-debug-tensors | tensors inside the network are returned as outputs here
    | --trt-outputs NAME, or --trt-outputs mark all
--load-tactics --load-tactic-replay | TensorRT 11 and TensorRT-RTX replay no tactics, and biopsy replays none in
    TensorRT 10 | --load-timing-cache FILE --error-on-timing-cache-miss    repeats the choices of an earlier build

[run, debug precision, convert]
--save-tactics --save-tactic-replay | this command does not write what an engine chose
    | biopsy debug build MODEL --trt --until 1 --check build --save-tactics FILE

[run, debug reduce, convert, surgeon extract, surgeon sanitize, surgeon insert, surgeon prune, surgeon weight-strip,
 surgeon weight-reconstruct]
--no-save-all-tensors-to-one-file | weights that leave the model go into one file | --save-external-data FILE

[debug build]
--load-inputs --load-input-data --data-loader-script --val-range --iterations --iters | debug build runs nothing
    itself: inputs belong to the check | --check biopsy run {} ... --load-inputs FILE

[debug precision]
--trt-outputs --trt-exclude-outputs | candidates have the outputs of the model
    | biopsy debug layers    compares tensors inside the model

[debug reduce]
--external-data-size-threshold | weights of 1024 bytes or more go into the file of --save-external-data
    | biopsy surgeon sanitize reduced.onnx -o FILE --save-external-data --external-data-size-threshold SIZE

[convert]
--ckpt --tf-outputs --freeze-graph --opset | biopsy runs ONNX models, and none of TensorFlow
    | python -m tf2onnx.convert --saved-model DIR --output model.onnx
--seed --val-range --iterations --iters --load-inputs --load-input-data --data-loader-script | convert runs nothing:
    TensorRT 11 and TensorRT-RTX take int8 from the model's own QuantizeLinear and DequantizeLinear
    | biopsy debug precision MODEL --int8 --load-inputs FILE -o FILE --check ...    writes such a model
--engine-capability | engines are built for the standard capability
    | build with trtexec, then biopsy run FILE.engine --trt

[inspect model]
--ckpt --freeze-graph | biopsy runs ONNX models, and none of TensorFlow
    | python -m tf2onnx.convert --saved-model DIR --output model.onnx
--shape-inference --do-shape-inference | only the types and shapes that the model holds are shown
    | biopsy surgeon sanitize MODEL -o inferred.onnx    writes inferred ones into it
--no-onnxruntime-shape-inference | inspect model infers nothing
--ignore-external-data | weights in other files are read only for --show weights
--plugins --onnx-flags --plugin-instancenorm --enable-uint8-asymmetric-quantization-dla --strongly-typed
    --layer-precisions --decomposable-attentions --tensor-dtypes --tensor-datatypes --all-tensor-dtypes
    --all-tensor-datatypes --tensor-formats --all-tensor-formats --trt-network-postprocess-script --trt-npps
    --mark-debug --mark-unfused-tensors-as-debug-tensors --save-timing-cache | --display-as trt shows the network as
    TensorRT's parser makes it by default, and builds nothing
    | biopsy run MODEL --trt --build-only --save-engine FILE.engine ...    and biopsy inspect model FILE.engine
--load-runtime --dla-workspace-allocation-strategy | an engine is read by TensorRT's own runtime, with its defaults
    | leave it out
--visual --visual-port --save-visual | nothing is drawn | netron MODEL, of pip install netron

[inspect capability]
--ignore-external-data | an engine cannot judge a model without its weights
    | --external-data-dir DIR, if they are elsewhere
--save-external-data --external-data-path --external-data-size-threshold --no-save-all-tensors-to-one-file | each part
    is one file with its weights inside
    | biopsy surgeon sanitize PART -o FILE --save-external-data    writes them beside it

[inspect sparsity]
--ignore-external-data | the command examines the values of the weights
    | --external-data-dir DIR, if they are elsewhere

[check lint]
--ignore-external-data | the nodes of a model cannot be run without its weights
    | --external-data-dir DIR, if they are elsewhere

[surgeon extract, surgeon sanitize, surgeon insert, surgeon prune, surgeon weight-strip, surgeon weight-reconstruct]
--fp-to-fp16 | surgeon commands change what they name, and nothing else
    | biopsy convert MODEL -o half.onnx --fp-to-fp16    and then the same with half.onnx
"""
"""Rows of options, below the commands that they belong to: options | why they are missing | what to type instead.

An option of a row without the third part is accepted, and a warning says why it has no effect. A word that is not an
option means that it takes a value. Indented lines continue the row above.
"""


class AbsentOption(NamedTuple):
    """Spellings of an option, why it is missing, and what to type ``instead``; "" if it is accepted without effect."""

    options: tuple[str, ...]
    why: str
    instead: str = ""
    takes_value: bool = True


@cache
def absent_options() -> dict[str, list[AbsentOption]]:
    """The rows by command, such as ``debug reduce``."""
    rows: dict[str, list[AbsentOption]] = {}
    commands: list[str] = []
    for line in re.sub(r"\n +", " ", TABLE).splitlines():
        if line.startswith("["):
            commands = line.strip("[]").split(", ")
        elif line:
            left, why, instead = (*line.split(" | "), "")[:3]
            options = tuple(word for word in left.split() if word.startswith("-"))
            row = AbsentOption(options, why, instead, takes_value=bool(instead) or len(left.split()) > len(options))
            for command in commands:
                rows.setdefault(command, []).append(row)
    return rows


class _Absent(argparse.Action):
    """Raises UsageError, or adds a warning to ``without_effect``."""

    def __init__(self, *args: Any, row: AbsentOption, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._row = row

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if self._row.instead:
            raise errors.UsageError(f"{option} is not available: {self._row.why}", next_steps=[self._row.instead])
        namespace.without_effect = (*namespace.without_effect, f"{option} has no effect: {self._row.why}")


def add(parser: argparse.ArgumentParser, command: str) -> None:
    """Add the options that only Polygraphy's command of this name has; the help does not show them."""
    parser.set_defaults(without_effect=())
    for row in absent_options().get(command, ()):
        parser.add_argument(
            *row.options,
            action=_Absent,
            row=row,
            dest=argparse.SUPPRESS,
            default=argparse.SUPPRESS,
            nargs="*" if row.instead else None if row.takes_value else 0,
            help=argparse.SUPPRESS,
        )
