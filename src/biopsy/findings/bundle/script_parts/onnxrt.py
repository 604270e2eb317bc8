"""ONNX Runtime: ``load`` and ``run``."""

from biopsy.findings.bundle.script_parts.failures import CannotSay


def load(
    path,
    level="ORT_ENABLE_ALL",
    mode="ORT_SEQUENTIAL",
    config=(),
    providers=("CPUExecutionProvider",),
    threads=(0, 0),
    **more,
):
    """The session of the model."""
    import onnxruntime

    print(f"onnxruntime {onnxruntime.__version__}", flush=True)
    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.execution_mode = getattr(onnxruntime.ExecutionMode, mode)
    options.intra_op_num_threads, options.inter_op_num_threads = threads
    for key, value in config:
        options.add_session_config_entry(key, value)
    if "CUDAExecutionProvider" in providers and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    session = onnxruntime.InferenceSession(path, options, providers=list(providers), enable_fallback=0, **more)
    idle = set(providers).difference(session.get_providers())
    if idle:
        raise CannotSay(f"this onnxruntime could not start {', '.join(sorted(idle))}")
    return session


def run(model, feed, outputs):
    """The outputs by name."""
    return dict(zip(outputs, model.run(list(outputs), feed)))
