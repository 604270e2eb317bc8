"""The contract of recording, for modules of operators drawn at random: each value is that of the unoptimized model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from biopsy.torch.recording import named_values  # noqa: E402
from pytorch.test_values import require_equal  # noqa: E402
from support.pytorch_modules import exported  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def _in_place(x, y):
    z = x * 1.5
    z.clamp_(-1, 1)
    z[0] = y[1]
    return z


OPERATORS = {
    "in place": _in_place,
    "both": lambda x, y: torch.atan2(x, y + 4),
    "products": lambda x, y: (x @ y.T / 4) @ y,
    "top": lambda x, y: torch.topk(x, 2, dim=0).values.sum(0) + y,
    "split": lambda x, y: torch.cat(torch.split(x, 2, dim=1)[::-1], dim=1) - y,
    "chosen": lambda x, y: torch.where(x > y, x, y * 0.5),
    "turned": lambda x, y: x.flip(0).roll(1, 1) + y.mean(1, keepdim=True),
    "statistics": lambda x, y: (x - x.mean()) / (y.var() + 1),
    "narrow": lambda x, y: (x.half() * 0.5).float() + y,
    "sizes": lambda x, y: x.reshape(-1)[: x.shape[0] * 4].reshape(x.shape) * x.shape[1] + y,
    "same": lambda x, y: x.clone().detach() + y.expand_as(x),
    "whole": lambda x, y: (x * 3).to(torch.int32).float() + torch.cumsum(y, 1),
    "norm": lambda x, y: torch.nn.functional.layer_norm(x, (4,)) + y,
    "soft": lambda x, y: torch.softmax(x, -1).log_softmax(0) + y.abs().sqrt(),
}


class Drawn(torch.nn.Module):
    """Operators one after the other, each with two of the values so far."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def forward(self, x, y):
        values = [x, y]
        for name, left, right in self.steps:
            values.append(OPERATORS[name](values[left % len(values)], values[right % len(values)]))
        return values[-1], values[len(values) // 2]


steps = st.lists(
    st.tuples(st.sampled_from(sorted(OPERATORS)), st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=6
)


@settings(max_examples=15, deadline=None)
@given(steps=steps, seed=st.integers(0, 99), optimize=st.booleans())
def test_every_recorded_value_is_that_of_the_model(steps, seed, optimize):
    torch.manual_seed(seed)
    args = torch.rand(4, 4), torch.rand(4, 4)
    program = exported(Drawn(steps), args, optimize=optimize)
    names = require_equal(program, args)
    assert set(names) == {name for tensors in named_values(program).names.values() for name in tensors}
    given = {value.name for value in program.model.graph.inputs}
    constants = {value.name for value in program.model.graph.initializers.values()}
    outputs = {value.name for value in program.model.graph.outputs} - given - constants
    missing = {name: named_values(program).refused.get(name) for name in outputs - set(names)}
    assert all(why is not None for why in missing.values())
