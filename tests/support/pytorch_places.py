"""Modules that call one operator, at the line that ends in ``# here``, in the ways in which people write modules."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from support import pytorch_helpers

Operator = Callable[[torch.Tensor], torch.Tensor]


class Calling(torch.nn.Module):
    """A module with an operator and a part."""

    def __init__(self, operator: Operator, part: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.operator = operator
        self.part = part or torch.nn.Identity()


class InForward(Calling):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return self.operator(y) * 2  # here


class Around(Calling):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x + 1) * 3


class InMethod(Calling):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mixed(x + 1) * 2

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.operator(x)  # here


class InFunction(Calling):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scaled(self.operator, x) + 1


def scaled(operator: Operator, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return operator(y)  # here


class InOtherFile(Calling):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return pytorch_helpers.applied_below(self.operator, x) + 1


class InLambda(Calling):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        apply = lambda t: self.operator(t) + 1  # noqa: E731  # here
        return apply(x) * 2


def logged(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(forward)
    def wrapper(self: Any, *args: Any) -> torch.Tensor:
        return forward(self, *args)

    return wrapper


class Decorated(Calling):
    @logged
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.operator(x) * 2  # here


class InLoop(Calling):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for factor in (1, 2):
            x = self.operator(x * factor)  # here
        return x + 1


class Twice(Calling):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(self.part(x) + 1)


class InComprehension(Calling):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(
            self.operator(part) * 2  # here
            for part in x.split(4, dim=-1)
        )


class InProperty(Calling):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.given = x * 2
        return self.changed + 1

    @property
    def changed(self) -> torch.Tensor:
        return self.operator(self.given)  # here


class AsForward(torch.nn.Module):
    """A module whose ``forward`` is a function of another name."""

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        self.operator = operator

    def computed(self, x: torch.Tensor) -> torch.Tensor:
        return self.operator(x) * 2  # here

    forward = computed


class WithHook(torch.nn.Module):
    """A module with a hook that calls the operator."""

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        self.part = torch.nn.Linear(8, 8)
        self.part.register_forward_hook(lambda part, given, returned: operator(returned))  # here

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) * 2


class Nested(Calling):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def outer(t: torch.Tensor) -> torch.Tensor:
            def inner(u: torch.Tensor) -> torch.Tensor:
                return self.operator(u) - 1  # here

            return inner(t) * 2

        return outer(x)


WRITTEN = """import torch


class Written(torch.nn.Module):
    def __init__(self, operator):
        super().__init__()
        self.operator = operator

    def forward(self, x):
        return helped(self.operator, x) + 1


def helped(operator, x):
    return operator(x) * 2  # here
"""


def without_file(operator: Operator) -> torch.nn.Module:
    """A module whose code was made by ``exec``: it has no file."""
    names: dict[str, Any] = {}
    exec(WRITTEN, names)
    module: torch.nn.Module = names["Written"](operator)
    return module


class AroundWithoutFile(Calling):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) * 3  # here


def of_library(operator: Operator, folder: Path) -> torch.nn.Module:
    """A module of an installed library of models."""
    file = folder / "site-packages" / "library_of_models" / "modeling.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(WRITTEN)
    spec = importlib.util.spec_from_file_location("library_of_models.modeling", file)
    assert spec is not None and spec.loader is not None
    modeling = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = modeling
    spec.loader.exec_module(modeling)
    module: torch.nn.Module = modeling.Written(operator)
    return module


@dataclass(frozen=True)
class Planted:
    """A way to call an operator: the module, made of the operator and a folder for files, and what holds the line."""

    make: Callable[[Operator, Path], torch.nn.Module]
    holder: object

    @property
    def truth(self) -> tuple[str, int] | None:
        """The name of the file and the line; None if there is no line in a file."""
        if self.holder is None:
            return None
        if self.holder == WRITTEN:
            return "modeling.py", _line_here(WRITTEN.splitlines())
        lines, first = inspect.getsourcelines(self.holder)  # type: ignore[arg-type]
        return Path(inspect.getfile(self.holder)).name, first - 1 + _line_here(lines)  # type: ignore[arg-type]


def _line_here(lines: list[str]) -> int:
    (line,) = (number for number, line in enumerate(lines, 1) if line.rstrip().endswith("# here"))
    return line


BY_NAME = {
    "in forward": Planted(lambda operator, _: InForward(operator), InForward),
    "in a part": Planted(lambda operator, _: Around(operator, Around(operator, InForward(operator))), InForward),
    "in a method": Planted(lambda operator, _: InMethod(operator), InMethod),
    "in a function": Planted(lambda operator, _: InFunction(operator), scaled),
    "in another file": Planted(lambda operator, _: InOtherFile(operator), pytorch_helpers.applied),
    "in a lambda": Planted(lambda operator, _: InLambda(operator), InLambda),
    "behind a decorator": Planted(lambda operator, _: Decorated(operator), Decorated),
    "in a loop": Planted(lambda operator, _: InLoop(operator), InLoop),
    "in a part called twice": Planted(lambda operator, _: Twice(operator, InMethod(operator)), InMethod),
    "in a comprehension": Planted(lambda operator, _: InComprehension(operator), InComprehension),
    "in a property": Planted(lambda operator, _: InProperty(operator), InProperty),
    "in a forward of another name": Planted(lambda operator, _: AsForward(operator), AsForward),
    "in a hook": Planted(lambda operator, _: WithHook(operator), WithHook),
    "in nested functions": Planted(lambda operator, _: Nested(operator), Nested),
    "in a sequence": Planted(
        lambda operator, _: torch.nn.Sequential(torch.nn.Linear(8, 8), InFunction(operator)), scaled
    ),
    "in code without a file": Planted(lambda operator, _: without_file(operator), None),
    "in a part without a file": Planted(
        lambda operator, _: AroundWithoutFile(operator, without_file(operator)), AroundWithoutFile
    ),
    "in a library": Planted(of_library, WRITTEN),
    "in a part of a library": Planted(lambda operator, folder: Around(operator, of_library(operator, folder)), WRITTEN),
}
"""Each way by its name."""
