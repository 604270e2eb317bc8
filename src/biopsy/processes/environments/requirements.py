"""What is asked for, requirements such as ``onnxruntime==1.20.1``; and where this user gets packages from: the indexes,
folders, proxy and certificates that pip and uv are configured with.

What the current folder or a project says is not read: it may be anybody's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.text import printable, shortened

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.version import Version
import ast
import os
import shutil
import sys
import tomllib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from biopsy.processes.process import CannotStartError, run
from biopsy.processes.reading import read_plain
from biopsy.processes.watch import Limits


@dataclass(frozen=True, kw_only=True)
class WantedPackage:
    """One distribution that is asked for: its normalized ``name``, and the ``text`` of the requirement."""

    name: str
    text: str
    requirement: Requirement


def parsed(requirements: Iterable[str]) -> tuple[WantedPackage, ...]:
    """The requirements in the order of their names, each once; those that do not hold for this machine are kept too.

    Raises UsageError for what is no requirement, and for one that names a file or an address: what stands there may
    change, and may be something that is built by running a stranger's code.
    """
    wanted = {each.text: each for each in map(_parsed, requirements)}
    if not wanted:
        raise errors.UsageError("no package is named", next_steps=["onnxruntime==1.20.1"])
    return tuple(sorted(wanted.values(), key=lambda each: (each.name, each.text)))


def normalized(name: str) -> str:
    """The name of a distribution as an index knows it: small letters, and a dash between its words (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _parsed(text: str) -> WantedPackage:
    from packaging.requirements import InvalidRequirement, Requirement

    shown = printable(shortened(text.strip(), 100))
    try:
        requirement = Requirement(text.strip())
    except InvalidRequirement as error:
        raise errors.UsageError(
            f"'{shown}' names no package with a version", next_steps=["onnxruntime==1.20.1", "'numpy<2'"]
        ) from error
    if requirement.url is not None:
        raise errors.UsageError(
            f"'{shown}' names an address: packages are installed from the package index only",
            next_steps=[f"{requirement.name}==VERSION    and the index in PIP_EXTRA_INDEX_URL"],
        )
    return WantedPackage(name=normalized(requirement.name), text=str(requirement), requirement=requirement)


def pinned(wanted: WantedPackage) -> Version | None:
    """The one version that a requirement allows; None if it allows several."""
    from packaging.version import InvalidVersion, Version

    specifiers = list(wanted.requirement.specifier)
    if len(specifiers) != 1 or specifiers[0].operator not in {"==", "==="}:
        return None
    try:
        return Version(specifiers[0].version)
    except InvalidVersion:  # ==1.20.*
        return None


def names(wanted: Sequence[WantedPackage]) -> frozenset[str]:
    """The names of all distributions that are asked for."""
    return frozenset(each.name for each in wanted)


PYPI = "https://pypi.org/simple"

_SECONDS = 20.0
"""Seconds that pip has to tell its configuration."""
_LARGEST_SETTINGS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where packages come from.

    ``indexes`` are the addresses of package indexes, ``links`` folders and pages with wheels, ``constraints`` files
    that limit versions. ``first_only``: the first index that knows a distribution is the only one that is asked for
    it, which is uv's habit; else the best of all indexes is taken, as pip does. ``certificate`` is a file of those
    that are trusted, ``client_certificate`` our own.
    """

    indexes: tuple[str, ...] = (PYPI,)
    links: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    first_only: bool = False
    certificate: str | None = None
    client_certificate: str | None = None
    proxy: str | None = None
    trusted_hosts: tuple[str, ...] = ()

    @property
    def origin(self) -> tuple[str, ...]:
        """What another release of the same number may come from, without passwords: part of what an environment is."""
        return (*map(shown, self.indexes), *map(shown, self.links), *self.constraints)

    def for_uv(self) -> dict[str, str | None]:
        """The variables that tell uv all of this. The last index is the one that uv calls the default."""
        *more, default = self.indexes or (None,)
        return {
            "UV_DEFAULT_INDEX": default,
            "UV_INDEX": _joined(address for address in more if address),
            "UV_NO_INDEX": None if self.indexes else "1",
            "UV_FIND_LINKS": ",".join(self.links) or None,
            "UV_CONSTRAINT": _joined(self.constraints),
            "UV_INDEX_STRATEGY": os.environ.get("UV_INDEX_STRATEGY")
            or ("first-index" if self.first_only else "unsafe-best-match"),
            "UV_INSECURE_HOST": _joined(self.trusted_hosts),
            "UV_SYSTEM_CERTS": "true",
            "UV_NATIVE_TLS": "true",  # its name in older versions
            **({"SSL_CERT_FILE": self.certificate} if self.certificate else {}),
            **({"SSL_CLIENT_CERT": self.client_certificate} if self.client_certificate else {}),
            **(dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), self.proxy) if self.proxy else {}),
        }

    def for_pip(self) -> dict[str, str | None]:
        """The variables that tell pip all of this, whatever files say."""
        *more, default = self.indexes or (None,)
        return {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": default,
            "PIP_EXTRA_INDEX_URL": _joined(address for address in more if address),
            "PIP_NO_INDEX": None if self.indexes else "1",
            "PIP_FIND_LINKS": _joined(self.links),
            "PIP_CONSTRAINT": _joined(self.constraints),
            "PIP_CERT": self.certificate,
            "PIP_CLIENT_CERT": self.client_certificate,
            "PIP_PROXY": self.proxy,
            "PIP_TRUSTED_HOST": _joined(self.trusted_hosts),
        }


def shown(address: str) -> str:
    """An address without the name and password that may stand in it."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "an address that is none"
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def without_secrets(text: str, sources: Sources) -> str:
    """Text that an installer printed, without the passwords of our addresses."""
    for address in (*sources.indexes, *sources.links, *filter(None, [sources.proxy])):
        secret = urlsplit(address).netloc.rpartition("@")[0]
        for part in filter(None, (secret, secret.partition(":")[2])):
            text = text.replace(part, "****")
    return text


def configured() -> Sources:
    """What this user has configured. Variables of uv come before those of pip, then the files of pip and of uv."""
    pip = dict(_of_pip_files(sys.executable, os.environ.get("PIP_CONFIG_FILE")))
    index_of_uv, more_of_files, links_of_uv = _of_uv()
    for name, value in os.environ.items():
        if name.startswith("PIP_") and value:
            pip[name[4:].lower().replace("_", "-")] = value
    default = _first(
        os.environ.get("UV_DEFAULT_INDEX"), os.environ.get("UV_INDEX_URL"), pip.get("index-url"), index_of_uv
    )
    more_of_uv = [*_words("UV_INDEX"), *_words("UV_EXTRA_INDEX_URL"), *more_of_files]
    more = [*more_of_uv, *pip.get("extra-index-url", "").split()]
    no_index = _is_set(os.environ.get("UV_NO_INDEX")) or _is_set(pip.get("no-index"))
    links = [*os.environ.get("UV_FIND_LINKS", "").replace(",", " ").split(), *pip.get("find-links", "").split()]
    return Sources(
        indexes=() if no_index else tuple(dict.fromkeys(map(_address, [*more, default or PYPI]))),
        links=tuple(dict.fromkeys(map(_place, [*links, *links_of_uv]))),
        constraints=tuple(dict.fromkeys(map(_place, [*_words("UV_CONSTRAINT"), *pip.get("constraint", "").split()]))),
        first_only=bool(more_of_uv),
        certificate=_first(pip.get("cert"), os.environ.get("SSL_CERT_FILE")),
        client_certificate=_first(pip.get("client-cert"), os.environ.get("SSL_CLIENT_CERT")),
        proxy=pip.get("proxy"),
        trusted_hosts=(*pip.get("trusted-host", "").split(), *_words("UV_INSECURE_HOST")),
    )


_ORIGINS = (
    "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX",
    "UV_CONSTRAINT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX",
    "PIP_CONSTRAINT",
)  # fmt: skip


def origin_in_variables() -> tuple[str, ...]:
    """Where packages come from as variables say it, without passwords; files of pip and uv are the same every time.

    A nightly index, say, may have another build under the same number: it must not be taken for the one in the cache.
    """
    told = ((name, os.environ.get(name, "").replace(",", " ").split()) for name in _ORIGINS)
    return tuple(f"{name}={' '.join(map(shown, words))}" for name, words in told if words)


# Of pip


@cache
def _of_pip_files(python: str, settings: str | None) -> tuple[tuple[str, str], ...]:
    """What ``pip config list`` says; nothing if there is no pip. Asked once, since it takes a fifth of a second.

    ``settings`` is the file that the user has told pip to read instead of its own.
    """
    if settings == os.devnull:
        return ()
    words = [python, "-I", "-m", "pip"] if find_spec("pip") else [shutil.which("pip") or ""]
    try:
        ended = run([*words, "config", "list"], lambda: Limits(seconds=_SECONDS))
    except CannotStartError:
        return ()
    found: dict[str, dict[str, str]] = {}
    for line in ended.output.decode(errors="replace").splitlines() if ended.status == 0 else ():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        try:
            found.setdefault(section, {})[name] = str(ast.literal_eval(value))
        except (ValueError, SyntaxError):  # a line of something else
            continue
    return tuple({**found.get("global", {}), **found.get("install", {})}.items())


# Of uv


def _of_uv() -> tuple[str | None, list[str], list[str]]:
    """The index that the settings of the user and of the machine name, further ones, and links.

    uv reads more, in the folder of a project.
    """
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser())
    given = os.environ.get("UV_CONFIG_FILE")
    for path in [Path(given)] if given else [home / "uv" / "uv.toml", Path("/etc/uv/uv.toml")]:
        try:
            settings = tomllib.loads(read_plain(path, _LARGEST_SETTINGS, follow=True).decode())
        except (OSError, ValueError, RecursionError):
            continue
        pip = settings.get("pip")
        told = {**settings, **(pip if isinstance(pip, dict) else {})}
        named = [each for each in _list(told.get("index"), dict) if isinstance(each.get("url"), str)]
        usual = [each for each in named if not each.get("explicit")]
        default = next((each["url"] for each in usual if each.get("default")), told.get("index-url"))
        more = [each["url"] for each in usual if not each.get("default")] + _list(told.get("extra-index-url"), str)
        return default if isinstance(default, str) else None, more, _list(told.get("find-links"), str)
    return None, [], []


# Words


def _list(value: object, kind: type) -> list[Any]:
    return [each for each in value if isinstance(each, kind)] if isinstance(value, list) else []


def _words(variable: str) -> list[str]:
    return os.environ.get(variable, "").split()


def _first(*values: str | None) -> str | None:
    return next(filter(None, values), None)


def _joined(values: Iterable[str]) -> str | None:
    return " ".join(values) or None


def _is_set(value: str | None) -> bool:
    return (value or "").lower() in {"1", "true", "yes", "on", "t", "y"}


def _address(text: str) -> str:
    """An index as an address: uv lets it have a name, and both take a folder."""
    name, equals, rest = text.partition("=")
    if equals and "/" not in name and ":" not in name:
        text = rest
    return text if "://" in text else Path(text).expanduser().absolute().as_uri()


def _place(text: str) -> str:
    return text if "://" in text else str(Path(text).expanduser().absolute())
