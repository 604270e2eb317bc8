"""The command lines with which Polygraphy 0.53.6 tests its own commands, without those of TensorFlow and PyTorch."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from support.typed_lines import Fate, Line, Session, cases, play

FALSE_IF_NODES = """\
#!/usr/bin/env python3
import argparse, sys
import onnx
parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--fail-node", nargs="+")
parser.add_argument("--default-return-code", type=int, default=0)
parser.add_argument("--fail-return-code", type=int, default=1)
args = parser.parse_args()
print("it looks at a model")
names = {node.name for node in onnx.load(args.model).graph.node}
if names >= {*args.fail_node}:
    print("REALLY BAD!" if "onnx_graphsurgeon_node_1" in names else "FOUND A BAD NODE!")
    sys.exit(args.fail_return_code)
sys.exit(args.default_return_code)
"""
CHECKER = [("checker.py", FALSE_IF_NODES)]
NODE = "onnx_graphsurgeon_node_"
FAILS = f"--check ./checker.py polygraphy_debug.onnx --fail-node {NODE}"
PROFILE = "--trt-min-shapes X:[1,2,{0}] --trt-opt-shapes X:[1,2,{1}] --trt-max-shapes X:[1,2,{2}]"


def one(name: str, words: str, fate: Fate = "works", **rest: object) -> Session:
    """A session of a single line, whose model is the word that ends with .onnx."""
    models = [word.removesuffix(".onnx") for word in words.split() if word.endswith(".onnx")]
    known = [model for model in models[:1] if not Path(model).suffix]
    return Session(name=name, models=known, lines=[Line(words, fate, **rest)])  # type: ignore[arg-type]


def on_trt(name: str, words: str, model: str = "identity", fate: Fate = "runs on a GPU", **rest: object) -> Session:
    """``run`` with TensorRT."""
    return one(f"run/trt/{name}", f"run -v {model}.onnx --trt {words}", fate, **rest)


def on_ort(name: str, words: str, model: str = "identity", fate: Fate = "works", **rest: object) -> Session:
    """``run`` with ONNX Runtime."""
    return one(f"run/{name}", f"run -v {model}.onnx --onnxrt {words}", fate, **rest)


RUN_TRT = [
    on_trt("basic", ""),
    on_trt("outputs", "--trt-outputs identity_out_0", "identity_identity"),
    on_trt("all outputs", "--trt-outputs mark all --save-outputs out.json", "identity_identity"),
    on_trt("int8", "--int8", fate="TensorRT 10"),
    on_trt("sparse weights", "--sparse-weights"),
    on_trt("shape", "--onnxrt --input-shapes X:[1,2,4,4]", "dynamic_identity"),
    on_trt("open shape", "--onnxrt --input-shapes X:[1,2,-1,4]", "dynamic_identity"),
    on_trt("old form of shapes", "--onnxrt --input-shapes X,1x2x-1x4", "dynamic_identity", "refused"),
    on_trt("profile", f"--onnxrt --input-shapes X:[1,2,1,1] {PROFILE.format('1,1', '1,1', '1,1')}", "dynamic_identity"),
    on_trt("profile alone", f"--onnxrt {PROFILE.format('1,1', '1,1', '1,1')}", "dynamic_identity"),
    on_trt(
        "another shape",
        f"--onnxrt --input-shapes X:[1,2,2,2] {PROFILE.format('1,1', '3,3', '4,4')}",
        "dynamic_identity",
    ),
    on_trt(
        "two profiles",
        f"--onnxrt {PROFILE.format('1,1', '1,1', '1,1')} {PROFILE.format('4,4', '4,4', '4,4')} "
        "--input-shapes X:[1,2,1,1]",
        "dynamic_identity",
    ),
    *(
        on_trt(
            f"two profiles, the one of number {number}",
            f"--onnxrt {PROFILE.format('1,1', '1,1', '1,1')} {PROFILE.format('4,4', '4,4', '4,4')} "
            f"--input-shapes X:[1,2,1,1] --optimization-profile={number}",
            "dynamic_identity",
            "refused",
        )
        for number in (0, 1)
    ),
    on_trt("calibration cache", "--int8 --calibration-cache FILE --onnxrt", fate="refused"),
    on_trt("timing cache", "--save-timing-cache total.cache", "const_foldable", makes="total.cache"),
    Session(
        name="run/trt/engine",
        models=("identity",),
        lines=[
            Line("run -v identity.onnx --trt --save-engine built", "runs on a GPU", makes="built"),
            Line("run -v --trt built --model-type=engine", "reads on a GPU"),
        ],
    ),
    on_trt("save tactics", "--save-tactics replay.json", fate="refused", says="debug build"),
    on_trt("load tactics", "--load-tactics replay.json", fate="refused", says="--load-timing-cache"),
    on_trt("tactic sources", "--tactic-sources EDGE_MASK_CONVOLUTIONS JIT_CONVOLUTIONS"),
    on_trt("pool limit", "--pool-limit workspace:32M"),
    on_trt("both", "--onnxrt"),
    on_trt("allocation", "--allocation-strategy static", fate="refused"),
    on_trt("tensors inside", "--mark-unfused-tensors-as-debug-tensors --save-outputs output.json", fate="refused"),
]

RUN = [
    one("run/script", "run -v --gen-script=out.py identity.onnx", "refused", says="biopsy.run"),
    one("run/no model", "run -v --silent", "refused"),
    one("run/no model, with a log", "run -v --log-file example.log", "refused", says="MODEL"),
    on_ort("log in a new folder", "--log-file example/example.log", fate="refused", says="mkdir -p"),
    on_ort("basic", ""),
    on_ort("save model", "--save-onnx saved", makes="saved"),
    on_ort("outputs", "--onnx-outputs identity_out_0", "identity_identity"),
    on_ort("all outputs", "--onnx-outputs mark all --save-outputs out.json", "identity_identity", makes="out.json"),
    on_ort(
        "all but one output",
        "--onnx-outputs mark all --onnx-exclude-outputs identity_out_2 --save-outputs out.json",
        "identity_identity",
    ),
    on_ort("weights elsewhere", "--external-data-dir data", "ext_weights"),
    on_ort("provider", "--providers cpu"),
    on_ort("no iteration", "--iterations=0", fate="refused"),
    on_ort("in another process", "--use-subprocess --sequential-runners"),
    on_ort("no iteration, compared", "--onnxrt --iterations=0 --atol=1.0 --rtol=1.0", fate="refused"),
    on_ort(
        "tolerances by name",
        "--onnxrt --onnx-outputs mark all --atol identity_out_0:1.0 identity_out_2:3.0 0.5 "
        "--rtol identity_out_0:1.0 identity_out_2:3.0 0.5",
        "identity_identity",
    ),
    on_ort("ranges", "--val-range X:[1.0,2.0] [0.5,1.5]", "identity_identity"),
    on_ort("indices", "--onnxrt --postprocess top-1 --compare-func=indices", says="Pass Rate: 100.00%"),
    *(
        on_ort(f"measure {name}", f"--onnxrt --compare {name}", says="Accuracy Summary")
        for name in ("l2", "cosine_similarity", "psnr", "snr")
    ),
    *(
        on_ort(f"statistic {name}", f"--onnxrt --check-error-stat {name}")
        for name in ("max", "median", "mean", "quantile")
    ),
    on_ort("average", "--onnxrt --check-error-stat mean --check-average", fate="refused"),
    on_ort("average of elements", "--onnxrt --check-average", fate="refused"),
    on_ort("average of indices", "--onnxrt --check-average --compare indices", fate="refused"),
    on_ort(
        "impossible limit",
        "--onnxrt --compare distance_metrics simple --cosine-similarity-threshold 2.0",
        status=1,
        says="FAILED",
    ),
    *(
        Session(
            name=f"run/other inputs, {saved}",
            models=("identity",),
            lines=[
                Line(f"run -v identity.onnx --onnxrt --save-outputs {saved} --seed=1"),
                Line(f"run -v identity.onnx --onnxrt --load-outputs {saved} --seed=2", status=1, says="FAILED"),
            ],
        )
        for saved in ("outputs0.json", "golden")
    ),
    Session(
        name="run/loaded outputs",
        models=("identity",),
        lines=[
            Line("run -v identity.onnx --onnxrt --save-outputs outputs0.json"),
            Line("run -v identity.onnx --onnxrt --save-outputs outputs1.json"),
            Line(
                "run -v identity.onnx --onnxrt --load-outputs outputs0.json outputs1.json",
                says="Difference is within tolerance",
            ),
            Line("run -v identity.onnx --load-outputs outputs0.json"),
            Line(
                "run -v identity.onnx --load-outputs outputs0.json outputs1.json", says="Difference is within tolerance"
            ),
            Line(
                "run -v identity.onnx --load-outputs outputs0.json outputs0.json", says="Difference is within tolerance"
            ),
            Line(
                "run -v identity.onnx --load-outputs outputs0.json outputs1.json --check-error-stat max "
                "--save-accuracy-results accuracy.json",
                "refused",
                says="--report",
            ),
            Line("check accuracy -v accuracy.json --check-error-stat max --atol 1e-8", "refused", says="run MODEL"),
        ],
    ),
    Session(
        name="run/loaded inputs",
        models=("identity",),
        lines=[
            Line("run -v identity.onnx --onnxrt --save-input-data in0.json"),
            Line("run -v identity.onnx --onnxrt --load-input-data in0.json --save-input-data in1.json"),
            Line("run -v identity.onnx --onnxrt --load-input-data in0.json in1.json", says="2 iterations"),
        ],
    ),
    on_ort("reference of plug-ins", "--pluginref", fate="refused", says="--reference"),
    one("run/reference of plug-ins alone", "run -v identity.onnx --pluginref", "refused", says="--reference"),
    one("run/three", "run -v instancenorm.onnx --pluginref --onnxrt --trt", "refused", says="--reference"),
    Session(
        name="run/indices of loaded outputs",
        models=("identity",),
        lines=[
            Line("run -v identity.onnx --onnxrt --iterations 3 --save-outputs golden"),
            Line(
                "run -v identity.onnx --onnxrt --iterations 3 --load-outputs golden --postprocess top-1 "
                "--compare-func indices",
                says="Pass Rate: 100.00%",
            ),
        ],
    ),
    *(
        on_ort(
            f"folders of iterations{more}",
            f"--onnxrt{more} --iterations 3 --save-inputs inputs --save-outputs outputs",
            makes="outputs/0000000002.json",
        )
        for more in ("", " --sequential-runners")
    ),
    Session(
        name="run/loads and saves",
        models=("identity",),
        lines=[
            Line("run -v identity.onnx --onnxrt --save-outputs golden"),
            Line("run -v identity.onnx --onnxrt --load-outputs golden --save-outputs newsave", says="Accuracy Summary"),
            Line(
                "run -v identity.onnx --onnxrt --load-outputs golden --seed=2 --check-error-stat mean --atol=0 "
                "--rtol=0 --fail-fast",
                status=1,
                says="FAILED",
            ),
        ],
    ),
    Session(
        name="run/overwrites what it loads",
        models=("identity",),
        lines=[
            Line("run -v identity.onnx --onnxrt --save-inputs data"),
            Line("run -v identity.onnx --onnxrt --onnxrt --load-inputs data --save-inputs data", "refused"),
        ],
    ),
]

SHOWN = ("", "--show layers", "--show layers attrs", "--show layers attrs weights", "--show weights")
INSPECT = [
    *(
        one(f"inspect/{name} {show}", f"inspect -v model {name}.onnx --log-format=no-colors {show}", says=says)
        for name, show, says in (
            ("identity", "", "---- 1 Graph Input(s) ----"),
            ("identity", "--show layers", "{x [dtype=float32, shape=(1, 1, 2, 2)]}"),
            ("identity_with_initializer", "--show layers", "{Initializer | X [dtype=float32, shape=(2, 2)]}"),
            ("identity_with_initializer", "--show layers attrs weights", "shape=[2, 2]] | Values:"),
            ("add_with_dup_inputs", "--show layers", f"Node 0    | {NODE}1 [Op: Add]"),
            ("tensor_attr", "--show layers", "{} -> {const_out [dtype=float32, shape=(14, 14)]}"),
            ("tensor_attr", "--show layers attrs", "value = Tensor: [dtype=float32, shape=[14, 14]]"),
            ("tensor_attr", "--show layers attrs weights", "| Values:"),
            ("scan", "--show layers attrs weights", "---- 2 Subgraph Input(s) ----"),
            ("dim_param", "--show layers", "shape=('dim0', 16, 128)"),
            ("inp_dim_val_not_set", "", "shape=(-1, -1, -1)"),
        )
    ),
    one("inspect/unbounded", "inspect -v model unbounded_dds.onnx --list-unbounded-dds", says="cast_out_6"),
    *(
        one(f"inspect/trt {name} {show}", f"inspect -v model {name}.onnx --display-as=trt {show}")
        for name, show in itertools.product(("identity", "scan", "tensor_attr"), SHOWN)
    ),
    Session(
        name="inspect/network script",
        files=[("network.py", "def load_network(): pass\n")],
        lines=[Line("inspect -v model network.py", "differs", status=4, says="is not an ONNX model")],
    ),
    one("inspect/visual", "inspect -v model identity.onnx --visual --save-visual out.html", "refused"),
    *(
        Session(
            name=f"inspect/data {saved} {shown}",
            models=("identity",),
            lines=[
                Line(f"run -v identity.onnx --onnxrt {saved} data.json"),
                Line(f"inspect -v data data.json {shown}"),
            ],
        )
        for saved, shown in itertools.product(("--save-outputs", "--save-inputs"), ("", "--show-values"))
    ),
    *(
        Session(
            name=f"inspect/data {items} items",
            models=("dynamic_identity",),
            lines=[
                Line("run -v dynamic_identity.onnx --onnxrt --save-inputs in.json --input-shapes=X:[1,2,24,24]"),
                Line(f"inspect -v data in.json --show-values --line-width=-1 --num-items={items}"),
            ],
        )
        for items in (-1, 1, 10, 12)
    ),
    Session(
        name="inspect/data in folders",
        models=("identity",),
        lines=[
            Line("run -v identity.onnx --onnxrt --iterations 2 --save-outputs outputs --save-inputs inputs"),
            Line("inspect -v data outputs --all", says="Run Results"),
            Line("inspect -v data outputs --all", says="Iteration: 1"),
            Line("inspect -v data inputs --all", says="Data (2 iterations)"),
        ],
    ),
    Session(
        name="inspect/data in an empty folder",
        files=[("folder/inner/file", "")],
        lines=[Line("inspect -v data folder", "differs", status=4)],
    ),
    one(
        "inspect/capability",
        "inspect -v capability --with-partitioning capability.onnx -o subgraphs",
        "differs",
        status=1,
        says="FAKER!",
        makes="subgraphs",
    ),
    one("inspect/takes all", "inspect -v capability --with-partitioning identity_identity.onnx -o subgraphs"),
    *(one(f"inspect/sparsity {name}", f"inspect -v sparsity {name}.onnx") for name in ("matmul", "conv")),
]


def replay(tactic: int) -> str:
    """A tactic replay in Polygraphy's form, of one layer."""
    tensor = {"dtype": "DataType.FLOAT", "strides": [1, 2], "vectorized_dim": -1, "components_per_element": 1}
    infos = [{**tensor, "polygraphy_class": "TensorInfo"}]
    chosen = {"implementation": 0, "tactic": tactic, "inputs": infos, "outputs": infos, "polygraphy_class": "Algorithm"}
    return json.dumps({"replay": {"layer0": chosen}, "polygraphy_class": "TacticReplayData"})


