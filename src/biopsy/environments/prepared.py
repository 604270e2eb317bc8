"""Environments that hold packages: made once, kept in a cache, and used by any number of runs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from biopsy import errors, events
from biopsy.environments.interpreter import Interpreter, interpreter_of
from biopsy.isolation.process import run
from biopsy.isolation.watch import Limits

_WHOLE = "biopsy-environment.json"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An environment that holds packages; ``python`` is its interpreter, to be started with ``-I``.

    ``requirements`` are those asked for, ``added`` what was found to be needed besides, such as "numpy<2".
    ``packages`` are the versions of all distributions in it, by their normalized names.
    """

    python: Path
    requirements: tuple[str, ...]
    added: tuple[str, ...]
    packages: Mapping[str, str]


@contextmanager
def prepared(
    requirements: Sequence[str],
    *,
    python: Interpreter | None = None,
    listener: events.Listener = events.ignore,
) -> Iterator[Environment]:
    """An environment that holds what is asked for, such as ``["onnxruntime==1.20.1", "numpy<2"]``, while it is open.

    Raises CannotInstall.
    """
    interpreter = interpreter_of() if python is None else python
    wanted = tuple(sorted({each.strip() for each in requirements}))
    key = hashlib.sha256(json.dumps([wanted, str(interpreter.path), interpreter.version]).encode()).hexdigest()[:16]
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "biopsy" / "environments"
    folder = root / key
    if not (folder / _WHOLE).exists():
        shutil.rmtree(folder, ignore_errors=True)
        root.mkdir(parents=True, exist_ok=True)
        _install(folder, wanted, interpreter)
    told = json.loads((folder / _WHOLE).read_text())
    yield Environment(
        python=folder / "bin" / "python", requirements=tuple(requirements), added=(), packages=told["packages"]
    )


def _install(folder: Path, wanted: Sequence[str], interpreter: Interpreter) -> None:
    uv = shutil.which("uv") or _uv_of_package()
    python = folder / "bin" / "python"
    if uv:
        make = [uv, "venv", "--quiet", "--python", str(interpreter.path), str(folder)]
        install = [uv, "pip", "install", "--only-binary", ":all:", "--python", str(python), *wanted]
    else:
        make = [str(interpreter.path), "-I", "-m", "venv", str(folder)]
        install = [str(python), "-I", "-m", "pip", "install", "--only-binary", ":all:", *wanted]
    for words in (make, install):
        ended = run(words, lambda: Limits(seconds=1800))
        if ended.status != 0:
            shutil.rmtree(folder, ignore_errors=True)
            raise errors.CannotInstall(
                f"cannot install {' '.join(wanted)}: {ended.output.decode(errors='replace')[-2000:]}", kind="other"
            )
    script = (
        "import json\nfrom importlib import metadata\n"
        "print(json.dumps({d.metadata['Name'].lower().replace('_', '-'): d.version for d in metadata.distributions()}))"
    )
    listed = run([str(python), "-I", "-c", script], lambda: Limits(seconds=60))
    (folder / _WHOLE).write_text(json.dumps({"packages": json.loads(listed.output)}))


def _uv_of_package() -> str | None:
    try:
        from uv import find_uv_bin

        return find_uv_bin()
    except (ImportError, FileNotFoundError):
        return None
