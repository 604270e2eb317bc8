"""Names of ONNX Runtime's optimizers and rewrite rules, and a reader of its log.

This file must run in any Python, so it imports the standard library alone.
"""

from __future__ import annotations

import re

RULES = "_RuleBasedTransformer"
"""Ending of the name of the one optimizer that applies all rules of a level: ``Level1_RuleBasedTransformer``."""

KNOWN_RULES = (
    "EliminateIdentity", "EliminateSlice", "UnsqueezeElimination", "EliminateDropout", "ExpandElimination",
    "CastElimination", "CastChainElimination", "PreShapeNodeElimination", "NoopElimination", "DivMulFusion",
    "FuseReluClip", "GemmSumFusion", "GemmTransposeFusion", "NotWhereFusion", "ConvAddFusion", "ConvMulFusion",
    "ConvBNFusion", "Pad_Fusion", "MatMul_BatchNormalization_Fusion", "LabelEncoderFusion", "ClipQuantRewrite",
    "ReluQuantRewrite",
)  # fmt: skip
"""Names of rules, from ``GenerateRewriteRules`` in onnxruntime/core/optimizer/graph_transformer_utils.cc."""

_APPLIED = re.compile(r"GraphTransformer (\S+) modified: ([01])")


def optimizers_in_log(text: str) -> dict[str, bool]:
    """The optimizers in a verbose log, in their order, and whether each changed the graph."""
    ran: dict[str, bool] = {}
    for name, changed in _APPLIED.findall(text):
        ran[name] = ran.get(name, False) or changed == "1"
    return ran
