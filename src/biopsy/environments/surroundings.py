"""What the processes of an environment do not see of this one: settings that would have them use other packages."""

from __future__ import annotations

import os

_HARMLESS = frozenset(
    {
        "PIP_CACHE_DIR",
        "PIP_DEFAULT_TIMEOUT",
        "PIP_KEYRING_PROVIDER",
        "PIP_RETRIES",
        "PIP_TIMEOUT",
        "UV_CACHE_DIR",
        "UV_HTTP_RETRIES",
        "UV_HTTP_TIMEOUT",
        "UV_KEYRING_PROVIDER",
        "UV_LINK_MODE",
        "UV_OFFLINE",
    }
)
_OTHERS = ("VIRTUAL_ENV", "CONDA_PREFIX")


def undisturbed() -> dict[str, str | None]:
    """Changes of the variables of a process, as ``isolation.process`` takes them, with which it uses its own packages.

    No module comes from PYTHONPATH, and what pip and uv are told is told by us; names and passwords for indexes stay.
    """
    return {name: None for name in os.environ if _disturbs(name)}


def _disturbs(name: str) -> bool:
    if name in _HARMLESS or (name.startswith("UV_INDEX_") and name.endswith(("_USERNAME", "_PASSWORD"))):
        return False
    return name.startswith(("PYTHON", "PIP_", "UV_")) or name in _OTHERS
