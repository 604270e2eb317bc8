"""The text of ``test_regression.py``: a test for pytest that fails while the bug is there."""

from __future__ import annotations

from collections.abc import Sequence

from biopsy.report.bundle.literals import docstring

_TEXT = """\
{docstring}

import subprocess
import sys
from pathlib import Path
{imports}

def test_the_model_does_not_fail() -> None:
    script = Path(__file__).with_name("reproduce.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
"""


def regression_test(title: str, modules: Sequence[str]) -> str:
    """The test of a script; ``modules`` are what it imports: it is skipped where one is missing."""
    needed = "".join(f'pytest.importorskip("{module}")\n' for module in modules)
    imports = f"\nimport pytest\n\n{needed}" if needed else ""
    return _TEXT.format(docstring=docstring(f"{title}: reproduce.py beside this file shows it."), imports=imports)