DIFF_TACTICS = [
    Session(
        name=f"diff-tactics/{words}",
        files=[
            (f"dir/{name}.json", replay(tactic))
            for name, tactic in (("good/0", 0), ("good/1", 1), ("bad/0", 1), ("bad/1", 2))
        ],
        lines=[
            Line(f"inspect -v diff-tactics {words}", says=f"Loaded {number} bad tactic replays."),
            Line(f"inspect -v diff-tactics {words}", says="Algorithms: ['(Implementation: 0, Tactic: 2) | Inputs: "),
        ],
    )
    for words, number in (
        ("--dir dir", 2),
        ("--good dir/good --bad dir/bad", 2),
        ("--good dir/good/0.json --bad dir/bad/1.json", 1),
    )
]

SURGEON_EXTRACT = [
    Session(
        name=f"extract/{words}",
        models=(model,),
        lines=[
            Line(f"surgeon extract -v {model}.onnx -o part {words}"),
            Line("run -v part --model-type=onnx --onnxrt"),
        ],
    )
    for model, words in (
        ("identity_identity", "--inputs X:auto:auto"),
        ("identity_identity", "--inputs identity_out_0:auto:auto"),
        (
            "identity_identity",
            "--inputs identity_out_0:auto:auto --outputs identity_out_2:auto --force-fallback-shape-inference",
        ),
        ("dynamic_identity", "--outputs Y:auto --force-fallback-shape-inference"),
        ("dim_param", ""),
    )
]
INSERTED = [
    one(f"insert/{model} {words}", f"surgeon -v insert {model}.onnx -o out {words} --op=FakeOp", makes="out")
    for model, words in (
        ("identity_identity", "--inputs=identity_out_0 --outputs=identity_out_0"),
        ("identity_identity", "--inputs=identity_out_2 --outputs=identity_out_2"),
        ("identity_identity", "--inputs=X --outputs=X"),
        ("reducable", "--inputs=add_out_4 --outputs=identity_out_8"),
        ("reducable", "--inputs=add_out_4 --outputs=add_out_4"),
    )
]
ATTRIBUTES = (
    "--attrs str_attr=\"'0'\" int_attr=0 float_attr=0.0 other_str_attr=name str_list_attr=\"['0','1']\" "
    "int_list_attr=[1,2,3] float_list_attr=[0.0,-1.0,-2.0]"
)


