"""The reducer of these tests."""

from support.reducer import reducer

__all__ = ["reducer"]
