"""Releases of a package that nobody has to install: a folder each, and an interpreter that looks there first."""

import datetime
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from biopsy import errors, events
from biopsy.processes.environments.interpreter import interpreter_of
from biopsy.processes.environments.prepared import Environment
from biopsy.processes.environments.releases import Release
from biopsy.questions.releases.question import ReleaseCheck


@dataclass
class ReleasesHere:
    """Releases 1.0, 2.0, ... of the package ``thing`` with one module each; ``broken`` ones cannot be installed."""

    folder: Path
    sources: tuple[str, ...]
    broken: Mapping[str, errors.Obstacle] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)

    @property
    def known(self) -> list[Release]:
        return [
            Release(version=f"{number}.0", date=datetime.date(2026, 1, number))
            for number in range(1, len(self.sources) + 1)
        ]

    @contextmanager
    def preparing(self, check: ReleaseCheck, release: Release, listener: events.Listener) -> Iterator[Environment]:
        self.made.append(release.version)
        if release.version in self.broken:
            raise errors.CannotInstall(f"thing=={release.version} is broken", kind=self.broken[release.version])
        place = self.folder / release.version
        place.mkdir(exist_ok=True)
        (place / "thing.py").write_text(self.sources[int(float(release.version)) - 1])
        python = place / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH="{place}" exec "{sys.executable}" -S "$@"\n')
        python.chmod(0o755)
        yield Environment(
            python=python,
            added=(),
            packages={"thing": release.version},
            interpreter=interpreter_of(),
        )
