"""What is to be told of the end of a process that an engine worked in."""

from __future__ import annotations

import signal

from biopsy import errors
from biopsy.isolation.watch import Ended

_MOST_SHOWN = 2000  # bytes of what a dying engine printed


def signal_name(number: int) -> str:
    """What a signal is called: ``SIGSEGV``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def engine_death(engine: str, stage: errors.Stage | None, ended: Ended) -> errors.BiopsyError:
    """The error that tells of a process that has ended without a result of ``engine``, a spec.

    ``stage`` is what the engine was last asked for, None if it had not been given the model: then it has not failed on
    it.
    """
    printed = ended.output[-_MOST_SHOWN:].decode(errors="replace").strip()
    quoted = f"; it printed:\n{printed}" if printed else ""
    if ended.cause == "answer":
        return errors.BiopsyError(f"the process of {engine} gave an answer that is not understood{quoted}")
    if stage is None:
        return errors.BiopsyError(f"the process of {engine} {_how(ended)}, before it looked at the model{quoted}")
    name = engine.partition(":")[0]
    if ended.cause == "time":
        return errors.EngineFailure(f"{engine} took too long to {stage}", engine=name, stage=stage, kind="Timeout")
    if ended.status < 0:
        kind = signal_name(-ended.status)
        message = f"{engine} ended its process with {kind}{quoted}"
        return errors.EngineFailure(message, engine=name, stage=stage, kind=kind)
    return errors.BiopsyError(f"the process of {engine} ended with status {ended.status} without a result{quoted}")


def _how(ended: Ended) -> str:
    if ended.cause == "time":
        return "took too long to start"
    return f"ended with {signal_name(-ended.status) if ended.status < 0 else f'status {ended.status}'}"