def folding() -> Iterable[Session]:
    """Every combination of the options that say how constants are folded."""
    chosen = itertools.product(
        ("", "--no-fold-shapes "),
        ("", "--partitioning basic ", "--partitioning recursive "),
        ("", "--no-per-pass-shape-inference "),
        ("", "--no-onnxruntime-shape-inference"),
    )
    for words in map("".join, chosen):
        yield Session(
            name=f"sanitize/fold {words}",
            models=("const_foldable",),
            lines=[
                Line(f"surgeon -v sanitize const_foldable.onnx -o out --fold-constants {words}", says="3 -> 1 nodes"),
                Line("run -v out --model-type=onnx --onnxrt"),
            ],
        )


SANITIZE = [
    *folding(),
    one("sanitize/one pass", "surgeon -v sanitize const_foldable.onnx -o out --fold-constants --num-passes=1"),
    *(
        Session(
            name=f"sanitize/shape {size}",
            models=("dynamic_identity",),
            lines=[
                Line(f"surgeon -v sanitize dynamic_identity.onnx -o out --override-input-shapes=X:[1,2,{size},{size}]"),
                Line("run -v out --model-type=onnx --onnxrt"),
            ],
        )
        for size in (1, 2, 3)
    ),
    one("sanitize/same shape", "surgeon -v sanitize const_foldable.onnx -o out --override-input-shapes=input:[1,3]"),
    one(
        "sanitize/no input",
        "surgeon -v sanitize dynamic_identity.onnx -o out --override-input-shapes=Y:[1,2,3,4]",
        "refused",
        says="Y",
    ),
    one("sanitize/two shapes", "surgeon -v sanitize reducable.onnx -o out --override-input-shapes Y0:[5] X0:[5]"),
    one("sanitize/outputs", "surgeon -v sanitize identity_identity.onnx -o out.onnx --outputs mark all"),
    one(
        "sanitize/cleanup", "surgeon -v sanitize identity_identity.onnx -o out.onnx --outputs identity_out_0 --cleanup"
    ),
    Session(
        name="sanitize/weights",
        models=("ext_weights",),
        lines=[
            Line(
                "surgeon -v sanitize ext_weights.onnx --external-data-dir data --fold-constants -o out.onnx "
                "--save-external-data ext_weights.data --external-data-size-threshold=0 -vvvvv",
                makes="ext_weights.data",
            ),
            Line("run -v out.onnx --onnxrt --external-data-dir ."),
        ],
    ),
    one("sanitize/by running", "surgeon -v sanitize dynamic_identity.onnx -o out --force-fallback-shape-inference"),
    *(
        one(
            f"sanitize/threshold {size}",
            f"surgeon -v sanitize constant_fold_bloater.onnx -o out --fold-constants --fold-size-threshold {size}",
            says=f"1 -> {left} nodes",
        )
        for size, left in (("10M", 0), ("9.99M", 1))
    ),
]
SURGEON = [
    *SURGEON_EXTRACT,
    *INSERTED,
    one(
        "insert/attributes",
        f"surgeon -v insert identity_identity.onnx -o out --inputs=X --outputs=X --op=FakeOp {ATTRIBUTES}",
    ),
    *SANITIZE,
    *(one(f"prune/{name}", f"surgeon -v prune {name}.onnx -o pruned.onnx") for name in ("matmul", "conv")),
    *(
        Session(
            name=f"strip/{name}",
            models=(name,),
            lines=[
                Line(f"surgeon -v weight-strip {name}.onnx -o stripped.onnx"),
                Line("surgeon -v weight-reconstruct stripped.onnx -o full.onnx"),
            ],
        )
        for name in ("matmul", "conv")
    ),
]

