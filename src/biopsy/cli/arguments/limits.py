"""What a whole command may use, one meaning for every command that has these options; and what its runs may."""

from __future__ import annotations

from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import types
from biopsy.cli.arguments.declared import Options, option
from biopsy.processes.own_process import memory

if TYPE_CHECKING:
    from biopsy.processes.watch import Limits

MOST_OF_THE_MEMORY = 0.9
"""The part of this machine's memory, or of its container's, that a command may take where nobody says otherwise."""

MORE_MEMORY = "--run-memory SIZE    for an engine that needs more"


class CommandLimits(Options):
    """The time and the memory that a command may take."""

    timeout: float | None = option(
        "--timeout",
        type=types.duration,
        metavar="TIME",
        meaning="end the command, with status 4, if it takes longer: 90s, 10m, 1h (default: {text})",
    )
    memory_limit: int | None = option(
        "--memory-limit",
        type=types.byte_size,
        metavar="SIZE",
        meaning="end the command, with status 4, if its processes together use more memory than this, such as 4GB; "
        "weights that are mapped from a file do not count (default: "
        f"{MOST_OF_THE_MEMORY:.0%}% of the machine's memory)",
    )

    @property
    def has_limits(self) -> bool:
        """Whether somebody has set a limit."""
        return self.timeout is not None or self.memory_limit is not None

    def limits_of_command(self, default: str) -> Limits:
        """What it may use. Raises UsageError if somebody has set a limit and nothing could watch the command."""
        from biopsy.processes import supervised
        from biopsy.processes.watch import Limits

        if self.has_limits and not supervised.is_possible():
            raise errors.UsageError("--timeout and --memory-limit need a second process, which cannot be forked here")
        seconds = types.duration(default) if self.timeout is None and default else self.timeout
        return Limits(seconds=seconds, memory=self.memory_limit or int(MOST_OF_THE_MEMORY * memory()))


class RunLimits(Options):
    """What an engine may take in a run of ours."""

    run_timeout: float | None = option(
        "--run-timeout", type=types.duration, metavar="TIME", meaning="end a run that takes longer"
    )
    run_memory: int | None = option(
        "--run-memory",
        type=types.byte_size,
        metavar="SIZE",
        meaning="end an engine that takes more memory in one of our runs, such as 16GB; weights that are mapped from a "
        "file do not count (default: 1.5GB, or 8GB for engines other than onnxrt, openvino and reference, and 64 times"
        " the bytes of the model, its weights and its inputs)",
    )
