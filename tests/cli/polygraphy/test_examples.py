"""The commands of the READMEs of Polygraphy's examples for its command line, as they are typed there."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import BIN, typed
from support.typed_lines import Line, Session, cases, play

LOADER = "import numpy as np\ndef load_data():\n    for _ in range(5):\n        yield {'%s': np.ones(%s, np.float32)}\n"
LAYERWISE = "--load-inputs layerwise_inputs.json"
GOLDEN = f"--trt {LAYERWISE} --load-outputs layerwise_golden.json"
WITH_MUL = '--fail-regex "Op: Mul" --check polygraphy inspect model polygraphy_debug.onnx --show layers'
AGAINST_ONNXRT = "run dynamic_identity.onnx --trt --onnxrt"
PROFILE = "--trt-min-shapes X:[1,2,28,28] --trt-opt-shapes X:[1,2,28,28] --trt-max-shapes X:[1,2,28,28]"

DEBUG = [
    Session(
        name="debug/01",
        models=("identity",),
        lines=[
            Line("run identity.onnx --onnxrt --save-outputs golden.json", makes="golden.json"),
            Line(
                "debug build identity.onnx --fp16 --save-tactics replay.json --artifacts-dir replays "
                "--artifacts replay.json --until=10 --check polygraphy run polygraphy_debug.engine --trt "
                "--load-outputs golden.json",
                "TensorRT 10",
            ),
            Line(
                "debug build identity.onnx --save-tactics replay.json --artifacts-dir replays --artifacts "
                "replay.json --until=2 --check true",
                says="Passed: 2/2 | Pass Rate: 100.0%",
                makes="replays/good",
            ),
            Line("inspect diff-tactics --dir replays", says="Loaded 0 bad tactic replays."),
            Line("inspect diff-tactics --dir replays", says="Could not determine potentially bad tactics."),
        ],
    ),
    Session(
        name="debug/02",
        models=("axpy=model",),
        slow=True,
        lines=[
            Line(
                "surgeon sanitize model.onnx -o folded.onnx --fold-constants "
                "--override-input-shapes x0:[1,3,224,224] x1:[1,3,224,224]"
            ),
            Line(
                "run folded.onnx --onnxrt --save-inputs inputs.json --onnx-outputs mark all "
                "--save-outputs layerwise_golden.json"
            ),
            Line("data to-input inputs.json layerwise_golden.json -o layerwise_inputs.json"),
            Line(
                f"debug reduce folded.onnx -o initial_reduced.onnx --mode=bisect {LAYERWISE} "
                f"--check polygraphy run polygraphy_debug.onnx {GOLDEN}",
                "runs on a GPU",
                status=3,
            ),
            Line(f"debug reduce folded.onnx -o initial_reduced.onnx --mode=bisect {WITH_MUL}"),
            Line("inspect model initial_reduced.onnx --show layers", says="[Op: Mul]"),
            Line(
                f"debug reduce initial_reduced.onnx -o final_reduced.onnx --mode=linear {LAYERWISE} "
                f"--check polygraphy run polygraphy_debug.onnx {GOLDEN}",
                "runs on a GPU",
                status=3,
            ),
            Line(f"debug reduce initial_reduced.onnx -o final_reduced.onnx --mode=linear {WITH_MUL}"),
            Line("inspect model final_reduced.onnx --show layers", says="---- 1 Node(s) ----"),
        ],
    ),
    Session(
        name="debug/03",
        models=("matmul=model",),
        files=[("calibration_data_loader.py", LOADER % ("a", "(8, 16)")), ("fix_precision.py", "")],
        lines=[
            Line("convert model.onnx --fp16 -o model_fp16.engine", "TensorRT 10"),
            Line(
                "convert model.onnx --int8 --data-loader-script calibration_data_loader.py "
                "--calibration-cache calibration.cache -o model_int8.engine",
                "refused",
            ),
            Line("run model.onnx --onnxrt --save-inputs test_inputs.json"),
            Line("convert model.onnx -o model_fp16.engine"),
            Line(
                "run model_fp16.engine --trt --load-inputs test_inputs.json --save-outputs fp16_outputs.json",
                "reads on a GPU",
            ),
            Line(
                "run model.onnx --trt --fp16 --trt-outputs mark all --load-inputs test_inputs.json "
                "--save-outputs fp16_all_layers.json",
                "TensorRT 10",
            ),
            Line(
                "run model.onnx --trt --int8 --calibration-cache calibration.cache --trt-outputs mark all "
                "--load-inputs test_inputs.json --fail-fast",
                "refused",
            ),
            Line(
                "debug precision model.onnx --int8 --calibration-cache calibration.cache --precision float32 "
                "--mode bisect --check polygraphy run model.onnx --fp16 --onnxrt --load-inputs test_inputs.json "
                "--save-outputs golden.json",
                "refused",
            ),
            Line(
                "convert model.onnx --int8 --calibration-cache calibration.cache --trt-network-postprocess-script "
                "fix_precision.py --precision-constraints obey -o model_int8_fixed.engine",
                "refused",
            ),
            Line(
                "convert model.onnx --int8 --calibration-cache calibration.cache --layer-precisions Conv_0:float32 "
                "Conv_5:float32 Add_10:float32 --precision-constraints obey -o model_int8_fixed.engine",
                "refused",
            ),
        ],
    ),
]

RUN = [
    Session(
        name="run/01",
        models=("dynamic_identity",),
        lines=[
            Line(AGAINST_ONNXRT, "runs on a GPU"),
            Line(f"{AGAINST_ONNXRT} --input-shapes X:[1,2,4,4]", "runs on a GPU"),
            Line("run dynamic_identity.onnx --trt --fp16 --onnxrt --input-shapes X:[1,2,4,4]", "TensorRT 10"),
            Line(
                "run dynamic_identity.onnx --trt --fp16 --onnxrt --input-shapes X:[1,2,4,4] --atol 0.001 --rtol 0.001 "
                "--check-error-stat median",
                "TensorRT 10",
            ),
            Line(f"{AGAINST_ONNXRT} --trt-outputs mark all --onnx-outputs mark all", "runs on a GPU"),
        ],
    ),
    Session(
        name="run/02",
        models=("identity",),
        lines=[
            Line("run identity.onnx --onnxrt --save-inputs inputs.json --save-outputs run_0_outputs.json"),
            Line("run identity.onnx --onnxrt --load-inputs inputs.json --load-outputs run_0_outputs.json"),
            Line(
                "run identity.onnx --onnxrt --load-inputs inputs.json --load-outputs run_0_outputs.json --atol 0.001 "
                "--rtol 0.001 --check-error-stat median"
            ),
            Line("convert identity.onnx -o identity.engine", makes="identity.engine"),
            Line(
                "run --trt identity.engine --model-type=engine --load-inputs inputs.json "
                "--load-outputs run_0_outputs.json",
                "reads on a GPU",
            ),
        ],
    ),
    Session(
        name="run/03",
        models=("identity",),
        lines=[Line("run identity.onnx --trt --onnxrt --gen-script=compare_trt_onnxrt.py", "refused")],
    ),
    Session(
        name="run/04",
        models=("identity",),
        files=[("define_network.py", ""), ("create_config.py", "")],
        lines=[
            Line("template trt-network -o my_define_network.py", "refused"),
            Line("template trt-network identity.onnx -o my_define_network.py", "refused"),
            Line("template trt-config -o my_create_config.py", "refused"),
            Line("template trt-config --tf32 -o my_create_config.py", "refused"),
            Line("run --trt define_network.py --model-type=trt-network-script", "refused"),
            Line(
                "run --trt define_network.py --model-type=trt-network-script --trt-config-script=create_config.py",
                "refused",
            ),
        ],
    ),
    Session(
        name="run/05",
        models=("dynamic_identity",),
        files=[("data_loader.py", LOADER % ("X", "(1, 2, 28, 28)"))],
        lines=[
            Line(f"{AGAINST_ONNXRT} {PROFILE} --data-loader-script data_loader.py", "runs on a GPU"),
            Line(
                "run dynamic_identity.onnx --onnxrt --data-loader-script data_loader.py "
                "--save-inputs custom_inputs.json"
            ),
            Line(f"{AGAINST_ONNXRT} {PROFILE} --load-inputs custom_inputs.json", "runs on a GPU"),
        ],
    ),
    Session(
        name="run/06",
        models=("identity",),
        lines=[
            Line(
                "run identity.onnx --onnxrt --save-inputs custom_inputs.json --save-outputs custom_outputs.json",
            ),
            Line("inspect data custom_inputs.json", says="x [dtype=float32, shape=(1, 1, 2, 2)] | Stats: "),
            Line("inspect data custom_outputs.json", says="y [dtype=float32, shape=(1, 1, 2, 2)] | Stats: "),
            Line(
                "run identity.onnx --trt --load-inputs custom_inputs.json --load-outputs custom_outputs.json",
                "runs on a GPU",
            ),
        ],
    ),
    Session(
        name="run/07",
        models=("add_infinity",),
        lines=[Line("run add_infinity.onnx --onnx-outputs '*' --onnxrt --validate", status=1, says="FAILED")],
    ),
    Session(
        name="run/08",
        models=("needs_constraints",),
        files=[("constrained_network.py", ""), ("add_constraints.py", "")],
        lines=[
            Line(
                "run needs_constraints.onnx --trt --fp16 --onnxrt --val-range x:[1,2] --layer-precisions Add:float16 "
                "Sub:float32 --precision-constraints prefer --check-error-stat median",
                "refused",
            ),
            Line(
                "run needs_constraints.onnx --onnxrt --val-range x:[1,2] --save-inputs inputs.json "
                "--save-outputs golden_outputs.json"
            ),
            Line(
                "run constrained_network.py --precision-constraints obey --trt --fp16 --load-inputs inputs.json "
                "--load-outputs golden_outputs.json --check-error-stat median",
                "refused",
            ),
            Line(
                "run constrained_network.py --precision-constraints prefer --trt --fp16 --load-inputs inputs.json "
                "--load-outputs golden_outputs.json --check-error-stat median",
                "refused",
            ),
            Line(
                "run needs_constraints.onnx --onnxrt --trt --fp16 --precision-constraints obey --val-range x:[1,2] "
                "--check-error-stat median --trt-network-postprocess-script ./add_constraints.py",
                "refused",
            ),
        ],
    ),
    Session(
        name="run/09",
        models=("identity",),
        files=[("data_loader.py", LOADER % ("x", "(1, 1, 2, 2)"))],
        lines=[
            Line("run identity.onnx --onnxrt --onnxrt --data-loader-script data_loader.py --check-error-stat mean"),
            Line(
                "run identity.onnx --onnxrt --data-loader-script data_loader.py --save-inputs inputs "
                "--save-outputs golden",
                makes="golden/0000000004.json",
            ),
            Line("run identity.onnx --onnxrt --load-inputs inputs --load-outputs golden"),
        ],
    ),
]

INSPECT = [
    Session(
        name="inspect/01",
        models=("identity",),
        lines=[
            Line(
                "inspect model identity.onnx --show layers --display-as=trt",
                says="Layer 0    | node_of_y [Op: LayerType.IDENTITY]",
            ),
            Line("inspect model identity.onnx --display-as=trt --visual", "refused"),
        ],
    ),
    Session(
        name="inspect/02",
        models=("dynamic_identity",),
        lines=[
            Line(
                "run dynamic_identity.onnx --trt --trt-min-shapes X:[1,2,1,1] --trt-opt-shapes X:[1,2,3,3] "
                "--trt-max-shapes X:[1,2,5,5] --trt-min-shapes X:[1,2,2,2] --trt-opt-shapes X:[1,2,4,4] "
                "--trt-max-shapes X:[1,2,6,6] --save-engine dynamic_identity.engine",
                "runs on a GPU",
                makes="dynamic_identity.engine",
            ),
            Line("inspect model dynamic_identity.engine --show layers", "reads on a GPU"),
        ],
    ),
    Session(
        name="inspect/03",
        models=("identity",),
        lines=[
            Line("inspect model identity.onnx --show layers", says="Node 0    |  [Op: Identity]"),
            Line("inspect model identity.onnx --show layers attrs weights", says="[I] ==== ONNX Model ===="),
        ],
    ),
    Session(
        name="inspect/05",
        models=("identity",),
        lines=[
            Line("run identity.onnx --onnxrt --save-outputs outputs.json"),
            Line("inspect data outputs.json --show-values", says="==== Run Results (1 runners) ===="),
        ],
    ),
    Session(
        name="inspect/06",
        models=("identity",),
        lines=[
            Line("run identity.onnx --onnxrt --save-inputs inputs.json"),
            Line("inspect data inputs.json --show-values", says="==== Data (1 iterations) ===="),
        ],
    ),
    Session(
        name="inspect/07",
        models=("pow_scalar=model",),
        lines=[Line("run model.onnx --trt --save-tactics replay.json", "refused", says="debug build")],
    ),
    Session(
        name="inspect/08",
        models=("capability=model",),
        lines=[Line("inspect capability --with-partitioning model.onnx", "differs", status=1, says="FAKE!")],
    ),
    Session(
        name="inspect/09",
        models=("nested_local_function",),
        lines=[Line("inspect capability nested_local_function.onnx", "differs", status=1, says="Fake_1")],
    ),
]

SURGEON = [
    Session(
        name="surgeon/01",
        models=("axpy=model",),
        lines=[
            Line("surgeon extract model.onnx --inputs x1:auto:auto --outputs add_out:auto -o subgraph.onnx"),
            Line(
                "surgeon extract model.onnx --inputs x1:[1,3,224,224]:float32 --outputs add_out:float32 "
                "-o subgraph.onnx"
            ),
            Line("inspect model subgraph.onnx --show layers", says="---- 2 Node(s) ----"),
        ],
    ),
    Session(
        name="surgeon/02",
        models=("const_foldable=model",),
        lines=[
            Line("surgeon sanitize model.onnx --fold-constants -o folded.onnx"),
            Line("inspect model folded.onnx --mode=basic", says="Op: Add"),
            Line("inspect model folded.onnx --show layers", says="---- 1 Node(s) ----"),
        ],
    ),
    Session(
        name="surgeon/03",
        models=("identity",),
        lines=[
            Line("surgeon sanitize identity.onnx --override-input-shapes x:['batch',1,2,2] -o dynamic_identity.onnx"),
            Line("inspect model dynamic_identity.onnx --show layers", says="shape=('batch', 1, 2, 2)"),
        ],
    ),
    Session(
        name="surgeon/04",
        models=("unbounded_dds=model",),
        lines=[
            Line("surgeon sanitize model.onnx -o folded.onnx --fold-constants"),
            Line("inspect model folded.onnx --list-unbounded-dds", says="cast_out_6"),
            Line("surgeon sanitize folded.onnx --set-unbounded-dds-upper-bound 1000 -o modified.onnx"),
            Line("inspect model modified.onnx --list-unbounded-dds", says="unbounded DDS: []"),
        ],
    ),
    Session(name="surgeon/05", models=("axpy=model",), lines=[Line("inspect model model.onnx --visual", "refused")]),
]

CONVERT = [
    Session(
        name="convert/01",
        models=("identity",),
        files=[("data_loader.py", LOADER % ("x", "(1, 1, 2, 2)"))],
        lines=[
            Line("convert identity.onnx --int8 --data-loader-script ./data_loader.py -o identity.engine", "refused"),
            Line(
                "convert identity.onnx --int8 --data-loader-script ./data_loader.py --data-loader-func-name calib_data "
                "-o identity.engine",
                "refused",
            ),
        ],
    ),
    Session(
        name="convert/02",
        models=("identity",),
        lines=[
            Line("convert identity.onnx --save-timing-cache timing.cache -o 0.engine", makes="timing.cache"),
            Line(
                "convert identity.onnx --load-timing-cache timing.cache --error-on-timing-cache-miss -o 1.engine",
                makes="1.engine",
            ),
            Line("inspect model 0.engine --show layers attrs", "reads on a GPU"),
        ],
    ),
    Session(
        name="convert/03",
        models=("images=dynamic_identity",),
        lines=[
            Line(
                "convert dynamic_identity.onnx -o dynamic_identity.engine "
                "--trt-min-shapes X:[1,3,28,28] --trt-opt-shapes X:[1,3,28,28] --trt-max-shapes X:[1,3,28,28] "
                "--trt-min-shapes X:[1,3,28,28] --trt-opt-shapes X:[4,3,28,28] --trt-max-shapes X:[32,3,28,28] "
                "--trt-min-shapes X:[128,3,28,28] --trt-opt-shapes X:[128,3,28,28] --trt-max-shapes X:[128,3,28,28]",
                makes="dynamic_identity.engine",
            ),
            Line("inspect model dynamic_identity.engine", "reads on a GPU"),
        ],
    ),
    Session(
        name="convert/04",
        models=("identity",),
        lines=[
            Line("convert --fp-to-fp16 -o identity_fp16.onnx identity.onnx"),
            Line("inspect model identity_fp16.onnx", says="---- 1 Node(s) ----"),
            Line("run --onnxrt identity.onnx --save-inputs inputs.json --save-outputs outputs_fp32.json"),
            Line(
                "run --onnxrt identity_fp16.onnx --load-inputs inputs.json --load-outputs outputs_fp32.json "
                "--atol 0.001 --rtol 0.001"
            ),
            Line("run --onnxrt identity_fp16.onnx --onnx-outputs mark all --validate"),
        ],
    ),
]

CHECK = [
    Session(
        name="check/01",
        models=("bad_graph",),
        lines=[Line("check lint bad_graph.onnx -o report.json", status=1, says="MatMul_3", makes="report.json")],
    ),
]


@pytest.mark.parametrize("session", cases([*DEBUG, *RUN, *INSPECT, *SURGEON, *CONVERT, *CHECK]))
def test_the_commands_of_an_example_end_as_they_should(
    session: Session, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    play(session, tmp_path, capfd, monkeypatch)


def test_the_command_that_the_alias_installs_is_this_program(tmp_path: Path) -> None:
    if not (BIN / "polygraphy").exists():
        pytest.skip("the alias is not installed: make .venv/.demo")
    program = [BIN / "polygraphy"]
    assert typed("-v", program=program) == typed("--version")
    missing = typed("run", "missing.onnx", "--onnxrt", program=program, folder=tmp_path)
    assert missing == typed("run", "missing.onnx", "--onnxrt", folder=tmp_path)
    assert "usage: polygraphy run" in typed("run", "--help", program=program).told
