"""Where a module begins to give something else: its operators, one by one, in two runs with the same arguments.

Names of operators are those of PyTorch's dispatcher, below autograd; the first of them whose results differ is where
the two runs part. Results of operators that give memory as it is (``torch.empty``) say nothing.
"""

from __future__ import annotations

import hashlib
import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import biopsy
from biopsy.model.node_source import is_of_packages
from biopsy.torch.facts import ModuleLine
from biopsy.torch.installed import imported
from biopsy.torch.outputs import leaves_of

_MEMORY_AS_IT_IS = ("aten.empty", "aten.new_empty")


@dataclass(frozen=True, kw_only=True)
class _Result:
    """What an operator gave, and where it was called."""

    operator: str
    digest: str
    place: ModuleLine


def origin_of_variation(module: Any, call: Callable[[], object], restore: Callable[[], None]) -> ModuleLine | None:
    """The first operator that gives something else in a second run; None if none does, or nobody can tell.

    ``call`` runs the module, ``restore`` puts it back afterwards.
    """
    runs: list[list[_Result]] = []
    for _ in range(2):
        try:
            with _modules_entered(module) as entered:
                runs.append(_results(call, entered))
        except Exception:
            return None  # what a module does below the dispatcher may not be looked at
        finally:
            restore()
    before, after = runs
    for first, second in zip(before, after, strict=False):
        if first.operator != second.operator or first.digest != second.digest:
            return first.place
    return None


def place_of_traceback(error: BaseException) -> ModuleLine | None:
    """The innermost line of the author's own code that an exception came through."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    own = [one for one in frames if _is_authors(one[0].f_code.co_filename)]
    return _place(*own[-1]) if own else None


def _results(call: Callable[[], object], entered: list[str]) -> list[_Result]:
    mode = imported("torch.utils._python_dispatch").TorchDispatchMode
    found: list[_Result] = []

    class Listening(mode):  # type: ignore[misc, valid-type]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = func(*args, **(kwargs or {}))
            name = str(func)
            if not name.startswith(_MEMORY_AS_IT_IS):
                place = _place_of_call(sys._getframe(1), name, entered[-1] if entered else "")
                found.append(_Result(operator=name, digest=_digest(given), place=place))
            return given

    with Listening():
        call()
    return found


@contextmanager
def _modules_entered(module: Any) -> Iterator[list[str]]:
    """The names of the parts of a module that are being called, the innermost last; no part of it is changed."""
    hooks = imported("torch.nn.modules.module")
    names = {id(part): name for name, part in module.named_modules()}
    entered: list[str] = []

    def enter(part: Any, args: Any) -> None:
        entered.append(names.get(id(part), entered[-1] if entered else ""))

    def leave(part: Any, args: Any, output: Any) -> None:
        entered.pop()

    handles = [
        hooks.register_module_forward_pre_hook(enter),
        hooks.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield entered
    finally:
        for handle in handles:
            handle.remove()


def _digest(given: Any) -> str:
    torch = imported()
    digest = hashlib.blake2b(digest_size=16)
    for value in (leaf.value for leaf in leaves_of(given)):
        if isinstance(value, torch.Tensor):
            digest.update(str(tuple(value.shape)).encode())
            digest.update(value.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8).numpy())
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()


def _place_of_call(frame: FrameType | None, operator: str, module: str) -> ModuleLine:
    while frame is not None and not _is_authors(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ModuleLine(module=module or None, operators=(operator,))
    return _place(frame, frame.f_lineno, module, operator)


def _place(frame: FrameType, line: int, module: str = "", operator: str = "") -> ModuleLine:
    code = frame.f_code
    return ModuleLine(
        file=code.co_filename,
        line=line,
        function=getattr(code, "co_qualname", code.co_name),
        code=linecache.getline(code.co_filename, line).strip() or None,
        module=module or None,
        operators=(operator,) if operator else (),
    )


def _is_authors(file: str) -> bool:
    installed = (imported().__file__, biopsy.__file__)
    return not is_of_packages(file) and not any(Path(file).is_relative_to(Path(one).parent) for one in installed if one)
