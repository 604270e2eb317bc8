"""The modules of a Python script that stand beside it: what it imports of its own folder, read from its text."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

from biopsy.filesystem.plain_file import read_plain

_LARGEST = 1 << 20  # bytes of a module
_MOST = 100


def modules_beside(script: Path) -> list[Path]:
    """The files of modules in a script's folder that it imports, or that these import, by name and not computed.

    Modules in packages are not followed: of a package only ``__init__.py``. Never raises: a script that cannot be read
    or parsed has none.
    """
    folder, waiting, found = script.parent, [script], dict[Path, None]()
    while waiting and len(found) < _MOST:
        for name in dict.fromkeys(imported_names(waiting.pop())):
            path = next(filter(Path.is_file, (folder / f"{name}.py", folder / name / "__init__.py")), None)
            if path is not None and path != script and path not in found:
                found[path] = None
                waiting.append(path)
    return sorted(found)


def imported_names(module: Path) -> Iterator[str]:
    """The first parts of the names that a module imports, wherever in its text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(read_plain(module, _LARGEST, follow=True))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
