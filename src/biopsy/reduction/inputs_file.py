"""Where the recorded values stand that a result is fed."""

from __future__ import annotations

from pathlib import Path


def inputs_file(output: Path) -> Path:
    """The file beside a result."""
    return output.with_name(f"{output.name}.inputs.safetensors")
