"""The words that ONNX itself gives to attributes: a choice among them tells nothing of whoever made a model."""

from __future__ import annotations

_MODES = """
    DCR CRD constant reflect edge wrap nearest linear cubic bilinear bicubic avg max TF IDF TFIDF circular standard
    nesterov
"""

CHOICES: dict[str, frozenset[str]] = {
    attribute: frozenset(words.split())
    for attribute, words in {
        "activation": "none silu swish",
        "activations": """
            Relu Tanh Sigmoid Affine LeakyRelu ThresholdedRelu ScaledTanh HardSigmoid Elu Softsign Softplus
        """,
        "aggregate_function": "AVERAGE SUM MIN MAX",
        "approximate": "none tanh",
        "auto_pad": "NOTSET SAME_UPPER SAME_LOWER VALID",
        "case_change_action": "NONE LOWER UPPER",
        "cast_to": "TO_FLOAT TO_STRING TO_INT64",
        "coordinate_transformation_mode": """
            half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric tf_half_pixel_for_nn
            tf_crop_and_resize output_half_pixel
        """,
        "direction": "forward reverse bidirectional LEFT RIGHT",
        "keep_aspect_ratio_policy": "stretch not_larger not_smaller",
        "kernel_type": "LINEAR POLY RBF SIGMOID",
        "map_form": "DENSE SPARSE",
        "mode": _MODES,
        "nearest_mode": "round_prefer_floor round_prefer_ceil floor ceil",
        "nodes_modes": "BRANCH_LEQ BRANCH_LT BRANCH_GTE BRANCH_GT BRANCH_EQ BRANCH_NEQ BRANCH_MEMBER LEAF",
        "norm": "MAX L1 L2",
        "padding_mode": "zeros border reflection",
        "pixel_format": "RGB BGR Grayscale",
        "post_transform": "NONE SOFTMAX LOGISTIC SOFTMAX_ZERO PROBIT",
        "reduction": "none mean sum add mul max min",
        "round_mode": "up down nearest",
        "to": "FLOAT UINT8 INT8 UINT16 INT16 INT32 INT64 STRING BOOL FLOAT16 DOUBLE UINT32 UINT64",
        "update_rule": "linear gated delta gated_delta",
    }.items()
}
"""Attribute of an operator of the standard -> the texts among which the standard lets choose."""

NOT_VALUES = frozenset({*CHOICES, "equation", "locale", "xs", "y", "zs"})
"""Attributes whose text says how an operator works, or names something: it is not to be replaced by another text."""

QUANTIZATION_KEYS = frozenset({"SCALE_TENSOR", "ZERO_POINT_TENSOR"})
"""What quantization annotations tell of a tensor, as onnx.proto3 lists them."""
