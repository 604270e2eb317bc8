"""The text of ``reproduce.py``: its docstring, its constants, the functions it needs, and what calls them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from biopsy.report.bundle import script_parts
from biopsy.report.bundle.literals import Literal, docstring, literal

_STATUSES = """\
Exit status: 1 it fails as it did when this script was made; 0 it does not fail any more; 125 this script cannot say:
something is missing, or fails in another way. These are also what `git bisect run` expects."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """What a script holds.

    ``title`` is its first line, ``needs`` a sentence on what must be installed, and ``modules`` what it imports of
    that. ``parts`` are modules of ``script_parts``, ``constants`` the values that ``work`` speaks of by their names.
    ``work`` are lines of Python of our own: the body of a function that returns the exit status.
    """

    title: str
    needs: str
    parts: Sequence[str]
    constants: Mapping[str, Literal]
    work: Sequence[str]
    modules: Sequence[str] = ()

    def text(self) -> str:
        """The script."""
        sources = [_source_of(part) for part in ("statuses", *self.parts)]
        imports = sorted({line for source in sources for line in source.imports} | {"import sys", _PATHS})
        constants = [f"{name} = {literal(value)}" for name, value in self.constants.items()]
        blocks = [
            docstring(f"{self.title}\n\n{self.needs}\n{_STATUSES}\n"),
            "\n".join(sorted(imports, key=lambda line: line.startswith("from"))),
            "\n".join(["HERE = Path(__file__).resolve().parent", *constants]),
        ]
        work = "\n".join(f"    {line}" if line else "" for line in self.work)
        functions = [block for source in sources for block in source.blocks]
        main = f"def main():\n{work}"
        end = 'if __name__ == "__main__":\n    sys.exit(exit_status(main))'
        return "\n\n".join(blocks) + "\n\n\n" + "\n\n\n".join([*functions, main, end]) + "\n"


_PATHS = "from pathlib import Path"


@dataclass(frozen=True)
class _Source:
    """A part: the lines that import from the standard library, and everything after the imports."""

    imports: tuple[str, ...]
    blocks: tuple[str, ...]


def _source_of(part: str) -> _Source:
    text = resources.files(script_parts).joinpath(f"{part}.py").read_text(encoding="utf-8")
    body = ast.parse(text).body
    last = max(place for place, node in enumerate(body) if not place or isinstance(node, ast.Import | ast.ImportFrom))
    rest = "".join(text.splitlines(keepends=True)[body[last].end_lineno or 0 :])
    blocks = tuple(block.strip("\n") for block in rest.split("\n\n\n"))
    return _Source(tuple(_imports(body[: last + 1])), tuple(filter(None, blocks)))


def _imports(body: Sequence[ast.stmt]) -> Iterator[str]:
    """The imports that a script needs: those of parts stand in it already."""
    for node in body:
        ours = isinstance(node, ast.ImportFrom) and str(node.module).startswith("biopsy")
        if isinstance(node, ast.Import | ast.ImportFrom) and not ours:
            yield from _merged(node)


def _merged(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """One line for each name, so that two parts may import the same."""
    for alias in node.names:
        name = ast.unparse(alias)
        yield f"import {name}" if isinstance(node, ast.Import) else f"from {node.module} import {name}"
