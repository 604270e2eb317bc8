"""Finds the source of nodes: the author's code as an exporter noted it, also through the same node of another model.

These conventions are read, each with the name that ``NodeSource.by`` gives it:

- ``pytorch``: torch.onnx.export since PyTorch 2.5 writes metadata of nodes. ``pkg.torch.onnx.stack_trace`` is a stack
  as Python prints it, the outermost frame first; it may end inside torch. ``pkg.torch.onnx.name_scopes`` and
  ``pkg.torch.onnx.class_hierarchy`` are Python lists, from the outermost module to the operator.
  ``pkg.torch.onnx.fx_node`` is the call that was translated.
- ``namespace``: only the metadata of this name, ``name: class/name: class/...``, from the model to the operator.
- ``torchscript``: the older exporter names a node by its modules, such as ``/blocks.0/q/Gemm``. With ``verbose``, its
  documentation is a stack of lines ``FILE(LINE): FUNCTION``, the innermost frame first.

All of it is a stranger's text: anything else is ignored, and only a limited part is read.
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
    """A place in the code of a model's author, in words, and the places of its nodes in the model, from 0."""

    text: str
    nodes: tuple[int, ...]


def sources_of(index: ModelIndex, original: ModelIndex | None = None) -> tuple[NodeSource | None, ...]:
    """The noted source of each node of a model.

    For nodes without one, the same node of ``original``, the model from which this one was made, is looked up.
    """
    noted = [noted_source(index, node.number) for node in index.nodes]
    if original is None or all(noted):
        return tuple(noted)
    here, there = (Counter(node.name for node in each.nodes) for each in (index, original))
    named = {node.name: node for node in original.nodes if node.name and here[node.name] == there[node.name] == 1}
    pairs = zip(index.nodes, noted, strict=True)
    return tuple(source or _source_in(original, index, node, named.get(node.name)) for node, source in pairs)


def noted_source(index: ModelIndex, number: int) -> NodeSource | None:
    """The source that is noted in a node."""
    return source_of(index.node_payload(number))


def places_of(sources: Iterable[NodeSource | None]) -> list[CodePlace]:
    """The places of code of these nodes, each once, in the order of the nodes."""
    nodes: dict[str, list[int]] = {}
    for number, source in enumerate(sources):
        if source is not None:
            nodes.setdefault(source.with_code, []).append(number)
    return [CodePlace(text=text, nodes=tuple(numbers)) for text, numbers in nodes.items()]


