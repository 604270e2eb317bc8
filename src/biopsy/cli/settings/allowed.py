"""What a settings file may say that was found in a folder: only what this table names.

It came with the folder, as the model did, and the folder belongs to whoever unpacked or cloned it. So a setting stands
here only if no value of it runs code, installs something, reads outside of the file's folder, writes a file, or takes
more time or memory than a model could ask for itself. A new option is refused until somebody puts it here.
"""

from __future__ import annotations

import os
from pathlib import Path

from biopsy import errors

ENGINES = "engines"
"""The key of the engines that ``biopsy run`` compares, in a list: what ``--engine`` takes."""

FILES = frozenset({"load-inputs"})
FOLDERS = frozenset({"external-data-dir"})
TOLERANCES = (
    "atol", "rtol", "check-error-stat", "error-quantile", "cosine", "psnr", "snr", "l2", "ulp", "noise-ratio",
)  # fmt: skip
INPUTS = ("input-shapes", "input-symbols", "val-range", "seed", "iterations")
KEYS = (ENGINES, *TOLERANCES, "validate", *INPUTS, *FILES, *FOLDERS)
MOST_ITERATIONS = 1000


def objection(key: str, value: bool | tuple[str, ...], folder: Path) -> str:
    """Why a file in a folder may not say this, in words behind its name; "" if it may."""
    if key not in KEYS:
        return f"may not give {key}"
    texts = () if isinstance(value, bool) else value
    return next(filter(None, (_of_value(key, text, folder) for text in texts)), "")


def path_below(text: str, folder: Path) -> Path | None:
    """What a path in a file of this folder leads to, links followed; None if that is outside of the folder."""
    try:
        root, real = (Path(os.path.realpath(path)) for path in (folder, folder / text))
    except ValueError:  # a NUL
        return None
    return real if real.is_relative_to(root) else None


def _of_value(key: str, text: str, folder: Path) -> str:
    if key == ENGINES:
        return _of_engine(text)
    if key in FILES | FOLDERS:
        return _of_path(key, text, folder)
    return _of_iterations(text) if key == "iterations" else ""


def _of_iterations(text: str) -> str:
    try:
        return f"may not ask for more than {MOST_ITERATIONS} iterations" if int(text) > MOST_ITERATIONS else ""
    except ValueError:
        return ""  # which the option itself refuses


def _of_path(key: str, text: str, folder: Path) -> str:
    from biopsy.model.external import may_be_shared

    path = path_below(text, folder)
    if path is None:
        return f"may not name what stands outside of its folder, as {key} = {text!r} does"
    if key in FILES and path.is_dir():
        return f"may not name a folder for {key}, only its files: {text!r}"
    if may_be_shared(path, folder.resolve()):
        return f"may not name {text!r}, a hard link to a file that may stand outside of its folder"
    return ""


def _of_engine(text: str) -> str:
    """Engines by name are harmless, since they were installed; of their options, only those declared so are."""
    from biopsy.engines import registry

    spec = registry.parse_spec(text)
    if not spec.settings:
        return ""
    try:
        declared = registry.find_class(spec.name).options_declared
    except errors.EngineMissing:
        declared = ()  # nobody can say what the options of such an engine do
    harmless = {option.name for option in declared if option.harmless}
    wrong = [key for key in spec.settings if key not in harmless]
    own = ", ".join(sorted(harmless)) or "none"
    return f"may not give the engine {spec.name} its {wrong[0]} (but: {own}), as {text!r} does" if wrong else ""
