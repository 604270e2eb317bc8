"""What holds for every test."""

import locale
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.ray_nodes import ray_nodes, ray_workers

__all__ = ["ray_nodes", "ray_workers"]

# How long an example takes says how busy the machine is.
_ANY_MACHINE = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=40, **_ANY_MACHINE)
settings.register_profile("thorough", max_examples=200, **_ANY_MACHINE)  # that of make test-all
settings.load_profile("quick")

# Each worker would rewrite the asserts of all test files in every run, whatever PYTHONDONTWRITEBYTECODE says.
sys.dont_write_bytecode = False

# Started in the background of a shell, pytest and all that it starts would ignore SIGINT and SIGQUIT, which tests send.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGALRM, signal.SIGCHLD)


# The key of whoever runs the tests stays out of them.
_STATE = tempfile.TemporaryDirectory(prefix="biopsy-tests-")
os.environ["XDG_STATE_HOME"] = _STATE.name

# So do the known failures of theirs.
os.environ["BIOPSY_KNOWN_DIR"] = str(Path(_STATE.name) / "known")

# And their settings; what other programs have there, such as uv, is what it was.
_CONFIG = Path(_STATE.name) / "config"
_CONFIG.mkdir()
_THEIRS = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
for _place in _THEIRS.iterdir() if _THEIRS.is_dir() else ():
    if _place.name != "biopsy":
        (_CONFIG / _place.name).symlink_to(_place.absolute())
os.environ["XDG_CONFIG_HOME"] = str(_CONFIG)

# And their environments, which tests may clear.
os.environ["BIOPSY_CACHE_DIR"] = str(Path(_STATE.name) / "cache")


@dataclass(frozen=True)
class Process:
    """What all tests of a process share, and the next one finds as it was left.

    ``sys.path`` does not belong to it: packages such as onnxruntime.quantization append to it when they are imported.
    """

    folder: str
    variables: dict[str, str]
    signals: dict[int, Any]
    mask: int
    locale: str

    @classmethod
    def now(cls) -> "Process":
        mask = os.umask(0)
        os.umask(mask)
        variables = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        signals = {number: signal.getsignal(number) for number in _SIGNALS}
        return cls(str(Path.cwd()), variables, signals, mask, locale.setlocale(locale.LC_ALL))

    def restore(self) -> None:
        os.chdir(self.folder)
        for name in set(os.environ) - set(self.variables) - {"PYTEST_CURRENT_TEST"}:
            del os.environ[name]
        os.environ.update(self.variables)
        for number, handler in self.signals.items():
            signal.signal(number, handler)
        os.umask(self.mask)
        locale.setlocale(locale.LC_ALL, self.locale)


@pytest.fixture(autouse=True)
def leaves_its_process_as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """Or what the next test shows depends on which one ran before it: a change is undone, and the test fails."""
    before = Process.now()
    yield
    if request.node.get_closest_marker("ray") is not None:
        return  # Ray sets variables of this process
    after = Process.now()
    if after != before:
        before.restore()
        changed = [field.name for field in fields(Process) if getattr(before, field.name) != getattr(after, field.name)]
        pytest.fail(f"the test left its process changed: {', '.join(changed)}")