def group_name(sources: Sequence[NodeSource | None]) -> str:
    """A name for a group of nodes in the author's words: ``module blocks.0.attention: aten.softmax.int``.

    It names the innermost module that contains all of them, or else the class of the model, and the operators that were
    translated into them. Nodes without a source, such as those of an optimizer, are counted; if they are half of the
    nodes or more, the name is "".
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
    """The source of the only node of the original that writes the same tensors or has the same name; None without one.

    ``named`` is the only node of the original with the same name.
    """
    ids = (original.ids.get(index.names[tensor], -1) for tensor in node.writes)
    numbers = (original.producer.get(tensor) for tensor in ids)
    counterparts = {number: original.nodes[number] for number in numbers if number is not None}
    if named is not None and _have_same_operator(node, named):
        pairs = zip(node.inputs, named.inputs, strict=False)
        # Both must read a tensor at the same place; otherwise the equal name may be chance.
        if any(min(pair) >= 0 and index.names[pair[0]] == original.names[pair[1]] for pair in pairs):
            counterparts[named.number] = named
    if len(counterparts) != 1:
        return None
    (counterpart,) = counterparts.values()
    source = noted_source(original, counterpart.number)
    has_other_name = node.name and counterpart.name and node.name != counterpart.name
    is_same = _have_same_operator(node, counterpart) and not has_other_name
    return source if source is None or is_same else replace(source, stands_for=counterpart.label)


def _have_same_operator(node: Node, other: Node) -> bool:
    return (node.op_type, node.domain or "ai.onnx") == (other.op_type, other.domain or "ai.onnx")


_STACK, _SCOPES, _CLASSES = (f"pkg.torch.onnx.{key}" for key in ("stack_trace", "name_scopes", "class_hierarchy"))
FX_NODE = "pkg.torch.onnx.fx_node"
_NAMESPACE = "namespace"
_READ = frozenset({_STACK, _SCOPES, _CLASSES, FX_NODE, _NAMESPACE})

_NAME, _OP_TYPE, _DOC, _METADATA = 3, 4, 6, 9
"""Fields of NodeProto (onnx.proto3)."""

_LONGEST = 1 << 15
"""Characters of an entry that are read."""

_MOST_ENTRIES = 64
_MOST_SCOPES = 64

_FRAME = re.compile(r'\s*File "([^"\n]{1,1000})", line (\d{1,9}), in ([^\n]{1,200})')
_SCRIPT_FRAME = re.compile(r"([^\n]{1,1000})\((\d{1,9})\): ([^\n]{1,200})")
_ITEM = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")
_TARGET = re.compile(r"\[target=(?:torch\.ops\.)?([\w.]{1,200})\]")
_TORCH = re.compile(r"[/\\]torch[/\\](?:nn|onnx|jit|fx|export|utils|autograd|_\w+|functional\.py)(?:[/\\]|$|\.)")
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_STANDARD = re.compile(r"[/\\]lib[/\\](?:python|pypy)3\.\d+[/\\]|[/\\]python3\d*[/\\]lib[/\\]", re.IGNORECASE)
_TOOLS = re.compile(_INSTALLED.pattern + r"(?:torch|functorch|onnxscript|onnx|onnx_ir|numpy|sympy)(?:[/\\]|$)")
_PACKAGE = re.compile(_INSTALLED.pattern + r"([^/\\]+)")
_GENERATED = re.compile(r"^<(?!ipython-input)")
"""Names of code that is in no file, such as ``<string>``, ``<stdin>`` and ``<eval_with_key>.1``."""


@dataclass(frozen=True, kw_only=True)
class NodeSource:
    """The source of a node; fields that the exporter did not note are None or empty.

    ``file``, ``line``, ``function`` and ``code`` are of the frame that ``innermost_of_model`` chooses. ``scopes`` are
    names of modules and ``classes`` their classes, both from the outermost. ``owner`` is the class with the method
    ``function``, "" if that is not certain. ``operator`` is what the exporter translated, such as
    ``aten.gelu.default``. ``by`` names the convention. ``stands_for`` is the node of the original with this source, if
    another node has taken its place.
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
        """The source as plain values for a report; None for what is unknown."""
        known = {key: value or None for key, value in plain(self).items() if key != "owner"}
        return known | {"in_words": str(self)}

    @property
    def with_code(self) -> str:
        """The source in words, with the line of code if that is known."""
        return f"{self}: {self.code}" if self.code else str(self)

    def __str__(self) -> str:
        """The source in words: ``model.py:42 in Attention.forward``, or ``module blocks.0.attention``."""
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
    """A frame of a stack trace."""

    file: str
    line: int
    function: str
    code: str = ""


def is_of_model(file: str) -> bool:
    """Whether a file may belong to a model: it is the author's own, or of an installed library of models."""
    is_of_python = _STANDARD.search(file) or _GENERATED.search(file)
    return not _TOOLS.search(file) and (_INSTALLED.search(file) is not None or not is_of_python)


def innermost_of_model(frames: Sequence[tuple[str, str]]) -> int | None:
    """The number of the frame that says where in a model a stack is; None if none does.

    ``frames`` are pairs of file and function, the outermost first. The frame is the innermost one of the author's own
    code, or of the package of the innermost ``forward``: a library of models, such as transformers, other than a
    library that this ``forward`` calls. Python, PyTorch, the exporter, and code in no file are no part of a model.
    """
    in_torch = [number for number, (file, _) in enumerate(frames) if _TORCH.search(file)]
    # If torch is an installed package, other folders that look like its own are the author's.
    in_torch = [number for number in in_torch if _INSTALLED.search(frames[number][0])] or in_torch
    packages = {
        number: _PACKAGE.findall(file)[-1:]  # none for the author's own file
        for number, (file, _) in enumerate(frames)
        if number not in in_torch and is_of_model(file)
    }
    forwards = [number for number in packages if frames[number][1].rpartition(".")[2] == "forward"]
    library = packages[forwards[-1]] if forwards else []
    own = [number for number, package in packages.items() if package in ([], library)]
    return next(reversed(own or [*packages]), None)


def is_stack(doc: str) -> bool:
    """Whether the documentation of a node holds a stack trace that an exporter noted."""
    return any(_SCRIPT_FRAME.fullmatch(line) for line in doc[:_LONGEST].splitlines())


