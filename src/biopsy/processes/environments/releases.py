"""The releases of a distribution on package indexes that an interpreter can install, and why others cannot be."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from biopsy import errors
from biopsy.processes.environments.interpreter import (
    Interpreter,
    Sources,
    WantedPackage,
    configured,
    interpreter_of,
    pinned,
    shown,
    without_secrets,
)
from biopsy.processes.own_process import install_line
from biopsy.processes.reading import read_plain
from biopsy.text import first_line, first_of, normalized, printable, series, shortened

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release: its ``version``, such as "1.20.1", and the day of its first wheel, None if it is unknown."""

    version: str
    date: datetime.date | None


def releases(
    distribution: str, *, python: Interpreter | None = None, sources: Sources | None = None, pre_releases: bool = False
) -> list[Release]:
    """The releases of a distribution that have a wheel for an interpreter and were not yanked, the oldest first.

    ``python`` is by default this interpreter, ``sources`` the configured ones.

    Raises CannotInstall: "no such release" if no source has the distribution, "no wheel" if no release has a fitting
    one, "network" if an index does not answer; and BiopsyError if a package that this needs is missing here.
    """
    interpreter = interpreter_of() if python is None else python
    wheels = wheels_of(distribution, configured() if sources is None else sources)
    uploads: dict[Version, list[datetime.date]] = {}
    for wheel in wheels:
        if wheel.is_for(interpreter):
            uploads.setdefault(wheel.version, []).extend([wheel.uploaded.date()] if wheel.uploaded else [])
    usable = [
        Release(version=str(version), date=min(uploads[version], default=None))
        for version in sorted(uploads)
        if pre_releases or not version.is_prerelease
    ]
    if not usable:
        raise errors.CannotInstall(
            f"no release of {printable(distribution)} has a wheel for Python {interpreter.series} on this machine",
            kind="no wheel",
            next_steps=_other_pythons(wheels, interpreter),
        )
    return usable


def available(wanted: Sequence[WantedPackage], interpreter: Interpreter, sources: Sources) -> tuple[str, ...]:
    """The requirements for an installer, if they have releases that can be installed.

    ``==1.0`` also allows 1.0+cpu, which installers prefer: if the release has a build without a local version, other
    builds are excluded. Raises CannotInstall if no required release can be installed: as ``releases``, or "yanked". A
    requirement is not checked if an index wants a password, which the installer may find.
    """
    texts = []
    for each in wanted:
        try:
            wheels = wheels_of(each.name, sources)
        except IndexRefuses:
            texts.append(each.text)
            continue
        _require(each, wheels, interpreter)
        version = pinned(each)
        exact = any(wheel.version == version and wheel.is_for(interpreter) for wheel in wheels)
        builds = {wheel.version for wheel in wheels if version is not None and wheel.version.public == version.public}
        others = sorted(build for build in builds if build.local is not None)
        if not exact or not others or version is None or version.local is not None or "===" in each.text:
            texts.append(each.text)
            continue
        requirement = copy(each.requirement)
        requirement.specifier &= SpecifierSet(",".join(f"!={other}" for other in others))
        texts.append(str(requirement))
    return tuple(texts)


def _require(wanted: WantedPackage, wheels: Sequence[Wheel], interpreter: Interpreter) -> None:
    """Raise CannotInstall, with the nearest releases, unless a requirement has a wheel for an interpreter."""
    allowed = [wheel for wheel in wheels if wanted.requirement.specifier.contains(wheel.version, prereleases=True)]
    fitting = [wheel for wheel in allowed if wheel.fits(interpreter)]
    if any(wheel.yanked is None for wheel in fitting):
        return
    others, version = sorted({wheel.version for wheel in wheels if wheel.is_for(interpreter)}), pinned(wanted)
    nearest = others[-1:]
    if version is not None:
        nearest = [each for each in others if each < version][-1:] + [each for each in others if each > version][:1]
    neighbours = [f"{wanted.name}=={each}" for each in nearest]
    if fitting:
        reasons = sorted({wheel.yanked for wheel in fitting if wheel.yanked})
        reason = f": {printable(shortened(reasons[0], 200))}" if reasons else ", it is not said why"
        raise errors.CannotInstall(
            f"{wanted.text} was yanked by its authors{reason}", kind="yanked", next_steps=neighbours
        )
    if allowed:
        tags = {tag for wheel in allowed for tag in wheel.tags}
        minors = _minors(tags, interpreter)
        existing = f"its wheels are for {first_of(sorted({tag.rpartition('-')[2] for tag in tags}), 6)}"
        if minors:
            existing = f"on this machine its wheels are for Python {series([f'3.{minor}' for minor in minors])}"
        raise errors.CannotInstall(
            f"{wanted.text} has no wheel for Python {interpreter.series} on this machine",
            kind="no wheel",
            details=[existing],
            next_steps=[*_other_pythons(allowed, interpreter), *neighbours],
        )
    raise errors.CannotInstall(
        f"there is no release {wanted.text} with a wheel", kind="no such release", next_steps=neighbours
    )


