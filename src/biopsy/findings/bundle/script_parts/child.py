"""An engine that ends the whole process, or never ends: it is watched from outside."""

import sys
from subprocess import TimeoutExpired, call

from biopsy.findings.bundle.script_parts.ends import TIMEOUT, end_name
from biopsy.findings.bundle.script_parts.statuses import CannotSay


def watch_child(work, script, ends_by, seconds):
    """1 if a process that does the work ends in this way: by a signal, or not in time; 0 if it ends well."""
    if sys.argv[1:] == ["child"]:
        work()
        return 0
    try:
        status = call([sys.executable, script, "child"], timeout=seconds)
    except TimeoutExpired:
        status = TIMEOUT
    print(f"the process that ran the model ended: {end_name(status)}")
    if status and end_name(status) != ends_by:
        raise CannotSay(f"it fails, but not as it did: {ends_by}")
    return int(status != 0)
