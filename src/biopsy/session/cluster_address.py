"""Whether anybody listens where a cluster is said to be: to ask Ray itself takes minutes, which no signal ends."""

from __future__ import annotations

import re
import socket

from biopsy import errors

_PATIENCE = 10.0  # seconds
_ADDRESS = re.compile(r"(?:ray://)?\[?(?P<host>[^\[\]/]+?)\]?:(?P<port>\d{1,5})/?")


def silence_at(address: str) -> str:
    """Why no connection to an address can be made, in words; "" if one can, or if it is no host and port."""
    found = _ADDRESS.fullmatch(address.strip())
    if found is None:
        return ""
    try:
        socket.create_connection((found["host"], int(found["port"])), _PATIENCE).close()
    except (OSError, OverflowError, UnicodeError) as error:
        return str(error)
    return ""


def require_listener(address: str) -> None:
    """Raise UsageError if no connection to an address can be made."""
    if reason := silence_at(address):
        raise no_cluster(address, reason)


def no_cluster(address: str, reason: str) -> errors.UsageError:
    """What a person is told of an address at which no cluster answers."""
    return errors.UsageError(
        f"no Ray cluster answers at {address}: {reason}",
        next_steps=["ray start --head    on the first machine, then  ray start --address HOST:6379  on the others"],
    )
