"""The contract of a search: a generator over rounds of proposals, which knows nothing of models or checks."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable
from typing import TypeAlias, TypeVar

Item = TypeVar("Item", bound=Hashable)
Proposed = TypeVar("Proposed")
Answer = TypeVar("Answer")
Result = TypeVar("Result")

Round: TypeAlias = Iterable[Proposed]
"""Proposals that do not depend on each other's outcome, in the order of preference; may be made lazily."""

Search: TypeAlias = Generator[Iterable[Proposed], Answer | None, Result]
"""Yields rounds, and is sent the answer to each: what the first proposal that holds came to, None if none holds.

The answer need not be the proposal itself: whoever answers may have completed it. A search is deterministic, so the
same answers lead to the same rounds; that is what lookahead and resuming rest upon. It returns its result.
"""
