"""What a settings file may say that was found in a folder: only what this table names.

It came with the folder, as the model did. So a setting stands here only if it is harmless in the sense of
``biopsy.engines.option.Option.harmless``, but for files below the folder. A new option is refused until it is put here.
"""

from __future__ import annotations

import os
from pathlib import Path

from biopsy import errors
from biopsy.similar_names import similar

ENGINES = "engines"
"""The key of the engines that ``biopsy run`` compares, in a list: what ``--engine`` takes."""

PATHS = ("load-inputs", "external-data-dir")
TOLERANCES = (
    "atol", "rtol", "check-error-stat", "error-quantile", "cosine", "psnr", "snr", "l2", "ulp", "noise-ratio",
)  # fmt: skip
INPUTS = ("input-shapes", "input-symbols", "val-range", "seed", "iterations")
KEYS = (ENGINES, *TOLERANCES, "validate", *INPUTS, *PATHS)
MOST_ITERATIONS = 1000


def objection(key: str, value: bool | tuple[str, ...], folder: Path) -> str:
    """Why a file in a folder may not say this, in words behind its name; "" if it may."""
    if key not in KEYS:
        return f"may not give {key}"
    for text in () if isinstance(value, bool) else value:
        if key == ENGINES:
            why = _of_engine(text)
        elif key in PATHS:
            why = _of_path(key, text, folder)
        else:
            why = _of_iterations(text) if key == "iterations" else ""
        if why:
            return why
    return ""


def path_below(text: str, folder: Path) -> Path | None:
    """What a path in a file of this folder leads to, links followed; None if that is outside of the folder."""
    try:
        root, real = (Path(os.path.realpath(path)) for path in (folder, folder / text))
    except ValueError:  # a NUL
        return None
    return real if real.is_relative_to(root) else None


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
    if key == "load-inputs" and path.is_dir():
        return f"may not name a folder for {key}, only its files: {text!r}"
    if may_be_shared(path, folder.resolve()):
        return f"may not name {text!r}, a hard link to a file that may stand outside of its folder"
    return ""


def _of_engine(text: str) -> str:
    """Engines by name are harmless, since they were installed; of their options, only those declared so are."""
    from biopsy.engines import registry

    spec = registry.parse_spec(text)
    try:
        declared = registry.find_class(spec.name).options_declared if spec.settings else ()
    except errors.EngineMissing:
        declared = ()  # nobody can say what the options of such an engine do
    harmless = sorted(option.name for option in declared if option.harmless)
    wrong = [key for key in spec.settings if key not in harmless]
    if not wrong:
        return ""
    meant = "".join(f"; did you mean {name!r}?" for name in similar(wrong[0], harmless, most=1, cutoff=0.7))
    own = ", ".join(harmless) or "none"
    return f"may not give the engine {spec.name} its {wrong[0]} (allowed: {own}), as {text!r} does{meant}"
