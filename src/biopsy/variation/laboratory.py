"""Changed models as they are given to the check: made, held against what is valid, and fed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Check
from biopsy.session.journal_identity import digest_of_feeds
from biopsy.session.stage import Stage
from biopsy.session.trial import Trial
from biopsy.tensors.files import write_feeds
from biopsy.tensors.results import Array
from biopsy.variation.fed_model import Edit, FedModel
from biopsy.variation.validity import Validity

VARIED = Stage("explain", is_iteration=False)
"""A model with one of its features changed."""


class Laboratory:
    """Makes trials of changed models; ``folder`` is where the inputs stand that they are fed."""

    def __init__(self, base: FedModel, check: Check, folder: Path) -> None:
        self.base = base
        self._check = check
        self._folder = folder
        self._fed: dict[str, Check] = {}

    @cached_property
    def validity(self) -> Validity:
        """What is true of the model."""
        return Validity(self.base.model)

    def close(self) -> None:
        """End what looks at models."""
        if "validity" in vars(self):
            self.validity.close()

    @property
    def unchanged(self) -> Trial:
        """The model as it is."""
        return self.trial(self.base, "the model as it is")

    def changed(self, edit: Edit, description: str) -> Trial | None:
        """The model after an edit; None if that cannot be made, is not valid, or changes nothing."""
        made = edit(self.base)
        if made is not None and made.model is not self.base.model:
            told = self.validity.told(made.model)
            made = None if told is None else replace(made, model=told)
        if made is None:
            return None
        trial = self.trial(made, description)
        return None if trial.digest == self.unchanged.digest else trial

    def trial(self, fed: FedModel, description: str) -> Trial:
        """A model with its inputs, to be checked."""
        digest = "" if fed.feeds is None else digest_of_feeds(fed.feeds)
        return Trial(
            parts=[fed.model.SerializeToString(deterministic=True)],
            size=len(fed.model.graph.node),
            stage=VARIED,
            description=description,
            check=None if fed.feeds is None else self._check_fed(digest, fed.feeds),
            inputs=digest,
        )

    def _check_fed(self, digest: str, feeds: Sequence[Mapping[str, Array]]) -> Check:
        assert isinstance(self._check, CommandCheck)
        if digest not in self._fed:
            path = self._folder / f"{digest}.safetensors"
            write_feeds(path, feeds)
            self._check.start()  # once, and not for each set of inputs
            self._fed[digest] = self._check.fed(path)
        return self._fed[digest]