CONVERT = [
    one("convert/fp16", "convert -v identity_identity.onnx --convert-to=onnx --fp-to-fp16 -o out", makes="out"),
    one("convert/engine", "convert -v identity.onnx --model-type=onnx -o out.engine", makes="out.engine"),
    one("convert/engine without ending", "convert -v identity.onnx --convert-to=trt -o out", makes="out"),
    Session(
        name="convert/scripts",
        files=[("network.py", "")],
        lines=[
            Line(
                "convert -v network.py:my_load_network --model-type=trt-network-script --trt-config-script network.py "
                "--convert-to=trt -o out",
                "refused",
            )
        ],
    ),
    one("convert/outputs", "convert -v identity_identity.onnx -o out.onnx --onnx-outputs mark all", makes="out.onnx"),
    one("convert/network", "convert -v identity.onnx --convert-to=onnx-like-trt-network -o out", "refused"),
]

DATA = [
    Session(
        name="data/merge",
        models=("identity",),
        lines=[
            Line("run -v identity.onnx --onnxrt --save-inputs in.json --save-outputs out.json"),
            Line("data -v merge in.json out.json -o merged", makes="merged"),
            Line("data -v to-input in.json out.json -o merged.json", says="1 iteration of 2 tensors"),
            Line("data -v concat in.json in.json -o more", says="2 iterations"),
            Line("data -v concat out.json out.json -o results", says="2 iterations"),
        ],
    )
]

