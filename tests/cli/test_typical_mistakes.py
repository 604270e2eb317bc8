"""Typical mistakes at a terminal: the command as it is typed, all that it shows, and its status."""

import gzip
from pathlib import Path

import onnx
import pytest

from support.models import save, seeds_example
from support.pseudo_terminal import seen, settled

ERROR = "\x1b[31merror: \x1b[0m"

COULD_NOT = f"{ERROR}the check could not be run: "
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 12345\n"
OTHER = '<ir_version: 9, opset_import: ["" : 17]> other (float[2] p) => (float[2] q) { q = Abs (p) }'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    save(seeds_example(), folder / "model.onnx")
    onnx.save(onnx.parser.parse_model(OTHER), folder / "other.onnx")
    (folder / "pointer.onnx").write_text(POINTER)
    (folder / "page.onnx").write_text("<!DOCTYPE html>\n<html><body>Not found</body></html>\n")
    (folder / "packed.onnx").write_bytes(gzip.compress((folder / "model.onnx").read_bytes()))
    (folder / "check.sh").write_text("exit 1\n")
    assert seen("run other.onnx --reference --save-outputs golden.json", folder)[1] == 0
    return folder


MODEL = "model      model.onnx · 5 nodes · opset 17 · 2 inputs, 1 output ·\n           8 bytes of weights\n"

TRANSCRIPTS = {
    "two models": (
        "run model.onnx other.onnx --onnxrt",
        f"""\
{ERROR}biopsy run takes one MODEL: what is 'other.onnx'?
  next  biopsy run --help
""",
        2,
    ),
    "a command is mistyped": (
        "debug redcue model.onnx",
        f"""\
{ERROR}there is no command 'debug redcue'
  hint  did you mean 'debug reduce'?
  next  biopsy debug --help
""",
        2,
    ),
    "the group of a command is forgotten": (
        "reduce model.onnx",
        f"""\
{ERROR}there is no command 'reduce'
  hint  did you mean 'debug reduce'?
  next  biopsy --help
""",
        2,
    ),
    "an option is mistyped": (
        "run model.onnx --onxrt",
        f"""\
{ERROR}unrecognized arguments: --onxrt
  hint  did you mean '--onnxrt'?
  next  biopsy run --help
""",
        2,
    ),
    "a value is mistyped": (
        "debug reduce model.onnx --mode bisct --check ./check.sh {}",
        f"""\
{ERROR}--mode bisct: it must be one of minimal, bisect, linear
  hint  did you mean 'bisect'?
  next  biopsy debug reduce --help
""",
        2,
    ),
    "a file is mistyped": (
        "run modle.onnx --onnxrt",
        f"""\
{ERROR}there is no model modle.onnx
  hint  did you mean 'model.onnx'?
""",
        2,
    ),
    "an engine is mistyped": (
        "run model.onnx --engine onxrt",
        f"""\
{ERROR}there is no engine 'onxrt'; known here: onnxrt, reference, openvino, trt,
  recorded, fake
  hint  did you mean 'onnxrt'?
  next  biopsy doctor    shows the engines that work here
""",
        2,
    ),
    "a check stands in quotes": (
        "debug reduce model.onnx -o r.onnx --check 'biopsy run {} --onnxrt'",
        f"""\
{MODEL}{COULD_NOT}there is no program 'biopsy run {{}} --onnxrt':
  quotes make one word of a command
  next  remove the quotes: --check biopsy run {{}} --onnxrt
  next  for a shell: --check bash -c 'biopsy run {{}} --onnxrt'
""",
        4,
    ),
    "a script has no first line that says what reads it": (
        "debug reduce model.onnx -o r.onnx --check ./check.sh {}",
        f"""\
{MODEL}{COULD_NOT}'./check.sh' has no #! line, so no program
  can read it
  next  --check bash ./check.sh {{}}
""",
        4,
    ),
    "a model was never fetched": (
        "run pointer.onnx --onnxrt",
        f"""\
{ERROR}the file pointer.onnx is not an ONNX model: it is a pointer of Git LFS;
  the model (12345 bytes) was not fetched
  next  git lfs pull -I pointer.onnx
""",
        4,
    ),
    "golden values are of another model": (
        "-q run model.onnx --reference --load-outputs golden.json",
        f"""\
{ERROR}there is nothing to compare: reference has 'out', golden.json has 'q'
no name is in both: these values are of another model, or of other tensors of
  this one
  next  biopsy inspect data FILE    and    biopsy inspect model MODEL    show
                                    the names of both
  next  if they are of this model: save them with --onnx-outputs mark all, so
        that every tensor is among them
""",
        4,
    ),
    "an option for the search stands behind the check": (
        "debug reduce model.onnx -o r.onnx --check biopsy run {} --onnxrt --max-checks 3",
        f"""\
{ERROR}--max-checks is not an option of run: it belongs to debug reduce, and
  everything after --check goes to the check
  next  write --max-checks before --check
""",
        2,
    ),
    "a web page was downloaded in place of a model": (
        "inspect model page.onnx",
        f"""\
{ERROR}the file page.onnx is not an ONNX model: it is a web page
  next  download the file itself, not the page that shows it (on GitHub: the
        link 'Raw')
""",
        4,
    ),
    "a model is still packed": (
        "debug reduce packed.onnx --check bash check.sh {}",
        f"""\
{ERROR}the file packed.onnx is not an ONNX model: it is compressed with gzip
  next  gunzip -c -- packed.onnx > model.onnx
""",
        4,
    ),
}


@pytest.mark.parametrize("mistake", TRANSCRIPTS)
def test_a_typical_mistake_is_answered_with_its_cause_and_what_to_type(mistake: str, folder: Path):
    words, expected, expected_status = TRANSCRIPTS[mistake]
    shown, status = seen(words, folder)
    assert (settled(shown), status) == (expected, expected_status)
