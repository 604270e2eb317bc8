"""Numbers in words, as every message, help text and report writes them."""

from __future__ import annotations

import re


def count(number: int, noun: str, plural: str = "") -> str:
    """Text such as ``1 node`` or ``3 nodes``; ``plural`` where it is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def size_text(number: int) -> str:
    """A number of bytes for people, in decimal units: ``12 bytes``, ``3.4 kB``, ``2.1 MB``."""
    if number < 1000:
        return count(number, "byte")
    for unit in ("kB", "MB", "GB"):
        number_in_unit = number / 1000 ** ("kB", "MB", "GB").index(unit) / 1000
        if number_in_unit < 999.95 or unit == "GB":
            return f"{number_in_unit:.1f} {unit}"
    raise AssertionError("the last unit always fits")


def bytes_of(text: str) -> int | None:
    """The bytes that a person means by ``500MB``, ``2GB``, ``1.5GiB`` or a number of them; None for anything else."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kKMGT]?)(i?)B?", text, re.ASCII)
    if match is None or float(match[1]) == 0:
        return None
    return int(float(match[1]) * (1024 if match[3] else 1000) ** " KMGT".index(match[2].upper() or " "))
