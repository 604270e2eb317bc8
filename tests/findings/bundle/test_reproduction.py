"""Where a script shows a failure: told from real runs of real scripts."""

import zipfile
from pathlib import Path

from biopsy.findings.bundle.reproduction import reproduce
from biopsy.findings.bundle.script import Ending
from biopsy.processes.watch import Limits

FAILS_FROM_THE_SECOND_RUN_ON = """
import pathlib, sys
runs = pathlib.Path({runs!r})
known = runs.read_text() if runs.exists() else ""
runs.write_text(known + ".")
sys.exit(1 if known else 0)
"""


def test_a_flaky_script_that_passes_by_luck_is_not_said_to_need_biopsy(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.zip"
    with zipfile.ZipFile(bundle, "w") as stream:
        stream.writestr("reproduce.py", FAILS_FROM_THE_SECOND_RUN_ON.format(runs=str(tmp_path / "runs")))
    found = reproduce(bundle, tmp_path, Limits(60.0, None), Ending(), needs_biopsy=False, tries=1)
    assert (found.reproduced, found.steady) == ("alone", False)
