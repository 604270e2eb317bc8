"""ONNX Runtime, the embedded default engine, and what it really did."""
