"""TensorRT, or TensorRT for RTX: ``load``, which only builds, since running would need a GPU."""

import importlib

from biopsy.findings.bundle.script_parts.failures import CannotSay


def load(path, module, flags=(), level=None, profiles=()):
    """The engine that TensorRT builds; a profile has the smallest, optimal and largest shape of inputs."""
    trt = importlib.import_module(module)
    print(f"{module} {trt.__version__}", flush=True)
    messages: list[str] = []
    builder = trt.Builder(error_log(trt, messages))
    is_typed = not hasattr(trt.BuilderFlag, "FP16") and hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED) if is_typed else 0)
    parser = trt.OnnxParser(network, builder.logger)
    if not parser.parse_from_file(path):
        errors = [parser.get_error(number) for number in range(parser.num_errors)]
        texts = [f"{error.code().name}: {error.node_operator()}: {error.desc()}" for error in errors]
        raise RuntimeError("; ".join(texts or messages))
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    for name in flags:
        config.set_flag(getattr(trt.BuilderFlag, name))
    if level is not None:
        config.builder_optimization_level = level
    for shapes in profiles:
        profile = builder.create_optimization_profile()
        for name, span in shapes.items():
            profile.set_shape(name, *map(tuple, span))
        if config.add_optimization_profile(profile) < 0:
            raise CannotSay("TensorRT does not take the shapes")
    messages.clear()
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise RuntimeError("; ".join(messages) or "TensorRT does not say why")
    return plan


def error_log(trt, messages):
    """A logger that collects errors and prints nothing."""

    def log(self, severity, message):
        if severity <= trt.ILogger.Severity.ERROR:
            messages.append(message)

    return type("ErrorLog", (trt.ILogger,), {"log": log})()
