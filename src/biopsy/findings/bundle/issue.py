"""The texts of a bundle for a maintainer: the failure and what was excluded, ``ISSUE.md`` in the form of the engine's
tracker, and a regression test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from biopsy import errors
from biopsy.checks.judge import signature_of, status_text
from biopsy.comparison.mismatch import NOT_FINITE
from biopsy.comparison.runs import compare_runs
from biopsy.engines.base import Engine
from biopsy.engines.registry import title_of
from biopsy.findings.bundle.job import BundleJob, EarlierFindings, Observation, RunQuestion
from biopsy.findings.bundle.reproduction import Reproduction
from biopsy.findings.bundle.script import docstring
from biopsy.findings.document import Bullets, Cell, DocumentBlock, Facts, Listing, Passage
from biopsy.model.describe import describe
from biopsy.questions.layers.question import Judge
from biopsy.tensors.files import read_results
from biopsy.tensors.results import Array, RunnerResult
from biopsy.text import first_line, printable, shortened, size_text

_MOST_OF_MODEL = 6000  # characters
_MOST_OF_SCRIPT = 7000
_MOST_PLACES = 8
_MOST_OF_OUTPUT = 4000


@dataclass(frozen=True, kw_only=True)
class IssueFacts:
    """The facts for ``ISSUE.md``.

    ``model`` is the model as text, ``versions`` those of the packages and the machine that it failed with. ``excluded``
    and ``remarks`` (on what the bundle lacks) are sentences; ``earlier`` is what was found out before. ``sizes`` are
    the bytes of each member by name. ``places`` are the lines of code that the nodes come from. ``settings`` are the
    options that settings files gave to the check, in words.
    """

    failure: ObservedFailure
    reproduction: Reproduction
    model: str
    script: str
    versions: Mapping[str, Any]
    excluded: Sequence[str] = ()
    earlier: EarlierFindings = field(default_factory=EarlierFindings)
    remarks: Sequence[str] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    places: Sequence[str] = ()
    settings: str = ""


def issue_text(facts: IssueFacts) -> str:
    """The text of ``ISSUE.md``, in Markdown."""
    engine, reproduction = facts.failure.engine, facts.reproduction
    parts = [f"# {_prose(facts.failure.title)}"]
    if reproduction.reproduced == "not":
        parts.append(
            f"**NOT REPRODUCED: `reproduce.py` ended with status {reproduction.status} where it was tried, and not "
            "with 1. This text describes what biopsy saw; do not send it as it is.**"
        )
    elif reproduction.reproduced == "with biopsy":
        parts.append(
            "**`reproduce.py` needs more than the engine: it was seen to fail only where biopsy is installed.**"
        )
    for heading, blocks in FORMS.get("" if engine is None else engine.name, FORMS[""]):
        lines = [blocks] if isinstance(blocks, str) else [markdown(each, facts.earlier.links) for each in blocks(facts)]
        parts += [f"## {heading}", *lines] if lines else []
    return "\n\n".join(parts) + "\n"


# The functions below give the blocks under a heading. They quote names from a model with ``repr``.

_NOTES = {
    "found": "{}",
    "may vary": "What may vary, as far as it was tried: {}",
    "known": "How it compares with a known failure: {}",
    "workaround": "A workaround that was tried: {}",
}
"""Sentences for notes of earlier findings, by their labels."""


def _notes(facts: IssueFacts, *labels: str) -> Iterator[DocumentBlock]:
    for note in (note for note in facts.earlier.notes if note.label in labels):
        yield Passage(text=_NOTES[note.label].format(note.text))
        if note.line:
            yield Listing(lines=[printable(note.line)])


def _description(facts: IssueFacts) -> Iterator[DocumentBlock]:
    failure = facts.failure
    yield from _notes(facts, "found")
    if failure.message:
        yield Listing(lines=failure.message.splitlines())
    if failure.against:
        yield Passage(text=f"The expected values are those of {failure.against!r}.")
    yield Passage(text=f"'reproduce.py' prints (exit status {facts.reproduction.status}):")
    yield from _log(facts)
    if facts.settings:
        yield Passage(text=f"The check was run with options that a settings file gave: {facts.settings!r}")
    yield from _notes(facts, "may vary", "known", "workaround")
    yield Passage(text="What was excluded:" if facts.excluded else "Nothing else was excluded yet.")
    if facts.excluded:
        yield Bullets(items=facts.excluded)


def _steps(facts: IssueFacts) -> Iterator[DocumentBlock]:
    yield Passage(text="Unpack the attached files and run 'python reproduce.py':")
    yield Bullets(items=[f"{name!r}, {size_text(size)}" for name, size in facts.sizes.items()])
    yield Passage(text="The model ('model.onnx'):")
    yield Listing(lines=shortened(facts.model, _MOST_OF_MODEL).splitlines())
    if facts.places:
        more = len(facts.places) - _MOST_PLACES
        yield Passage(text="Its nodes come from these lines of code, by the notes of its exporter:")
        yield Listing(lines=[*map(printable, facts.places[:_MOST_PLACES]), *([f"and {more} more"] if more > 0 else [])])
    if len(facts.script) <= _MOST_OF_SCRIPT:
        yield Passage(text="'reproduce.py':")
        yield Listing(lines=facts.script.strip().splitlines(), language="python")
    if facts.remarks:
        yield Bullets(items=facts.remarks)


def _log(facts: IssueFacts) -> Iterator[DocumentBlock]:
    yield Listing(lines=shortened(facts.reproduction.output.strip(), _MOST_OF_OUTPUT).splitlines())


def _environment(facts: IssueFacts) -> Iterator[DocumentBlock]:
    versions = facts.versions
    names = {"Python": "python", "operating system": "os", "processor": "cpu", "graphics card": "gpu"}
    known = {**versions["packages"], **{name: versions[key] for name, key in names.items()}}
    known |= {"its features": ", ".join(versions["cpu_features"]), "its driver": versions["driver"]}
    yield Facts(rows=[(str(name), str(value)) for name, value in known.items() if value])


def _version(facts: IssueFacts) -> Iterator[DocumentBlock]:
    name = facts.failure.engine and facts.failure.engine.name
    versions = [str(each["version"]) for each in facts.versions["engines"] if each["name"] == name and each["version"]]
    yield from (Passage(text=repr(version)) for version in versions[:1])


def _device(facts: IssueFacts) -> Iterator[DocumentBlock]:
    options: Mapping[str, Any] = {} if facts.failure.engine is None else facts.failure.engine.options
    wanted = options.get("providers") or options.get("device") or "CPU"
    yield Passage(text=repr(wanted if isinstance(wanted, str) else ", ".join(wanted)))


def _operating_system(facts: IssueFacts) -> Iterator[DocumentBlock]:
    yield Passage(text=repr(str(facts.versions["os"])))


def markdown(block: DocumentBlock, links: Mapping[str, str] = MappingProxyType({})) -> str:
    """A block as Markdown: a listing, bullets, facts or a passage. ``links`` are those of ``EarlierFindings``."""
    if isinstance(block, Listing):
        lines = [printable(line) for line in block.lines]
        longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
        fence = "`" * max(3, longest + 1)
        return "\n".join([f"{fence}{block.language}", *lines, fence])
    if isinstance(block, Bullets):
        return "\n".join(f"- {_prose(_text(item))}" for item in block.items)
    if isinstance(block, Facts):
        return "\n".join(f"- {_prose(term)}: {_inline(_text(value))}" for term, value in block.rows)
    assert isinstance(block, Passage)
    return _prose(block.text, links)


def _text(cell: Cell | str) -> str:
    return cell if isinstance(cell, str) else cell.text


def _prose(text: str, links: Mapping[str, str] = MappingProxyType({})) -> str:
    """One line of text as Markdown. It may quote a model, so each word that could be markup becomes code.

    Names in the quotes of ``repr`` become code without the quotes; from the word with the first unprintable character,
    all is code. ``links`` maps references of biopsy's own to their addresses: these words become links.
    """
    unprintable = next((at for at, char in enumerate(text) if not char.isprintable()), None)
    prose = text if unprintable is None else text[: text.rfind(" ", 0, unprintable) + 1]
    if prose.startswith(" "):
        return _inline(text)
    parts: list[str] = []
    for is_plain, pieces in groupby(filter(None, _PIECES.split(prose)), _is_plain):
        words = "".join(pieces)
        name = words.rstrip(",.:;")
        if is_plain and (parts or not _BLOCK.match(words)):
            parts.append(words)
        elif name in links:
            parts.append(f"[{name}]({links[name]}){words[len(name) :]}")
        else:
            parts.append(_inline(words[1:-1] if len(words) > 2 and _QUOTED.fullmatch(words) else words))
    return "".join(parts) + ("" if prose == text else _inline(text[len(prose) :]))


def _is_plain(piece: str) -> bool:
    return not _QUOTED.fullmatch(piece) and bool(_PLAIN.fullmatch(piece)) and not _LIVE.search(piece)


_QUOTED = re.compile(r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?!\w)""")
"""A name as ``repr`` writes it."""
_PIECES = re.compile(rf"({_QUOTED.pattern}|\[[^\[\]]*\]| +)")
"""What separates words: spaces, and names and lists in brackets, which may hold spaces themselves."""
_PLAIN = re.compile(r"""[\w,.:;'"/()+=%?·×-]*|->| +""")
"""A word that is no markup anywhere in a paragraph or a heading, except perhaps at its beginning."""
_BLOCK = re.compile(r"[-+=]|\d+[.)]")
"""What begins a list or a rule at the beginning of a paragraph."""
_LIVE = re.compile(r"://|www\.|mailto:|xmpp:|\bGH-\d|\b[0-9a-f]{7,}\b|(?<!\w)_|_(?!\w)|:[\w+-]+:", re.IGNORECASE)
"""What GitHub makes a link, emphasis or a picture without any markup character."""


