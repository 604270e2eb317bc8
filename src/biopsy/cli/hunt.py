"""``biopsy hunt``: tries many models in several engines, and shows which distinct bugs that finds."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors, events
from biopsy.checks.words import as_word
from biopsy.cli import advice
from biopsy.cli.arguments import checks, engines, types
from biopsy.cli.arguments.declared import option
from biopsy.cli.arguments.engines import TensorrtOptions
from biopsy.cli.console import COLUMN, Console, headed
from biopsy.cli.debug import other_machines
from biopsy.cli.debug.checking import ended_politely
from biopsy.cli.progress import Progress, time_left
from biopsy.engines.registry import full_title
from biopsy.hunting.records import BUGS, JUDGED, NOT_JUDGED, PAGE, RESULT, Hunt
from biopsy.text import count, first_of, line_of, shortened

if TYPE_CHECKING:
    from biopsy.hunting.hunt import HuntChanges

EPILOG = """\
Every model runs in all engines, with the inputs that lie beside it (test_data_set_N, NAME.npz, .safetensors, .json, or
'inputs' for the only model of a folder), else with random ones. ONNX Runtime without its optimizer votes too, and where
they disagree, the reference evaluator. Differences of rounding, and another choice of equal values, count as
agreement. What no engine can be blamed for is counted apart: random operators, NaN of the model itself, operators that
an engine says it does not support. The smallest model of each kind of failure is diagnosed; failures with the same
smallest part are one bug.

examples:
  biopsy hunt models/ --onnxrt --openvino
  biopsy hunt models/ --engine onnxrt:release=1.20.1 --onnxrt       what changes with an upgrade
  biopsy hunt models/ --engine onnxrt:release=1.20.1 --onnxrt --slower 1.3      and what is slower
  biopsy hunt models/ --onnxrt --openvino --no-diagnosis --max-time 10m
  biopsy hunt models_hunt --against hunt-of-november                new, gone, still there

exit status: 0 everything was compared, and no bug was found; 1 there is a bug; 2 wrong usage; 4 no bug was found, but
not everything could be compared; 5 interrupted, or the time was over: the same command goes on. With --against: 0
nothing is new; 1 a bug is new or of another kind; 4 nothing is new, but an earlier bug could not be looked for"""

_MOST_BUGS = 12
_MOST_REFUTED = 3
_NO_DIAGNOSIS = "--no-diagnosis"


class HuntOptions(
    engines.EngineOptions,
    checks.BudgetOptions,
    checks.FreshOption,
    checks.EventsOption,
    other_machines.MachineOptions,
):
    """All options of ``hunt``."""

    places: Sequence[str] = option(
        nargs="+",
        type=types.READ_TEXT,
        metavar="MODELS",
        meaning="folders, which are searched to their bottom, files, and patterns such as 'zoo/*/model.onnx'",
    )
    dir: Path | None = option(
        "--dir",
        type=types.FOLDER_WRITTEN,
        metavar="DIR",
        meaning="the folder that keeps what was found; what it answers is not tried again (default: MODELS_hunt)",
    )
    per_bug: float = option(
        "--per-bug",
        type=types.duration,
        metavar="TIME",
        default=60.0,
        meaning="how long the diagnosis of each bug may take (default: 60s)",
    )
    diagnoses: bool = option(
        _NO_DIAGNOSIS,
        action="store_false",
        default=True,
        meaning="only try the models and group what fails; the same command without it goes on",
    )
    model_timeout: float = option(
        "--model-timeout",
        type=types.duration,
        metavar="TIME",
        default=60.0,
        meaning="how long each model may take in all engines; one that needs longer by itself hangs (default: 60s)",
    )
    model_memory: int | None = option(
        "--model-memory",
        type=types.byte_size,
        metavar="SIZE",
        meaning="how much memory each model may take in all engines, such as 4GB (default: by engines and model)",
    )
    slower: float | None = option(
        "--slower",
        type=types.ratio,
        metavar="TIMES",
        meaning="a model that takes at least this many times as long in the last engine as in the first, such as 1.3, "
        "has a bug, too; models in which both are right are timed one after the other, as biopsy run --slower does it",
    )
    larger: float | None = option(
        "--larger",
        type=types.ratio,
        metavar="TIMES",
        meaning="the same for the memory that it needs, such as 1.5, as biopsy run --larger measures it",
    )
    seed: int = option("--seed", type=types.count, default=1, meaning="the seed of random inputs (default: 1)")
    against: Path | None = option(
        "--against",
        type=types.FOLDER_READ,
        metavar="DIR",
        meaning="the folder of an earlier hunt: show what is new, gone and still there. MODELS may then be the folder "
        "of a hunt, which is only read",
    )
    words: Sequence[str] = ()

    @property
    def only_compares(self) -> bool:
        """Whether nothing is tried: two hunts are compared."""
        is_hunt = len(self.places) == 1 and (Path(self.places[0]) / RESULT).is_file()
        return self.against is not None and is_hunt and not self.names_engine

    @property
    def folder(self) -> Path:
        """The folder that keeps what was found."""
        stem = Path(self.places[0]).resolve().name.partition(".")[0].replace("*", "") or "models"
        return self.dir or Path(f"{stem}_hunt")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``hunt``."""
    HuntOptions.add(parser, only=["places"])
    engines.EngineOptions.add(parser, without=TensorrtOptions.declared, titles={"engines": "engines (repeatable)"})
    HuntOptions.add(parser.add_argument_group("samples"), only=["seed"])
    HuntOptions.add(parser.add_argument_group("cost"), only=["slower", "larger"])
    HuntOptions.add(
        parser.add_argument_group("time and memory"),
        only=["max_time", "per_bug", "diagnoses", "model_timeout", "model_memory", "jobs"],
        max_time="stop after this time (90s, 10m, 2h), and show what is known by then",
        jobs="try N models at once (default: one per processor; with --on: as many as have room)",
    )
    group = parser.add_argument_group("results")
    HuntOptions.add(group, only=["dir", "against"])
    checks.FreshOption.add(group, fresh="try everything again; the old journal is kept aside")
    checks.EventsOption.add(group)
    other_machines.MachineOptions.add(
        parser,
        on="try the models on a Ray cluster: the one that this machine is in, or a new one of this machine alone "
        "(ray), or another; models, weights and inputs are sent there. What fails is diagnosed here. ",
    )
    TensorrtOptions.add(parser)