LINT = [
    one(f"lint/{name}", f"check -v lint {name}.onnx -o report.json", status=status, says=says, makes="report.json")
    for name, status, says in (
        ("identity_identity", 0, "2 of 2 nodes"),
        ("duplicate_names", 1, "identical"),
        ("no_name", 1, "onnx_checker"),
        ("bad_graph", 1, "Incompatible dimensions for matrix multiplication"),
        ("capability", 1, ""),
        ("custom_op", 0, ""),
        ("empty", 0, "ONNX model has no nodes"),
        ("cleanable", 0, "Does not affect outputs, can be removed"),
        ("renamable", 0, ""),
    )
]
CHECK = [
    *LINT,
    one("lint/weights elsewhere", "check -v lint ext_weights.onnx -o report.json --ext data"),
    *(
        Session(
            name=f"lint/{value}",
            models=("conditionally_invalid",),
            files=[("inputs.py", f"import numpy as np\ndef load_data():\n    yield {{'cond': np.array([{value}])}}\n")],
            lines=[
                Line(
                    "check -v lint conditionally_invalid.onnx -o report.json --data-loader-script inputs.py",
                    status=0 if value else 1,
                )
            ],
        )
        for value in (True, False)
    ),
    Session(
        name="lint/no model",
        files=[("invalid.onnx", "this is not a model")],
        lines=[Line("check -v lint invalid.onnx -o report.json", status=1)],
    ),
]

