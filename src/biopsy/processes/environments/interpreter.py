"""Python interpreters, requirements such as ``onnxruntime==1.20.1``, the user's sources of packages, and the programs
that make an environment and install packages into it.

Settings for indexes, proxies and certificates in the current folder or a project are not read: they may be anybody's.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from biopsy import errors
from biopsy.processes.process import CannotStartError, isolating_variables, run
from biopsy.processes.reading import read_plain
from biopsy.processes.watch import Ended, Limits
from biopsy.text import normalized, printable, shortened

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.version import Version

_SECONDS = 20.0
"""Seconds that an interpreter has to describe itself."""

_SCRIPT = """\
import json, os, sys, sysconfig
print(json.dumps({
    "path": os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable),
    "version": ".".join(map(str, sys.version_info[:3])),
    "implementation": sys.implementation.name,
    "machine": [sys.platform, os.uname().machine if hasattr(os, "uname") else sysconfig.get_platform(), sys.maxsize],
    "libc": getattr(os, "confstr_names", {}).get("CS_GNU_LIBC_VERSION") and os.confstr("CS_GNU_LIBC_VERSION"),
    "debug": bool(sysconfig.get_config_var("Py_DEBUG")),
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
}))
"""
"""Prints what the tags of wheels depend on. It runs in the interpreter, which may be too old for ``packaging``."""

_OLDEST = (3, 8)
"""The first version with ``importlib.metadata``."""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python interpreter.

    ``path`` is that of the interpreter itself, even if it was found by a virtual environment or a shim. ``version`` is
    a text like "3.11.7". ``tags`` are those of the wheels that it supports, the best first, such as
    "cp311-cp311-manylinux_2_28_x86_64".
    """

    path: Path
    version: str
    tags: tuple[str, ...] = field(repr=False)

    @property
    def series(self) -> str:
        """The version without its last part: "3.11"."""
        return ".".join(self.version.split(".")[:2])


def interpreter_of(text: str | None = None) -> Interpreter:
    """The interpreter with a version such as "3.11", a path or the name of a program; this one for None.

    Raises UsageError if there is none, if it does not work, is older than 3.8, is not a CPython, or is for another kind
    of machine.
    """
    if text is None:
        return _described(Path(sys.executable))
    if re.fullmatch(r"\d+\.\d+(\.\d+)?", text):
        if tuple(map(int, text.split(".")[:2])) < _OLDEST:
            raise errors.UsageError(f"Python {text} is too old: 3.8 is the oldest that can be used")
        for path in dict.fromkeys(_candidates(text)):
            with suppress(errors.UsageError):  # a shim that leads nowhere
                interpreter = _described(path)
                if f"{interpreter.version}.".startswith(f"{text}."):
                    return interpreter
        raise errors.UsageError(
            f"there is no Python {text} on this machine",
            next_steps=[f"uv python install {text}", "--python /path/to/python"],
        )
    program = shutil.which(Path(text).expanduser())
    if program is None:
        raise errors.UsageError(
            f"there is no program '{printable(text)}' that could be a Python",
            next_steps=["--python 3.11", "--python /path/to/python"],
        )
    return _described(Path(program))


def _candidates(version: str) -> Iterator[Path]:
    """Paths at which a version may be: this interpreter, programs on PATH, and those installed by uv and pyenv."""
    if ".".join(map(str, sys.version_info[:3])).startswith(version):
        yield Path(sys.executable)
    series = ".".join(version.split(".")[:2])
    on_path = shutil.which(f"python{series}")
    if on_path is not None:
        yield Path(on_path)
    uv = uv_program()
    if uv is not None:
        words = [uv, "python", "find", "--no-config", "--no-project", "--offline", "--no-python-downloads", version]
        ended = _run(words)
        if ended is not None and ended.status == 0:
            yield Path(ended.output.decode(errors="replace").strip())
    root = Path(os.environ.get("PYENV_ROOT") or Path("~/.pyenv").expanduser())
    yield from sorted(root.glob(f"versions/{version}*/bin/python{series}"), reverse=True)