def _inline(text: str) -> str:
    """One line of text as code."""
    plain = printable(text)
    ticks = "`" * (max((len(run) for run in re.findall("`+", plain)), default=0) + 1)
    pad = " " if not plain.strip(" ") or plain[0] in "` " or plain[-1] in "` " else ""
    return f"{ticks}{pad}{plain}{pad}{ticks}"


def model_text(path: Path) -> str:
    """A model in ONNX's text format, which onnx.parser can read; a description of it if it is too large."""
    if path.stat().st_size > _MOST_OF_MODEL:
        return describe(path, ("layers", "attrs"))
    import onnx

    try:
        return onnx.printer.to_text(onnx.load(str(path), load_external_data=False))
    except UnicodeDecodeError:
        return describe(path, ("layers", "attrs"))


FORMS: Mapping[str, Sequence[tuple[str, str | Callable[[IssueFacts], Iterator[DocumentBlock]]]]] = {
    "onnxrt": (
        ("Describe the issue", _description),
        ("To reproduce", _steps),
        ("OS Version", _operating_system),
        ("ONNX Runtime Installation", "Released Package"),
        ("ONNX Runtime Version or Commit ID", _version),
        ("ONNX Runtime API", "Python"),
        ("Execution Provider", _device),
        ("System information", _environment),
    ),
    "openvino": (
        ("OpenVINO Version", _version),
        ("Operating System", _operating_system),
        ("Device used for inference", _device),
        ("Framework", "ONNX"),
        ("Issue description", _description),
        ("Step by step reproduction", _steps),
        ("Relevant log output", _log),
        ("Environment", _environment),
    ),
    "trt": (("Description", _description), ("Environment", _environment), ("Steps To Reproduce", _steps)),
    "reference": (
        ("Is the issue related to model conversion?", "No: the model is loaded as it is."),
        ("Describe the bug", _description),
        ("System information", _environment),
        ("Reproduction instructions", _steps),
    ),
    "": (("What happens", _description), ("How to reproduce it", _steps), ("Environment", _environment)),
}
"""The form of each engine's tracker in 2026, as headings with what belongs under each; "" is for any other engine."""