REDUCE = [
    *(
        Session(
            name=f"reduce/{mode} {node}",
            models=("reducable",),
            files=CHECKER,
            slow=node != 5,
            lines=[
                Line(
                    f"debug -v reduce reducable.onnx --output=reduced.onnx --mode {mode} --show-output "
                    f"--min-good=good_reduced.onnx {FAILS}{node}",
                    makes="reduced.onnx",
                ),
                Line("inspect model reduced.onnx --show layers", says=f"{NODE}{node} [Op: "),
            ],
        )
        for mode, node in itertools.product(("linear", "bisect"), (1, 3, 5, 7, 9))
    ),
    *(
        Session(
            name=f"reduce/{option}",
            models=("reducable",),
            files=CHECKER,
            slow=True,
            lines=[
                Line(
                    f"debug -v reduce reducable.onnx --output=reduced.onnx --show-output {option} --mode=linear "
                    f"{FAILS}{node}"
                ),
                Line("inspect model reduced.onnx", says="---- 4 Node(s) ----"),
            ],
        )
        for option, node in (("--no-reduce-inputs", 7), ("--no-reduce-outputs", 3))
    ),
    *(
        Session(
            name=f"reduce/{options}",
            models=("reducable",),
            files=CHECKER,
            slow=True,
            lines=[
                Line(f"debug -v reduce reducable.onnx --output=reduced.onnx --show-output {options} {FAILS}5 {behind}"),
                Line("inspect model reduced.onnx --show layers", says="---- 1 Node(s) ----"),
            ],
        )
        for options, behind in (
            ("--fail-code=1", "--default-return-code=2"),
            ('--fail-regex "REALLY BAD" "BAD NODE"', "--fail-return-code=0"),
            ('--fail-regex "REALLY BAD" "BAD NODE" --fail-code=0', "--fail-return-code=0"),
        )
    ),
    *(
        Session(
            name=f"reduce/both {first} and {second}",
            models=("reducable",),
            files=CHECKER,
            slow=True,
            lines=[
                Line(
                    f"debug -v reduce reducable.onnx --output=reduced.onnx --show-output {FAILS}{first} {NODE}{second}"
                ),
                Line("inspect model reduced.onnx --show layers", says=f"{NODE}{first} "),
                Line("inspect model reduced.onnx --show layers", says=f"{NODE}{second} "),
            ],
        )
        for first, second in ((1, 3), (7, 9))
    ),
    *(
        one(
            f"reduce/shapes {option}",
            "debug -v reduce dynamic_identity.onnx --output=reduced.onnx --show-output "
            f"--model-input-shapes=X:[1,2,5,5] {option} --check false",
            "differs",
            status=4,
            says="--allow-vacuous-check",
        )
        for option in ("", "--force-fallback-shape-inference")
    ),
    Session(
        name="reduce/constant",
        models=("reducable_with_const",),
        files=CHECKER,
        lines=[
            Line(
                "debug -v reduce reducable_with_const.onnx --no-shape-inference --mode=linear --output=reduced.onnx "
                f"{FAILS}3"
            ),
            Line("inspect model reduced.onnx --show layers", says=f"{NODE}3 [Op: Identity]"),
        ],
    ),
    Session(
        name="reduce/own inputs",
        models=("reducable",),
        lines=[
            Line("run reducable.onnx --onnxrt --save-inputs custom_inputs.json"),
            Line(
                "run -v reducable.onnx --onnxrt --load-inputs custom_inputs.json --onnx-outputs mark all "
                "--save-outputs layerwise_outputs.json"
            ),
            Line(
                "debug -v reduce reducable.onnx --no-reduce-outputs -o reduced.onnx --load-inputs custom_inputs.json "
                "--check polygraphy run polygraphy_debug.onnx --onnxrt --load-inputs custom_inputs.json "
                "--load-outputs layerwise_outputs.json",
                "differs",
                status=3,
            ),
        ],
    ),
    Session(
        name="reduce/replay",
        models=("reducable",),
        files=CHECKER,
        slow=True,
        lines=[
            Line(
                "debug -v reduce reducable.onnx --output=first.onnx --save-debug-replay polygraphy_debug_replay.json "
                f"{FAILS}1"
            ),
            Line(
                "debug -v reduce reducable.onnx --output=second.onnx "
                f"--load-debug-replay=polygraphy_debug_replay.json {FAILS}1",
                makes="second.onnx",
            ),
        ],
    ),
    one(
        "reduce/passes",
        "debug -v reduce multi_output.onnx --output=reduced.onnx --no-reduce-outputs --mode=linear --check polygraphy "
        "run polygraphy_debug.onnx --onnxrt",
        "differs",
        status=3,
    ),
]

