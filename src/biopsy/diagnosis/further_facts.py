"""What a diagnosis has found beyond the failure itself: what tools and releases do, and which changes help."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TransformationSeen:
    """What a ``tool`` makes of the model, or of the piece (``of_piece``), in a ``sentence``.

    ``breaks``: that is wrong, in an engine that runs the original rightly. ``nodes`` become those of ``nodes_after``;
    they are the smallest part that the tool breaks. ``engine_doubted``: another engine runs both alike.
    """

    tool: str
    sentence: str
    breaks: bool
    of_piece: bool = False
    nodes: tuple[str, ...] = ()
    nodes_after: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    engine_doubted: bool = False


@dataclass(frozen=True, kw_only=True)
class ReleaseChangeSeen:
    """Two releases between which the answer changes, in words; ``right`` is the one without the failure.

    ``engine`` is the spec that runs it. ``verified``: the original, asked once more, says the same of both.
    """

    text: str
    broke: bool
    right: str
    engine: str
    verified: bool = False


@dataclass(frozen=True, kw_only=True)
class ReleasesSeen:
    """Which release of the engine's ``package`` broke the model, or mended it, in a sentence: ``text``.

    ``tried`` is how many were asked. ``doubt`` is what makes the answer worth less. ``complete``: it was searched to
    the end.
    """

    package: str
    text: str
    changes: tuple[ReleaseChangeSeen, ...] = ()
    tried: int = 0
    doubt: str = ""
    complete: bool = True

    @property
    def is_sure(self) -> bool:
        """Whether the answer holds for the original, on both sides of each change."""
        return self.complete and not self.doubt and all(change.verified for change in self.changes)


@dataclass(frozen=True, kw_only=True)
class ChangeSeen:
    """A change with which the whole model is right, verified: a setting, or another model.

    ``engine`` is the spec with it, ``nodes`` how many nodes of the original are changed. ``latency`` is how many times
    as long the model then takes, in words; "" where nobody can say. ``path`` is the changed model, if it was written.
    """

    kind: str
    text: str
    engine: str
    environment: tuple[tuple[str, str], ...] = ()
    nodes: int = 0
    latency: str = ""
    path: str | None = None


@dataclass(frozen=True, kw_only=True)
class ChangesSeen:
    """The best changes that make the whole model right, the best one first, and why others of settings do not.

    ``rejected`` are engines with settings that pass the check and are not right, with the reason. ``tried`` is how
    many changes were. ``doubt`` says whose word it is that they are right, if only one engine says so.
    """

    best: tuple[ChangeSeen, ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()
    tried: int = 0
    complete: bool = True
    doubt: str = ""


@dataclass(frozen=True, kw_only=True)
class FurtherFacts:
    """All of that; None where a question has no answer."""

    transformation: TransformationSeen | None = None
    changes: ChangesSeen | None = None
    releases: ReleasesSeen | None = None