Kind: TypeAlias = Literal["comparison", "non-finite", "engine failure", "crash", "timeout", "command"]

_LONGEST_MESSAGE = 300


@dataclass(frozen=True, kw_only=True)
class ObservedFailure:
    """How the model of a bundle failed.

    ``engine`` is the engine at fault, None if it is not known. ``stage``, ``name`` (of an exception or a signal) and
    ``message`` are as the check reported them. ``expected`` are the expected outputs of each sample, empty if none were
    compared; ``against`` says where they are from.
    """

    kind: Kind
    title: str
    engine: Engine | None = None
    stage: str = ""
    name: str = ""
    message: str = ""
    expected: Sequence[Mapping[str, Array]] = ()
    against: str = ""


def failure_of(job: BundleJob, observation: Observation) -> ObservedFailure:
    """The failure that was observed, under the title of the earlier findings, if they have one."""
    evidence, verdict = observation.evidence, observation.evidence.verdict
    engines = () if job.run is None else job.run.engines
    if job.run is None:
        words = str(signature_of(evidence).words)
        failure = ObservedFailure(kind="command", title=f"The check fails: {observation.reason}", message=words)
    elif evidence.timed_out:
        engine = engines[0] if len(engines) == 1 else None
        title = f"{_name(engine)} does not end"
        failure = ObservedFailure(kind="timeout", title=title, engine=engine, name="no end in time")
    elif verdict.stage == "compare":
        failure = _wrong_outputs(job.run, observation)
    else:
        # The verdict names the engine that failed; it is not among those that gave outputs.
        named = [engine for engine in engines if verdict.message.startswith(f"{engine.label} ")]
        without_outputs = [engine for place, engine in enumerate(engines) if place not in observation.results]
        failing = next((engine for engine in (*named, *without_outputs) if verdict.engine in ("", engine.name)), None)
        is_crash = verdict.kind.startswith("SIG") or evidence.status < 0
        name = verdict.kind or status_text(evidence.status).removeprefix("signal ")
        does = {"load": "loads", "build": "builds"}.get(verdict.stage, "runs")
        failure = ObservedFailure(
            kind="crash" if is_crash else "engine failure",
            title=f"{_name(failing)} {'crashes' if is_crash else 'fails'} when it {does} the model: {name}",
            engine=failing,
            stage=verdict.stage,
            name=name,
            message="" if is_crash else _line(first_line(verdict.message)),
        )
    return replace(failure, title=_line(job.earlier.title or failure.title))


