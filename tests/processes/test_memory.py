"""How much memory there is, asked again and again."""

from pathlib import Path
from typing import Any

import pytest

from biopsy.model.tensor_type import TensorType
from biopsy.processes import own_process as module
from biopsy.tensors.generate import generate_feeds


def test_the_limit_of_a_container_is_read_once_for_any_number_of_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    really = Path.read_text

    def counted(path: Path, *args: Any, **kwargs: Any) -> str:
        read.append(path)
        return really(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", counted)
    module._memory_of_the_container.cache_clear()
    generate_feeds({f"x{number}": TensorType(1, (1,)) for number in range(100)})
    assert len(read) == 1
