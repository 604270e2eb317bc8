"""A settings file that came with a folder runs nothing, installs nothing, reads nothing outside and writes nothing.

Each attack plants a file in the folder of a model, as whoever made the folder can. ``DONE`` shows of each that it is
one: a person who types the same gets what the attacker wants.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest

import biopsy
from biopsy import errors
from biopsy.checks import verdict
from biopsy.checks.warm import command_check
from biopsy.cli import settings
from biopsy.cli.app import main
from biopsy.cli.commands import COMMANDS
from biopsy.cli.console import Console
from biopsy.cli.parser import parser_of
from biopsy.cli.settings import TYPED_ONLY, applied
from biopsy.engines import registry
from biopsy.engines.base import Option
from biopsy.tensors.files import write_feeds
from support.models import FLOAT, info, model, save
from support.package_index import only_index
from support.plug_ins import install

SECRET = b"-----BEGIN OPENSSH PRIVATE KEY-----\n" + bytes(range(60))
CHECK = ("--check", "biopsy", "run", "{}")
OFFSET = "fake:offset.Add=0.5"

VICTIMS = {
    "run": ("run", "m.onnx"),
    "reduce": ("debug", "reduce", "m.onnx", "-o", "r.onnx", *CHECK),
    "precision": ("debug", "precision", "m.onnx", "-o", "p.onnx", *CHECK),
    "repeat": ("debug", "repeat", "--until", "2", "--check", "biopsy", "run", "m.onnx"),
    "flags": ("debug", "flags", "m.onnx", "--engine", "onnxrt", *CHECK),
    "known": ("debug", "known", "m.onnx", *CHECK),
    "transform": ("debug", "transform", "m.onnx", "--by", "onnxsim", *CHECK),
    "workaround": ("debug", "workaround", "m.onnx", *CHECK),
    "build": ("debug", "build", "m.onnx", "--until", "1", "--onnxrt", *CHECK),
    "layers": ("debug", "layers", "m.onnx", "--suspect", "onnxrt"),
    "diagnose": ("diagnose", "m.onnx", *CHECK),
    "extract": ("surgeon", "extract", "m.onnx", "-o", "e.onnx", "--outputs", "y:float32"),
    "sanitize": ("surgeon", "sanitize", "m.onnx", "-o", "s.onnx"),
    "lint": ("check", "lint", "m.onnx"),
}

ATTACKS = {
    "native code": "engines = ['trt:plugins=./evil.so']",
    "code of a plug-in": "engines = ['onnxrt', 'trusting:library=./evil.py']",
    "a release": "engines = 'onnxrt:release=1.20.1'",
    "a package beside it": "engines = 'onnxrt:with=evil'",
    "an interpreter": "engines = 'onnxrt:python=./evil'",
    "a session entry": "engines = 'onnxrt:config.session.profiling_file=evil'",
    "a provider's option": "engines = 'onnxrt:provider.openvino.cache_dir=evil'",
    "a profile": "engines = 'onnxrt:profile'",
    "a thousand threads": "engines = 'onnxrt:threads=50000'",
    "a cache": "engines = 'openvino:config.CACHE_DIR=evil'",
    "a timing cache": "engines = 'trt:save_timing_cache=evil'",
    "golden values": "engines = 'recorded:file=../outside/in.npz'",
    "options of nobody's engine": "engines = ' trt:plugins=./evil.so'",
    "a crash": "engines = 'fake:crash.Add=run'",
    "a script": "data-loader-script = 'evil.py'",
    "a comparison": "compare-func-script = 'evil.py'",
    "a check": "check = 'sh evil.sh'",
    "outputs": "save-outputs = 'evil.npz'",
    "a log": "log-file = 'evil'",
    "weights outside": "external-data-dir = '../outside'",
    "weights by an absolute path": "external-data-dir = '{outside}'",
    "weights on a detour": "external-data-dir = 'sub/../../outside'",
    "weights behind a link": "external-data-dir = 'link'",
    "inputs outside": "load-inputs = '../outside/in.npz'",
    "inputs by an absolute path": "load-inputs = ['fine.npz', '{outside}/in.npz']",
    "inputs behind a link": "load-inputs = 'link/in.npz'",
    "inputs that are a link": "load-inputs = 'link.npz'",
    "inputs of two names": "load-inputs = 'hard.npz'",
    "a folder of inputs": "load-inputs = 'sub'",
    "inputs without end": "iterations = 1000000000",
}
"""What a planted file says."""

DONE = {
    "code of a plug-in": (("run", "m.onnx", "--engine", "trusting:library=./evil.py"), "marker"),
    "a cache": (("run", "m.onnx", "--engine", "openvino:config.CACHE_DIR=evil"), "evil"),
    "a script": (("run", "m.onnx", "--onnxrt", "--data-loader-script", "evil.py"), "marker"),
    "a comparison": (("run", "m.onnx", "--onnxrt", "--reference", "--compare-func-script", "evil.py"), "marker"),
    "outputs": (("run", "m.onnx", "--onnxrt", "--save-outputs", "evil.npz"), "evil.npz"),
}
"""The words that a person types for the same, and what is there afterwards."""

TRUSTING = """
from pathlib import Path
from biopsy.engines.base import Option
from biopsy.engines.reference import Reference

