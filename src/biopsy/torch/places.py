"""Places in the code of a module: of an exception, of a running operator, and of nodes that were captured or exported.

A place is a line in a file of the module's author or of a library of models. Where none is known, it is the part of the
module and its class, with the reason.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any

import biopsy
from biopsy.model.sources import NodeSource, innermost_of_model, source_of_stack
from biopsy.torch.arrays import imported
from biopsy.torch.facts import ModuleLine

NO_LINE = "PyTorch knows no line of a file of the model that leads there"
"""Why a line is not known: the code is in no file (``exec``), or PyTorch notes none."""


def causes_of(error: BaseException) -> list[BaseException]:
    """An exception, what it was raised from, and so on."""
    causes = [error]
    while True:
        last = causes[-1]
        cause = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if cause is None or cause in causes:
            return causes
        causes.append(cause)


def place_of_exception(error: BaseException, module: Any) -> ModuleLine:
    """Where in the code of a module an exception was raised, also if PyTorch wraps it into others.

    Without a line, the part of the module that was called last.
    """
    names = {id(part): (name, type(part).__name__) for name, part in module.named_modules()}
    place = ModuleLine(kind=type(module).__name__, unknown=NO_LINE)
    for cause in causes_of(error):
        frames = [_of_frame(frame, line) for frame, line in walk_tb(cause.__traceback__)]
        # torch.compile reads code instead of running it, and tells the stack of what it has read.
        read = getattr(cause, "real_stack", None) or ()
        frames += [_Frame(file=each.filename, line=each.lineno or 0, function=each.name) for each in read]
        parts = [names[each.owner] for each in frames if each.owner in names]
        if parts and place.module is None:
            place = replace(place, module=parts[-1][0] or None, kind=parts[-1][1])
        line = place_of_frames(frames)
        if line is not None:
            return replace(line, module=place.module, kind=place.kind)
    return place


def node_of_exception(error: BaseException) -> Any:
    """The FX node that PyTorch was working on when it raised an exception, the innermost one; None if there is none."""
    kind = imported("torch.fx").Node
    frames = [frame for cause in causes_of(error) for frame, _ in walk_tb(cause.__traceback__)]
    nodes = (frame.f_locals.get(name) for frame in reversed(frames) for name in ("node", "n"))
    return next((node for node in nodes if isinstance(node, kind)), None)


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """A frame of a stack; ``owner`` is the ``id`` of its ``self``."""

    file: str
    line: int
    function: str
    owner: int | None = None


def _of_frame(frame: FrameType, line: int) -> _Frame:
    code = frame.f_code
    owner = frame.f_locals.get("self")
    return _Frame(file=code.co_filename, line=line, function=code.co_qualname, owner=id(owner))


def place_of_stack(stack: Iterable[tuple[FrameType, int]]) -> ModuleLine | None:
    """The place of a stack of frames and lines, the innermost first, as ``traceback.walk_stack`` gives it."""
    return place_of_frames([_of_frame(frame, line) for frame, line in stack][::-1])


def place_of_frames(frames: Sequence[_Frame]) -> ModuleLine | None:
    """The place of frames, the outermost first, within what biopsy calls; None if no line of a model is among them."""
    within = frames[first_within([frame.file for frame in frames]) :]
    number = innermost_of_model([(frame.file, frame.function) for frame in within])
    if number is None:
        return None
    frame = within[number]
    code = linecache.getline(frame.file, frame.line).strip()
    return ModuleLine(file=frame.file, line=frame.line, function=frame.function, code=code or None)


def first_within(files: Sequence[str]) -> int:
    """The number of the first frame of what biopsy calls, of frames in these files, the outermost first."""
    folder = Path(biopsy.__file__).parent
    return max((number + 1 for number, file in enumerate(files) if Path(file).is_relative_to(folder)), default=0)


def lines_of(sources: Iterable[NodeSource | None]) -> tuple[ModuleLine, ...]:
    """The lines that some nodes come from, each with the operators that were translated there, in order.

    An operator that has become several nodes is named once.
    """
    groups: dict[tuple[object, ...], list[NodeSource]] = {}
    for source in sources:
        if source is not None and (source.file is not None or source.operator is not None or source.scopes):
            groups.setdefault((source.file, source.line, source.scopes[-1:]), []).append(source)
    return tuple(map(_line, groups.values()))


def place_of_node(node: Any) -> ModuleLine:
    """The line of a node of a captured program; without one, its operator and the part of the module."""
    modules = [(str(name), str(kind)) for name, kind in (node.meta.get("nn_module_stack") or {}).values()]
    return _line([source_of_stack(node.meta.get("stack_trace") or "", str(node.target), modules)])


def _line(group: Sequence[NodeSource]) -> ModuleLine:
    first = group[0]
    operators = (source.operator for source in group if source.operator is not None)
    return ModuleLine(
        file=first.file,
        line=first.line,
        function=f"{first.owner}.{first.function}" if first.owner else first.function,
        code=first.code,
        module=first.scopes[-1] if first.scopes else None,
        kind=first.classes[-1].rpartition(".")[2] if first.classes else None,
        operators=tuple(dict.fromkeys(operators)),
        unknown="" if first.file else NO_LINE,
    )
