"""Gemm, MatMul, Einsum."""

from __future__ import annotations

from biopsy.workarounds.spellings.site import FLOATS, Site
from biopsy.workarounds.spellings.spelling import Spelling


def _gemm_as_matmul(at: Site) -> str:
    a, b, c = at.inputs(3)
    at.require(at.attribute("alpha", 1.0) != 0 != at.attribute("beta", 1.0))  # engines do not multiply NaN by that 0
    if at.attribute("transA", 0):
        a = at.new("Transpose", a, perm=[1, 0])
    if at.attribute("transB", 0):
        b = at.new("Transpose", b, perm=[1, 0])
    found = _scaled(at, at.new("MatMul", a, b), at.attribute("alpha", 1.0), at.node.input[0])
    return at.new("Add", found, _scaled(at, c, at.attribute("beta", 1.0), c)) if c else found


def _scaled(at: Site, x: str, factor: float, like: str) -> str:
    if factor == 1:
        return x
    at.require(at.elem(like) in FLOATS)
    return at.new("Mul", x, at.scalar(factor, like))


def _matmul_as_gemm(at: Site) -> str:
    a, b = at.inputs(2)
    at.require(at.rank(a) == at.rank(b) == 2 and at.elem(a) in FLOATS)
    if at.opset < 11:  # C had to be given
        return at.new("Gemm", a, b, at.constant([0], at.elem(a)))
    return at.new("Gemm", a, b)


def _matmul_and_add_as_gemm(at: Site) -> str:
    for product, c in (tuple(at.inputs(2)), tuple(reversed(at.inputs(2)))):
        if at.scope.producers.get(product) is None:
            continue
        made = at.scope.graph.node[at.scope.producers[product]]
        if made.op_type == "MatMul":
            a, b = at.maker(product, "MatMul").inputs(2)
            at.require(at.rank(a) == at.rank(b) == 2 and at.elem(a) in FLOATS)
            _require_spread(at, c, (at.shape(a)[0], at.shape(b)[1]))
            return at.new("Gemm", a, b, c)
    at.require(False)
    return ""


def _require_spread(at: Site, c: str, onto: tuple[object, object]) -> None:
    """Require that a tensor can be spread over a matrix without making it larger."""
    dims = at.dims(c)
    at.require(len(dims) <= 2)
    at.require(all(dim in (1, size) for dim, size in zip(reversed(dims), reversed(onto), strict=False)))


def _matmul_of_transposed(at: Site) -> str:
    a, b = at.inputs(2)
    ranks = at.rank(a), at.rank(b)
    at.require(min(ranks) >= 2)
    found = at.new("MatMul", _turned(at, b, ranks[1]), _turned(at, a, ranks[0]))
    return _turned(at, found, max(ranks))


