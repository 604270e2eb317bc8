"""Where the notes of a release stand."""

from __future__ import annotations

from collections.abc import Mapping

from biopsy.environments.requirements import normalized

_NOTES: Mapping[str, str] = {
    "onnxruntime": "https://github.com/microsoft/onnxruntime/releases/tag/v{version}",
    "onnxruntime-gpu": "https://github.com/microsoft/onnxruntime/releases/tag/v{version}",
    "openvino": "https://github.com/openvinotoolkit/openvino/releases/tag/{version}",
    "onnx": "https://github.com/onnx/onnx/releases/tag/v{version}",
    "onnxscript": "https://github.com/microsoft/onnxscript/releases/tag/v{version}",
    "onnxslim": "https://github.com/inisis/OnnxSlim/releases/tag/v{version}",
    "onnxsim": "https://github.com/daquexian/onnx-simplifier/releases/tag/v{version}",
    "torch": "https://github.com/pytorch/pytorch/releases/tag/v{version}",
    "numpy": "https://github.com/numpy/numpy/releases/tag/v{version}",
    "tensorrt": "https://docs.nvidia.com/deeplearning/tensorrt/latest/getting-started/release-notes.html",
}
"""Distribution -> the address of the notes of a release."""

_OF_ANY = "https://pypi.org/project/{name}/{version}/"


def notes_of(package: str, version: str) -> str:
    """The address of the notes of a release; its page at the package index where nobody knows of any."""
    name = normalized(package)
    return _NOTES.get(name, _OF_ANY).format(name=name, version=version)
