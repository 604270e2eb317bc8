"""``--bundle`` of ``debug layers``: the worst layer or group alone, fed as it was, both engines compared on it."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy.cli.debug import bundling, checking

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.layerwise.findings import LayerFindings, Suspect
    from biopsy.layerwise.question import Question
    from biopsy.tensors.results import Array, Feed

_LIMITS = (
    "--atol", "--rtol", "--check-error-stat", "--error-quantile", "--cosine", "--psnr", "--snr", "--l2", "--ulp",
    "--top-k", "--index-tolerance", "--compare",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What was asked, what was found with which samples, and the report of it as it stands in a file."""

    question: Question
    findings: LayerFindings
    feeds: Sequence[Feed]
    report: bytes


def pack(args: argparse.Namespace, packed: Packed, console: Console) -> None:
    """Pack the worst suspect; the whole model, which is said, where no layer or group alone is at fault.

    Raises CheckError if that does not fail by itself, or if the script of the bundle does not show it.
    """
    from biopsy.isolation.cleanup import temporary_folder
    from biopsy.tensors.files import write_feeds

    question, findings, feeds = packed.question, packed.findings, packed.feeds
    with temporary_folder("biopsy-", args.work_dir) as scratch:
        inputs = scratch / "inputs.safetensors"
        if findings.suspects:
            suspect = findings.suspects[0]
            model = _piece(question, suspect, scratch)
            names: Collection[str] = suspect.outputs
            write_feeds(inputs, _fed(question, suspect, feeds, scratch))
        else:
            console.warn("no layer alone is at fault: the bundle holds the whole model ('debug reduce' makes it small)")
            model, names = args.model, question.index.ids
            write_feeds(inputs, feeds)
        reports = bundling.reports_of(packed.report, console)
        bundling.pack(_packing(args, model, inputs, list(_words(args, names)), reports), console)


def _packing(
    args: argparse.Namespace, model: Path, inputs: Path, words: list[str], reports: Mapping[str, bytes]
) -> bundling.Packing:
    from biopsy.checks.command import CommandCheck
    from biopsy.checks.judge import Rules

    return bundling.Packing(
        target=args.bundle,
        original=args.model,
        model=model,
        check=CommandCheck(words, "{}", args.run_timeout),
        rules=Rules(),
        own_run=checking.own_run(argparse.Namespace(check=words)),
        inputs=inputs,
        folder=args.external_data_dir if model is args.model else None,
        reports=reports,
    )


def _piece(question: Question, suspect: Suspect, scratch: Path) -> Path:
    """The suspect as a model."""
    from biopsy.model.extract import Wanted, extract
    from biopsy.model.weights_file import save_with_weights

    inputs = [Wanted(name) for name in suspect.inputs] or None
    part = extract(question.index, inputs, [Wanted(name) for name in suspect.outputs])
    path = scratch / "suspect.onnx"
    save_with_weights(part, path, question.index.folder, None)
    return path


def _fed(question: Question, suspect: Suspect, feeds: Sequence[Feed], scratch: Path) -> list[dict[str, Array]]:
    """What goes into the suspect, as the reference computes it from the samples."""
    from biopsy.engines.worker import Worker
    from biopsy.tensors.files import write_feeds

    index = question.index
    computed = [name for name in suspect.inputs if index.ids[name] in index.producer]
    inner: list[dict[str, Array]] = [{} for _ in feeds]
    if computed:
        file = scratch / "samples.safetensors"
        write_feeds(file, feeds)
        with Worker(question.reference, scratch, question.timeout, memory=question.memory) as reference:
            inner = [dict(sample) for sample in reference.run(question.model, file, computed)]
    own = [name for name in suspect.inputs if name not in computed]
    return [
        {name: sample[name] for name in own} | {name: values[name] for name in computed}
        for sample, values in zip(feeds, inner, strict=True)
    ]


def _words(args: argparse.Namespace, names: Collection[str]) -> Iterator[str]:
    """The check: both engines, and the limits that are for all outputs or for those of these names."""
    yield from ("biopsy", "run", "{}", "--engine", args.reference_engine, "--engine", args.suspect)
    for option in _LIMITS:
        given = getattr(args, option[2:].replace("-", "_")) or ()
        kept = [word for word in given if ":" not in word or word.rpartition(":")[0] in names]
        if kept:
            yield from (option, *kept)