@HuntOptions.reading
def derived_files(options: HuntOptions) -> types.Derived:
    """The folder of what is found, unless an option names it."""
    folder = None if options.dir or options.only_compares else options.folder
    return {"the folder of the hunt": (folder, types.FOLDER_WRITTEN)}


@HuntOptions.reading
def execute(options: HuntOptions, console: Console) -> int:
    """Hunt; returns 0 if nothing was found and everything compared, 1 for a bug, 4 if not everything was compared."""
    from biopsy.hunting.hunt import changes, hunt, read_hunt
    from biopsy.hunting.sweep import HuntQuestion, limits_of

    before = None if options.against is None else read_hunt(options.against)
    if before is not None and options.only_compares:
        return _say_changes(console, changes(read_hunt(Path(options.places[0])), before))
    question = HuntQuestion(
        places=options.places,
        engines=tuple(dict.fromkeys(spec.text for spec in options.specs())),
        folder=options.folder,
        seconds=options.model_timeout,
        memory=options.model_memory,
        per_bug=options.per_bug if options.diagnoses else 0.0,
        max_time=options.max_time,
        seed=options.seed,
        jobs=options.jobs,
        limits=limits_of(options.slower, options.larger),
        fresh=options.fresh,
    )
    with (
        ended_politely(),
        other_machines.joined(options, console) as machines,
        HuntProgress(console, options.events) as progress,
    ):
        found = hunt(question, progress, machines)
        changed = None if before is None else changes(found.as_json(), before)
        status = found.status if changed is None else changed.status
        progress.ended(errors.Interrupted.status if found.stopped else status)
    for line in summary(found, options.folder):
        console.say(line)
    if found.stopped:
        raise errors.Interrupted(
            "what is known so far is shown above",
            kept=f"{options.folder}, with what was found",
            resume=advice.resume_line(options.words, checks.REST_OPTIONS),
        )
    if changed is not None:
        return _say_changes(console, changed)
    advice.say_advice(console, [*_advice(found, options)])
    return status


def _advice(found: Hunt, options: HuntOptions) -> Iterator[advice.Advice]:
    """What to do next about the bugs."""
    if found.bugs and not options.diagnoses:
        words = [word for word in options.words if word != _NO_DIAGNOSIS]
        yield advice.Advice(advice.resume_line(words, checks.REST_OPTIONS), "what each bug is, and what avoids it")
    for number, bug in enumerate(found.bugs, 1):
        bundle = None if bug.examination is None else bug.examination.bundle
        if bundle is not None:
            line = f"{line_of(['cd', as_word(options.folder / bundle)])} && {line_of(['python', 'reproduce.py'])}"
            yield advice.Advice(line, f"show bug {number}")
            break
    page = line_of(["python", "-m", "webbrowser", as_word(options.folder / PAGE)])
    yield advice.Advice(page, "the page of all models and bugs")


