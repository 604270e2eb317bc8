"""A module is what it was before, whatever its forward keeps."""

from collections import deque

import pytest

torch = pytest.importorskip("torch")

from biopsy import errors  # noqa: E402
from biopsy.torch.calls import preserved  # noqa: E402

pytestmark = pytest.mark.torch


class Notes:
    """An object of the author's."""

    def __init__(self):
        self.seen = []


class Keeping(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.history = []
        self.cache = {"inner": {"calls": deque([0])}}
        self.kinds = {1}
        self.mean = torch.zeros(1)
        self.notes = Notes()

    def forward(self, x):
        self.history.append(x)
        self.cache["last"] = x
        self.cache["inner"]["calls"].append(1)
        self.kinds.add(2)
        self.mean.add_(1)
        self.notes.seen.append(x)
        self.new = x
        return self.first(x) * self.mean


def test_what_forward_keeps_in_attributes_is_put_back_in_the_same_objects():
    module = Keeping().eval()
    history, mean, calls = module.history, module.mean, module.cache["inner"]["calls"]
    with preserved(module) as state:
        first = module(torch.ones(1, 2))
        state.restore()
        assert torch.equal(module(torch.ones(1, 2)), first)
    assert module.history is history
    assert module.mean is mean
    assert module.cache["inner"]["calls"] is calls
    assert (history, list(calls), module.kinds, module.notes.seen) == ([], [0], {1}, [])
    assert list(module.cache) == ["inner"]
    assert float(mean) == 0
    assert not hasattr(module, "new")


def test_a_parameter_that_is_changed_behind_its_version_is_seen():
    module = torch.nn.Linear(2, 2).eval()
    with pytest.raises(errors.CannotCompare, match="changes its own parameters when it runs"), preserved(module):
        module.weight.data.mul_(2)


@pytest.mark.parametrize("make", [torch.jit.script, lambda module: torch.jit.trace(module, torch.ones(1, 2))])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_module_of_torchscript_can_be_kept(make):
    module = make(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()).eval())
    with preserved(module) as state:
        module(torch.ones(1, 2))
        state.restore()


def test_what_tracing_has_left_behind_is_no_hindrance():
    module = Keeping().eval()
    module.left = torch._subclasses.FakeTensorMode().from_tensor(torch.ones(2))
    module.meta = torch.ones(2, device="meta")
    with preserved(module) as state:
        module(torch.ones(1, 2))
        state.restore()
