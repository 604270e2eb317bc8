"""What to type after ``debug layers``: the reduction, and the worst layer or group cut out and fed what it was fed.

The lines carry what the failure was seen with: inputs, seeds, shapes, limits. Each can be pasted as it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from biopsy.checks.words import as_word, output_word
from biopsy.cli.advice import Advice
from biopsy.cli.arguments.given_options import LIMITS, MADE_BY_DEFAULT, MAKING, given
from biopsy.cli.golden_values import CUT_INPUTS, recording_options
from biopsy.shell_words import ListOption, is_refused, line_of

if TYPE_CHECKING:
    from biopsy.layerwise.findings import LayerFindings, Suspect

SAVED_INPUTS = "layers_inputs.npz"
"""Where a line has inputs saved that the next one loads."""


def advice_of(findings: LayerFindings, args: argparse.Namespace) -> list[Advice]:
    """What to type next; of lines that read what another one writes, none after one that nobody can type."""
    advice = []
    for words in next_lines(findings, args):
        advice.append(Advice(line_of(words)))
        if is_refused(advice[-1].line):
            break
    return advice


def next_lines(findings: LayerFindings, args: argparse.Namespace) -> list[list[str | ListOption]]:
    """The words of each line, in the order in which to type them; no lines if there is no suspect."""
    if not findings.suspects:
        return []
    making = list(given(args, MAKING, MADE_BY_DEFAULT))
    inputs = [as_word(path) for path in args.load_inputs or ([args.save_inputs] if args.save_inputs else ())]
    saving: list[list[str | ListOption]] = []
    if making and not inputs:
        inputs = [SAVED_INPUTS]
        saving = [[*_run(args), _reference(args), *making, "--save-inputs", SAVED_INPUTS]]
    return [*saving, _reduce(findings, args, inputs), *_piece(findings.suspects[0], args, inputs)]


def _weights(args: argparse.Namespace) -> list[str]:
    return ["--external-data-dir", as_word(args.external_data_dir)] if args.external_data_dir is not None else []


def _run(args: argparse.Namespace) -> list[str]:
    return ["biopsy", "run", as_word(args.model), *_weights(args)]


def _reference(args: argparse.Namespace) -> ListOption:
    return ListOption("--engine", [args.reference_engine])


def _compare(args: argparse.Namespace) -> list[str | ListOption]:
    golden = _golden(args)
    trusted = [_reference(args)] if golden is None else ["--load-outputs", golden]
    return [*trusted, ListOption("--engine", [args.suspect]), *given(args, LIMITS)]


def _golden(args: argparse.Namespace) -> str | None:
    """The file of golden values as a word, if it is one that is trusted."""
    return None if args.load_outputs is None else as_word(args.load_outputs)


def _reduce(findings: LayerFindings, args: argparse.Namespace, inputs: Sequence[str]) -> list[str | ListOption]:
    """A reduction whose check compares the same engines; of a masked error, with inner tensors as outputs.

    With ``inputs`` each candidate is fed what its place in the model saw with them.
    """
    recorded = ["--load-inputs", *inputs, "--iter-inputs", CUT_INPUTS] if inputs else []
    if args.load_outputs is not None:
        recorded = recording_options(args.reference_engine, inputs)
    fed = ["--load-inputs", CUT_INPUTS] if inputs else []
    return [
        *("biopsy", "debug", "reduce", as_word(args.model), "-o", output_word("reduced.onnx", args.model)),
        *_weights(args),
        *recorded,
        *(["--order-by", as_word(args.report)] if args.report is not None and args.report.suffix != ".html" else []),
        *(["--mark-intermediate"] if findings.is_masked else []),
        *("--check", "biopsy", "run", "{}", *fed),
        *_compare(args),
    ]


def _piece(worst: Suspect, args: argparse.Namespace, inputs: Sequence[str]) -> Iterator[list[str | ListOption]]:
    """The worst layer or group as a model, what it was fed, and both engines on it."""
    piece = output_word("suspect.onnx", args.model)
    yield [
        *("biopsy", "surgeon", "extract", as_word(args.model), "-o", piece),
        *_weights(args),
        *([ListOption("--inputs", [f"{name}:auto:auto" for name in worst.inputs])] if worst.inputs else []),
        ListOption("--outputs", [f"{name}:auto" for name in worst.outputs]),
    ]
    if not worst.inputs:
        yield ["biopsy", "run", piece, *_compare(args)]
        return
    loaded = ["--load-inputs", *inputs] if inputs else []
    golden = _golden(args)
    if golden is not None:
        yield ["biopsy", "data", "to-input", *dict.fromkeys((*inputs, golden)), "-o", "suspect_inputs.npz"]
        yield ["biopsy", "run", piece, "--load-inputs", "suspect_inputs.npz", *_compare(args)]
        return
    yield [
        *_run(args),
        _reference(args),
        *loaded,
        ListOption("--onnx-outputs", worst.inputs),
        *("--save-inputs", "fed.npz", "--save-outputs", "inner.npz"),
    ]
    yield ["biopsy", "data", "to-input", "fed.npz", "inner.npz", "-o", "suspect_inputs.npz"]
    yield ["biopsy", "run", piece, "--load-inputs", "suspect_inputs.npz", *_compare(args)]