def _other_pythons(wheels: Iterable[Wheel], interpreter: Interpreter) -> list[str]:
    """A next step with the newest Python that has wheels for this machine: ``--python 3.9``; none if there is none."""
    minors = _minors({tag for wheel in wheels for tag in wheel.tags}, interpreter)
    return [f"--python 3.{minors[-1]}    if there is one on this machine"] if minors else []


def _minors(tags: Iterable[str], interpreter: Interpreter) -> list[int]:
    """The minor versions of Python 3 in the tags of wheels for the platform of an interpreter, in ascending order."""
    platforms = {tag.rpartition("-")[2] for tag in interpreter.tags}
    pythons = {tag.split("-")[0] for tag in tags if tag.rpartition("-")[2] in platforms}
    return sorted(int(python[3:]) for python in pythons if python.startswith("cp3") and python[3:].isdecimal())


_SECONDS = (10.0, 60.0)
"""Seconds to wait for a connection, and for the next bytes of an answer."""
_RETRIES = 2
_CONFIGURATION = "pip config list    shows which indexes pip uses, and its proxy"
_INSTALLED = "biopsy cache list    shows the releases that run without it: --engine NAME:release=VERSION"
_OWN_CERTIFICATE = "PIP_CERT=/path/to/certificates.pem    if a proxy of yours signs what it hands on"
_LARGEST_PAGE = 64 << 20


