"""Where the nodes of a model come from: the code of its author as the exporter noted it, or the same node in an
earlier model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from biopsy.model.index import ModelIndex, Node
from biopsy.model.parts import string_in
from biopsy.model.wire import BYTES, fields, text
from biopsy.records import plain
from biopsy.text import count


@dataclass(frozen=True, kw_only=True)
class CodePlace:
    """A place in the code of a model's author, in words, and the nodes that come from it, by their order from 0."""

    text: str
    nodes: tuple[int, ...]


def sources_of(index: ModelIndex, original: ModelIndex | None = None) -> tuple[NodeSource | None, ...]:
    """For each node of a model, where an exporter says that it comes from.

    ``original``: the model that it was made of, in which those are looked up of which nothing is noted.
    """
    noted = [noted_source(index, node.number) for node in index.nodes]
    if original is None or all(noted):
        return tuple(noted)
    here, there = (Counter(node.name for node in each.nodes) for each in (index, original))
    named = {node.name: node for node in original.nodes if node.name and here[node.name] == there[node.name] == 1}
    pairs = zip(index.nodes, noted, strict=True)
    return tuple(source or _source_in(original, index, node, named.get(node.name)) for node, source in pairs)


def noted_source(index: ModelIndex, number: int) -> NodeSource | None:
    """What is noted of one node."""
    return source_of(index.node_payload(number))


def places_of(sources: Iterable[NodeSource | None]) -> list[CodePlace]:
    """The places that some nodes come from, each once, in the order of the nodes."""
    found: dict[str, list[int]] = {}
    for number, source in enumerate(sources):
        if source is not None:
            found.setdefault(source.with_code, []).append(number)
    return [CodePlace(text=text, nodes=tuple(numbers)) for text, numbers in found.items()]


def group_name(sources: Sequence[NodeSource | None]) -> str:
    """What nodes are together, in the words of their author: ``module blocks.0.attention: aten.softmax.int``.

    The innermost module that all are in, or else the class of the whole model, and the operators that were translated
    into them. Of nodes without a source, such as an optimizer makes, it says how many there are; "" if they are half of
    them or more.
    """
    known = [source for source in sources if source is not None]
    others = len(sources) - len(known)
    if others >= len(known):
        return ""
    paths = [source.scopes for source in known]
    module = ""
    for names in zip(*paths, strict=False):
        if len(set(names)) > 1:
            break
        module = names[0]
    models = {source.classes[0].rpartition(".")[2] if source.classes else "" for source in known}
    model = models.pop() if len(models) == 1 else ""
    where = f"module {module}" if module else f"class {model}" if model else ""
    operators = ", ".join(dict.fromkeys(source.operator for source in known if source.operator))
    name = ": ".join(filter(None, (where, operators)))
    return f"{name}, and {count(others, 'more node')}" if name and others else name


def _source_in(original: ModelIndex, index: ModelIndex, node: Node, named: Node | None) -> NodeSource | None:
    """What the original says of a node, or of the one in whose place it stands; None if that is not one node.

    ``named`` is the only one there of the same name.
    """
    ids = (original.ids.get(index.names[tensor], -1) for tensor in node.writes)
    numbers = (original.producer.get(tensor) for tensor in ids)
    found = {number: original.nodes[number] for number in numbers if number is not None}
    if named is not None and _is_alike(node, named):
        pairs = zip(node.inputs, named.inputs, strict=False)
        # One tensor that both read at the same place; else an equal name may be chance.
        if any(min(pair) >= 0 and index.names[pair[0]] == original.names[pair[1]] for pair in pairs):
            found[named.number] = named
    if len(found) != 1:
        return None
    (there,) = found.values()
    source = noted_source(original, there.number)
    is_same = _is_alike(node, there) and (node.name == there.name or not (node.name and there.name))
    return source if source is None or is_same else replace(source, stands_for=there.label)


def _is_alike(one: Node, other: Node) -> bool:
    return (one.op_type, one.domain or "ai.onnx") == (other.op_type, other.domain or "ai.onnx")


# Where in the code of a model's author a node comes from, as far as its exporter wrote that down.
#
# Conventions that are read, each with the name that ``NodeSource.by`` gives it:
#
# * ``pytorch``: torch.onnx.export since PyTorch 2.5 writes metadata of nodes. ``pkg.torch.onnx.stack_trace`` is a
#   stack as Python shows it, the outermost frame first; it may end inside torch. ``pkg.torch.onnx.name_scopes`` and
#   ``pkg.torch.onnx.class_hierarchy`` are lists as Python writes them, from the outermost module to the operator.
#   ``pkg.torch.onnx.fx_node`` is the call that was translated.
# * ``namespace``: the metadata of that name alone, ``name: class/name: class/...``, from the model to the operator.
# * ``torchscript``: the exporter before it names a node ``/blocks.0/q/Gemm``, by its modules, and with ``verbose`` its
#   documentation is a stack of lines ``FILE(LINE): FUNCTION``, the innermost frame first.
#
# All of it is text of strangers: what does not look like one of these says nothing, and only so much is looked at.

