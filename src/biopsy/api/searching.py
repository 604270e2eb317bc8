"""What ``reduce`` and ``precision`` share: a search that asks a check, and the options of any such search."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import get_args

from biopsy import errors
from biopsy.api.arguments import options_of, require_choice, require_seconds, require_whole
from biopsy.checks.judge import Rules
from biopsy.checks.signature import Match
from biopsy.session.budget import Budget
from biopsy.session.flakiness import Repeating
from biopsy.session.journal_identity import digest_of_feeds
from biopsy.session.options import SearchOptions
from biopsy.session.pool import Parallelism
from biopsy.session.resume import Resume
from biopsy.tensors.results import Feed


@dataclass(frozen=True, kw_only=True)
class GivenOptions:
    """The options of a search as a caller gave them; None where nothing was said."""

    rules: Rules | None
    repeating: Repeating | None
    budget: Budget | None
    parallelism: Parallelism | None
    journal: str | PathLike[str] | None
    inputs: Sequence[Feed] | None

    @property
    def jobs(self) -> int:
        """How many checks run at once."""
        return options_of("parallelism", self.parallelism, Parallelism).jobs

    def search(self, candidate: Path, name: str) -> SearchOptions:
        """The options of a search whose candidates stand at ``candidate``. Raises UsageError for what cannot be used.

        ``name`` is what a person calls the search.
        """
        repeating = options_of("repeating", self.repeating, Repeating)
        budget = options_of("budget", self.budget, Budget)
        parallelism = options_of("parallelism", self.parallelism, Parallelism)
        require_whole(jobs=parallelism.jobs, repeat=repeating.repeat, checks=budget.checks)
        require_seconds(seconds=budget.seconds)
        if not 0 < repeating.confidence < 1:
            raise errors.UsageError(f"confidence={repeating.confidence!r}: it is above 0 and below 1")
        about = {} if self.journal is None else {"inputs": digest_of_feeds(self.inputs or ())}
        return SearchOptions(
            rules=rules_of(self.rules),
            candidate=candidate,
            parallelism=parallelism,
            budget=budget,
            repeating=repeating,
            resume=Resume(journal=None if self.journal is None else Path(self.journal), about=about, search=name),
        )


def rules_of(given: Rules | None) -> Rules:
    """The rules, with sets for what may be any collection. Raises UsageError for what cannot be used."""
    rules = options_of("rules", given, Rules)
    require_choice("match", rules.match, get_args(Match))
    _require_codes("fail_codes", rules.fail_codes)
    _require_codes("ignored_codes", rules.ignored_codes)
    if not all(isinstance(pattern, re.Pattern) for pattern in rules.fail_regexes):
        raise errors.UsageError(
            f"fail_regexes={rules.fail_regexes!r}: it is a tuple of compiled regular expressions",
            next_steps=["fail_regexes=(re.compile('Op: Mul'),)"],
        )
    return Rules(
        fail_codes=frozenset(rules.fail_codes),
        ignored_codes=frozenset(rules.ignored_codes),
        fail_regexes=tuple(rules.fail_regexes),
        match=rules.match,
    )


def _require_codes(name: str, codes: object) -> None:
    if not isinstance(codes, Collection) or not all(isinstance(code, int) for code in codes):
        raise errors.UsageError(f"{name}={codes!r}: it is a set of exit statuses", next_steps=[f"{name}={{1}}"])
