"""How this program starts itself again: the same Python, and nothing imported from the current folder."""

from __future__ import annotations

import sys
from pathlib import Path

_START = """\
import sys
sys.argv[0] = {name!r}
from {module} import main
sys.exit(main())
"""


def own_python(module: str, *, name: str = "biopsy") -> list[str]:
    """The words of a command that calls ``main`` of one of our modules, and exits with what it returns.

    The current folder is the user's, and may hold an onnx.py. ``-P`` keeps it off the search path from the very start:
    Python itself imports modules for ``-c`` before it comes to our first line. ``name`` is what ``sys.argv[0]`` says
    there. Further words follow as ``sys.argv[1:]``.
    """
    return [sys.executable, "-P", "-c", _START.format(name=name, module=module)]


_START_ELSEWHERE = """\
import importlib.util, sys
place = sys.argv.pop(1)
found = importlib.util.spec_from_file_location("biopsy", place + "/__init__.py", submodule_search_locations=[place])
sys.modules["biopsy"] = importlib.util.module_from_spec(found)
found.loader.exec_module(sys.modules["biopsy"])
sys.argv[0] = "biopsy"
from {module} import main
sys.exit(main())
"""


def other_python(python: Path, module: str) -> list[str]:
    """As ``own_python``, in another interpreter, which sees our modules and nothing else of what is installed here.

    The module, and what it imports, must need nothing but the standard library, in that version of Python.
    """
    return [str(python), "-I", "-c", _START_ELSEWHERE.format(module=module), str(Path(__file__).parents[1])]
