"""The execution providers of ONNX Runtime that are asked for: their full names, and options of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from biopsy import errors
from biopsy.engines.onnxrt.facts import CPU
from biopsy.similar_names import did_you_mean


class Providers:
    """The execution providers that options ask for, with options of their own."""

    def __init__(self, ort: Any, options: Mapping[str, Any]) -> None:
        self.names = list(dict.fromkeys(_find_provider(ort, word) for word in options["providers"]))
        self.options: dict[str, dict[str, str]] = {}
        for key, value in options["provider"].items():
            word, _, own_key = key.partition(".")
            name = _best_match(word, self.names)
            if name is None or not own_key:
                raise errors.UsageError(
                    f"engine 'onnxrt': provider.{key}: the options of a provider in use are written "
                    f"provider.NAME.OPTION=VALUE; in use: {', '.join(self.names)}"
                )
            self.options.setdefault(name, {})[own_key] = value

    @property
    def asked(self) -> list[str | tuple[str, dict[str, str]]]:
        """What a session is told: names, those with options together with them."""
        return [(name, self.options[name]) if name in self.options else name for name in self.names]

    @property
    def others_than_cpu(self) -> bool:
        """Whether any is not the CPU's, which takes every node."""
        return any(name != CPU for name in self.names)


def _find_provider(ort: Any, word: str) -> str:
    """The full name of a provider that is in this package: by its exact name, its beginning, or a part of it."""
    available = ort.get_available_providers()
    match = _best_match(word, available)
    if match is not None:
        return match
    known = _best_match(word, ort.get_all_providers())
    if known is None:
        names = [name.removesuffix("ExecutionProvider") for name in available]
        raise errors.UsageError(
            f"onnxruntime knows no execution provider {word!r}; here it has {', '.join(available)}",
            next_steps=did_you_mean(word, [name.lower() for name in names], most=1),
        )
    raise errors.EngineMissing(
        f"the installed onnxruntime {ort.__version__} has no {known}, only {', '.join(available)}",
        next_steps=["install the onnxruntime package that has it, such as onnxruntime-gpu for CUDA and TensorRT"],
    )


def _best_match(word: str, providers: Sequence[str]) -> str | None:
    wanted = word.lower()
    tests = (
        lambda name: name.lower() in (wanted, f"{wanted}executionprovider"),
        lambda name: name.lower().startswith(wanted),
        lambda name: wanted in name.lower(),
    )
    return next((name for test in tests for name in providers if test(name)), None)


def require_active(active: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise EngineMissing if a provider that was asked for has not started."""
    missing = [name for name in wanted if name not in active]
    if missing:
        raise errors.EngineMissing(
            f"onnxruntime could not start {', '.join(missing)} here and would have used {', '.join(active)} instead",
            next_steps=["check the driver and the libraries that this provider needs"],
        )
