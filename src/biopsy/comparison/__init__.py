"""Metrics, tolerances and verdicts about two sets of named tensors."""
