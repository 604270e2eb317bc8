"""What kind of machine runs checks: another processor, graphics card, driver or package makes another engine."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from biopsy.session.conditions import versions
from biopsy.session.hardware import hardware

_MOST_TOLD = 4
_LONGEST_TOLD = 80
_NONE = "none"


@dataclass(frozen=True, kw_only=True)
class MachineKind:
    """``facts`` are what answers of a check depend on there besides the model and its files, by name.

    ``machine`` is the name of the machine, which is none of them.
    """

    machine: str
    facts: Mapping[str, str]

    def __str__(self) -> str:
        parts = [self.facts.get(name, _NONE) for name in (_PROCESSOR, _GRAPHICS)]
        return f"{self.machine} ({', '.join(part for part in parts if part != _NONE)})"

    def differences(self, other: MachineKind) -> str:
        """How another one differs, in words; "" if it is of the same kind."""
        names = [name for name in sorted({*self.facts, *other.facts}) if self.facts.get(name) != other.facts.get(name)]
        told = [f"{name}: {_told(self.facts.get(name), other.facts.get(name))}" for name in names[:_MOST_TOLD]]
        more = [f"and {len(names) - _MOST_TOLD} more"] if len(names) > _MOST_TOLD else []
        return "; ".join([*told, *more])


_PROCESSOR, _FEATURES, _GRAPHICS, _DRIVER = "processor", "processor features", "GPU", "GPU driver"
_HARDWARE = (_PROCESSOR, _FEATURES, _GRAPHICS, _DRIVER)


def this_machine() -> MachineKind:
    """The kind of this machine, with the Python and the packages of this process."""
    found = hardware()
    facts = {
        _PROCESSOR: found.processor,
        _FEATURES: " ".join(found.features) or _NONE,
        _GRAPHICS: ", ".join(sorted(set(found.graphics))) or _NONE,
        _DRIVER: found.driver or _NONE,
        **dict(versions()),
    }
    return MachineKind(machine=platform.node() or "this machine", facts=facts)


def differing(kinds: Sequence[MachineKind]) -> str:
    """How machines differ from the first of them, in words; "" if all are of one kind."""
    for kind in kinds[1:]:
        words = kinds[0].differences(kind)
        if words:
            return f"machines differ, so they are different engines: {kinds[0].machine} and {kind.machine} ({words})"
    return ""


def unlike_this_one(kinds: Sequence[MachineKind]) -> str:
    """How the machines that run checks differ from the one that a search is steered from, in words; "" if none does."""
    here = this_machine()
    for kind in kinds:
        words = here.differences(kind)
        if words:
            return f"checks run on another kind of machine than this one: {kind.machine} ({words})"
    return ""


def conditions(kinds: Sequence[MachineKind]) -> Iterator[tuple[str, str]]:
    """What the answers of a search depend on that runs checks on machines of these kinds; none: on this machine.

    Candidates are made here, by packages of ours. The hardware is that which runs the checks. Of machines that differ,
    a fact has each of their values.
    """
    here = this_machine()
    yield from ((name, value) for name, value in here.facts.items() if not (kinds and name in _HARDWARE))
    for name in sorted({*here.facts, *(name for kind in kinds for name in kind.facts)} if kinds else ()):
        told = " or ".join(sorted({kind.facts.get(name, _NONE) for kind in kinds}))
        if name in _HARDWARE:
            yield name, told
        elif told != here.facts.get(name):
            yield f"{name} of other machines", told


def _told(one: str | None, other: str | None) -> str:
    """Two values that differ; of long ones, the words that only one of them has."""
    values = [one or _NONE, other or _NONE]
    if any(len(value) > _LONGEST_TOLD for value in values):
        words = [value.split() for value in values]
        values = [" ".join(word for word in words[at] if word not in words[1 - at]) or _NONE for at in (0, 1)]
    return ", ".join(value[:_LONGEST_TOLD] for value in values)
