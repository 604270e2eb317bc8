"""Names of ONNX Runtime's optimizers, and of the rules that it runs as one of them; and how its log names them.

Any Python reads this file: it imports the standard library alone.
"""

from __future__ import annotations

import re

RULES = "_RuleBasedTransformer"
"""Ending of the name under which all rules of a level are one optimizer: ``Level1_RuleBasedTransformer``."""

KNOWN_RULES = (
    "EliminateIdentity", "EliminateSlice", "UnsqueezeElimination", "EliminateDropout", "ExpandElimination",
    "CastElimination", "CastChainElimination", "PreShapeNodeElimination", "NoopElimination", "DivMulFusion",
    "FuseReluClip", "GemmSumFusion", "GemmTransposeFusion", "NotWhereFusion", "ConvAddFusion", "ConvMulFusion",
    "ConvBNFusion", "Pad_Fusion", "MatMul_BatchNormalization_Fusion", "LabelEncoderFusion", "ClipQuantRewrite",
    "ReluQuantRewrite",
)  # fmt: skip
"""Rules by name, from ``GenerateRewriteRules`` in onnxruntime/core/optimizer/graph_transformer_utils.cc."""

_APPLIED = re.compile(r"GraphTransformer (\S+) modified: ([01])")


def optimizers_in_log(text: str) -> dict[str, bool]:
    """The optimizers that a log of everything tells of, in their order, and whether each changed the graph."""
    ran: dict[str, bool] = {}
    for name, changed in _APPLIED.findall(text):
        ran[name] = ran.get(name, False) or changed == "1"
    return ran
