"""From the arguments of ``biopsy debug workaround`` to the question. Importing this imports the search."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.checks.command_line import OwnRun, parse
from biopsy.cli.arguments import checks, comparing, groups
from biopsy.cli.arguments.given_options import LIMITS, MADE_BY_DEFAULT, MAKING, given
from biopsy.cli.debug import checking, engine_substitution
from biopsy.cli.run.inputs import settled
from biopsy.cli.run.settings import golden_values, inputs_of, tolerances_of
from biopsy.engines.registry import create, parse_spec
from biopsy.engines.yardsticks import PLAIN
from biopsy.layerwise.tensor_errors import Judge
from biopsy.model.index import index_file
from biopsy.session.budget import Budget
from biopsy.tactics.setting_changes import ENGINE_PLACE, SETTINGS_PLACE, CheckTemplate
from biopsy.workarounds.question import KINDS, Kind, PatchedFile, WhatIsRight, WorkaroundQuestion, golden_of

if TYPE_CHECKING:
    from biopsy.cli.console import Console


def question_of(args: argparse.Namespace, console: Console) -> WorkaroundQuestion:
    """What is asked. Raises UsageError for arguments that could only mislead, and what ``index_file`` raises."""
    own_run = checking.own_run(args)
    asked = args if own_run is None else own_run
    index = index_file(args.model, args.external_data_dir)
    checking.require_names(args, args.model)
    template = template_of(args)
    create(template.spec)
    references, named = _references(args, own_run, template)
    inputs = inputs_of(asked)
    golden = own_run.load_outputs if own_run is not None else None
    wanted = index.fed_types()
    return WorkaroundQuestion(
        index=index,
        model=args.model,
        template=template,
        right=WhatIsRight(
            samples=settled(wanted, inputs, console)[0],
            drawn=inputs,
            golden=golden_of(golden_values(golden) if golden else (), index),
            judge=Judge(*tolerances_of(asked), comparing.limits_of(asked)),
            references=references,
            named=named,
        ),
        rules=checking.rules_of(args),
        kinds=_kinds(args),
        piece=args.piece,
        nodes=tuple(args.nodes),
        default_name=checks.DEFAULT_CANDIDATE,
        timeout=args.check_timeout,
        target=_target(args),
        budget=Budget(checks=args.max_checks, seconds=args.max_time),
    )


def _target(args: argparse.Namespace) -> PatchedFile | None:
    if args.output is None:
        return None
    name = groups.weights_file(args, args.output)
    return PatchedFile(path=args.output, external=name, threshold=args.external_data_size_threshold)


def _kinds(args: argparse.Namespace) -> tuple[Kind, ...]:
    wanted = tuple(kind for kind in KINDS if kind in (args.only or KINDS) and kind not in args.skip)
    if not wanted:
        raise errors.UsageError("--only and --skip leave nothing to try")
    return wanted


# The check, and the engines in it


def template_of(args: argparse.Namespace) -> CheckTemplate:
    """The words of the check with ``{engine}`` in the place of the engine that must be used. Raises UsageError."""
    if args.check is None:
        return _comparison(args)
    if not args.check:
        raise errors.UsageError("there is no command after --check", next_steps=["--check ./check.sh {} {engine}"])
    command = parse(args.check)
    has_place = any(place in word for word in command.words for place in (ENGINE_PLACE, SETTINGS_PLACE))
    if isinstance(command, OwnRun) and not has_place:
        return engine_substitution.own_template(command, args.engine)
    if args.engine is None:
        raise errors.UsageError(
            "the check does not tell which engine must be used: it is not 'biopsy run', or names it as {engine}",
            next_steps=["--engine onnxrt    and write {engine} in the check where it takes one"],
        )
    return CheckTemplate(command.words, parse_spec(args.engine), is_own_run=isinstance(command, OwnRun))


def _comparison(args: argparse.Namespace) -> CheckTemplate:
    """Of no check: a comparison of the engine with the one that is right."""
    if args.engine is None:
        raise errors.UsageError(
            "which engine must be used?", next_steps=["--engine NAME", "biopsy doctor    lists them"]
        )
    spec = parse_spec(args.engine)
    right = args.reference_engine or next(engine for engine in PLAIN if parse_spec(engine) != spec)
    words = ["biopsy", "run", "{}", "--engine", right, "--engine", ENGINE_PLACE]
    options = ("--load-inputs", *MAKING, "--input-symbols", "--external-data-dir", *LIMITS)
    for option in given(args, options, MADE_BY_DEFAULT):
        words += option.words
    return CheckTemplate(tuple(words), spec, is_own_run=True)


def _references(
    args: argparse.Namespace, own_run: argparse.Namespace | None, template: CheckTemplate
) -> tuple[tuple[str, ...], bool]:
    """The engines to trust, and whether a person has named them."""
    if args.reference_engine is not None:
        create(args.reference_engine)
        return (args.reference_engine,), True
    command = parse(args.check or ())
    if own_run is not None and isinstance(command, OwnRun) and not own_run.load_outputs:
        others = [spec.text for spec in engine_substitution.engines_of_run(command) if spec != template.spec]
        others = [text for text in others if ENGINE_PLACE not in text]
        if others:
            return (others[0],), True
    return PLAIN, False
