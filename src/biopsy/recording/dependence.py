"""Which tensors depend on input values or only on shapes, and which nodes a reference engine may run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from biopsy.model.index import ModelIndex, Node
from biopsy.model.nodes import RANDOM, neighbourhood_order
from biopsy.model.parts import PUBLIC_DOMAINS
from biopsy.model.walk import unbounded
from biopsy.slow_imports import onnx

_ASKS_FOR_SHAPES = frozenset({("", "Shape"), ("", "Size")})
"""Operators whose result depends on the shape of their input, not on its values."""

_RANDOM = RANDOM | {"BiasDropout", "BitmaskBiasDropout", "BitmaskDropout", "Sampling"}
"""Random operators; those added here are com.microsoft's."""

_SHAPE_FROM_SHAPES = {
    "": """
        Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization Bernoulli
        BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Celu Clip Concat
        ConcatFromSequence Conv ConvInteger ConvTranspose Cos Cosh CumProd CumSum DeformConv DepthToSpace
        DequantizeLinear Det Div Dropout DynamicQuantizeLinear Einsum Elu Equal Erf Exp EyeLike Flatten Floor GRU Gather
        GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample
        GroupNormalization HardSigmoid HardSwish Hardmax Identity InstanceNormalization IsInf IsNaN LRN LSTM
        LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul MatMulInteger Max
        MaxPool MaxRoiPool Mean MeanVarianceNormalization Min Mish Mod Mul Multinomial Neg NegativeLogLikelihoodLoss Not
        Or PRelu Pow QLinearConv QLinearMatMul QuantizeLinear RMSNormalization RNN RandomNormal RandomNormalLike
        RandomUniform RandomUniformLike Reciprocal RegexFullMatch Relu ReverseSequence RoiAlign RotaryEmbedding Round
        Scatter ScatterElements ScatterND Selu SequenceConstruct Shrink Sigmoid Sign Sin Sinh Softmax
        SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Sqrt StringConcat Sub Sum Swish Tan Tanh TensorScatter
        ThresholdedRelu Transpose Trilu Where Xor
    """,
    "ai.onnx.ml": """
        ArrayFeatureExtractor Binarizer CategoryMapper Imputer LabelEncoder LinearRegressor Normalizer Scaler
        SVMRegressor TreeEnsembleRegressor
    """,
    "com.microsoft": """
        BiasGelu DequantizeLinear FastGelu FusedConv FusedGemm FusedMatMul Gelu MatMulIntegerToFloat MatMulNBits
        QLinearAdd QLinearLeakyRelu QLinearMul QLinearSigmoid QuantizeLinear QuickGelu SkipLayerNormalization
    """,
}
"""Operators whose output shapes follow from their attributes and input shapes alone."""

