"""A command that fails."""

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from subprocess import PIPE, STDOUT, TimeoutExpired
from subprocess import run as run_process

from biopsy.findings.bundle.script_parts.ends import TIMEOUT, end_name
from biopsy.findings.bundle.script_parts.statuses import CannotSay


def run_command(words, folder, seconds):
    """Its exit status, or minus the signal; what it printed; and its verdict, if it wrote one.

    In the words, "{}" is the model and "{python}" this Python.
    """
    names = {"{}": str(folder / "model.onnx"), "{python}": sys.executable}
    typed = [re.sub(r"\{(python)?\}", lambda found: names[found[0]], word) for word in words]
    if (folder / words[0]).is_file():
        (folder / words[0]).chmod(0o755)  # unpacking may have lost it
    with tempfile.TemporaryDirectory() as scratch:
        told = Path(scratch) / "verdict.json"
        variables = {**os.environ, "BIOPSY_VERDICT": str(told), "BIOPSY_SETTINGS": "none"}
        try:
            done = run_process(typed, cwd=folder, env=variables, stdout=PIPE, stderr=STDOUT, timeout=seconds)
        except TimeoutExpired:
            return TIMEOUT, "", {}
        except OSError as error:
            raise CannotSay(f"the command does not start: {error}") from error
        verdict = json.loads(told.read_bytes()) if told.exists() and told.stat().st_size else {}
    text = done.stdout.decode("utf-8", "replace")
    print(text.rstrip("\n"))
    print(f"the command ended: {end_name(done.returncode)}")
    return done.returncode, text, verdict


def command_status(ended, status, raised, verdict):
    """1 if it failed as it did when this script was made: the same status, exception and verdict; 0 if it passed."""
    found, text, said = ended
    if found == 0 and said.get("outcome") != "fails":
        return 0
    seen = {key: said.get(key, "") for key in verdict}
    if (found, last_exception(text), seen) != (status, raised, verdict):
        told = [end_name(status), raised, *verdict.values()]
        raise CannotSay(f"it fails, but not as it did: {', '.join(filter(None, told))}")
    return 1


def last_exception(text):
    """The name of the exception that a program of Python died of; "" if there is none."""
    _, traceback, rest = text.rpartition("Traceback (most recent call last):")
    names = re.findall(r"^([A-Za-z_][\w.]*)(?:: .*)?$", rest, re.MULTILINE)
    return names[0].rpartition(".")[2] if traceback and names else ""
