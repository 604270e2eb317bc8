"""The reference evaluator of the package onnx, in the declared types or in float64."""