_STACK, _SCOPES, _CLASSES = (f"pkg.torch.onnx.{key}" for key in ("stack_trace", "name_scopes", "class_hierarchy"))
FX_NODE = "pkg.torch.onnx.fx_node"
_NAMESPACE = "namespace"
_READ = frozenset({_STACK, _SCOPES, _CLASSES, FX_NODE, _NAMESPACE})

_NAME, _OP_TYPE, _DOC, _METADATA = 3, 4, 6, 9
"""Fields of NodeProto (onnx.proto3)."""

_LONGEST = 1 << 15
"""Characters of one entry that are looked at."""

_MOST_ENTRIES = 64
_MOST_SCOPES = 64

_FRAME = re.compile(r'\s*File "([^"\n]{1,1000})", line (\d{1,9}), in ([^\n]{1,200})')
_SCRIPT_FRAME = re.compile(r"([^\n]{1,1000})\((\d{1,9})\): ([^\n]{1,200})")
_ITEM = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")
_TARGET = re.compile(r"\[target=(?:torch\.ops\.)?([\w.]{1,200})\]")
_TORCH = re.compile(r"[/\\]torch[/\\](?:nn|onnx|jit|fx|export|utils|autograd|_\w+|functional\.py)(?:[/\\]|$|\.)")
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_STANDARD = re.compile(r"[/\\]lib[/\\](?:python|pypy)3\.\d+[/\\]|[/\\]python3\d*[/\\]lib[/\\]", re.IGNORECASE)
_GENERATED = re.compile(r"<(?:eval_with_key|frozen )")


@dataclass(frozen=True, kw_only=True)
class NodeSource:
    """Where a node comes from. None, or nothing, where the exporter does not say.

    ``file``, ``line``, ``function`` and ``code`` are of the innermost frame of the author's own code. ``scopes`` are
    names of modules and ``classes`` their classes, both from the outermost. ``owner`` is the class whose method that
    function is, "" where that is not certain. ``operator`` is what the exporter translated, such as
    ``aten.gelu.default``. ``by`` names the convention. ``stands_for``: the node of the original that all this was noted
    of, where another one now stands in its place.
    """

    by: str
    file: str | None = None
    line: int | None = None
    function: str | None = None
    code: str | None = None
    scopes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    owner: str = ""
    operator: str | None = None
    stands_for: str | None = None

    def as_tree(self) -> dict[str, Any]:
        """As plain values, for a report; None for what is not told."""
        known = {key: value or None for key, value in plain(self).items() if key != "owner"}
        return known | {"in_words": str(self)}

    @property
    def with_code(self) -> str:
        """In words, and the line of code where it is told."""
        return f"{self}: {self.code}" if self.code else str(self)

    def __str__(self) -> str:
        """In a few words: ``model.py:42 in Attention.forward``, or the name of the module, ``blocks.0.attention``."""
        return f"in place of {self.stands_for}, {self._where}" if self.stands_for else self._where

    @property
    def _where(self) -> str:
        if self.file is None:
            return f"module {self.scopes[-1]}" if self.scopes else f"class {self.classes[-1]}"
        name = re.split(r"[/\\]", self.file)[-1]
        function = f"{self.owner}.{self.function}" if self.owner else self.function
        return f"{name}:{self.line}{f' in {function}' if function else ''}"


@dataclass(frozen=True)
class _StackFrame:
    """One frame of a stack."""

    file: str
    line: int
    function: str
    code: str = ""


def is_of_packages(file: str) -> bool:
    """Whether a file stands where Python or packages are installed, or was generated; torch may stand elsewhere."""
    return any(found.search(file) for found in (_INSTALLED, _STANDARD, _GENERATED))


def is_stack(doc: str) -> bool:
    """Whether the documentation of a node is a stack that an exporter noted."""
    return any(_SCRIPT_FRAME.fullmatch(line) for line in doc[:_LONGEST].splitlines())