def _turned(at: Site, x: str, rank: int) -> str:
    return at.new("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])


def _matmul_as_einsum(at: Site) -> str:
    a, b = at.inputs(2)
    at.require(at.elem(a) in FLOATS)
    one, other = at.rank(a), at.rank(b)
    at.require(one >= 1 and other >= 1)
    if min(one, other) > 2:  # ONNX does not say that what the dots stand for is spread
        at.require(at.shape(a)[:-2] == at.shape(b)[:-2] and None not in at.shape(a))
    left = "k" if one == 1 else "...ik" if one > 2 else "ik"
    right = "k" if other == 1 else "...kj" if other > 2 else "kj"
    result = ("..." if max(one, other) > 2 else "") + ("i" if one > 1 else "") + ("j" if other > 1 else "")
    return at.new("Einsum", a, b, equation=f"{left},{right}->{result}")


def _einsum_as_matmul(at: Site) -> str:
    terms, _, result = at.attribute("equation", "").replace(" ", "").partition("->")
    a, _, b = terms.partition(",")
    at.require(len(at.node.input) == 2 and bool(a and b) and "->" in at.attribute("equation", ""))
    at.require(all(term.isalpha() and len(set(term)) == len(term) for term in (a, b)))
    at.require(result.isalpha() and len(set(result)) == len(result) and set(result) <= set(a + b))
    batch = [label for label in result if label in a and label in b]
    summed = [label for label in a if label in b and label not in result]
    left = [label for label in a if label not in b]
    right = [label for label in b if label not in a]
    at.require(len(summed) == len(left) == len(right) == 1 and set(left + right) <= set(result))
    _require_equal_sizes(at, a, b)
    one = at.transposed(at.node.input[0], [a.index(label) for label in (*batch, *left, *summed)])
    other = at.transposed(at.node.input[1], [b.index(label) for label in (*batch, *summed, *right)])
    made = [*batch, *left, *right]
    return at.transposed(at.new("MatMul", one, other), [made.index(label) for label in result])


def _require_equal_sizes(at: Site, a: str, b: str) -> None:
    """Require that no size of 1 is spread over another: MatMul does not do so with what is summed."""
    one, other = (
        dict(zip(term, at.shape(name), strict=True)) for term, name in zip((a, b), at.node.input, strict=True)
    )
    at.require(all(one[label] == other[label] and one[label] is not None for label in one.keys() & other.keys()))


def _matmul_flattened(at: Site) -> str:
    a, b = at.inputs(2)
    at.require(at.rank(a) > 2 and at.rank(b) == 2)
    rows, columns = at.dims(b)
    dims = at.shape(a)
    at.require(rows > 0 and columns > 0 and 0 not in dims)
    unknown = [axis for axis, dim in enumerate(dims[:-1]) if not isinstance(dim, int)]
    at.require(len(unknown) <= 1)
    back = [dim if isinstance(dim, int) else -1 for dim in dims[:-1]]
    return at.reshaped(at.new("MatMul", at.reshaped(a, [-1, rows]), b), [*back, columns])


_SUMS = "all values; sums may be taken in another order, and engines differ in what they make of 0 times infinity"

SPELLINGS = (
    Spelling(
        name="gemm-as-matmul",
        operators=("Gemm",),
        matches="Gemm",
        writes="Transpose, MatMul, Mul and Add, as far as they are needed",
        draft=_gemm_as_matmul,
        cost="up to four more passes over tensors, unless the engine fuses them",
        exact=False,
        holds=f"{_SUMS}; alpha and beta are not 0, and 1 for integers",
    ),
    Spelling(
        name="matmul-as-gemm",
        operators=("MatMul",),
        matches="MatMul of two matrices",
        writes="Gemm",
        draft=_matmul_as_gemm,
        cost="nothing",
        exact=False,
        holds=f"{_SUMS}; the sign of zero may differ",
    ),
    Spelling(
        name="matmul-and-add-as-gemm",
        operators=("Add",),
        matches="MatMul of two matrices, and Add",
        writes="Gemm",
        draft=_matmul_and_add_as_gemm,
        cost="nothing",
        exact=False,
        holds=_SUMS,
    ),
    Spelling(
        name="matmul-of-transposed",
        operators=("MatMul",),
        matches="MatMul",
        writes="Transpose of the MatMul of the transposed operands in the other order",
        draft=_matmul_of_transposed,
        cost="up to three copies of matrices",
        exact=False,
        holds=_SUMS,
    ),
    Spelling(
        name="matmul-as-einsum",
        operators=("MatMul",),
        matches="MatMul",
        writes="Einsum",
        draft=_matmul_as_einsum,
        cost="slower in engines that compute Einsum step by step",
        exact=False,
        holds=_SUMS,
        least_opset=12,
    ),
    Spelling(
        name="einsum-as-matmul",
        operators=("Einsum",),
        matches="Einsum of two tensors that sums one index",
        writes="Transpose and MatMul",
        draft=_einsum_as_matmul,
        cost="copies where the order of indices changes",
        exact=False,
        holds=f"{_SUMS}; equal letters have equal, known sizes",
        least_opset=12,
    ),
    Spelling(
        name="matmul-flattened",
        operators=("MatMul",),
        matches="MatMul of a tensor of rank 3 or more with a matrix",
        writes="Reshape, MatMul of two matrices and Reshape",
        draft=_matmul_flattened,
        cost="nothing",
        exact=False,
        holds=f"{_SUMS}; tensors with at most one unknown size",
    ),
)
