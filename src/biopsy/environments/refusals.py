"""Why an installer has failed: what it printed, as one error that says what to do."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path

from biopsy import errors
from biopsy.environments.sources import Sources, without_secrets
from biopsy.isolation.death import signal_name
from biopsy.isolation.watch import Ended
from biopsy.text import printable, series, shortened

_DISK_FULL = re.compile(r"No space left on device|os error 28\b|Errno 28\b|Disk quota exceeded|File too large")
_NETWORK = re.compile(
    r"Failed to fetch|Could not connect|error sending request|NewConnectionError|ConnectTimeout|Read timed out"
    r"|Name or service not known|name resolution|dns error|Connection refused|Connection reset|ProxyError|SSLError"
    r"|CERTIFICATE_VERIFY_FAILED|invalid peer certificate|Network is unreachable|HTTP error|HTTP status|tunnel",
    re.IGNORECASE,
)
_NO_WHEEL = re.compile(r"has no wheels|no usable wheels|No matching distribution found|only sdists|no matching wheel")
_CONFLICT = re.compile(
    r"unsatisfiable|ResolutionImpossible|conflicting dependencies|conflict is caused by|No solution found"
)
_NOISE = re.compile(
    r"^(Using Python|Resolved|Prepared|Installed|Collecting|Downloading|Looking in|warning|WARNING|\[no)"
)
_MOST_LINES = 8
_LONGEST_LINE = 300


def refusal(ended: Ended, requirements: Sequence[str], sources: Sources, folder: Path) -> errors.CannotInstall:
    """The error that tells of an installer that has ended without success; environments are made in ``folder``."""
    printed = without_secrets(ended.output.decode(errors="replace"), sources)
    named = series([printable(each) for each in requirements])
    if _DISK_FULL.search(printed) or -ended.status == getattr(signal, "SIGXFSZ", None):
        return _disk_full(named, folder)
    details = [shortened(printable(line), _LONGEST_LINE) for line in _telling_lines(printed)]
    if ended.cause == "time":
        return errors.CannotInstall(f"the installation of {named} took too long", kind="other", details=details)
    if ended.status < 0:
        what = f"ended with {signal_name(-ended.status)}"
        return errors.CannotInstall(f"the installation of {named} {what}", kind="other", details=details)
    if _NETWORK.search(printed):
        return errors.CannotInstall(
            f"{named} cannot be fetched: an index or its files cannot be reached", kind="network", details=details
        )
    if _NO_WHEEL.search(printed):
        why = "something that it needs has no wheel for this Python, or none that the rest allows"
        return errors.CannotInstall(f"{named} cannot be installed: {why}", kind="no wheel", details=details)
    if _CONFLICT.search(printed):
        return errors.CannotInstall(f"{named} cannot be installed together", kind="conflict", details=details)
    steps = ["pip install uv"] if "ensurepip" in printed else []
    return errors.CannotInstall(f"{named} cannot be installed", kind="other", details=details, next_steps=steps)


def _disk_full(named: str, folder: Path) -> errors.CannotInstall:
    """The error that tells of a full disk."""
    return errors.CannotInstall(
        f"there is not enough space for {named} in {folder}",
        kind="disk full",
        next_steps=["biopsy cache clear", "BIOPSY_CACHE_DIR=/a/folder/with/space"],
    )


def _telling_lines(printed: str) -> list[str]:
    """The lines of an installer that say what is wrong: the last ones, without what it was doing."""
    lines = [line.strip() for line in printed.splitlines()]
    return [line for line in lines if line and not _NOISE.match(line)][-_MOST_LINES:]
