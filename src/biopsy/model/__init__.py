"""ONNX models: load, index, slice into candidates, types and shapes, sanitize, extract, describe."""
