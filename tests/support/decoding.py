"""Which tensors of JSON are decoded."""

import pytest

from biopsy.tensors.polygraphy_json import Base64Tensor
from biopsy.tensors.results import Array


def decoded_from_now_on(monkeypatch: pytest.MonkeyPatch) -> list[Array]:
    """The tensors that have been decoded, in order; the list grows."""
    found: list[Array] = []
    array = Base64Tensor.array

    def noted(self: Base64Tensor) -> Array:
        found.append(array(self))
        return found[-1]

    monkeypatch.setattr(Base64Tensor, "array", noted)
    return found