PRECISION = [
    Session(
        name=f"precision/{model} {mode} {direction} {check}",
        models=(model,),
        slow=(mode, direction) != ("bisect", "forward"),
        lines=[
            Line(
                f"debug -v precision --mode {mode} --direction {direction} {model}.onnx --int8 --check {check}",
                "works" if check == "true" else "differs",
                status=status,
                says=says,
            )
        ],
    )
    for model, mode, direction, (check, status, says) in itertools.product(
        ("reducable", "const_foldable"),
        ("bisect", "linear"),
        ("forward", "reverse"),
        (("true", 0, "the check passes with every layer in int8"), ("false", 3, "no choice of layers can pass")),
    )
]

DEBUG = [
    Session(
        name="build/good and bad",
        models=("identity",),
        lines=[
            Line(
                f"debug -v build identity.onnx --save-timing-cache=replay.json {more}--artifacts-dir . "
                f"--until={until} --artifacts replay.json --check {check}",
                says=f"Passed: {passed}/1 | Pass Rate: {passed}00.0%".replace(" 000.0%", " 0.0%"),
                makes=until,
            )
            for until, check, more, passed in (("good", "true", "--show-output ", 1), ("bad", "false", "", 0))
        ],
    ),
    *REDUCE,
    *PRECISION,
    *(
        Session(
            name=f"repeat/{until} {check}",
            lines=[
                Line(
                    f"debug -v repeat --until {until} --check {check}",
                    says=f"Finished {times} iteration(s)",
                )
            ],
        )
        for until, check, times in (("good", "true", 1), ("bad", "false", 1), ("5", "false", 5))
    ),
    Session(
        name="repeat/iteration info",
        files=[("check.py", "import json\nopen(f\"{json.load(open('iter_info.json'))['iteration']}.txt\", 'x')\n")],
        lines=[
            Line(
                "debug -v repeat --until=5 --iteration-info iter_info.json --show-output --check python3 check.py",
                says="Passed: 5/5 | Pass Rate: 100.0%",
            )
        ],
    ),
    *(
        Session(
            name=f"repeat/{option}",
            lines=[Line(f"debug -v repeat --until=5 {option} --check false", says=says)],
        )
        for option, says in (
            ("", "Passed: 0/5 | Pass Rate: 0.0%"),
            ("--ignore-fail-code=2", "Passed: 0/5 | Pass Rate: 0.0%"),
            ("--ignore-fail-code=1", "Passed: 5/5 | Pass Rate: 100.0%"),
        )
    ),
]

OTHERS = [
    Session(name="version", lines=[Line("-v")]),
    one("plugin/match", "plugin match -v identity.onnx --plugin-dir plugins -o config.yaml", "refused"),
    one("plugin/list", "plugin list -v identity.onnx --plugin-dir plugins", "refused"),
    one("plugin/replace", "plugin replace -v identity.onnx --plugin-dir plugins -o out.onnx", "refused"),
    one("template/network", "template -v trt-network identity.onnx -o network.py", "refused"),
    one("template/config", "template -v trt-config --tf32 -o config.py", "refused"),
    one("template/graph", "template -v onnx-gs identity.onnx -o process.py", "refused"),
    one("multi-device", "multi-device shard -v identity.onnx -o out.onnx -s hint.json", "refused"),
]


@pytest.mark.slow  # all of them take a minute; test_examples.py has a line of each kind
@pytest.mark.parametrize(
    "session", cases([*RUN_TRT, *RUN, *INSPECT, *DIFF_TACTICS, *SURGEON, *CONVERT, *DATA, *CHECK, *DEBUG, *OTHERS])
)
def test_a_line_of_its_tests_ends_as_it_should(
    session: Session, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    play(session, tmp_path, capfd, monkeypatch)
