"""What the source looks like, in figures: ``python tests/architecture/figures.py`` prints them.

Only the syntax is read; nothing is imported.
"""

from __future__ import annotations

import ast
import gc
import io
import re
import statistics
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"

MANY_POSITIONAL = 7
MANY_FIELDS = 4
MANY_ATTRIBUTES = 12
MANY_LINES = 600

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What is counted; ``places`` names each thing that is counted, by the name of its figure."""

    code: int
    """Lines of code proper: no docstring, comment, import or blank line."""
    modules: int
    functions: int
    used_once: int
    """Private functions whose name occurs twice in the whole source: where it is defined, and once more."""
    inner_imports: int
    """Import statements that do not stand at the left margin."""
    namespaces: int
    """Functions that take an ``argparse.Namespace``."""
    options: int
    """Calls of ``add_argument`` in the source, which declare an option."""
    median: int
    """Lines of a function without its docstring, as are the next two."""
    percentile_90: int
    longest: int
    positional_calls: int
    """Calls with seven positional arguments or more."""
    positional_records: int
    """Dataclasses of more than four fields that can be built by position."""
    class_names_twice: int
    import_cycles: int
    """Groups of modules that import each other; an import below ``TYPE_CHECKING`` or in a function counts too."""
    wide_classes: int
    """Classes of more than 12 attributes; fields of frozen records count, class constants do not."""
    long_modules: int
    """Modules of more than 600 lines."""
    generator_loops: int
    """Functions outside of ``search`` that drive a generator by hand."""
    child_protocols: int
    """Modules that start a process of their own."""
    places: dict[str, list[str]]


def figures(source: Path = SOURCE) -> Figures:
    """The figures of all modules below a folder."""
    gc.disable()  # it would look at millions of nodes again and again
    try:
        return _counted(source)
    finally:
        gc.enable()


def _counted(source: Path) -> Figures:
    trees = {
        ".".join(path.relative_to(source).with_suffix("").parts): ast.parse(path.read_bytes())
        for path in sorted(source.rglob("*.py"))
    }
    texts = [path.read_text(encoding="utf-8") for path in sorted(source.rglob("*.py"))]
    names = Counter(word for text in texts for word in re.findall(r"\b_[a-z]\w+\b", text))
    lengths = {f"{module}.{name}": length for module, tree in trees.items() for name, length in _lengths(tree)}
    places = {
        "used_once": [
            f"{module}.{node.name}"
            for module, tree in trees.items()
            for node in _nodes(tree)
            if isinstance(node, _Function) and re.match("_[a-z]", node.name) and names[node.name] == 2
        ],
        "inner_imports": [
            f"{module}:{node.lineno}"
            for module, tree in trees.items()
            for node in _nodes(tree)
            if isinstance(node, ast.Import | ast.ImportFrom) and node.col_offset
        ],
        "namespaces": [f"{module}.{name}" for module, tree in trees.items() for name in _takes_a_namespace(tree)],
        "options": [f"{module}:{line}" for module, tree in trees.items() for line in _declarations(tree)],
        "positional_calls": [f"{module}:{line}" for module, tree in trees.items() for line in _positional_calls(tree)],
        "positional_records": [f"{m}.{name}" for m, tree in trees.items() for name in _positional_records(tree)],
        "class_names_twice": _class_names_twice(trees),
        "import_cycles": [" <-> ".join(cycle) for cycle in _cycles(_imports(trees))],
        "wide_classes": [f"{module}.{name}" for module, tree in trees.items() for name in _wide_classes(tree)],
        "long_modules": [module for module in trees if _lines(source / f"{module.replace('.', '/')}.py") > MANY_LINES],
        "generator_loops": [
            f"{module}.{name}"
            for module, tree in trees.items()
            if not module.startswith("biopsy.search.")
            for name in _generator_loops(tree)
        ],
        "child_protocols": [module for module, tree in trees.items() if _starts_a_process(tree)],
    }
    ordered = sorted(lengths.values())
    return Figures(
        code=sum(map(_code_lines, texts, trees.values())),
        modules=len(trees),
        functions=sum(isinstance(node, _Function) for tree in trees.values() for node in _nodes(tree)),
        median=int(statistics.median(ordered)),
        percentile_90=ordered[int(len(ordered) * 0.9)],
        longest=ordered[-1],
        places={**places, "longest": [name for name, length in lengths.items() if length == ordered[-1]]},
        **{name: len(found) for name, found in places.items()},
    )


@cache
def _nodes(tree: ast.Module) -> list[ast.AST]:
    """All nodes of a module; walking is most of the work."""
    return list(ast.walk(tree))


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _code_lines(text: str, tree: ast.Module) -> int:
    outside: set[int] = set()
    for node in _nodes(tree):
        if isinstance(node, ast.Module | ast.ClassDef | _Function):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                outside.update(range(first.lineno, (first.end_lineno or 0) + 1))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            outside.update(range(node.lineno, (node.end_lineno or 0) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for each in tokens if each.type not in _NO_CODE for line in range(each.start[0], each.end[0] + 1)}
    return len(lines - outside)


def _takes_a_namespace(tree: ast.Module) -> Iterator[str]:
    for node in _nodes(tree):
        if isinstance(node, _Function):
            parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if any(each.annotation is not None and "Namespace" in ast.unparse(each.annotation) for each in parameters):
                yield node.name


def _declarations(tree: ast.Module) -> Iterator[int]:
    for node in _nodes(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            yield node.lineno


def _lengths(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in _nodes(tree):
        if isinstance(node, _Function):
            described = isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
            first = node.body[1 if described and len(node.body) > 1 else 0]
            yield node.name, (node.end_lineno or node.lineno) - first.lineno + 1


def _generator_loops(tree: ast.Module) -> Iterator[str]:
    calls = (node.func for node in _nodes(tree) if isinstance(node, ast.Call))
    lines = [call.lineno for call in calls if isinstance(call, ast.Attribute) and call.attr == "send"]
    for node in _nodes(tree) if lines else ():
        if isinstance(node, _Function) and any(node.lineno <= line <= (node.end_lineno or 0) for line in lines):
            yield node.name


_STARTERS = {f"subprocess.{name}" for name in ("Popen", "run", "call", "check_call", "check_output")} | {
    f"os.{name}" for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system", "popen")
}


def _starts_a_process(tree: ast.Module) -> bool:
    named = (ast.unparse(node.func) for node in _nodes(tree) if isinstance(node, ast.Call))
    return any(name in _STARTERS or name.startswith("multiprocessing.") for name in named)


def _positional_calls(tree: ast.Module) -> Iterator[int]:
    for node in _nodes(tree):
        if isinstance(node, ast.Call) and len(node.args) >= MANY_POSITIONAL:
            yield node.lineno


def _positional_records(tree: ast.Module) -> Iterator[str]:
    for node in _nodes(tree):
        if isinstance(node, ast.ClassDef):
            decorators = [ast.unparse(each) for each in node.decorator_list]
            is_record = any(each.partition("(")[0] == "dataclass" for each in decorators)
            fields = [each for each in node.body if _is_field(each)]
            if is_record and len(fields) > MANY_FIELDS and not any("kw_only" in each for each in decorators):
                yield node.name


def _is_field(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.AnnAssign) and "ClassVar" not in ast.unparse(statement.annotation)


def _class_names_twice(trees: dict[str, ast.Module]) -> list[str]:
    homes = defaultdict(list)
    for module, tree in trees.items():
        for node in _nodes(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(module)
    return [f"{name}: {', '.join(modules)}" for name, modules in sorted(homes.items()) if len(modules) > 1]


def _wide_classes(tree: ast.Module) -> Iterator[str]:
    for node in _nodes(tree):
        if isinstance(node, ast.ClassDef):
            fields = {
                each.target.id
                for each in node.body
                if isinstance(each, ast.AnnAssign)
                and isinstance(each.target, ast.Name)
                and "ClassVar" not in ast.unparse(each.annotation)
            }
            own = {
                each.attr
                for each in ast.walk(node)
                if isinstance(each, ast.Attribute)
                and isinstance(each.ctx, ast.Store)
                and isinstance(each.value, ast.Name)
                and each.value.id == "self"
            }
            if len(fields | own) > MANY_ATTRIBUTES:
                yield node.name


def _imports(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Which of our modules each of them imports, wherever in it."""
    return {module: {each for each in _imported(tree, trees) if each != module} for module, tree in trees.items()}


def _imported(tree: ast.Module, trees: dict[str, ast.Module]) -> Iterator[str]:
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in trees)
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (module for module in modules if module in trees)
            if node.module in trees and not all(module in trees for module in modules):
                yield node.module


def _cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of two modules or more (Tarjan 1972)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in sorted(edges[module]):
            if other not in number:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], number[other])
        if low[module] == number[module]:
            component = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(component) > 1:
                found.append(sorted(component))

    for module in edges:
        if module not in number:
            visit(module)
    return found


def main() -> None:
    """Print the figures, and with ``-v`` what they count."""
    found = figures()
    for name, value in vars(found).items():
        if name != "places":
            print(f"{name:20} {value}")
            if "-v" in sys.argv[1:]:
                for place in found.places.get(name, ()):
                    print(f"    {place}")


if __name__ == "__main__":
    main()
