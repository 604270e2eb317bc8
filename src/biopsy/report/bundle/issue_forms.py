"""The forms in which trackers of engines want to be told of a bug: headings, and what belongs under each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class IssueForm:
    """Headings in order, each with the kind of content that it asks for (see ``issue_text``)."""

    sections: tuple[tuple[str, str], ...]


FORMS: Mapping[str, IssueForm] = {
    "onnxrt": IssueForm(
        (
            ("Describe the issue", "description"),
            ("To reproduce", "steps"),
            ("OS Version", "os"),
            ("ONNX Runtime Installation", "released"),
            ("ONNX Runtime Version or Commit ID", "version"),
            ("ONNX Runtime API", "python"),
            ("Execution Provider", "device"),
            ("System information", "environment"),
        )
    ),
    "openvino": IssueForm(
        (
            ("OpenVINO Version", "version"),
            ("Operating System", "os"),
            ("Device used for inference", "device"),
            ("Framework", "onnx"),
            ("Issue description", "description"),
            ("Step by step reproduction", "steps"),
            ("Relevant log output", "log"),
            ("Environment", "environment"),
        )
    ),
    "trt": IssueForm(
        (("Description", "description"), ("Environment", "environment"), ("Steps To Reproduce", "steps")),
    ),
    "reference": IssueForm(
        (
            ("Is the issue related to model conversion?", "no conversion"),
            ("Describe the bug", "description"),
            ("System information", "environment"),
            ("Reproduction instructions", "steps"),
        )
    ),
    "": IssueForm((("What happens", "description"), ("How to reproduce it", "steps"), ("Environment", "environment"))),
}
"""Engine -> the form that its tracker had in 2026; "" for any other."""
