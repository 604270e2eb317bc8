"""A pattern as text that a person can read, and the digest of it that a catalogue is searched by."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from biopsy.known_failures.canonical import canonical_order
from biopsy.known_failures.pattern import ABSENT, BODY, Operand, Pattern, Tensor, Vertex

FORM = "k1"
"""What a digest begins with: the rules of what belongs to a pattern, which change with it."""

_DIGITS = 20
_PREFIXES: Mapping[str, str] = {"input": "x", "argument": "a", "output": "o"}


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What two patterns have in common if and only if they are the same.

    ``text`` is the pattern, a line for each vertex. ``exact``: it is the same for isomorphic patterns; else the limit
    of the search for it was reached, ``digest`` is that of counts, and others may have it too.
    """

    text: str
    digest: str
    exact: bool

    def same_as(self, other: Fingerprint) -> bool:
        """Whether both are of the same pattern, without doubt."""
        return self.exact and other.exact and self.text == other.text


def fingerprint_of(pattern: Pattern) -> Fingerprint:
    """The fingerprint of a pattern: names, order, sizes and weights of the model have no part in it."""
    order = canonical_order(pattern)
    text = text_of(pattern.reordered(order.places))
    counted = text if order.exact else order.counts
    mark = "-" if order.exact else "~"
    return Fingerprint(text=text, digest=f"{FORM}{mark}{_digest(counted)}", exact=order.exact)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:_DIGITS]


# Text


def text_of(pattern: Pattern) -> str:
    """A pattern as lines, in the order that its vertices have."""
    names = _names(pattern.vertices)
    return "".join(f"{_line(one, place, names)}\n" for place, one in enumerate(pattern.vertices))


def _names(vertices: Sequence[Vertex]) -> list[str]:
    """A letter for the kind of each vertex, and its number among these."""
    taken: dict[str, int] = {}
    found = []
    for one in vertices:
        letter = (
            "g" if one.label == BODY else _PREFIXES.get(one.label.partition(" ")[0], "n") if " " in one.label else "n"
        )
        taken[letter] = taken.get(letter, 0) + 1
        found.append(f"{letter}{taken[letter]}")
    return found


def _line(one: Vertex, place: int, names: Sequence[str]) -> str:
    words = [f"{names[place]} = {one.label}"]
    if " " not in one.label:
        words[0] += f"({', '.join(_operand(operand, names) for operand in one.operands)})"
    words += one.attributes
    words += [f"@{name}={names[body]}" for name, body in one.bodies]
    if one.home is not None:
        words += ["in", names[one.home]]
    if one.results:
        slots = "" if one.results == (0,) else f" {','.join(map(str, one.results))}"
        words.append(f"-> output{slots}")
    return " ".join(words)


def _operand(operand: Operand, names: Sequence[str]) -> str:
    if isinstance(operand, Tensor):
        return f"{names[operand.source]}.{operand.slot}" if operand.slot else names[operand.source]
    return operand


# And back


_HEAD = re.compile(r"([a-z]\d+) = ((?:input|argument \d+|output const|output) [^\s()]+|[^\s()]+\(([^()]*)\))(.*)")
_REFERENCE = re.compile(r"([a-z]\d+)(?:\.(\d+))?")
_CONSTANT = re.compile(r"const [^\s(),]+")
_MOST_LINES = 2000


def pattern_in(text: str) -> Pattern:
    """The pattern that lines describe. Raises ValueError with the first line that describes nothing."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not 0 < len(lines) <= _MOST_LINES:
        raise ValueError(f"{len(lines)} lines: it has 1 to {_MOST_LINES:,}")
    heads = [_head(line) for line in lines]
    place_of = {head[1]: place for place, head in enumerate(heads)}
    if len(place_of) < len(heads):
        raise ValueError("two lines begin with the same name")
    found = []
    for head, line in zip(heads, lines, strict=True):
        try:
            found.append(_vertex(head, place_of))
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"not understood: {line:.80}") from error
    return Pattern(tuple(found))


def _head(line: str) -> re.Match[str]:
    found = _HEAD.fullmatch(line)
    if found is None:
        raise ValueError(f"not understood: {line:.80}")
    return found


def _vertex(head: re.Match[str], place_of: dict[str, int]) -> Vertex:
    label = head[2].partition("(")[0] if head[3] is not None else head[2]
    words, arrow, results = head[4].partition(" -> output")
    rest = words.split()
    home = place_of[rest[rest.index("in") + 1]] if "in" in rest else None
    told = rest[: rest.index("in")] if "in" in rest else rest
    bodies = [one[1:].split("=", 1) for one in told if one.startswith("@")]
    attributes = [one for one in told if not one.startswith("@")]
    if not all("=" in one for one in attributes):
        raise ValueError
    return Vertex(
        label=label,
        attributes=tuple(sorted(attributes)),
        operands=tuple(_read_operand(one.strip(), place_of) for one in head[3].split(",")) if head[3] else (),
        bodies=tuple(sorted((name, place_of[body]) for name, body in bodies)),
        home=home,
        results=tuple(sorted(map(int, results.split(",")))) if results.strip() else (0,) if arrow else (),
    )


def _read_operand(text: str, place_of: dict[str, int]) -> Operand:
    if text == ABSENT or _CONSTANT.fullmatch(text):
        return text
    found = _REFERENCE.fullmatch(text)
    if found is None:
        raise ValueError
    return Tensor(place_of[found[1]], int(found[2] or 0))