def _line(text: str) -> str:
    return shortened(printable(" ".join(text.split())), _LONGEST_MESSAGE)


def _name(engine: Engine | None) -> str:
    """The name of the engine at the beginning of a sentence."""
    title = "the engine" if engine is None else title_of(engine.name)
    return title[:1].upper() + title[1:]


def _wrong_outputs(question: RunQuestion, observation: Observation) -> ObservedFailure:
    """The failure of an engine whose outputs differ from those of the first engine, or from golden values."""
    verdict, engines, results = observation.evidence.verdict, question.engines, observation.results
    place = next((at for at, engine in enumerate(engines) if engine.label == verdict.engine), None)
    names = ", ".join(map(repr, verdict.outputs[:3]))
    engine = engines[place or 0]
    if verdict.kind in NOT_FINITE:
        title = f"{_name(engine)} gives {NOT_FINITE[verdict.kind]} for {names}"
        return ObservedFailure(kind="non-finite", title=title, engine=engine, stage="compare", name=verdict.kind)
    actual = None if place is None else results.get(place)
    if actual is None:
        return ObservedFailure(kind="command", title=f"Outputs differ: {verdict.kind}")
    title = f"{_name(engine)} computes {names or 'an output'} wrongly"
    failure = ObservedFailure(kind="comparison", title=title, engine=engine, stage="compare", name=verdict.kind)
    first = [(engines[0].label, results[0])] if place and 0 in results else []
    golden = (("golden values", result) for path in question.golden for result in read_results(path))
    for against, expected in chain(first, golden):
        if question.unscriptable or not _agrees(question.judge, actual, expected):
            samples = [  # golden values may hold every tensor of the original
                {name: golden.outputs[name] for name in given.outputs if name in golden.outputs}
                for given, golden in zip(actual.iterations, expected.iterations, strict=False)
            ]
            return replace(failure, expected=samples, against=against)
    return failure


def _agrees(judge: Judge, actual: RunnerResult, expected: RunnerResult) -> bool:
    try:
        return compare_runs(actual, expected, judge.tolerances, judge.stats, limits=judge.limits, detail="brief").passed
    except errors.CannotCompare:
        return True


def exclusions(
    observation: Observation, failure: ObservedFailure, reproduction: Reproduction, how_often: str = ""
) -> Iterator[str]:
    """A sentence on each cause that was or was not excluded. ``how_often`` is that of ``EarlierFindings``."""
    rounding = observation.evidence.verdict.rounding
    if failure.kind == "comparison" and rounding is not None:
        if rounding.verdict == "bug":
            times = "" if rounding.times is None else f", {rounding.times:.3g} times that of plain float32"
            yield f"rounding: the error is larger than rounding explains, measured against float64{times}"
        else:
            why = f" ({rounding.reason})" if rounding.reason else ""
            yield f"not excluded, rounding: measured against float64, the verdict is '{rounding.verdict}'{why}"
    if how_often:
        yield f"not excluded, chance: {how_often}"
    elif not reproduction.steady:
        yield "not excluded, chance: reproduce.py fails in some runs and not in others"
    elif observation.runs > 1:
        yield f"not excluded, chance: it failed only in run {observation.runs} of the check"
    elif reproduction.reproduced != "not":
        yield "chance: it failed in the check and in reproduce.py, each in a process of its own"
    engine = failure.engine
    if engine is not None and failure.against.partition(":")[0] == engine.name:
        yield f"the model: the same engine, run as '{failure.against}', gives the expected values"
    elif failure.against and failure.against != "golden values":
        yield f"the model: {failure.against} gives the expected values"


_TEST = """\
{docstring}

import subprocess
import sys
from pathlib import Path
{imports}

def test_the_model_does_not_fail() -> None:
    script = Path(__file__).with_name("reproduce.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
"""


def regression_test(title: str, modules: Sequence[str]) -> str:
    """The text of a test for pytest that fails as long as the script does.

    The test is skipped if one of ``modules``, which the script imports, is missing.
    """
    needed = "".join(f'pytest.importorskip("{module}")\n' for module in modules)
    imports = f"\nimport pytest\n\n{needed}" if needed else ""
    return _TEST.format(docstring=docstring(f"{title}: reproduce.py beside this file shows it."), imports=imports)