def source_of(payload: bytes) -> NodeSource | None:
    """The source noted in a serialized NodeProto; None if there is none in a known convention."""
    texts = {_NAME: "", _OP_TYPE: "", _DOC: ""}
    entries: dict[str, str] = {}
    for number, kind, _, start, end in fields(payload):
        if kind != BYTES:
            continue
        if number in texts:
            texts[number] = text(payload[start : min(end, start + _LONGEST)])
        elif number == _METADATA and len(entries) < _MOST_ENTRIES:
            key = string_in(payload, 1, start, end)
            if key in _READ:
                entries[key] = string_in(payload, 2, start, end)[:_LONGEST]
    frames = list(_frames(entries.get(_STACK, "")))
    scopes, classes = _modules(entries.get(_SCOPES, "")), _modules(entries.get(_CLASSES, ""))
    by = "pytorch"
    if not frames and not scopes and not classes:
        by = _NAMESPACE
        pairs = [part.partition(":") for part in entries.get(_NAMESPACE, "").split("/")[:-1][:_MOST_SCOPES]]
        scopes = tuple(name.strip() for name, _, _ in pairs if name.strip())
        classes = tuple(kind.strip() for _, _, kind in pairs if kind.strip())
    target = _TARGET.search(entries.get(FX_NODE, ""))
    source = NodeSource(by=by, scopes=scopes, classes=classes, operator=target[1] if target is not None else None)
    source = _at_innermost(source, frames)
    return source if source.file is not None or scopes or classes else _of_script(*texts.values())


def source_of_stack(stack: str, operator: str, modules: Sequence[tuple[str, str]] = ()) -> NodeSource:
    """The source of a node of a PyTorch program with this stack trace.

    ``modules`` are the names of the modules around it and their classes, the outermost first.
    """
    scopes, classes = tuple(name for name, _ in modules if name), tuple(kind for _, kind in modules)
    source = NodeSource(by="pytorch", operator=operator, scopes=scopes, classes=classes)
    return _at_innermost(source, list(_frames(stack[:_LONGEST])))


def _of_script(name: str, op_type: str, doc: str) -> NodeSource | None:
    """The source of a node in the convention ``torchscript``."""
    matches = (_SCRIPT_FRAME.fullmatch(line) for line in doc.splitlines())
    frames = [_StackFrame(match[1], int(match[2]), match[3]) for match in matches if match is not None]
    parts = name.split("/")
    is_path = len(parts) > 2 and not parts[0] and op_type and re.fullmatch(rf"{re.escape(op_type)}(_\d+)?", parts[-1])
    modules = parts[1:-1][:_MOST_SCOPES] if is_path else []
    scopes: list[str] = []
    for place, module in enumerate(modules):
        # The name of a module in a list repeats that of the list: ``blocks/blocks.0``.
        in_list = place > 0 and module.startswith(f"{modules[place - 1]}.")
        above = scopes[place - 1].rpartition(".")[0] if in_list else scopes[place - 1] if place else ""
        scopes.append(f"{above}.{module}" if above else module)
    source = _at_innermost(NodeSource(by="torchscript", scopes=tuple(scopes)), frames[::-1])
    return source if source.file is not None or scopes else None


def _frames(stack: str) -> Iterator[_StackFrame]:
    lines = stack.splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=False):
        match = _FRAME.fullmatch(line)
        if match is not None:
            code = "" if _FRAME.fullmatch(after) else after.strip()
            yield _StackFrame(match[1], int(match[2]), match[3], code)


def _at_innermost(source: NodeSource, frames: Sequence[_StackFrame]) -> NodeSource:
    """The source with the frame that ``innermost_of_model`` chooses; the source as it is if there is none."""
    place = innermost_of_model([(frame.file, frame.function) for frame in frames])
    if place is None:
        return source
    frame = frames[place]
    # The class with this ``forward`` is certain if each module has exactly one frame of this name.
    forwards = [number for number, other in enumerate(frames) if other.function == "forward"]
    is_certain = place in forwards and len(forwards) == len(source.classes)
    owner = source.classes[forwards.index(place)].rpartition(".")[2] if is_certain else ""
    return replace(
        source,
        file=frame.file,
        line=frame.line,
        function=frame.function,
        code=frame.code or None,
        owner=owner,
    )


def _modules(entry: str) -> tuple[str, ...]:
    """The names in a Python list, without empty ones, such as the model's, and without the operator at the end."""
    if not (entry.startswith("[") and entry.endswith("]")):
        return ()
    items = [match[1] if match[1] is not None else match[2] for match in _ITEM.finditer(entry)][:_MOST_SCOPES]
    return tuple(item for item in items[:-1] if item)