class IndexRefuses(errors.CannotInstall):
    """An index wants a user name and a password, which an installer may be able to find."""


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel on an index.

    ``tags`` are the tags of the interpreters and platforms that it is for. ``yanked`` is the author's reason for
    yanking it, "" if none is given, None if it was not yanked. ``uploaded`` is None if it is unknown.
    """

    version: Version
    tags: frozenset[str]
    requires_python: str
    uploaded: datetime.datetime | None
    yanked: str | None

    def fits(self, interpreter: Interpreter) -> bool:
        """Whether an interpreter can use it."""
        if self.tags.isdisjoint(interpreter.tags):
            return False
        try:
            return SpecifierSet(self.requires_python).contains(interpreter.version, prereleases=True)
        except InvalidSpecifier:  # pip refuses such a file, too
            return False

    def is_for(self, interpreter: Interpreter) -> bool:
        """Whether it fits an interpreter and was not yanked."""
        return self.yanked is None and self.fits(interpreter)


def wheels_of(distribution: str, sources: Sources) -> list[Wheel]:
    """All wheels of a distribution in the sources.

    Raises CannotInstall: "no such release" if no source has the distribution, "network" if one does not answer,
    "no pypi-simple" if it is not installed.
    """
    try:
        import pypi_simple  # noqa: F401 -- takes 0.3 s; the functions below need it
    except ImportError as error:
        raise errors.CannotInstall(
            "other releases of packages need pypi-simple, which is not installed",
            kind="no pypi-simple",
            next_steps=[install_line("biopsy[releases]")],
        ) from error
    name = normalized(distribution)
    linked = [wheel for place in sources.links for wheel in _wheels(_linked(place, sources), name)]
    known, wheels = bool(linked), linked
    for address in sources.indexes:
        files = _indexed(address, name, sources)
        if files is not None:
            known = True
            wheels += _wheels(files, name)
            if sources.first_only:
                break
    if not known:
        places = series([shown(place) for place in (*sources.indexes, *sources.links)]) or "no index at all"
        raise errors.CannotInstall(
            f"there is no package '{printable(distribution)}' in {places}", kind="no such release"
        )
    return wheels


def _wheels(files: Iterable[DistributionPackage], name: str) -> Iterator[Wheel]:
    for file in files:
        try:
            named, version, _, tags = parse_wheel_filename(file.filename)
        except InvalidWheelFilename:  # a source archive, or an old wheel that installers refuse
            continue
        if named == name:
            yield Wheel(
                version=version,
                tags=frozenset(map(str, tags)),
                requires_python=file.requires_python or "",
                uploaded=file.upload_time,
                yanked=(file.yanked_reason or "") if file.is_yanked else None,
            )


def _indexed(address: str, name: str, sources: Sources) -> list[DistributionPackage] | None:
    """The files of a distribution on an index; None if the index does not have it."""
    from pypi_simple import NoSuchProjectError, PyPISimple

    if address.startswith("file:"):
        page = _folder(address) / name / "index.html"
        return _of_file(page, name) if page.is_file() else None
    with _answering(address, sources), PyPISimple(address, session=_session(address, sources)) as index:
        try:
            return list(index.get_project_page(name, timeout=_SECONDS).packages)
        except NoSuchProjectError:
            return None


def _linked(place: str, sources: Sources) -> list[DistributionPackage]:
    """The files in a folder, or those that a page links to."""
    from pypi_simple import DistributionPackage, Link, ProjectPage

    if not place.startswith(("http:", "https:")):
        path = _folder(place) if place.startswith("file:") else Path(place)
        links = [Link(text=each.name, url=each.as_uri(), attrs={}) for each in sorted(path.glob("*.whl"))]
        return [*map(DistributionPackage.from_link, links)] if path.is_dir() else _of_file(path, "")
    with _answering(place, sources), _session(place, sources) as session:
        answer = session.get(place, timeout=_SECONDS)
        answer.raise_for_status()
        return list(ProjectPage.from_html("", answer.text, answer.url).packages)


def _folder(address: str) -> Path:
    return Path(url2pathname(urlsplit(address).path))


def _of_file(page: Path, name: str) -> list[DistributionPackage]:
    from pypi_simple import ProjectPage

    if not page.is_file():
        return []
    try:
        text = read_plain(page, _LARGEST_PAGE, follow=True).decode(errors="replace")
    except OSError as error:
        raise errors.CannotInstall(f"cannot read {page}: {error.strerror or error}", kind="network") from error
    return list(ProjectPage.from_html(name, text, page.as_uri()).packages)


def _session(address: str, sources: Sources) -> Any:
    """A session with the configured proxy, certificates and trusted hosts. It reads ``.netrc``, as pip does."""
    import requests
    from requests.adapters import HTTPAdapter
    from requests.utils import get_environ_proxies
    from urllib3.util.retry import Retry

    session = requests.Session()
    retries = HTTPAdapter(max_retries=Retry(total=_RETRIES, backoff_factor=0.3, status_forcelist=[502, 503, 504]))
    session.mount("https://", retries)
    session.mount("http://", retries)
    session.verify = sources.certificate or True
    session.cert = sources.client_certificate
    if sources.proxy:
        session.proxies = {"http": sources.proxy, "https": sources.proxy}
    parts = urlsplit(address)
    if {parts.hostname, parts.netloc.rpartition("@")[2]} & {*sources.trusted_hosts}:
        session.trust_env = False  # else a variable with certificates would turn verification on again
        session.proxies = session.proxies or get_environ_proxies(address)
        session.verify = False
    return session


@contextmanager
def _answering(address: str, sources: Sources) -> Iterator[None]:
    """Turn errors of the network or an index into CannotInstall."""
    from urllib3.exceptions import InsecureRequestWarning

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InsecureRequestWarning)  # only for the user's trusted hosts
            yield
    except errors.BiopsyError:
        raise
    except (OSError, ValueError, RecursionError) as error:  # exceptions of requests are one of the first two
        status = getattr(getattr(error, "response", None), "status_code", None)
        innermost: BaseException = error
        while isinstance(innermost.__context__, Exception):
            innermost = innermost.__context__
        message = shortened(printable(without_secrets(first_line(str(innermost)), sources)), 200)
        reason = f"its proxy does not answer: {message}" if type(error).__name__ == "ProxyError" else message
        raise (IndexRefuses if status in {401, 403} else errors.CannotInstall)(
            f"the package index {printable(shown(address))} cannot be asked: "
            f"{reason if status is None else f'it answers with status {status}'}",
            kind="network",
            next_steps=[
                _OWN_CERTIFICATE if "CERTIFICATE_VERIFY_FAILED" in repr(error) else _CONFIGURATION,
                _INSTALLED,
            ],
        ) from error
