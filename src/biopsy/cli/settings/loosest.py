"""Settings as a verdict names them: of many tolerances, those that loosen most come first, and are never cut."""

from __future__ import annotations

from collections.abc import Mapping

from biopsy.cli.settings import allowed
from biopsy.cli.settings.files import Value
from biopsy.shell_words import line_of
from biopsy.text import shortened

_LEAST = frozenset({"cosine", "psnr", "snr", "error-quantile"})
"""Limits that are the looser, the smaller they are."""

_LONGEST = 200
_LONGEST_NAME = 40
_MOST = 5
"""Values that are named of too many: also how many statistics there are."""


def in_words(settings: Mapping[str, Value]) -> str:
    """Settings, tolerances first: ``atol=o30:1e9 o0:1e-5 and 58 no looser, engines=onnxrt reference``."""
    keys = sorted(settings, key=lambda key: key not in allowed.TOLERANCES)
    return ", ".join(_shown(key, settings[key]) for key in keys)


def _shown(key: str, value: Value) -> str:
    if isinstance(value, bool):
        return key
    text = line_of(value)
    if key not in allowed.TOLERANCES or len(text) <= _LONGEST:
        return f"{key}={text}"
    loosest_first = sorted(value, key=lambda one: _looseness(key, one), reverse=True)
    one_of_each = {one.rpartition(":")[2]: one for one in reversed(loosest_first)}
    named = [_short(one) for one in reversed(one_of_each.values())][:_MOST]
    left = len(value) - len(named)
    return f"{key}={line_of(named)}{f' and {left} no looser' if left else ''}"


def _looseness(key: str, value: str) -> float:
    try:
        number = float(value.rpartition(":")[2])
    except ValueError:
        return float("inf")  # a statistic, or nothing that the option takes
    return -number if key in _LEAST else number


def _short(value: str) -> str:
    name, colon, text = value.rpartition(":")
    try:
        text = text if len(text) <= _LONGEST_NAME else f"{float(text):g}"
    except ValueError:
        text = shortened(text, _LONGEST_NAME)
    return f"{shortened(name, _LONGEST_NAME)}{colon}{text}"
