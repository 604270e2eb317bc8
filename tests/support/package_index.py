"""A package index of our own on the loopback, with wheels that a test writes: real installers install from it."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

JSON = "application/vnd.pypi.simple.v1+json"


def wheel(name: str, version: str, modules: Mapping[str, str], *, needs: Sequence[str] = ()) -> bytes:
    """A wheel of a distribution: the text of each of its modules by its path, and what it depends on."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
        *(f"Requires-Dist: {each}" for each in needs),
    ]
    files = {
        **modules,
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{path},sha256={_digest(text)},{len(text.encode())}" for path, text in files.items()]
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"}.items():
            archive.writestr(path, text)
    return packed.getvalue()


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@dataclass
class PackageIndex:
    """An index; ``address`` is what users configure, ``asked`` are the paths that anybody has asked for.

    A file whose name is in ``stuck`` never comes to its end.
    """

    files: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    bodies: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    stuck: set[str] = field(default_factory=set)
    as_html: bool = False
    status: int | None = None

    def __enter__(self) -> PackageIndex:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.released = threading.Event()
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/simple"

    def add(
        self,
        name: str,
        version: str,
        source: str = "",
        *,
        modules: Mapping[str, str] | None = None,
        needs: Sequence[str] = (),
        tag: str = "py3-none-any",
        requires_python: str | None = None,
        uploaded: str | None = None,
        yanked: bool | str = False,
    ) -> str:
        """Have a release with one module of the name of the distribution; the name of its wheel."""
        module = name.replace("-", "_")
        body = wheel(name, version, modules or {f"{module}/__init__.py": source}, needs=needs)
        return self.add_file(
            name,
            f"{module}-{version}-{tag}.whl",
            body,
            {"requires-python": requires_python, "upload-time": uploaded, "yanked": yanked},
        )

    def add_file(self, name: str, filename: str, body: bytes, facts: Mapping[str, Any] | None = None) -> str:
        """Have a file, of any kind."""
        told = {key: value for key, value in (facts or {}).items() if value is not None}
        self.bodies[filename] = body
        self.files.setdefault(name, {})[filename] = {
            "filename": filename,
            "url": f"/files/{filename}",
            "hashes": {"sha256": hashlib.sha256(body).hexdigest()},
            "size": len(body),
            **told,
        }
        return filename

    def page(self, name: str) -> tuple[str, bytes]:
        files = list(self.files[name].values())
        if self.as_html:
            links = "".join(f'<a href="{file["url"]}">{file["filename"]}</a><br>' for file in files)
            return "text/html", f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
        versions = sorted({file["filename"].split("-")[1] for file in files})
        tree = {"meta": {"api-version": "1.1"}, "name": name, "versions": versions, "files": files}
        return JSON, json.dumps(tree).encode()


def _handler(index: PackageIndex) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            return

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            index.asked.append(self.path)
            folder, _, name = self.path.strip("/").rpartition("/")
            if index.status is not None:
                self._answer(index.status, "text/plain", b"")
            elif folder == "simple" and name in index.files:
                self._answer(200, *index.page(name))
            elif folder == "files" and name in index.bodies:
                self._answer(200, "application/octet-stream", index.bodies[name], stuck=name in index.stuck)
            else:
                self._answer(404, "text/plain", b"")

        def _answer(self, status: int, kind: str, body: bytes, *, stuck: bool = False) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body) + stuck))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            if stuck:
                self.wfile.flush()
                index.released.wait(60)

    return Handler


@contextmanager
def only_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """A running index, the only one that uv, pip and biopsy know; their caches are below ``folder``.

    Ours is ``folder / "cache"``. Nothing that the person who runs the tests has configured counts.
    """
    with PackageIndex() as running:
        for name in ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_INDEX", "UV_FIND_LINKS", "PIP_FIND_LINKS", "PIP_CONSTRAINT"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("UV_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("UV_DEFAULT_INDEX", running.address)
        monkeypatch.setenv("UV_CACHE_DIR", str(folder / "uv"))
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("BIOPSY_CACHE_DIR", str(folder / "cache"))
        yield running
