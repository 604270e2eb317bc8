"""The identity of a journal: it never answers for another model, check, option or version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Check
from biopsy.model.external import resolve
from biopsy.model.index import ModelIndex
from biopsy.model.wire import pieces
from biopsy.session.conditions import states
from biopsy.session.machine_kind import conditions
from biopsy.session.machines import kinds_of
from biopsy.session.options import SearchOptions
from biopsy.tensors.results import Feed


@dataclass(frozen=True, kw_only=True)
class JournalIdentity:
    """Everything that the outcomes of a search, and so the search, depend on.

    ``options`` are the options of the search by name; ``written`` are the files that it writes, which are no conditions
    of its own outcomes.
    """

    index: ModelIndex
    check: Check
    search: SearchOptions
    options: Mapping[str, object] = field(default_factory=dict)
    written: Sequence[Path] = ()

    def entries(self) -> Iterator[tuple[str, str]]:
        """Names that a person understands, and values."""
        yield "model", _digest_of_model(self.index)
        yield from _weights(self.index)
        yield from self._files()
        yield from self.search.resume.about.items()
        yield from self.check.settings.items()
        options = {**_of_rules(self.search.rules), **self.options}
        yield from ((f"option {name}", str(value)) for name, value in options.items())
        yield from conditions(kinds_of(self.search.parallelism.executor))

    def _files(self) -> Iterator[tuple[str, str]]:
        """The files that outcomes depend on, also those in folders, but for what the search itself writes."""
        from biopsy.checks.journal import OF_A_FILE

        written = {path.resolve() for path in self._written()}
        for path in dict.fromkeys([*self.search.resume.files, *self.check.files]):
            for name, state in states(path):
                if Path(name).resolve() not in written:
                    yield f"{OF_A_FILE}{name}", state

    def _written(self) -> Iterable[Path]:
        files, resume = self.search.files, self.search.resume
        own = (self.search.candidate, files.info, files.inputs, resume.save, resume.journal)
        return (*self.written, *filter(None, own), *files.artifacts.files)


def _digest_of_model(index: ModelIndex) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces(index.buffer):
        digest.update(piece)
    return digest.hexdigest()


def _weights(index: ModelIndex) -> Iterator[tuple[str, str]]:
    for location in sorted({weight.external.location for weight in index.weights.values() if weight.external}):
        state = next((state for _, state in states(resolve(index.folder, location))), "cannot be read")
        yield f"weights {location}", state


def _of_rules(rules: Rules) -> Mapping[str, object]:
    return {
        "--match": rules.match,
        "--fail-code": sorted(rules.fail_codes),
        "--ignore-fail-code": sorted(rules.ignored_codes),
        "--fail-regex": [regex.pattern for regex in rules.fail_regexes],
    }


def digest_of_feeds(feeds: Sequence[Feed]) -> str:
    """What tells one set of inputs from another."""
    digest = hashlib.blake2b(digest_size=16)
    for feed in feeds:
        for name in sorted(feed):
            value = feed[name]  # one at a time: they may be read from a large file
            digest.update(f"{name} {value.dtype} {value.shape} ".encode())
            digest.update(repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes())
    return digest.hexdigest()
