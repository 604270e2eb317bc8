"""Files that a check reads: each run has its own, with the number and the inputs of its own model."""

import json
import sys
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Outcome
from biopsy.session.files import IterationFiles
from biopsy.session.trial import IDENTITY, ORIGINAL, VALUES
from support.session import Answers, Session, trial

COMPARES = """
import json, pathlib, sys, time
model, inputs, info = map(pathlib.Path, sys.argv[1:])
first = [path.read_bytes() for path in (model, inputs, info)]
time.sleep(0.05 * (model.read_text() in "ace"))
assert first == [path.read_bytes() for path in (model, inputs, info)]
assert inputs.read_bytes() == b"inputs of " + model.read_bytes()
with open("read.txt", "a") as stream:
    stream.write(f"{model.read_text()} {json.loads(info.read_text())['iteration']}\\n")
sys.exit(model.read_text() in "bd")
"""


def write_inputs(model: bytes, path: Path) -> None:
    path.write_bytes(b"inputs of " + model)


@pytest.fixture
def files(session: Session) -> IterationFiles:
    return IterationFiles(info=session.folder / "i.json", inputs=session.folder / "in.npz", write_inputs=write_inputs)


@pytest.fixture
def compares(session: Session, monkeypatch: pytest.MonkeyPatch) -> CommandCheck:
    """A check that fails loudly unless the files that it is told are those of its candidate, from begin to end."""
    monkeypatch.chdir(session.folder)
    (session.folder / "compares.py").write_text(COMPARES)
    places = [str(session.folder / name) for name in ("in.npz", "i.json")]
    return CommandCheck([sys.executable, "compares.py", "{}", *places], "candidate.onnx")


@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_each_run_reads_what_belongs_to_its_own_model(
    session: Session, compares: CommandCheck, files: IterationFiles, jobs: int
) -> None:
    oracle = session.oracle(compares, jobs=jobs, files=files)
    trials = [trial(name) for name in "abcdef"]
    found = []
    for number, each in enumerate(trials):
        oracle.ahead(iter(trials[number : number + 4]))
        found.append(oracle.judge(each).outcome)
    oracle.close()
    assert found == [Outcome.REPRODUCES if name in "bd" else Outcome.PASSES for name in "abcdef"]
    read = dict(line.split() for line in (session.folder / "read.txt").read_text().splitlines())
    assert len(set(read.values())) == 6
    assert json.loads((session.folder / "i.json").read_text()) == {"iteration": int(read["f"])}
    assert (session.folder / "in.npz").read_bytes() == b"inputs of f"
    assert sorted(path.name for path in session.folder.iterdir()) == ["compares.py", "i.json", "in.npz", "read.txt"]


def test_the_line_that_is_told_names_the_files_of_the_run(
    session: Session, compares: CommandCheck, files: IterationFiles
) -> None:
    oracle = session.oracle(compares, jobs=2, files=files)
    oracle.ahead(iter([trial("a"), trial("b")]))
    lines = [event.line for event in session.told]  # type: ignore[attr-defined]
    assert "/in.npz" in lines[0]
    assert "/in.1.npz" in lines[1]
    assert "/i.1.json" in lines[1]


def test_what_is_remembered_does_not_depend_on_the_place(compares: CommandCheck, session: Session) -> None:
    moved = compares.with_files({session.folder / "in.npz": session.folder / "in.3.npz"})
    assert moved.words != compares.words
    assert "in.3.npz" not in str(compares.settings)


def test_an_abandoned_run_takes_its_number_along(session: Session, files: IterationFiles) -> None:
    check = Answers(is_stoppable=True)
    check.hold("b")
    oracle = session.oracle(check, jobs=2, files=files)
    oracle.ahead(iter([trial("a"), trial("b")]))
    oracle.judge(trial("a"))
    oracle.pool.abandon_all()
    oracle.judge(trial("c"))
    assert json.loads((session.folder / "i.json").read_text()) == {"iteration": 2}


def test_a_probe_reads_the_number_of_the_iteration_before_it(session: Session, compares: CommandCheck) -> None:
    (session.folder / "compares.py").write_text("import sys; print(open(sys.argv[3]).read()); sys.exit(1)")
    oracle = session.oracle(compares, jobs=2, files=IterationFiles(info=session.folder / "i.json"))
    for number, probe in ((0, VALUES), (0, None), (0, VALUES), (1, None), (1, VALUES)):
        judged = oracle.again(trial("a", probe) if probe else trial("a"))
        assert json.loads(judged.evidence.output) == {"iteration": number}


def test_a_model_without_recorded_inputs_cannot_be_judged_and_an_original_ends_the_search(session: Session) -> None:
    def nothing(model: bytes, path: Path) -> None:
        raise errors.CannotCompare("no values are recorded")

    files = IterationFiles(inputs=session.folder / "in.npz", write_inputs=nothing)
    check = Answers()
    oracle = session.oracle(check, files=files)
    assert oracle.again(trial("a")).outcome is Outcome.INVALID
    assert oracle.again(trial("a", IDENTITY)).outcome is Outcome.INVALID
    with pytest.raises(errors.CannotCompare):
        oracle.again(trial("a", ORIGINAL))
    assert check.asked == []


def test_a_check_that_knows_a_file_by_heart_finds_it_in_every_place(session: Session, files: IterationFiles) -> None:
    oracle = session.oracle(Answers(is_stoppable=True), jobs=2, files=files)
    oracle.ahead(iter([trial("a"), trial("b")]))
    assert (session.folder / "in.npz").read_bytes() == b"inputs of b"
    assert not (session.folder / "in.1.npz").exists()


def test_a_model_whose_inputs_cannot_be_written_leaves_no_number_behind(session: Session) -> None:
    def only_of_a(model: bytes, path: Path) -> None:
        if model != b"a":
            raise errors.CannotCompare("no values are recorded")
        write_inputs(model, path)

    info, inputs = session.folder / "i.json", session.folder / "in.npz"
    files = IterationFiles(info=info, inputs=inputs, write_inputs=only_of_a)
    oracle = session.oracle(Answers(is_stoppable=True), jobs=2, files=files)
    oracle.judge(trial("a"))
    oracle.ahead(iter([trial("b")]))
    oracle.close()
    assert (json.loads(info.read_text()), inputs.read_bytes()) == ({"iteration": 0}, b"inputs of a")