def _described(path: Path) -> Interpreter:
    facts = _facts(path)
    shown = printable(str(path))
    if facts is None:
        raise errors.UsageError(f"{shown} is not a Python that works here")
    version = tuple(map(int, facts["version"].split(".")))
    if version < _OLDEST:
        raise errors.UsageError(f"{shown} is Python {facts['version']}, and 3.8 is the oldest that can be used")
    own = _own_facts()
    alike = all(facts[fact] == own.get(fact) for fact in ("implementation", "machine", "libc"))
    if not alike or facts["implementation"] != "cpython":
        raise errors.UsageError(f"{shown} is made for another machine than this Python, or is not a CPython")
    from packaging import tags

    name = f"cp{version[0]}{version[1]}"
    abi = name + ("t" if facts["free_threaded"] else "")
    abis, platforms = [f"{abi}d", abi] if facts["debug"] else [abi], list(tags.platform_tags())
    supported = [*tags.cpython_tags(version[:2], abis, platforms), *tags.compatible_tags(version[:2], name, platforms)]
    return Interpreter(path=Path(facts["path"]), version=facts["version"], tags=tuple(map(str, supported)))


def _facts(path: Path) -> dict[str, Any] | None:
    """The output of ``_SCRIPT`` in an interpreter; None if it does not work."""
    ended = _run([str(path), "-I", "-S", "-c", _SCRIPT])
    try:
        facts = json.loads(ended.output) if ended is not None and ended.status == 0 else None
    except ValueError:
        return None
    return facts if isinstance(facts, dict) and isinstance(facts.get("version"), str) else None


@cache
def _own_facts() -> dict[str, Any]:
    return _facts(Path(sys.executable)) or {}


def _run(words: list[str]) -> Ended | None:
    try:
        return run(words, lambda: Limits(seconds=_SECONDS), environment=isolating_variables())
    except CannotStartError:
        return None


MAKING_SECONDS = 300.0
INSTALLING_SECONDS = 3600.0
"""Wall time to install packages, which may be a gigabyte over a slow line."""

_KEPT_OUTPUT = 64 << 10
"""Bytes kept of the beginning of an installer's output, and as many of the end."""


@dataclass(frozen=True, kw_only=True)
class Installer:
    """The program that makes an environment and installs packages: uv if it is found, else venv and pip.

    Both install wheels only, so that no code of a package runs before it is imported. ``name`` is "uv" or "pip".
    ``making`` are the words that make an environment in the folder that follows them, ``installing`` those that
    install. pip installs for the interpreter that runs it, uv for that of an option.
    """

    name: str
    making: tuple[str, ...]
    installing: tuple[str, ...]
    variables: Mapping[str, str | None]

    def make(self, folder: Path, lock: int) -> Ended:
        """Make an environment in a folder. The program keeps the lock if this process ends. Raises CannotStartError."""
        return self._run([*self.making, str(folder)], lock, MAKING_SECONDS)

    def install(self, python: Path, requirements: Sequence[str], lock: int) -> Ended:
        """Install into the environment of an interpreter; the lock as in ``make``. Raises CannotStartError."""
        words = (*self.installing, "--python", str(python)) if self.name == "uv" else (str(python), *self.installing)
        return self._run([*words, "--", *requirements], lock, INSTALLING_SECONDS)

    def _run(self, words: Sequence[str], lock: int, seconds: float) -> Ended:
        changes, limits = {**isolating_variables(), **self.variables}, Limits(seconds=seconds)
        return run(words, lambda: limits, environment=changes, descriptors=[lock], kept=_KEPT_OUTPUT)


def installer_for(python: Path, sources: Sources) -> Installer:
    """The program that can make an environment for an interpreter from these sources."""
    uv = uv_program()
    if uv is None:
        return Installer(
            name="pip",
            making=(str(python), "-I", "-m", "venv"),
            installing=("-I", "-m", "pip", "install", *_OF_PIP),
            variables=sources.for_pip(),
        )
    return Installer(
        name="uv",
        making=(uv, "venv", *_OF_UV, "--no-project", "--python", str(python)),
        installing=(uv, "pip", "install", *_OF_UV, "--only-binary", ":all:"),
        variables={"UV_PYTHON_DOWNLOADS": "never", **sources.for_uv()},
    )