def _say_changes(console: Console, found: HuntChanges) -> int:
    """Show what has changed since an earlier hunt; returns the exit status."""
    changed = [f"{name} ({then}, now {kind})" for name, (then, kind) in found.changed.items()]
    heads = {"new": found.new, "changed": changed, "gone": found.gone, "still": found.still, "open": found.open}
    for head, names in heads.items():
        console.say(headed(head, f"{len(names)}{': ' if names else ''}{first_of(names, _MOST_BUGS)}"))
    return found.status


_BETWEEN_LINES = 10.0  # seconds


class HuntProgress(Progress):
    """Shows what was found so far, and the time left, on the live line; without a terminal, now and then on a line."""

    def __init__(self, console: Console, log: Path | None) -> None:
        super().__init__(console, log)
        self._first: tuple[int, float] | None = None
        self._last_line = time.monotonic()

    def _update(self, head: str, text: str, done: float) -> None:
        self._live.update(head, text, done)
        if not self._live.is_wanted and time.monotonic() - self._last_line >= _BETWEEN_LINES:
            self._last_line = time.monotonic()
            self.line(head, text)

    def show(self, event: events.Event) -> None:
        """Show the counts by kind, and each bug that is examined."""
        match event:
            case events.ModelTried():
                now = time.monotonic()
                self._first = self._first or (event.done - 1, now)
                done, since = event.done - self._first[0], now - self._first[1]
                left = time_left(since / max(1, done - 1) * (event.total - event.done)) if done > 1 else ""
                counts = ", ".join(f"{number} {kind}" for kind, number in sorted(event.counts.items()))
                parts = [f"{event.done} of {event.total}", left, counts, event.model]
                self._update("models", " · ".join(filter(None, parts)), event.done / event.total)
            case events.StepStarted():
                text = f"{event.number} of {event.total} · {event.name}: {event.question}"
                self._update("bugs", text, (event.number - 1) / event.total)
            case events.Resumed():
                self.line("resumed", f"{count(event.runs, 'model')} remembered in {event.journal}; --fresh starts over")
            case _:
                super().show(event)


def summary(found: Hunt, folder: Path) -> Iterator[str]:
    """What was found, in at most 25 lines."""
    yield headed(
        "engines", ", ".join(f"{spec} ({text})" if text not in spec else spec for spec, text in found.engines.items())
    )
    left = f" · {found.left} not tried or measured yet" if found.left else ""
    yield headed("models", f"{len(found.models)} known · {found.seconds:.0f} s for this call{left}")
    for head, kinds in (("fail", BUGS), ("agree", JUDGED), ("unjudged", NOT_JUDGED)):
        counts = [f"{number} {kind}" for kind, number in found.counts.items() if kind in kinds]
        if counts:
            yield headed(head, ", ".join(counts))
    for bug in found.refuted[:_MOST_REFUTED]:
        sentence, _, _ = bug.text.partition(". ")
        yield headed("refuted", f"{', '.join(bug.models)} ({', '.join(bug.engines)}): {shortened(sentence, 220)}")
    if len(found.refuted) > _MOST_REFUTED:
        yield f"{'':<{COLUMN}} and {len(found.refuted) - _MOST_REFUTED} more, in {PAGE}"
    models = count(len({model for bug in found.bugs for model in bug.models}), "model")
    yield headed("bugs", f"{len(found.bugs)}, in {models}" if found.bugs else "none found")
    for number, bug in enumerate(found.bugs[:_MOST_BUGS], 1):
        sure = "" if bug.is_confirmed else " (not confirmed)"
        if bug.is_confirmed and bug.unconfirmed:
            sure = f" ({len(bug.unconfirmed)} of the models not confirmed)"
        head = f"{number:>{COLUMN}} {bug.kind:<8} {count(len(bug.models), 'model'):<10} {', '.join(bug.engines)}{sure}"
        sentence, _, _ = bug.text.partition(". ")
        if len(bug.engines) == 1:  # which has just been named
            title = full_title(bug.engines[0], found.engines.get(bug.engines[0], ""))
            sentence = sentence.removeprefix(f"{title[:1].upper()}{title[1:]} ")
        yield f"{head}: {shortened(sentence.removesuffix('.'), 150)}"
    if len(found.bugs) > _MOST_BUGS:
        yield f"{'':<{COLUMN}} and {len(found.bugs) - _MOST_BUGS} more"
    yield headed("written", f"{folder / PAGE} and {folder / RESULT}")
