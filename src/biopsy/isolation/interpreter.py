"""How this program starts itself again: the same Python, and nothing imported from the current folder."""

from __future__ import annotations

import sys

_START = """\
import sys
sys.path[:] = filter(None, sys.path)
sys.argv[0] = {name!r}
from {module} import main
sys.exit(main())
"""


def own_python(module: str, *, name: str = "biopsy") -> list[str]:
    """The words of a command that calls ``main`` of one of our modules, and exits with what it returns.

    ``python -m`` would look for modules in the current folder first, which is the user's, and may hold an onnx.py.
    ``name`` is what ``sys.argv[0]`` says there. Further words follow as ``sys.argv[1:]``.
    """
    return [sys.executable, "-c", _START.format(name=name, module=module)]
