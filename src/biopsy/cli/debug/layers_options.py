"""The options of ``biopsy debug layers``."""

from __future__ import annotations

from pathlib import Path

from biopsy import errors
from biopsy.cli import advice
from biopsy.cli.arguments import checks, comparing, engines, groups, types
from biopsy.cli.arguments.declared import Options, option
from biopsy.cli.arguments.groups import RunLimits
from biopsy.cli.console import Console
from biopsy.cli.report import ReportOption
from biopsy.engines.registry import PLAIN
from biopsy.model.load import require_file
from biopsy.processes.writing import require_writable

DEFAULT_REFERENCE = PLAIN[0]

_SPEC = "NAME[:key=value,...]"
_DEFAULT_LIMIT = "1GB"


ENGINES = "engines: one alone is the suspect; the first of two is the one to trust"


class RoleOptions(Options, title=ENGINES):
    """The suspect, and the engine to trust or golden values in its place."""

    suspect: str | None = option(
        "--suspect",
        metavar=_SPEC,
        meaning="the engine to examine, such as openvino; 'biopsy doctor' lists all (default: as below)",
    )
    reference_engine: str | None = option(
        "--reference-engine",
        metavar=_SPEC,
        meaning=f"the engine to trust, preferably one that does not optimize (default: {DEFAULT_REFERENCE})",
    )
    golden: Path | None = option(
        "--load-outputs",
        type=types.READ,
        meaning="golden values of some of the model's tensors, from any source, instead of an engine to trust; "
        "layers without one are measured as one piece with the next that has one (inputs: --load-inputs, or the same "
        "file)",
    )


class MeasuredOptions(Options, title="what to measure, and how much to show"):
    """What is measured, how much is shown and written, and where tensors are kept meanwhile."""

    nodes: str | None = option(
        "--nodes", metavar="REGEX", meaning="measure only layers whose name, operator or output matches somewhere"
    )
    top: int = option("--top", type=types.positive, default=10, meaning="show the N worst layers (default: 10)")
    csv: Path | None = option(
        "--csv", type=types.WRITTEN, metavar="FILE.csv", meaning="write one line per layer as CSV"
    )
    record_memory: int = option(
        "--record-memory",
        type=types.byte_size,
        default=_DEFAULT_LIMIT,
        meaning="keep at most this much tensor data in memory; the tensors are computed in batches and kept in a "
        f"temporary file (default: {_DEFAULT_LIMIT})",
    )
    work_dir: Path | None = option(
        "--work-dir",
        type=types.FOLDER_WRITTEN,
        meaning="folder for that temporary file: it holds every tensor of every sample (default: the system's "
        "folder for such files)",
    )


class LayersOptions(
    groups.ModelOption,
    RoleOptions,
    engines.EngineOptions,
    RunLimits,
    MeasuredOptions,
    ReportOption,
    checks.EventsOption,
    groups.WeightsFolderOption,
    groups.SavedInputOptions,
    comparing.JudgeOptions,
):
    """All options of ``debug layers``."""

    bundle: Path | None = None

    @property
    def engine_roles(self) -> tuple[str, str]:
        """The reference and the suspect, of options that are ``settled``."""
        assert self.reference_engine is not None and self.suspect is not None
        return self.reference_engine, self.suspect

    def settled(self, console: Console) -> LayersOptions:
        """The same options with both engines, however they are named, and with the inputs of the golden values.

        Raises UsageError for an engine too many, for golden values besides an engine to trust, and for golden values
        without their inputs.
        """
        roles = {"reference_engine": self.reference_engine, "suspect": self.suspect}
        inputs = {"load_inputs": self.load_inputs, "load_outputs": None}
        if self.golden is not None:
            self._require_inputs_of_golden_values(self.golden)
            roles["reference_engine"] = advice.spec_of(self.golden, *list(self.load_inputs or ())[:1])
            inputs = {"load_inputs": self.load_inputs or [self.golden], "load_outputs": [self.golden]}
        texts = [spec.text for spec in self.specs()] if self.names_engine else []
        unnamed = [role for role, text in roles.items() if text is None]
        if len(texts) > len(unnamed):
            values = self.given(RoleOptions.declared)
            given = [f"{spelling} {values[spelling]}" for spelling in sorted(values)]
            raise errors.UsageError(
                f"too many engines: {', '.join([*given, *texts])}; there is one suspect, and one engine to trust",
                next_steps=["--engine REFERENCE --engine SUSPECT", "or --reference-engine REFERENCE --suspect SUSPECT"],
            )
        roles.update(zip(reversed(unnamed), reversed(texts), strict=False))
        if roles["suspect"] is None:
            roles["suspect"] = engines.default_engine(runs=True).text
            console.note(f"no engine is named: {roles['suspect']} is the suspect")
        roles["reference_engine"] = roles["reference_engine"] or DEFAULT_REFERENCE
        return LayersOptions(**{**vars(self), **roles, **inputs})

    def _require_inputs_of_golden_values(self, golden: Path) -> None:
        if self.reference_engine is not None:
            raise errors.UsageError(
                f"--load-outputs {golden}, and --reference-engine {self.reference_engine}: trust one of them"
            )
        if self.data_loader_script is not None:
            raise errors.UsageError(
                "--load-outputs: golden values belong to inputs in a file, not to those that a script makes",
                next_steps=["--load-inputs FILE    the inputs that they were recorded with"],
            )
        if len(self.load_inputs or ()) > 1:
            raise errors.UsageError(
                "--load-outputs takes the inputs from one file",
                next_steps=["biopsy data concat FILE FILE -o inputs.npz    puts them into one"],
            )

    def require_possible(self) -> None:
        """Raise UsageError if there is no model, or if a file could not be written at the end."""
        require_file(self.model)
        for path in filter(None, (self.csv, self.events, self.work_dir and self.work_dir / "a file")):
            require_writable(path)
        if self.save_inputs is not None and self.save_inputs.suffix:
            require_writable(self.save_inputs)