def source_of(payload: bytes) -> NodeSource | None:
    """What an exporter wrote into a serialized NodeProto; None if nothing that is known here."""
    name = op_type = doc = ""
    entries: dict[str, str] = {}
    for number, kind, _, start, end in fields(payload):
        if kind != BYTES:
            continue
        if number == _NAME:
            name = _short(payload, start, end)
        elif number == _OP_TYPE:
            op_type = _short(payload, start, end)
        elif number == _DOC:
            doc = _short(payload, start, end)
        elif number == _METADATA and len(entries) < _MOST_ENTRIES:
            key = string_in(payload, 1, start, end)
            if key in _READ:
                entries[key] = string_in(payload, 2, start, end)[:_LONGEST]
    frames = list(_frames(entries.get(_STACK, "")))
    scopes, classes = _modules(_items(entries.get(_SCOPES, ""))), _modules(_items(entries.get(_CLASSES, "")))
    by = "pytorch"
    if not frames and not scopes and not classes:
        by = _NAMESPACE
        pairs = [part.partition(":") for part in entries.get(_NAMESPACE, "").split("/")[:-1][:_MOST_SCOPES]]
        scopes = tuple(name.strip() for name, _, _ in pairs if name.strip())
        classes = tuple(kind.strip() for _, _, kind in pairs if kind.strip())
    target = _TARGET.search(entries.get(FX_NODE, ""))
    found = NodeSource(by=by, scopes=scopes, classes=classes, operator=target[1] if target is not None else None)
    found = _at(found, frames)
    return (found if found.file is not None or scopes or classes else None) or _of_script(name, op_type, doc)


def source_of_stack(stack: str, operator: str, classes: Sequence[str] = ()) -> NodeSource | None:
    """What the stack trace of a node of PyTorch's programs says of it; None if it holds no frame."""
    frames = list(_frames(stack[:_LONGEST]))
    found = _at(NodeSource(by="pytorch", operator=operator, classes=tuple(classes)), frames)
    return found if found.file is not None else None


def _short(payload: bytes, start: int, end: int) -> str:
    return text(payload[start : min(end, start + _LONGEST)])


def _of_script(name: str, op_type: str, doc: str) -> NodeSource | None:
    matches = (_SCRIPT_FRAME.fullmatch(line) for line in doc.splitlines())
    frames = [_StackFrame(found[1], int(found[2]), found[3]) for found in matches if found is not None]
    parts = name.split("/")
    is_path = len(parts) > 2 and not parts[0] and op_type and re.fullmatch(rf"{re.escape(op_type)}(_\d+)?", parts[-1])
    modules = parts[1:-1][:_MOST_SCOPES] if is_path else []
    scopes = _paths(modules)
    source = _at(NodeSource(by="torchscript", scopes=scopes), frames[::-1])
    return source if source.file is not None or scopes else None


def _paths(modules: Sequence[str]) -> tuple[str, ...]:
    """The path of each module in the model; one of a list has the name of the list in its own: ``blocks/blocks.0``."""
    paths: list[str] = []
    for place, name in enumerate(modules):
        in_list = place > 0 and name.startswith(f"{modules[place - 1]}.")
        above = paths[place - 1].rpartition(".")[0] if in_list else paths[place - 1] if place else ""
        paths.append(f"{above}.{name}" if above else name)
    return tuple(paths)


def _frames(stack: str) -> Iterator[_StackFrame]:
    lines = stack.splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=False):
        found = _FRAME.fullmatch(line)
        if found is not None:
            code = "" if _FRAME.fullmatch(after) else after.strip()
            yield _StackFrame(found[1], int(found[2]), found[3], code)


def _at(found: NodeSource, frames: Sequence[_StackFrame]) -> NodeSource:
    """The source with the innermost frame of the author's: outside of installed packages, or at least of torch.

    What torch has generated is no place at all: there is no such file.
    """
    written = [place for place, frame in enumerate(frames) if not _GENERATED.search(frame.file)]
    if not written:
        return found
    torch = [place for place in written if _TORCH.search(frames[place].file)]
    # Where torch is installed as a package, what merely looks like its folders is the author's.
    torch = [place for place in torch if _INSTALLED.search(frames[place].file)] or torch
    outside = [place for place in written if place not in torch]
    own = [place for place in outside if not is_of_packages(frames[place].file)]
    place = (own or outside or written)[-1]
    frame = frames[place]
    return replace(
        found,
        file=frame.file,
        line=frame.line,
        function=frame.function,
        code=frame.code or None,
        owner=_owner(found.classes, frames, place),
    )


def _owner(classes: Sequence[str], frames: Sequence[_StackFrame], place: int) -> str:
    """The class whose ``forward`` a frame is; "" unless every module of the stack has just one frame of that name."""
    forward = [number for number, frame in enumerate(frames) if frame.function == "forward"]
    if place not in forward or len(forward) != len(classes):
        return ""
    return classes[forward.index(place)].rpartition(".")[2]


def _items(written: str) -> list[str]:
    """The texts in a list as Python writes it; nothing is evaluated."""
    if not (written.startswith("[") and written.endswith("]")):
        return []
    return [(found[1] if found[1] is not None else found[2]) for found in _ITEM.finditer(written)][:_MOST_SCOPES]


def _modules(items: Sequence[str]) -> tuple[str, ...]:
    """Without the model itself where it has no name, and without the operator at the end."""
    return tuple(item for item in items[:-1] if item)
