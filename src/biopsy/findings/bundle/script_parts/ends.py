"""How a process ended, in words."""

import signal

TIMEOUT = -1000  # in the place of an exit status


def end_name(status):
    """SIGSEGV and the like for minus the number of a signal, else the exit status."""
    if status == TIMEOUT:
        return "no end in time"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"exit status {status}"