_OF_UV = ("--no-config", "--no-progress", "--color", "never")
_OF_PIP = (
    *("--only-binary", ":all:"),
    *("--no-input", "--disable-pip-version-check", "--no-color", "--progress-bar", "off"),
)


def python_of(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def uv_program() -> str | None:
    """The path of uv, of the package uv, which is new enough, or on PATH; None if there is none."""
    with suppress(ImportError, FileNotFoundError):  # the latter if the package lacks its program
        from uv import find_uv_bin

        return find_uv_bin()
    return shutil.which("uv")


@dataclass(frozen=True, kw_only=True)
class WantedPackage:
    """A required distribution: its normalized ``name``, and the ``text`` of the requirement."""

    name: str
    text: str
    requirement: Requirement


def parsed(requirements: Iterable[str]) -> tuple[WantedPackage, ...]:
    """The requirements, sorted by name, without duplicates; those for other machines are kept, too.

    Raises UsageError for an invalid requirement, and for one that names a file or an address: what is there may change,
    and building it may run a stranger's code.
    """
    wanted = {each.text: each for each in map(_parsed, requirements)}
    if not wanted:
        raise errors.UsageError("no package is named", next_steps=["onnxruntime==1.20.1"])
    return tuple(sorted(wanted.values(), key=lambda each: (each.name, each.text)))


def _parsed(text: str) -> WantedPackage:
    from packaging.requirements import InvalidRequirement, Requirement

    quoted = printable(shortened(text.strip(), 100))
    try:
        requirement = Requirement(text.strip())
    except InvalidRequirement as error:
        raise errors.UsageError(
            f"'{quoted}' names no package with a version", next_steps=["onnxruntime==1.20.1", "'numpy<2'"]
        ) from error
    if requirement.url is not None:
        raise errors.UsageError(
            f"'{quoted}' names an address: packages are installed from the package index only",
            next_steps=[f"{requirement.name}==VERSION    and the index in PIP_EXTRA_INDEX_URL"],
        )
    return WantedPackage(name=normalized(requirement.name), text=str(requirement), requirement=requirement)


def pinned(wanted: WantedPackage) -> Version | None:
    """The only version that a requirement allows; None if it allows several."""
    from packaging.version import InvalidVersion, Version

    specifiers = list(wanted.requirement.specifier)
    if len(specifiers) != 1 or specifiers[0].operator not in {"==", "==="}:
        return None
    try:
        return Version(specifiers[0].version)
    except InvalidVersion:  # ==1.20.*
        return None


def names(wanted: Sequence[WantedPackage]) -> frozenset[str]:
    """The names of all required distributions."""
    return frozenset(each.name for each in wanted)


PYPI = "https://pypi.org/simple"

_SECONDS_OF_PIP = 20.0
"""Seconds that pip has to print its configuration."""
_LARGEST_SETTINGS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where packages come from.

    ``indexes`` are the addresses of package indexes, ``links`` are folders and pages with wheels, ``constraints`` are
    files that limit versions. ``first_only``: a distribution comes only from the first index that has it, as with uv;
    else the best wheel of all indexes is used, as with pip. ``certificate`` is a file of trusted certificates,
    ``client_certificate`` the user's own.
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
        """The sources without passwords. Other sources may have other builds, so they identify an environment, too."""
        return (*map(shown, self.indexes), *map(shown, self.links), *self.constraints)

    def for_uv(self) -> dict[str, str | None]:
        """These settings as uv's environment variables. The last index is uv's default index."""
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
            "UV_NATIVE_TLS": "true",  # the old name of UV_SYSTEM_CERTS
            **({"SSL_CERT_FILE": self.certificate} if self.certificate else {}),
            **({"SSL_CLIENT_CERT": self.client_certificate} if self.client_certificate else {}),
            **(dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), self.proxy) if self.proxy else {}),
        }

    def for_pip(self) -> dict[str, str | None]:
        """These settings as pip's environment variables, which override its files."""
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
    """An address without the user name and password that it may have."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "an address that is none"
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def without_secrets(text: str, sources: Sources) -> str:
    """An installer's output without the passwords of the sources."""
    for address in (*sources.indexes, *sources.links, *filter(None, [sources.proxy])):
        secret = urlsplit(address).netloc.rpartition("@")[0]
        for part in filter(None, (secret, secret.partition(":")[2])):
            text = text.replace(part, "****")
    return text


