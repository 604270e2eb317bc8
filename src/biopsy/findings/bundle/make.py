"""Making a bundle: the check is run once more, the files are written, the script is tried without biopsy, and the
archive is searched for secrets before it is published.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from biopsy import errors
from biopsy.checks.command_line import LOAD_INPUTS, LOAD_OUTPUTS, CommandLine, OwnCommand
from biopsy.comparison.mismatch import worst_of
from biopsy.findings.bundle.disclosures import disclosures, words_of_machine
from biopsy.findings.bundle.engine_script import EngineScript, OnlyBiopsyError
from biopsy.findings.bundle.failure import ObservedFailure, exclusions, failure_of
from biopsy.findings.bundle.issue import IssueFacts, issue_text, regression_test
from biopsy.findings.bundle.job import BundleJob, Observation, observe, own_words, packed_words
from biopsy.findings.bundle.packing import is_archive, publish, require_target, write_archive
from biopsy.findings.bundle.reproduction import Reproduced, reproduce
from biopsy.findings.bundle.script import (
    CAST_FILES,
    IN_A_CHILD,
    NOT_REPRODUCED,
    SCRIPT,
    TENSOR_FILES,
    CopiedFiles,
    Ending,
    command_script,
    copied_files,
)
from biopsy.findings.bundle.short_script import ShownFailure
from biopsy.findings.report import versions_tree
from biopsy.model.extract import choose_outputs
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.infer import has_floats
from biopsy.model.load import read_bytes
from biopsy.model.weights_file import default_name
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.watch import Limits
from biopsy.processes.writing import write_whole
from biopsy.session.files import write_result
from biopsy.tensors.container import Container, pack
from biopsy.tensors.files import write_feeds
from biopsy.tensors.npz import FORM
from biopsy.tensors.results import Feed, Iteration, RunnerResult

ISSUE = "ISSUE.md"
_LEAST_SECONDS = 60.0
_TIMES_OF_CHECK = 20
"""A script waits this many times as long as the check took before it concludes that the model does not end."""

_TIMES_OF_SCRIPT = 2
"""A script is ended after this many times the seconds that it waits itself."""

_MOST_INSIDE = 1 << 26
"""The most bytes of external weights that are put into the file of the model, which is parsed as a whole."""

_TRIES_IF_FLAKY = 20
"""The most runs of the script of a flaky failure, until it fails."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A bundle that was written. ``reproduced`` says where its script was seen to fail.

    ``members`` are sizes in bytes by name. ``status`` and ``output`` are those of the script. ``needs_biopsy`` says
    what the script cannot do without biopsy, "" if nothing; ``remarks`` are sentences on what the bundle lacks.
    """

    path: Path
    title: str
    members: Mapping[str, int]
    reproduced: Reproduced
    status: int
    output: str
    needs_biopsy: str = ""
    remarks: Sequence[str] = ()

    @property
    def size(self) -> int:
        """Bytes of all members together."""
        return sum(self.members.values())


def make_bundle(job: BundleJob) -> Bundle:
    """Write the bundle of a job.

    If its script does not reproduce the failure, the bundle is written nevertheless: ISSUE.md and a file of its own say
    so, and ``reproduced`` is "not". Raises CheckError if the model of the bundle does not fail or the bundle would hold
    ``job.secrets``, UsageError if it cannot be written; then nothing is written.
    """
    require_target(job.target)
    with temporary_folder("biopsy-bundle-") as scratch:
        folder, trial, archive = scratch / "members", scratch / "tried.zip", scratch / "bundle.zip"
        folder.mkdir()
        model = folder / "model.onnx"
        index = _write_model(job, model)
        observation = observe(job, model, scratch)
        job = replace(job, earlier=job.earlier.of_form(worst_of(observation.evidence.verdict.mismatches)))
        failure, evidence = failure_of(job, observation), observation.evidence
        seconds = round(evidence.seconds if evidence.timed_out else _TIMES_OF_CHECK * evidence.seconds, 1)
        seconds = seconds if evidence.timed_out else max(_LEAST_SECONDS, seconds)
        tries = _TRIES_IF_FLAKY if job.earlier.how_often else 1 if observation.runs == 1 else 4 * observation.runs
        for script in _scripts(job, observation, failure, folder, index, seconds):
            members = [folder / name for name in (*TENSOR_FILES, *script.contents) if (folder / name).exists()]
            write_archive(trial, members, compressed=False)
            limits = Limits(_TIMES_OF_SCRIPT * seconds, job.check.memory)
            reproduction = reproduce(
                trial, scratch, limits, script.ending, needs_biopsy=bool(script.needs_biopsy), tries=tries
            )
            if reproduction.reproduced == "alone":
                break
        facts = IssueFacts(
            failure=failure,
            reproduction=reproduction,
            script=script.contents[SCRIPT].decode(),
            versions=versions_tree([] if job.run is None else [engine.label for engine in job.run.engines]),
            excluded=list(
                exclusions(observation, failure, reproduction, job.earlier, has_floats=has_floats(read_bytes(model)))
            ),
            earlier=job.earlier,
            settings=job.settings if job.secrets is None or not job.settings else "not told here",
            remarks=[f"left out: {text}" for text in script.left_out],
            members=[*(member.name for member in members), *job.reports],
        )
        members += _write_texts(job, facts, folder)
        if is_archive(job.target) or job.secrets is not None:
            write_archive(archive, members, compressed=is_archive(job.target))
        _require_no_secrets(job, archive, f"{failure.message}\n{reproduction.output}" if script.modules else "")
        publish(job.target, archive, members)
        return Bundle(
            path=job.target,
            title=failure.title,
            members={member.name: member.stat().st_size for member in members},
            reproduced=reproduction.reproduced,
            status=reproduction.status,
            output=reproduction.output,
            needs_biopsy=script.needs_biopsy,
            remarks=facts.remarks,
        )


def _write_texts(job: BundleJob, facts: IssueFacts, folder: Path) -> list[Path]:
    """Write the texts about the failure, and return their files in order."""
    reproduction = facts.reproduction
    texts = {"versions.json": json.dumps(facts.versions, indent=1).encode() + b"\n", **job.reports}
    if reproduction.reproduced == "not":
        text = (
            f"reproduce.py ended with status {reproduction.status}, not as the failure does:\n\n{reproduction.output}"
        )
        texts[NOT_REPRODUCED] = text.encode("utf-8", "backslashreplace")
    if not job.no_issue:
        texts[ISSUE] = issue_text(facts).encode("utf-8", "backslashreplace")
    for name, data in texts.items():
        write_whole(folder / name, [data])
    return [folder / name for name in texts]


def _require_no_secrets(job: BundleJob, archive: Path, engine_output: str) -> None:
    """Raise CheckError if the archive holds a secret.

    The engine has seen only the anonymized model, so a word in its output that equals a secret does so by chance.
    """
    if job.secrets is None:
        return
    words = set(re.findall(r"\w+", engine_output))
    secrets = {word: what for word, what in job.secrets.items() if word not in words}
    disclosed = disclosures(archive, {**secrets, **words_of_machine(job.original)})
    if disclosed:
        raise errors.CheckError(
            f"{job.target} is not written: it would tell what --anonymize is to hide",
            details=[f"  {text}" for text in disclosed[:10]],
            next_steps=["leave these words out of the check and its scripts, or send the bundle without --anonymize"],
        )


def _write_model(job: BundleJob, path: Path) -> ModelIndex:
    """Write the model as the check sees it, with all its weights. Raises ModelError or UsageError."""
    data = read_bytes(job.model)
    if job.run is not None and not job.run.outputs.changes_nothing:
        data = choose_outputs(data, job.run.outputs)
    index = index_bytes(data, job.folder)
    external = default_name(path) if index.has_external_data and index.weight_bytes > _MOST_INSIDE else None
    write_result([data], path, job.folder, external, index.has_external_data)
    return index_bytes(read_bytes(path), path.parent)


@dataclass(frozen=True, kw_only=True)
class _WrittenScript:
    """A script in the folder of the bundle: its files by name, with those that it needs, and how it ends.

    ``left_out`` says of each file that was not copied why not.
    """

    contents: Mapping[str, bytes]
    modules: Sequence[str]
    ending: Ending = field(default_factory=Ending)
    needs_biopsy: str = ""
    left_out: Sequence[str] = ()


def _scripts(
    job: BundleJob, observation: Observation, failure: ObservedFailure, folder: Path, index: ModelIndex, seconds: float
) -> Iterator[_WrittenScript]:
    """The scripts that may show the failure, the shortest first, each written to ``folder`` with its test and tensors.

    A script takes a run of more than ``seconds`` for one that does not end.
    """
    inputs = _write_tensors(folder / "inputs.npz", observation.feeds)
    expected = _write_tensors(folder / "expected.npz", failure.expected)
    command: CommandLine = job.check.command
    long, copied, why = None, CopiedFiles(), ""
    if job.run is not None:
        try:
            long = EngineScript(
                question=job.run, failure=failure, index=index, inputs=inputs, expected=expected, seconds=seconds
            ).script()
        except OnlyBiopsyError as error:
            command, why = own_words(job).without_option((*LOAD_INPUTS, *LOAD_OUTPUTS)), str(error)
        shown = ShownFailure(
            question=job.run,
            failure=failure,
            path=folder / "model.onnx",
            index=index,
            inputs=(*observation.feeds, {})[failure.sample],
            expected=(*failure.expected, {})[failure.sample],
            keys=((*inputs, {})[failure.sample], (*expected, {})[failure.sample]),
        )
        shown = _in_numpys_types(shown, folder)
        ends_the_process = failure.kind in ("crash", "timeout") and long is not None
        for short in shown.scripts():
            contents = {SCRIPT: short.text.encode()}
            contents |= {name: (folder / name).read_bytes() for name in CAST_FILES if f'"{name}"' in short.text}
            if long is not None and ends_the_process:
                contents[IN_A_CHILD] = long.text().encode()
            tested = SCRIPT if IN_A_CHILD not in contents else IN_A_CHILD
            contents |= _test(job, failure, short.modules, tested)
            yield _written(folder, _WrittenScript(contents=contents, modules=short.modules, ending=short.ending))
    elif isinstance(command, OwnCommand):
        why = f"what 'biopsy {command.arguments[0]}' tells"
    if long is None:
        copied = copied_files(command, job.check.default_name)
        words = copied.words_of(command, job.check.default_name)
        if job.run is not None:
            golden = any(expected) and bool(job.run.golden)
            words = list(packed_words(words, inputs=any(inputs), expected=golden).words)
        long = command_script(failure.title, words, observation.evidence, job.rules, seconds, why)
    contents = {**copied.contents, SCRIPT: long.text().encode()}
    contents |= _test(job, failure, long.modules)
    yield _written(
        folder,
        _WrittenScript(contents=contents, modules=long.modules, needs_biopsy=why, left_out=copied.left_out),
    )


def _in_numpys_types(shown: ShownFailure, folder: Path) -> ShownFailure:
    """The failure without types that NumPy lacks; a model with casts and the tensors that are cast are written."""
    cast = shown.in_numpys_types(folder / CAST_FILES[0])
    keys, files = list(shown.keys), list(shown.files)
    for side, name in enumerate(CAST_FILES[1:]):
        before, after = ((each.inputs, each.expected)[side] for each in (shown, cast))
        if before.keys() != after.keys():
            keys[side], files[side] = _write_tensors(folder / name, [after])[0], name
    return replace(cast, keys=(keys[0], keys[1]), files=(files[0], files[1]))


def _test(job: BundleJob, failure: ObservedFailure, modules: Sequence[str], script: str = SCRIPT) -> dict[str, bytes]:
    """The test that runs a script, by the name of its file; none where no engine is to be mended."""
    return {} if job.no_issue else {"test_regression.py": regression_test(failure.title, modules, script).encode()}


def _written(folder: Path, script: _WrittenScript) -> _WrittenScript:
    (folder / IN_A_CHILD).unlink(missing_ok=True)
    for name, data in script.contents.items():
        write_whole(folder / name, [data])
    return script


def _write_tensors(path: Path, samples: Sequence[Feed]) -> list[dict[str, str]]:
    """Write tensors, if there are any. Returns the key in the file by the name of the tensor, for each sample."""
    if not any(samples):
        return [{} for _ in samples]
    write_feeds(path, samples)
    container = Container("feeds", (RunnerResult(path.stem, tuple(Iteration(sample) for sample in samples)),))
    keys: list[dict[str, str]] = [{} for _ in samples]
    for key, (_, number, name) in pack(container, FORM).places.items():
        keys[number][name] = key
    return keys
