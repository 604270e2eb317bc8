"""Run a node test without biopsy: python run_node_test.py openvino|onnxruntime zoo/node/test_NAME"""

import sys
from pathlib import Path

import numpy as np
import onnx

engine, folder = sys.argv[1], Path(sys.argv[2])
model = onnx.load(folder / "model.onnx")


def values(stem):
    """The tensors of the files input_N.pb or output_N.pb."""
    files = sorted((folder / "test_data_set_0").glob(f"{stem}_*.pb"), key=lambda file: int(file.stem.split("_")[1]))
    return [onnx.numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes())) for file in files]


feed = dict(zip([value.name for value in model.graph.input], values("input"), strict=True))
if engine == "onnxruntime":
    import onnxruntime

    given = onnxruntime.InferenceSession(folder / "model.onnx").run(None, feed)
else:
    import openvino

    compiled = openvino.compile_model(folder / "model.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    request.infer({port: feed[next(name for name in port.names if name in feed)] for port in compiled.inputs})
    given = [np.array(request.get_tensor(port).data) for port in compiled.outputs]
for name, actual, expected in zip([value.name for value in model.graph.output], given, values("output"), strict=True):
    if actual.shape != expected.shape:
        print(f"{name}: shape {actual.shape}, expected {expected.shape}")
        continue
    is_of_bits = actual.dtype.itemsize == 1 and expected.dtype.kind == "V"  # a type that NumPy lacks
    sides = (actual.view(expected.dtype) if is_of_bits else actual).astype(float), expected.astype(float)
    wrong = ~np.isclose(*sides, rtol=1e-5, atol=1e-5, equal_nan=True)
    shown = f": {sides[0][wrong][0]}, expected {sides[1][wrong][0]}" if wrong.any() else ""
    print(f"{name}: {wrong.sum()} of {wrong.size} elements are wrong{shown}")
