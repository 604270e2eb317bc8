"""Whether processes run, and files come."""

from pathlib import Path
from time import monotonic, sleep

from support.session import LIMIT


def runs(pid: int) -> bool:
    """Whether a process is there, and not only its status, for which nobody may ask."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def waited_for(path: Path, *, empty: bool = False) -> None:
    """Return once there is a file, which may be ``empty``."""
    until = monotonic() + LIMIT
    while not (path.exists() and (empty or path.read_text())):
        assert monotonic() < until, f"{path} has not come"
        sleep(0.01)
