"""TensorRT and TensorRT for RTX: their packages, settings, types, and runs on a GPU."""
