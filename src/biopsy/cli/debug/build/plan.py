"""From the arguments of ``biopsy debug build`` to the plan of its builds. Importing this imports what builds."""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path

from biopsy import errors
from biopsy.checks.artifacts import Artifacts
from biopsy.cli.debug import checking
from biopsy.cli.debug.build.options import LEAST_BUILDS, USUAL_NAME
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EngineSpec
from biopsy.filesystem.write import require_writable
from biopsy.model.load import read_bytes
from biopsy.tactics.build_plan import BuildPlan, artifact_name
from biopsy.tactics.variations import combinations, parse_variation, require_possible


def plan_of(args: argparse.Namespace, spec: EngineSpec) -> BuildPlan:
    """What is to be built, how often, and where. Raises UsageError for what the engine cannot do."""
    variations = [parse_variation(text, spec.name) for text in args.vary]
    require_possible(spec, variations)
    name = artifact_name(spec)
    artifact = args.iter_artifact or (None if name is None else Path(name))
    if artifact is not None and name is None:
        raise errors.UsageError(f"--iter-artifact {artifact}: {spec.name} saves nothing", next_steps=[_USE_ENGINE])
    files = [artifact if artifact and str(file) == USUAL_NAME else file for file in args.artifacts]
    if args.save_tactics is not None and args.save_tactics not in files:
        files.append(args.save_tactics)
    for path in (artifact, args.save_tactics, args.iter_info):
        if path is not None:
            require_writable(path)
    model = ModelInput(read_bytes(args.model), args.external_data_dir or args.model.parent, args.model)
    return BuildPlan(
        model=model,
        spec=spec,
        until=args.until or max(LEAST_BUILDS, combinations(variations)),
        artifact=artifact,
        variations=variations,
        seed=args.seed if args.seed is not None else secrets.randbelow(2**31),
        record=args.save_tactics,
        artifacts=Artifacts(tuple(files), args.art_dir),
        info=args.iter_info,
        rules=checking.rules_of(args),
        build_timeout=args.build_timeout,
        checks_building=args.check == ["build"],
    )


_USE_ENGINE = "write {engine} in the check, which then builds by itself: biopsy run {} --engine {engine}"
