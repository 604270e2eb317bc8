"""Models of which it is known which layers fp16 is not enough for."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from support.models import BOOL, INT64, info, model

WIDTH = 8
TRIPS = 3000


class Network:
    """A chain of well-behaved layers, into which others are put; ``x`` is its end so far.

    All names begin with ``prefix``, except those of layers that are given one.
    """

    def __init__(self, x: str = "x", width: int = WIDTH, prefix: str = "") -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.x = x
        self._width = width
        self._prefix = prefix
        self._random = np.random.default_rng(3)

    def weight(self, values: object) -> str:
        name = f"{self._prefix}w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, np.float32), name))
        return name

    def node(self, op: str, *inputs: str, name: str = "", **attributes: object) -> None:
        number = len(self.nodes)
        name = name or f"{self._prefix}n{number}"
        self.nodes.append(
            helper.make_node(op, [self.x, *inputs], [f"{self._prefix}t{number}"], name=name, **attributes)
        )
        self.x = f"{self._prefix}t{number}"

    def plain(self, blocks: int) -> None:
        for _ in range(blocks):
            self.node("MatMul", self.weight(self._random.normal(0, WIDTH**-0.5, (WIDTH, WIDTH))))
            self.node("Add", self.weight(self._random.normal(0, 0.1, WIDTH)))
            self.node("Tanh")

    def overflow(self, name: str) -> None:
        """A factor that is not a finite fp16, of what is as small as it is large."""
        small, large = np.ones(self._width), np.ones(self._width)
        small[0], large[0] = 1e-5, 1e5
        self.node("Mul", self.weight(small))
        self.node("Mul", self.weight(large), name=name)

    def accumulation(self, name: str) -> None:
        """A running sum of ones, which in fp16 ends at 2048: there is no 2049."""
        body = helper.make_graph(
            [
                helper.make_node("Identity", ["go"], ["on"]),
                helper.make_node("Add", ["sum", "one"], ["more"], name=name),
            ],
            "body",
            [info("trip", (), INT64), info("go", (), BOOL), info("sum", (1,))],
            [info("on", (), BOOL), info("more", (1,))],
        )
        self.weights += [
            numpy_helper.from_array(np.array(TRIPS), "trips"),
            numpy_helper.from_array(np.ones(1, np.float32), "one"),
            numpy_helper.from_array(np.zeros(1, np.float32), "zero"),
        ]
        before, self.x = self.x, "trips"
        self.node("Loop", "", "zero", name="loop", body=body)
        self.node("Mul", self.weight([1 / TRIPS]))
        self.node("Mul", before)

    def made(self, shape: Sequence[int] = (4, WIDTH)) -> onnx.ModelProto:
        return model(self.nodes, [info("x", shape)], [info(self.x, shape)], self.weights)


KNOWN = ("factor_a", "factor_b", "factor_c", "running_sum")


def overflowing() -> onnx.ModelProto:
    """63 layers, of which the ``KNOWN`` ones must be high: three overflow in fp16, one loses count in a Loop."""
    network = Network()
    network.plain(4)
    network.overflow("factor_a")
    network.plain(5)
    network.accumulation("running_sum")
    network.plain(3)
    network.overflow("factor_b")
    network.overflow("factor_c")
    network.plain(4)
    return network.made()
