"""What is wrong with a model, node by node: by rules on its form, by onnx's own checker, and by an engine."""
