"""What to type after ``debug reduce``, from what was found: how the result fails decides what can be asked of it.

Each line can be pasted as it is, and carries what the failure was seen with: engines, inputs, tolerances, rules.
"""

from __future__ import annotations

import argparse
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy.checks.command_line import LOAD_INPUTS, PLACEHOLDER, CommandLine, OwnInspect, OwnRun, parse
from biopsy.checks.words import as_word, names_path, output_word
from biopsy.cli import golden_values
from biopsy.cli.advice import Advice
from biopsy.cli.arguments import engine_options
from biopsy.cli.arguments.given_options import LIMITS, MADE_BY_DEFAULT, MAKING, given
from biopsy.cli.debug import checking
from biopsy.cli.run.functions import are_given
from biopsy.model.index import ModelIndex, index_file
from biopsy.shell_words import ListOption, is_refused, line_of

if TYPE_CHECKING:
    from biopsy.checks.outcome import Judged
    from biopsy.engines.registry import EngineSpec
    from biopsy.reduction.result import Reduction

_RULES = ("--fail-code", "--ignore-fail-code", "--fail-regex")

_OF_OUTPUTS = frozenset(option[2:].replace("-", "_") for option in LIMITS if option != "--compare")
_OF_INPUTS = frozenset({"input_shapes", "val_range"})
"""Options of ``run`` whose values may name a tensor, by their place in the parsed options."""


def advice_of(found: Reduction, args: argparse.Namespace) -> list[Advice]:
    """The few lines that follow; none where the result went into a pipe."""
    if not found.output.is_file():
        return []
    inspected = ["biopsy", "inspect", "model", as_word(found.output), "--mode=full"]
    advice = [*_of_check(found, args), Advice(line_of(inspected), "what it holds")]
    return [one for one in advice if not is_refused(one.line)]


def _of_check(found: Reduction, args: argparse.Namespace) -> Iterator[Advice]:
    judged = found.judged_after or found.judged_before
    if not args.check or judged is None:
        return
    check = _check_of_result(found, args)
    if not isinstance(check, OwnRun):
        if check.names_candidate("") and not isinstance(check, OwnInspect):
            yield Advice(line_of(check.words_for(found.output, "")), "the failure by itself")
        return
    index = index_file(found.output)
    inside = checking.options_of_run(_speaking_of(check, index.ids, index))
    if inside is None:
        return
    check = _speaking_of(check, {index.names[tensor] for tensor in index.outputs}, index)
    asked = _OwnCheck(found=found, args=args, own=inside, check=check, judged=judged)
    yield from asked.layers()
    yield from asked.flags()
    yield from asked.known()
    if judged.evidence.verdict.stage != "compare":
        yield Advice(line_of(check.words_for(found.output, "")), "the failure by itself")


def _speaking_of(check: OwnRun, outputs: Container[str], index: ModelIndex) -> OwnRun:
    """The check without values for tensors that the result does not have: they are no error in a check alone."""
    parser = checking.run_parser()
    inputs = {index.names[tensor] for tensor in index.fed_inputs()}

    def is_kept(option: str, value: str) -> bool:
        name = value.rpartition(":")[0]
        dest = parser.dest_of(option)
        if not name or dest not in _OF_OUTPUTS | _OF_INPUTS:
            return True
        known = outputs if dest in _OF_OUTPUTS else inputs
        return name in known or name.partition("[")[0] in known  # an item of a sequence

    return check.with_values(is_kept)


def _check_of_result(found: Reduction, args: argparse.Namespace) -> CommandLine:
    """The words of the check, ``{}`` in the place of the model, with the inputs that the result is fed."""
    words = [PLACEHOLDER if names_path(word, str(args.iter_artifact)) else word for word in args.check]
    check = parse(words)
    if found.inputs is None or not isinstance(check, OwnRun):
        return check
    return check.without_option(LOAD_INPUTS).with_options("--load-inputs", as_word(found.inputs))


@dataclass(frozen=True, kw_only=True)
class _OwnCheck:
    """A check that is ``biopsy run``, and how the result fails it.

    ``own`` are its options, also those about tensors inside the result, of which ``check`` does not speak.
    """

    found: Reduction
    args: argparse.Namespace
    own: argparse.Namespace
    check: OwnRun
    judged: Judged

    @cached_property
    def engines(self) -> Sequence[EngineSpec]:
        """The engines that it runs, in order."""
        return engine_options.specs_to_run(self.own)

    @property
    def suspect(self) -> str:
        """The engine that fails, as it is written; the last one if the check does not say."""
        said = self.judged.evidence.verdict.engine
        named = [spec.text for spec in self.engines if said in (spec.text, spec.name)]
        return (named or [self.engines[-1].text])[-1]

    def layers(self) -> Iterator[Advice]:
        """Which layer is wrong, of several; nothing where a function of the user's judges, or nothing is compared."""
        if self.judged.evidence.verdict.stage != "compare" or len(self.found.nodes) < 2 or are_given(self.own):
            return
        golden = golden_values.file_of(self.args.record_with) if self.own.load_outputs else None
        if golden is not None:
            yield from self._layers_by(golden)
            return
        others = [spec.text for spec in self.engines if spec.text != self.suspect]
        reference = ["--reference-engine", others[0]] if others and not self.own.load_outputs else []
        words = ["biopsy", "debug", "layers", as_word(self.found.output), *reference, "--suspect", self.suspect]
        making = given(self.own, (*MAKING, "--input-symbols"), MADE_BY_DEFAULT)
        line = line_of([*words, *self._inputs(), *making, *given(self.own, LIMITS)])
        yield Advice(line, "which of its layers is wrong, alone or together with others")

    def _layers_by(self, golden: Path) -> Iterator[Advice]:
        """The same by golden values, with the inputs of the result, of which some may stand elsewhere."""
        fed = []
        if golden_values.lacking(golden, index_file(self.found.output)):
            merged = output_word("reduced_inputs.npz", self.args.model)
            files = [*(self.args.load_inputs or ()), golden]
            yield Advice(line_of(golden_values.merge_words(files, merged)), "the inputs of the result")
            fed = ["--load-inputs", merged]
        words = ["biopsy", "debug", "layers", as_word(self.found.output), "--suspect", self.suspect, *fed]
        line = line_of([*words, "--load-outputs", as_word(golden), *given(self.own, LIMITS)])
        yield Advice(line, "which of its layers is wrong, alone or together with others")

    def _inputs(self) -> Iterator[ListOption]:
        files = [self.found.inputs] if self.found.inputs is not None else self.own.load_inputs
        if files:
            yield ListOption("--load-inputs", [str(path) for path in files])

    @property
    def _rules(self) -> list[ListOption | str]:
        return [option for name in _RULES for option in given(self.args, [name])]

    def known(self) -> Iterator[Advice]:
        """Whether it is a bug that is known; nothing where rules decide, which that command does not take."""
        if not self._rules:
            line = line_of(["biopsy", "debug", "known", as_word(self.found.output), "--check", *self.check.words])
            yield Advice(line, "whether it is a known bug")

    def flags(self) -> Iterator[Advice]:
        """Which setting of the engine switches the failure off."""
        rules = self._rules
        match = [] if self.args.match == "auto" else ["--match", self.args.match]
        words = ["biopsy", "debug", "flags", as_word(self.found.output), *match, *rules]
        line = line_of([*words, ListOption("--engine", [self.suspect]), "--check", *self.check.words])
        yield Advice(line, f"which setting of {self.suspect.partition(':')[0]} switches it off")
