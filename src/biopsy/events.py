"""Frozen records that long work emits. The terminal and later the journal and the report only listen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Event:
    """Anything that long work tells about itself."""


Listener: TypeAlias = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The listener that does nothing."""