def configured() -> Sources:
    """The user's sources: from variables of uv first, then those of pip, then the files of pip and of uv."""
    pip = dict(_of_pip_files(sys.executable, os.environ.get("PIP_CONFIG_FILE")))
    uv_index, uv_extra_indexes, uv_links = _uv_settings()
    for name, value in os.environ.items():
        if name.startswith("PIP_") and value:
            pip[name[4:].lower().replace("_", "-")] = value
    default = _first(os.environ.get("UV_DEFAULT_INDEX"), os.environ.get("UV_INDEX_URL"), pip.get("index-url"), uv_index)
    more_of_uv = [*_words("UV_INDEX"), *_words("UV_EXTRA_INDEX_URL"), *uv_extra_indexes]
    more = [*more_of_uv, *pip.get("extra-index-url", "").split()]
    no_index = _is_set(os.environ.get("UV_NO_INDEX")) or _is_set(pip.get("no-index"))
    links = [*os.environ.get("UV_FIND_LINKS", "").replace(",", " ").split(), *pip.get("find-links", "").split()]
    return Sources(
        indexes=() if no_index else tuple(dict.fromkeys(map(_address, [*more, default or PYPI]))),
        links=tuple(dict.fromkeys(map(_place, [*links, *uv_links]))),
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
    """The sources in environment variables, without passwords; the files of pip and uv rarely change.

    Another index, such as a nightly one, may have another build with the same number, which must not be taken for the
    one in the cache.
    """
    variables = ((name, os.environ.get(name, "").replace(",", " ").split()) for name in _ORIGINS)
    return tuple(f"{name}={' '.join(map(shown, words))}" for name, words in variables if words)


@cache
def _of_pip_files(python: str, settings: str | None) -> tuple[tuple[str, str], ...]:
    """The output of ``pip config list``, cached since it takes 0.2 s; nothing if there is no pip.

    ``settings`` is the file that pip reads instead of its own, so that another one is not taken from the cache.
    """
    if settings == os.devnull:
        return ()
    words = [python, "-I", "-m", "pip"] if find_spec("pip") else [shutil.which("pip") or ""]
    try:
        ended = run([*words, "config", "list"], lambda: Limits(seconds=_SECONDS_OF_PIP))
    except CannotStartError:
        return ()
    sections: dict[str, dict[str, str]] = {}
    for line in ended.output.decode(errors="replace").splitlines() if ended.status == 0 else ():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        try:
            sections.setdefault(section, {})[name] = str(ast.literal_eval(value))
        except (ValueError, SyntaxError):  # no line of the configuration
            continue
    return tuple({**sections.get("global", {}), **sections.get("install", {})}.items())


def _uv_settings() -> tuple[str | None, list[str], list[str]]:
    """The index, further indexes, and links, from uv's settings of the user, else of the machine, but of no project."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser())
    file = os.environ.get("UV_CONFIG_FILE")
    for path in [Path(file)] if file else [home / "uv" / "uv.toml", Path("/etc/uv/uv.toml")]:
        try:
            settings = tomllib.loads(read_plain(path, _LARGEST_SETTINGS, follow=True).decode())
        except (OSError, ValueError, RecursionError):
            continue
        pip = settings.get("pip")
        merged = {**settings, **(pip if isinstance(pip, dict) else {})}
        indexes = [each for each in _list(merged.get("index"), dict) if isinstance(each.get("url"), str)]
        usual = [each for each in indexes if not each.get("explicit")]
        default = next((each["url"] for each in usual if each.get("default")), merged.get("index-url"))
        more = [each["url"] for each in usual if not each.get("default")] + _list(merged.get("extra-index-url"), str)
        return default if isinstance(default, str) else None, more, _list(merged.get("find-links"), str)
    return None, [], []


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
    """The address of an index, which may have a name in uv (NAME=ADDRESS), and may be a folder."""
    name, equals, address = text.partition("=")
    if equals and "/" not in name and ":" not in name:
        text = address
    return text if "://" in text else Path(text).expanduser().absolute().as_uri()


def _place(text: str) -> str:
    return text if "://" in text else str(Path(text).expanduser().absolute())
