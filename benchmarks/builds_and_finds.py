"""A check that builds the model with an engine, as checks on accelerators do, and fails where it has some nodes.

python builds_and_finds.py MODEL ENGINE NAME...
"""

import sys

import onnx


def main() -> int:
    """1 where the model can be built and has all nodes of these names, else 0."""
    path, engine, *wanted = sys.argv[1:]
    if engine == "openvino":
        import openvino

        openvino.Core().compile_model(path, "CPU")
    else:
        import onnxruntime

        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = {node.name for node in onnx.load(path, load_external_data=False).graph.node}
    return int(names.issuperset(wanted))


if __name__ == "__main__":
    sys.exit(main())
