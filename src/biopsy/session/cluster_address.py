"""Whether anybody listens where a cluster is said to be: to ask Ray itself takes minutes, which no signal ends."""

from __future__ import annotations

import re
import socket

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