_SHAPE_FROM_VALUES: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "DFT": (1, 2),
    "Expand": (1,),
    "MaxUnpool": (2,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "SequenceAt": (1,),
    "SequenceErase": (1,),
    "SequenceInsert": (2,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "Tile": (1, 2),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
    **{
        f"Reduce{kind}": (1,)
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
}
"""ONNX operators whose output shapes also follow from the values of the inputs at these positions."""

SIZE_INPUTS: dict[tuple[str, str], tuple[int, ...]] = {
    **{(domain, name): () for domain, names in _SHAPE_FROM_SHAPES.items() for name in names.split()},
    **{("", name): places for name, places in _SHAPE_FROM_VALUES.items()},
}
"""(domain, operator) -> positions of the inputs whose values determine the output shapes, in any opset version.

The values of all other inputs, and the order of elements, must not matter. A sequence's length and its elements' shapes
count as its shape.
"""


@dataclass(frozen=True)
class Dependence:
    """Which tensors depend on values that vary: those of inputs and of random operators."""

    values: frozenset[int]
    """Tensors whose own values vary."""
    shapes: frozenset[int]
    """Tensors whose shapes vary."""


def dependence(index: ModelIndex) -> Dependence:
    """Find what depends on the *values* of the inputs. Declared input shapes are assumed not to vary with them."""
    values, shapes = set(index.fed_inputs()), set[int]()
    for tensor in values:
        kind = index.tensor_type(tensor)
        if kind is None or kind.shape is None:  # where it has a rank, samples of two sizes tell the rest
            shapes.add(tensor)
    for number in neighbourhood_order(index, range(len(index.nodes))):
        node = index.nodes[number]
        # An operator that the model defines as a function is not the standard's.
        operator = None if node.calls[0] in index.functions else (node.domain, node.op_type)
        places = SIZE_INPUTS.get(operator) if operator is not None else None
        asks_for_shapes = operator in _ASKS_FOR_SHAPES
        reads_varying_shape = not shapes.isdisjoint(node.reads)
        value_varies = reads_varying_shape if asks_for_shapes else not values.isdisjoint(node.reads)
        if value_varies or _is_source(node, index):
            values.update(node.writes)
        if asks_for_shapes:
            shape_varies = reads_varying_shape
        elif places is None:
            shape_varies = not values.isdisjoint((*node.reads, *node.writes))
        else:
            giving = [node.inputs[place] for place in places if place < len(node.inputs)]
            shape_varies = reads_varying_shape or not values.isdisjoint(giving)
        if shape_varies:
            shapes.update(node.writes)
    return Dependence(frozenset(values), frozenset(shapes))


def independent_of_inputs(index: ModelIndex) -> frozenset[int]:
    """Computed tensors that depend on no input and no random operator, not even on a shape: constants."""
    return independent_of(index, index.fed_inputs())


def independent_of(index: ModelIndex, tensors: Iterable[int]) -> frozenset[int]:
    """Computed tensors that depend on none of these and on no random operator, not even on a shape."""
    dependent = set(tensors)
    for number in neighbourhood_order(index, range(len(index.nodes))):
        node = index.nodes[number]
        if not dependent.isdisjoint(node.reads) or _is_source(node, index):
            dependent.update(node.writes)
    return frozenset(index.producer).difference(dependent)


def _is_source(node: Node, index: ModelIndex) -> bool:
    """Whether a node may give other values on each run for the same inputs: it is random, or of unknown origin.

    A node is random too if its body, or a function that it calls, is.
    """
    if node.domain and not node.reads:
        return True
    own, *inner = node.calls
    if own not in index.functions:
        in_training = node.op_type == "Dropout" and len(node.inputs) > 2 and node.inputs[2] >= 0
        if node.op_type in _RANDOM or in_training:
            return True
    operators = index.operators_run(inner if own not in index.functions else node.calls) - index.functions.keys()
    # The inputs of a Dropout in there, which say whether it is random, are not known here.
    return any(name in _RANDOM or name == "Dropout" for _, name, _ in operators)


def unknown_operators(index: ModelIndex) -> set[int]:
    """Nodes that no engine here can run: their domain is neither standard nor defined by the model."""
    own = {domain for domain, _, _ in index.functions}
    # Functions that expand to more nodes than any engine could run must not be tried.
    if not index.functions:
        endless = set()
    else:
        spans = b"".join(span for span, _ in index.functions.values())
        endless = set(unbounded(onnx.ModelProto.FromString(spans).functions))
    return {
        node.number
        for node in index.nodes
        if node.domain not in own | PUBLIC_DOMAINS or not endless.isdisjoint(node.calls)
    }


def without_dependents(index: ModelIndex, blocked: Iterable[int]) -> tuple[int, ...]:
    """All nodes, ascending, except ``blocked`` ones and those that depend on them."""
    gone = set(blocked)
    lost = {tensor for node in gone for tensor in index.node_writes[node]}
    for node in neighbourhood_order(index, range(len(index.nodes))):
        if node not in gone and not lost.isdisjoint(index.node_reads[node]):
            gone.add(node)
            lost.update(index.node_writes[node])
    return tuple(node for node in range(len(index.nodes)) if node not in gone)
