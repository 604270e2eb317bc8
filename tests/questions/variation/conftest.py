"""What may vary, found out in one process."""

from support.varied_models import varier

__all__ = ["varier"]
