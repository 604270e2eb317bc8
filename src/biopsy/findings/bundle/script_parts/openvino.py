"""OpenVINO: ``load`` and ``run``."""

from biopsy.findings.bundle.script_parts.failures import CannotSay


def load(path, device="CPU", precision="f32", config=()):
    """The compiled model."""
    import openvino

    print(f"openvino {openvino.__version__}", flush=True)
    core = openvino.Core()
    plain = device.partition(":")[0].partition(".")[0]
    if plain not in {"AUTO", "HETERO", "MULTI", "BATCH", *(name.partition(".")[0] for name in core.available_devices)}:
        raise CannotSay(f"OpenVINO has no device {device} here, only {', '.join(core.available_devices)}")
    hint = {"INFERENCE_PRECISION_HINT": getattr(openvino.Type, precision)}
    return core.compile_model(core.read_model(path), device, {**hint, **dict(config)})


def run(model, feed, outputs):
    """The outputs by name."""
    import numpy as np

    request = model.create_infer_request()
    request.infer({port: feed[name] for name, port in ports(feed, model.inputs).items()})
    return {name: np.array(request.get_tensor(port).data) for name, port in ports(outputs, model.outputs).items()}


def ports(names, all_ports):
    """The port of each name. Ports that OpenVINO has renamed are taken in their order."""
    by_name = {
        name: port for port in all_ports for name in names if name in port.get_names() | {port.node.friendly_name}
    }
    renamed = iter([port for port in all_ports if port not in by_name.values()])
    pairs = [(name, by_name[name] if name in by_name else next(renamed, None)) for name in names]
    return {name: port for name, port in pairs if port is not None}
