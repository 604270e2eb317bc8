"""How lines come out: one line each, escaped, cut where they would flood; colours only where they belong."""

import io
from collections.abc import Iterator

import pytest

from biopsy import errors
from biopsy.cli.console import Console
from biopsy.cli.progress import say_output
from biopsy.text import first_line, printable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(params=[io.StringIO, Terminal], ids=["file", "terminal"])
def stream(request, monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    return request.param()


def quoted(output: bytes, stream: io.StringIO) -> str:
    say_output(Console(stream, stream), output, whole=True)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain 'Ünïcode' 名前 é", "plain 'Ünïcode' 名前 é"),
        ("\x1b]0;x\x07", "\\x1b]0;x\\x07"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\u202e\u2066\u200f\u061c\ufeff\u200b", "\\u202e\\u2066\\u200f\\u061c\\ufeff\\u200b"),
        ("\u2028\u2029\x85\x9b\x7f", "\\u2028\\u2029\\x85\\x9b\\x7f"),
        ("\udc80\U000e0041", "\\udc80\\U000e0041"),
    ],
)
def test_what_is_not_printable_is_seen(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert shown.isprintable()


def test_a_line_stays_one_line(stream: io.StringIO) -> None:
    console = Console(stream, stream)
    console.say("a\nerror: forged", "b")
    console.note("c\nerror: forged")
    console.warn("d", "e\nerror: forged")
    assert not [line for line in stream.getvalue().split("\n") if line.startswith("error")]
    assert len(stream.getvalue().splitlines()) == 5


def test_what_others_printed_in_a_message_stands_behind_a_bar(stream: io.StringIO) -> None:
    failure = errors.EngineFailure("it said\nerror: forged\n  next  forged", engine="e", stage="run", kind="k")
    Console(stream, stream).failure(failure)
    assert stream.getvalue().split("\n")[1:] == ["  | error: forged", "  |   next  forged", ""]


def test_a_newline_in_the_name_of_a_file_is_escaped(stream: io.StringIO) -> None:
    Console(stream, stream).failure(errors.UsageError("there is no model a\nb", next_steps=["c\nd"], kept="e\nf"))
    assert stream.getvalue().split("\n")[1:] == ["  kept  e\\nf", "  next  c\\nd", ""]


def test_lines_of_our_own_stand_as_they_are(stream: io.StringIO) -> None:
    error = errors.CheckError("it fails", details=["  tried   x\ny"])
    assert error.message == "it fails\n  tried   x\ny"
    Console(stream, stream).failure(error)
    assert stream.getvalue().split("\n")[1:] == ["  tried   x\\ny", ""]


def test_colours_of_a_check_stay_on_a_terminal_alone_and_end_with_the_line() -> None:
    output = b"\x1b[1;31mred\x1b[0m \x1b[32mgreen \x1b[2J\x1b]8;;x\x07\nplain\n"
    assert quoted(output, Terminal()) == (
        "  | \x1b[1;31mred\x1b[0m \x1b[32mgreen \\x1b[2J\\x1b]8;;x\\x07\x1b[0m\n  | plain\n"
    )
    assert quoted(output, io.StringIO()) == "  | red green \\x1b[2J\\x1b]8;;x\\x07\n  | plain\n"


def test_no_color_takes_the_colours_of_a_check_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert quoted(b"\x1b[31mred", Terminal()) == "  | red\n"


@pytest.mark.slow
def test_a_name_of_megabytes_does_not_flood_and_is_whole_with_v() -> None:
    name = "n" * 10_000_000
    stream = Terminal()
    console = Console(stream, stream)
    console.say(f"layer {name} of")
    console.warn(f"the name {name} is odd")
    console.failure(errors.ModelError(f"the node {name} is damaged", next_steps=[f"rm {name}"]))
    shown = stream.getvalue()
    assert len(shown) < 20_000
    assert "is damaged" in shown
    assert "  next  a line of 10000003 characters, shown with -v" in shown
    console.verbosity = 1
    console.say(name)
    assert name in stream.getvalue()


def test_a_message_of_a_million_lines_does_not_flood() -> None:
    stream = io.StringIO()
    Console(stream, stream).failure(errors.CheckError("x\n" * 1_000_000))
    assert len(stream.getvalue().splitlines()) < 50
    assert "more lines, shown with -v" in stream.getvalue()


def test_results_in_a_file_are_whole() -> None:
    stream = io.StringIO()
    Console(stream, stream).say("n" * 100_000)
    assert stream.getvalue() == "n" * 100_000 + "\n"


def test_a_message_without_words_has_no_first_line() -> None:
    assert (first_line(""), first_line("\n \n a\nb")) == ("", "a")
