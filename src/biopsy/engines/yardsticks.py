"""The engines that others are held against, by what is to be trusted in them."""

from __future__ import annotations

PLAIN = ("onnxrt:optimization=none", "reference")
"""Engines that compute in the model's own types and fuse nothing, since an optimizer may be what is broken.

The second is asked where the first cannot run a model, or is in doubt.
"""

EXACT = "reference:float64"
"""The engine that computes in float64 what is float32 in the model."""