class Trusting(Reference):
    name = "trusting"
    options_declared = (*Reference.options_declared, Option("library", "what it runs"))

    def build(self, model):
        if self.options["library"]:
            exec(Path(self.options["library"]).read_text())
        return super().build(model)
"""

NATIVE = '#include <stdio.h>\n__attribute__((constructor)) static void run(void) { fclose(fopen("marker", "w")); }\n'


@dataclass
class Clone:
    """The folder that a victim works in; what stood in it, and in the folder outside, before anything was run."""

    folder: Path
    outside: Path
    before: frozenset[str] = frozenset()

    def plant(self, text: str, name: str = "biopsy.toml") -> None:
        (self.folder / name).write_text(text.replace("{outside}", str(self.outside)) + "\n")
        self.before = frozenset(self.all())

    def all(self) -> Iterator[str]:
        for path in self.folder.parent.rglob("*"):
            yield f"{path} {path.stat().st_size if path.is_file() else ''}"


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    folder, outside = tmp_path / "clone", tmp_path / "outside"
    for each in (folder / "sub", outside):
        each.mkdir(parents=True)
    weights = onnx.TensorProto(name="w", data_type=onnx.TensorProto.UINT8, dims=[len(SECRET)], data_location=1)
    weights.external_data.add(key="location", value="id_ed25519")
    nodes = [onnx.helper.make_node("Add", ["x", "x"], ["y"], name="Add")]
    nodes += [onnx.helper.make_node("Cast", ["w"], ["z"], to=FLOAT)]
    made = model(nodes, [info("x", [2])], [info("y", [2]), info("z", [len(SECRET)])], [weights])
    save(made, folder / "weights.onnx")
    save(model(nodes[:1], [info("x", [2])], [info("y", [2])]), folder / "m.onnx")
    (outside / "id_ed25519").write_bytes(SECRET)
    for file in (outside / "in.npz", folder / "fine.npz"):
        write_feeds(file, [{"x": np.ones(2, np.float32)}])
    (folder / "link").symlink_to(outside)
    (folder / "link.npz").symlink_to(outside / "in.npz")
    os.link(outside / "in.npz", folder / "hard.npz")
    marks = (
        "open('marker', 'w').close()\ndef load_data():\n    yield from ()\ndef compare_outputs(a, b):\n    return {}\n"
    )
    (folder / "evil.py").write_text(marks)
    (folder / "evil.sh").write_text("touch marker\n")
    install(tmp_path / "site", "trusting", TRUSTING, "trusting = trusting:Trusting")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    monkeypatch.chdir(folder)
    return Clone(folder, outside)


CROSS_SECTION = {
    victim: [*ATTACKS] if victim == "run" else [*ATTACKS][place :: len(VICTIMS)] for place, victim in enumerate(VICTIMS)
}
"""Attacks that every quick run tries: all on ``run``, and each on one more command or two."""


@pytest.mark.parametrize(
    ("victim", "attacks"),
    [
        *(pytest.param(*item, id=item[0]) for item in CROSS_SECTION.items()),
        *(pytest.param(each, [*ATTACKS], id=f"{each}-all", marks=pytest.mark.slow) for each in VICTIMS),
    ],
)
def test_a_planted_setting_is_refused_before_anything_is_done(
    clone: Clone, victim: str, attacks: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for attack in attacks:
        text = ATTACKS[attack]
        clone.plant(text)
        status = main([*VICTIMS[victim]])
        shown = capsys.readouterr()
        assert (status, shown.out) == (2, ""), (attack, shown)
        assert "biopsy.toml came with its folder, and so it may not" in shown.err, attack
        assert text.partition(" ")[0] in shown.err, attack
        assert frozenset(clone.all()) == clone.before, attack


@pytest.mark.parametrize("attack", DONE)
def test_what_is_refused_would_have_worked(clone: Clone, attack: str) -> None:
    words, trace = DONE[attack]
    main([*words])
    assert (clone.folder / trace).exists()


@pytest.mark.skipif(not (shutil.which("cc") and find_spec("tensorrt_rtx")), reason="no compiler, or no TensorRT-RTX")
def test_a_library_beside_the_model_is_loaded_only_if_a_person_names_it(clone: Clone) -> None:
    (clone.folder / "evil.c").write_text(NATIVE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "evil.so", "evil.c"], cwd=clone.folder, check=True)
    clone.plant("engines = ['trt:plugins=./evil.so']")
    program, marker = str(Path(sys.executable).parent / "biopsy"), clone.folder / "marker"
    refused = subprocess.run([program, "run", "m.onnx"], capture_output=True, text=True, check=False)
    assert (refused.returncode, marker.exists()) == (2, False)
    line = "biopsy run m.onnx --engine trt:plugins=./evil.so"
    assert f"next  {line}    if you trust that\n" in refused.stderr
    subprocess.run([program, *line.split()[1:]], capture_output=True, check=False)
    assert marker.exists()


def test_a_key_outside_of_the_folder_is_not_copied_into_what_is_written(
    clone: Clone, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["surgeon", "extract", "weights.onnx", "-o", "e.onnx", "--outputs", "z:float32"]
    for text in ("../outside", str(clone.outside), "link", "sub/../../outside"):
        clone.plant(f"external-data-dir = {text!r}")
        assert main(words) == 2
        assert f"{text!r}" in capsys.readouterr().err
        assert not (clone.folder / "e.onnx").exists()
    (clone.folder / "biopsy.toml").unlink()
    assert main([*words, "--external-data-dir", "../outside"]) == 0
    assert SECRET in (clone.folder / "e.onnx").read_bytes()


def test_a_release_that_a_file_names_is_not_even_looked_for(
    clone: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone.plant("engines = 'onnxrt:release=1.20.1'")
    with only_index(tmp_path, monkeypatch) as index:
        assert main(["run", "m.onnx"]) == 2
        assert not index.asked
        main(["run", "m.onnx", "--engine", "onnxrt:release=1.20.1"])
        assert any("onnxruntime" in path for path in index.asked)


def test_a_settings_file_that_is_a_link_tells_nothing_of_what_stands_outside(
    clone: Clone, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone.outside / "secret.toml").write_text("save-outputs = 'hunter2'  # biopsy\n")
    for name in ("biopsy.toml", "pyproject.toml"):
        (clone.folder / name).symlink_to(clone.outside / "secret.toml")
        assert main(["run", "m.onnx", "--onnxrt"]) == 2
        shown = capsys.readouterr().err
        assert "is a link that leads out of" in shown
        assert "hunter2" not in shown
        (clone.folder / name).unlink()
    (clone.folder / ".git").mkdir()
    clone.plant("seed = 3")
    (clone.folder / "sub" / "biopsy.toml").symlink_to("../biopsy.toml")
    monkeypatch.chdir(clone.folder / "sub")
    assert main(["run", "../m.onnx", "--onnxrt"]) == 0


@pytest.mark.parametrize("attack", ["native code", "a script", "weights outside"])
def test_a_pyproject_up_to_the_root_is_trusted_no_more(
    clone: Clone, attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone.folder / ".git").mkdir()
    clone.plant(f"[tool.biopsy]\n{ATTACKS[attack]}", "pyproject.toml")
    monkeypatch.chdir(clone.folder / "sub")
    assert main(["run", "../m.onnx"]) == 2


def test_a_run_inside_of_a_check_of_another_program_follows_the_same_rules(
    clone: Clone, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Path(sys.executable).parent / "biopsy"
    (clone.folder / "check.sh").write_text(f"cd sub && {program} run ../m.onnx\n")
    (clone.folder / "sub" / "biopsy.toml").write_text("data-loader-script = '../evil.py'\n")
    assert main(["debug", "repeat", "--until", "1", "--check", "sh", "check.sh"]) == 4
    assert "could not be run: biopsy.toml came with its folder, and so it may not" in capsys.readouterr().err
    assert not list(clone.folder.rglob("marker"))


def test_a_person_who_types_the_option_goes_on(clone: Clone) -> None:
    clone.plant("engines = ['trt:plugins=./evil.so']")
    assert main(["run", "m.onnx", "--onnxrt"]) == 0
    assert main(["debug", "repeat", "--until", "1", "--check", "biopsy", "run", "m.onnx", "--onnxrt"]) == 0


def test_paths_below_the_folder_are_read(clone: Clone, capsys: pytest.CaptureFixture[str]) -> None:
    (clone.folder / "sub" / "id_ed25519").write_bytes(SECRET)
    (clone.folder / "inside").symlink_to(clone.folder / "sub")
    clone.plant("load-inputs = 'sub/../fine.npz'\nexternal-data-dir = 'inside'")
    assert main(["run", "weights.onnx", "--onnxrt"]) == 0
    assert "--load-inputs fine.npz --external-data-dir sub" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.words))
def test_every_option_that_is_not_on_the_list_is_refused(clone: Clone, command: object) -> None:
    parser = parser_of("biopsy", command)
    options = {
        option
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--") and parser.has_option(option)
    }
    if not any(parser.has_option(f"--{key}") for key in settings.shared_keys()):
        pytest.skip("it takes nothing that a project may give, and so looks for no project's file")
    keys = {option[2:] for option in options} - {*settings.shared_keys()}
    clone.plant("\n".join(f"'{key}' = 'x'" for key in keys))
    with pytest.raises(errors.UsageError) as refusal:
        applied("biopsy", command, [], "--check", None)
    assert {*re.findall(r"may not give ([^\s;]+)", refusal.value.message)} == keys


HARMLESS = {
    "onnxrt": {"optimization", "disabled_optimizers", "execution"},
    "reference": {"float64"},
    "openvino": {"precision"},
    "trt": {
        "fp16", "bf16", "fp8", "int8", "tf32", "strongly_typed", "min_shapes", "opt_shapes", "max_shapes",
        "optimization",
    },
    "recorded": set(),
    "fake": set(),
}  # fmt: skip


def test_no_engine_has_more_harmless_options_than_somebody_thought_about() -> None:
    found = {name: registry.find_class(name).options_declared for name in registry.BUILT_IN}
    assert {name: {one.name for one in declared if one.harmless} for name, declared in found.items()} == HARMLESS
    assert not Option("new", "what a new option does").harmless


# Verdicts


@pytest.mark.parametrize(
    ("engine", "verdict"), [(OFFSET, "PASSED"), ("fake:offset.Add=1e12", "FAILED")], ids=["passes", "fails"]
)
def test_a_verdict_names_the_tolerance_that_a_file_gave(
    clone: Clone, capsys: pytest.CaptureFixture[str], engine: str, verdict: str
) -> None:
    clone.plant("atol = 1e9")
    status = main(["run", "m.onnx", "--onnxrt", "--engine", engine, "--report", "report.json"])
    assert status == (verdict == "FAILED")
    assert f"\n{verdict}, with atol=1e9 of biopsy.toml | " in capsys.readouterr().out
    report = clone.folder / "report.json"
    assert json.loads(report.read_text())["verdict"]["settings"] == "atol=1e9 of biopsy.toml"
    assert main(["report", "report.json", "-o", "page.html"]) == 0
    assert "With settings of files:</strong> atol=1e9 of biopsy.toml" in (clone.folder / "page.html").read_text()


def test_a_tolerance_said_with_a_verdict_on_stderr_is_not_said_again(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.basis.own = "atol=1e9 of biopsy.toml"
    console.on_stderr().say("PASSED | 1 output compared")
    console.on_stderr().say_basis()
    assert capsys.readouterr().err == "PASSED, with atol=1e9 of biopsy.toml | 1 output compared\n"


@pytest.mark.slow
def test_a_diagnosis_as_json_names_its_tolerance_once(clone: Clone, capsys: pytest.CaptureFixture[str]) -> None:
    clone.plant("atol = 1e9")
    assert main(["diagnose", "m.onnx", "--engine", OFFSET, "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("with atol=1e9 of biopsy.toml") == 1
    assert json.loads(shown.out)["verdict"]["settings"] == "atol=1e9 of biopsy.toml"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        pytest.param(
            ("debug", "reduce", "m.onnx", "-o", "r.onnx", *CHECK, "--onnxrt", "--engine", OFFSET),
            3,
            marks=pytest.mark.slow,
        ),
        (("debug", "repeat", "--until", "1", "--check", "biopsy", "run", "m.onnx", "--onnxrt", "--engine", OFFSET), 0),
        (("debug", "known", "m.onnx", *CHECK, "--onnxrt", "--engine", OFFSET), 3),
        pytest.param(("debug", "workaround", "m.onnx", "--engine", OFFSET), 3, marks=pytest.mark.slow),
        pytest.param(("diagnose", "m.onnx", "--engine", OFFSET), 0, marks=pytest.mark.slow),
        (("debug", "layers", "m.onnx", "--suspect", OFFSET), 0),
    ],
    ids=lambda words: "-".join(words[:2]) if isinstance(words, tuple) else words,
)
def test_a_search_says_which_tolerance_of_a_file_its_check_had(
    clone: Clone, words: tuple[str, ...], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    clone.plant("atol = 1e9")
    assert main([*words]) == status
    shown = capsys.readouterr().out.rstrip().splitlines()
    assert any(
        line.endswith("with atol=1e9 of biopsy.toml") or ", with atol=1e9 of biopsy.toml |" in line for line in shown
    )


def test_a_tolerance_that_is_typed_is_nobody_elses(clone: Clone, capsys: pytest.CaptureFixture[str]) -> None:
    clone.plant("atol = 1e9")
    assert main(["run", "m.onnx", "--onnxrt", "--engine", OFFSET, "--atol", "1e-5"]) == 1
    assert "\nFAILED | " in capsys.readouterr().out


def test_everything_that_a_project_may_say_is_named_in_a_verdict_unless_it_is_stricter(clone: Clone) -> None:
    run = next(command for command in COMMANDS if command.words == ("run",))
    for key in {*settings.shared_keys()} - {"validate"}:
        clone.plant(f"{key} = '1'")
        assert applied("biopsy", run, ["m.onnx"], "--check", None).basis == f"{key}=1 of biopsy.toml"


@pytest.mark.parametrize("how", ["warm", "cold", "portable"])
def test_a_check_of_ours_reads_no_settings_file_of_its_own(clone: Clone, how: str) -> None:
    clone.plant("atol = 1e9")
    words = ["biopsy", "run", "{}", "--onnxrt", "--engine", OFFSET]
    check = command_check(words, "m.onnx")
    if how == "portable":
        check = pickle.loads(pickle.dumps(check))
    try:
        if how == "cold":
            check.foresee_cold()
            check = check.cold()
        evidence = check.run(Path("m.onnx"))
    finally:
        check.close()
    assert (evidence.status, evidence.verdict.kind) == (1, "mismatch"), evidence.output


def test_a_python_function_finds_the_failure_that_a_settings_file_would_hide(clone: Clone) -> None:
    clone.plant("atol = 1e9")
    biopsy.reduce("m.onnx", check=["biopsy", "run", "{}", "--onnxrt", "--engine", OFFSET], output="p.onnx")
    assert (clone.folder / "p.onnx").exists()


def test_somebody_may_say_that_no_settings_file_is_read(
    clone: Clone, monkeypatch: pytest.MonkeyPatch, own: Path
) -> None:
    own.write_text("rtol = 1e9")
    clone.plant("atol = 1e9")
    monkeypatch.setenv("BIOPSY_SETTINGS", "none")
    assert main(["run", "m.onnx", "--onnxrt", "--engine", OFFSET]) == 1


SCRIPT = f'{Path(sys.executable).parent / "biopsy"} run "$1" --onnxrt --engine {OFFSET}\n'
SAID = "with atol=1e9 of biopsy.toml, in the check"


@pytest.mark.parametrize(
    ("line", "words", "status"),
    [
        (SCRIPT, ("repeat", "--until", "1"), 0),
        (f"! {SCRIPT}", ("repeat", "--until", "1"), 0),
        (SCRIPT, ("known", "m.onnx"), 3),
    ],
    ids=["repeat", "turned round", "known"],
)
def test_a_search_names_the_settings_of_a_run_inside_of_its_check(
    clone: Clone, line: str, words: tuple[str, ...], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (clone.folder / "check.sh").write_text(line)
    clone.plant("atol = 1e9")
    assert main(["debug", *words, "--report", "r.json", "--check", "sh", "check.sh", "m.onnx"]) == status
    assert f"result     {SAID}" in capsys.readouterr().out.splitlines()
    assert SAID.removeprefix("with ") == json.loads((clone.folder / "r.json").read_text())["verdict"]["settings"]


def test_an_original_that_passes_says_which_settings_its_check_had(clone: Clone) -> None:
    (clone.folder / "check.sh").write_text("""echo '{"settings": ["atol=1e9 of biopsy.toml"]}' > "$BIOPSY_VERDICT"\n""")
    with pytest.raises(errors.OriginalPasses, match=r"exit status 0, with atol=1e9 of biopsy\.toml"):
        biopsy.reduce("m.onnx", check=["sh", "check.sh", "{}"], output="p.onnx")


def test_settings_of_a_run_stay_told_when_another_run_follows(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    told = clone.folder.parent / "verdict.json"
    monkeypatch.setenv("BIOPSY_VERDICT", str(told))
    clone.plant("atol = 1e9")
    assert main(["run", "m.onnx", "--onnxrt", "--engine", OFFSET]) == 0
    assert main(["run", "m.onnx", "--onnxrt", "--engine", OFFSET, "--atol", "1e-5"]) == 1
    said = verdict.read(told)
    assert (said.outcome, said.settings) == ("fails", ("atol=1e9 of biopsy.toml",))


@pytest.mark.parametrize(
    ("key", "loose", "strict"),
    [("atol", "1e9", "1e-5"), ("cosine", "-1", "0.999"), ("check-error-stat", "median", "max")],
)
def test_the_value_that_loosens_most_is_named_however_many_there_are(
    clone: Clone, key: str, loose: str, strict: str
) -> None:
    values = [f"output_{number}:{loose if number == 30 else strict}" for number in range(60)]
    clone.plant(f"engines = {['onnxrt'] * 100}\n{key} = {values}")
    run = next(command for command in COMMANDS if command.words == ("run",))
    proviso = applied("biopsy", run, ["m.onnx"], "--check", None).basis
    assert f"output_30:{loose}" in proviso[:200]
    assert "output_0:" in proviso
    assert " and 58 no looser, engines=" in proviso


def test_a_long_name_hides_no_number(clone: Clone) -> None:
    name, number = "o" * 3000, "9" * 200
    clone.plant(f"atol = ['{name}:{number}', 'p:{'0' * 300}1e-5']")
    run = next(command for command in COMMANDS if command.words == ("run",))
    assert ":1e+200' p:1e-05 of biopsy.toml" in applied("biopsy", run, ["m.onnx"], "--check", None).basis


@pytest.mark.slow
def test_the_text_of_an_issue_names_the_settings_of_the_check(clone: Clone) -> None:
    clone.plant("atol = 1e-3")
    words = ("debug", "reduce", "m.onnx", "-o", "r.onnx", "--bundle", "b", *CHECK, "--onnxrt", "--engine", OFFSET)
    main([*words])
    assert "that a settings file gave: `atol=1e-3 of biopsy.toml`" in (clone.folder / "b" / "ISSUE.md").read_text()


# The user's own file


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "config" / "biopsy" / "config.toml"
    path.parent.mkdir(parents=True, mode=0o700)
    return path


def test_a_users_own_file_may_say_everything(clone: Clone, own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own.write_text("engines = ['onnxrt', 'trusting:library=./evil.py']\natol = 1e9\nsave-outputs = 'o.npz'\njobs = 2\n")
    assert main(["run", "m.onnx"]) == 0
    assert (clone.folder / "marker").exists()
    assert (clone.folder / "o.npz").exists()
    assert f"PASSED, with atol=1e9, engines=onnxrt trusting:library=./evil.py of {own} | " in capsys.readouterr().out


def test_what_is_typed_counts_more_than_the_project_and_that_more_than_the_user(
    clone: Clone, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own.write_text("atol = 1e-1\nrtol = 1e-2\nseed = 3\n")
    clone.plant("rtol = 1e-3\nseed = 4")
    assert main(["run", "m.onnx", "--onnxrt", "--reference", "--seed", "5"]) == 0
    shown = capsys.readouterr().out
    assert "settings   biopsy.toml: --rtol 1e-3\n" in shown
    assert f"settings   {own}: --atol 1e-1\n" in shown
    assert f"PASSED, with rtol=1e-3 of biopsy.toml, atol=1e-1 of {own} | " in shown


def test_a_users_own_setting_that_no_command_has_is_told(
    clone: Clone, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for key in ("atoll", *(option[2:] for option in TYPED_ONLY if option.startswith("--"))):
        own.write_text(f"{key} = 'x'\n")
        assert main(["run", "m.onnx", "--onnxrt"]) == 2
        assert f"there is no setting '{key}'" in capsys.readouterr().err
    own.write_text("jobs = 4\nfrobnicate = 'x'\n")
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "  jobs  4\n" in shown
    assert "  frobnicate  x    is not followed: no command has such an option\n" in shown


def test_a_setting_of_another_command_imports_nothing(own: Path) -> None:
    code = "import sys; from biopsy.cli.app import main; main(['inspect', 'model', 'm']); print(*sys.modules)"
    imported = []
    for text in ("", "jobs = 4\n"):
        own.write_text(text)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        imported.append({name for name in done.stdout.split() if name.startswith("biopsy.")})
    assert imported[0] == imported[1]
    assert "biopsy.cli.settings" in imported[0]


@pytest.mark.parametrize("place", ["file", "folder"])
def test_a_users_own_file_that_others_may_write_is_not_followed(
    clone: Clone, own: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own.write_text("seed = 1\n")
    (own if place == "file" else own.parent).chmod(0o777)
    assert main(["run", "m.onnx", "--onnxrt"]) == 2
    assert "others may write to" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("place", ["file", "folder"])
def test_a_users_own_file_that_is_somebody_elses_is_not_followed(clone: Clone, own: Path, place: str) -> None:
    own.write_text("seed = 1\n")
    os.chown(own if place == "file" else own.parent, 12345, 12345)
    with pytest.raises(errors.UsageError, match="belongs to another user"):
        settings.of_user()


def test_a_config_home_that_is_no_absolute_path_is_not_looked_at(
    clone: Clone, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (clone.folder / "biopsy").mkdir()
    (clone.folder / "biopsy" / "config.toml").write_text("save-outputs = 'o.npz'\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", ".")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["run", "m.onnx", "--onnxrt"]) == 0
    assert not (clone.folder / "o.npz").exists()
