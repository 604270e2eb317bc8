"""Releases of a distribution, as its package index tells of them."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version
from pypi_simple import DistributionPackage, NoSuchProjectError, PyPISimple

from biopsy import errors
from biopsy.environments.interpreter import Interpreter, interpreter_of


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release that can be installed: its version such as "1.20.1", the day of its first wheel, None if not told."""

    version: str
    date: datetime.date | None


def releases(distribution: str, *, python: Interpreter | None = None) -> list[Release]:
    """The releases of a distribution that have a wheel for an interpreter, the oldest first.

    Neither those that were yanked nor pre-releases. ``python``: this interpreter if it is None.

    Raises CannotInstall if the index does not know the distribution, or does not answer.
    """
    interpreter = interpreter_of() if python is None else python
    try:
        with PyPISimple() as index:
            page = index.get_project_page(distribution, timeout=30)
    except NoSuchProjectError as error:
        raise errors.CannotInstall(f"the package index has no {distribution}", kind="no such release") from error
    except OSError as error:
        raise errors.CannotInstall(f"the package index cannot be asked: {error}", kind="network") from error
    return _installable(page.packages, interpreter)


def _installable(files: Iterable[DistributionPackage], interpreter: Interpreter) -> list[Release]:
    dates: dict[Version, list[datetime.date]] = {}
    for file in files:
        if file.is_yanked or not _fits(file, interpreter):
            continue
        version = parse_wheel_filename(file.filename)[1]
        if not version.is_prerelease:
            dates.setdefault(version, []).extend([file.upload_time.date()] if file.upload_time else [])
    return [Release(version=str(each), date=min(dates[each], default=None)) for each in sorted(dates)]


def _fits(file: DistributionPackage, interpreter: Interpreter) -> bool:
    try:
        tags = {str(tag) for tag in parse_wheel_filename(file.filename)[3]}
        asked = SpecifierSet(file.requires_python or "")
    except (InvalidWheelFilename, InvalidSpecifier):
        return False
    return not tags.isdisjoint(interpreter.tags) and asked.contains(interpreter.version)
