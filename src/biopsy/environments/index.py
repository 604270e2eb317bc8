"""What package indexes have of a distribution: its wheels, what they fit, how old they are, which were yanked."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from biopsy import errors
from biopsy.environments.interpreter import Interpreter
from biopsy.environments.requirements import normalized
from biopsy.environments.sources import Sources, shown, without_secrets
from biopsy.filesystem.plain_file import read_plain
from biopsy.text import first_line, printable, series, shortened

if TYPE_CHECKING:
    from packaging.version import Version
    from pypi_simple import DistributionPackage

_SECONDS = (10.0, 60.0)
"""Seconds to wait for a connection, and for the next bytes of an answer."""
_RETRIES = 2
_CONFIGURATION = "pip config list    shows which indexes pip uses, and its proxy"
_INSTALLED = "biopsy cache list    shows the releases that run without it: --engine NAME:release=VERSION"
_OWN_CERTIFICATE = "PIP_CERT=/path/to/certificates.pem    if a proxy of yours signs what it hands on"
_LARGEST_PAGE = 64 << 20


class IndexRefuses(errors.CannotInstall):
    """An index wants a name and a password that we do not have; an installer may know where to get them."""


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel that an index has.

    ``tags`` are those of the interpreters and platforms that it fits. ``yanked`` is why its author has withdrawn it,
    "" if that is not said, None if it was not. ``uploaded`` is None where the index does not tell.
    """

    version: Version
    tags: frozenset[str]
    requires_python: str
    uploaded: datetime.datetime | None
    yanked: str | None

    def fits(self, interpreter: Interpreter) -> bool:
        """Whether an interpreter can use it."""
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        if self.tags.isdisjoint(interpreter.tags):
            return False
        try:
            return SpecifierSet(self.requires_python).contains(interpreter.version, prereleases=True)
        except InvalidSpecifier:  # pip takes no such file
            return False


def wheels_of(distribution: str, sources: Sources) -> list[Wheel]:
    """All wheels of a distribution that the sources have.

    Raises CannotInstall: "no such release" if none of them knows the distribution, "network" if one does not answer;
    BiopsyError if pypi-simple is not installed.
    """
    try:
        import pypi_simple  # noqa: F401 -- a third of a second, and what follows needs it
    except ImportError as error:
        raise errors.BiopsyError(
            "other releases of packages need pypi-simple, which is not installed",
            next_steps=['pip install "biopsy[releases]"'],
        ) from error
    name = normalized(distribution)
    known, wheels = False, list[Wheel]()
    for place in sources.links:
        found = list(_wheels(_linked(place, sources), name))
        wheels += found
        known = known or bool(found)
    for address in sources.indexes:
        files = _indexed(address, name, sources)
        if files is None:
            continue
        known = True
        wheels += _wheels(files, name)
        if sources.first_only:
            break
    if not known:
        raise errors.CannotInstall(
            f"there is no package '{printable(distribution)}' in {_places(sources)}", kind="no such release"
        )
    return wheels


def _places(sources: Sources) -> str:
    return series([shown(place) for place in (*sources.indexes, *sources.links)]) or "no index at all"


def _wheels(files: Iterable[DistributionPackage], name: str) -> Iterator[Wheel]:
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    for file in files:
        try:
            named, version, _, tags = parse_wheel_filename(file.filename)
        except InvalidWheelFilename:  # a source archive, or a wheel of old that no installer takes
            continue
        if named == name:
            yield Wheel(
                version=version,
                tags=frozenset(map(str, tags)),
                requires_python=file.requires_python or "",
                uploaded=file.upload_time,
                yanked=(file.yanked_reason or "") if file.is_yanked else None,
            )


# An index


def _indexed(address: str, name: str, sources: Sources) -> list[DistributionPackage] | None:
    """The files of a distribution; None if this index does not know it."""
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
    """The files that a folder holds, or that a page has links to."""
    from pypi_simple import ProjectPage

    if not place.startswith(("http:", "https:")):
        path = _folder(place) if place.startswith("file:") else Path(place)
        return _in_folder(path) if path.is_dir() else _of_file(path, "") if path.is_file() else []
    with _answering(place, sources), _session(place, sources) as session:
        answer = session.get(place, timeout=_SECONDS)
        answer.raise_for_status()
        return list(ProjectPage.from_html("", answer.text, answer.url).packages)


def _folder(address: str) -> Path:
    return Path(url2pathname(urlsplit(address).path))


def _of_file(page: Path, name: str) -> list[DistributionPackage]:
    from pypi_simple import ProjectPage

    try:
        text = read_plain(page, _LARGEST_PAGE, follow=True).decode(errors="replace")
    except OSError as error:
        raise errors.CannotInstall(f"cannot read {page}: {error.strerror or error}", kind="network") from error
    return list(ProjectPage.from_html(name, text, page.as_uri()).packages)


def _in_folder(folder: Path) -> list[DistributionPackage]:
    from pypi_simple import DistributionPackage, Link

    return [
        DistributionPackage.from_link(Link(text=path.name, url=path.as_uri(), attrs={}))
        for path in sorted(folder.glob("*.whl"))
    ]


# The network


def _session(address: str, sources: Sources) -> Any:
    """A session with the proxy, the certificates and the trust that are configured. It reads ``.netrc`` as pip does."""
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
        session.trust_env = False  # or a variable with certificates would have it verified again
        session.proxies = session.proxies or get_environ_proxies(address)
        session.verify = False
    return session


@contextmanager
def _answering(address: str, sources: Sources) -> Iterator[None]:
    """Turns what the network or an index refuses into one line. Raises CannotInstall."""
    from urllib3.exceptions import InsecureRequestWarning

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InsecureRequestWarning)  # the user has said whom to trust
            yield
    except errors.BiopsyError:
        raise
    except (OSError, ValueError) as error:  # those of requests are one or the other
        refused = getattr(getattr(error, "response", None), "status_code", None) in {401, 403}
        raise (IndexRefuses if refused else errors.CannotInstall)(
            f"the package index {printable(shown(address))} cannot be asked: {_why(error, sources)}",
            kind="network",
            next_steps=[
                _OWN_CERTIFICATE if "CERTIFICATE_VERIFY_FAILED" in repr(error) else _CONFIGURATION,
                _INSTALLED,
            ],
        ) from error


def _why(error: BaseException, sources: Sources) -> str:
    response = getattr(error, "response", None)
    if response is not None:
        return f"it answers with status {response.status_code}"
    innermost = error
    while isinstance(innermost.__context__, Exception):
        innermost = innermost.__context__
    said = shortened(printable(without_secrets(first_line(str(innermost)), sources)), 200)
    return f"its proxy does not answer: {said}" if type(error).__name__ == "ProxyError" else said
