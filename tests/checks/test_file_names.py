"""Files that the words of a command name: what is found, what another file can stand for, and what can not."""

from pathlib import Path

import pytest

from biopsy.checks.words import is_named, names_undone, with_files

FILE, OTHER = Path("in.npz"), Path("in.1.npz")


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("in.npz", "in.1.npz"),
        ("./in.npz", "in.1.npz"),
        ("--load-inputs=in.npz", "--load-inputs=in.1.npz"),
        ("--load-inputs=./in.npz", "--load-inputs=in.1.npz"),
        ("python c.py {} in.npz && exit 1", "python c.py {} in.1.npz && exit 1"),
        ("python c.py <in.npz", "python c.py <in.1.npz"),
        ("cat './in.npz' in.npz; true", "cat 'in.1.npz' in.1.npz; true"),
        ("x = open('in.npz')", "x = open('in.1.npz')"),
    ],
)
def test_a_file_is_named_as_a_word_or_in_one(word: str, told: str) -> None:
    words = ("sh", "-c", word)
    assert is_named(FILE, words)
    assert with_files(words, {FILE: OTHER}) == ("sh", "-c", told)


@pytest.mark.parametrize(
    "word", ["main.npz", "in.npz.bak", "other/in.npz", "/in.npz", "-in.npz", "$HOME/in.npz", "${X}in.npz", "in_npz", ""]
)
def test_what_only_looks_like_it_stays_as_it_is(word: str) -> None:
    assert with_files((word,), {FILE: OTHER}) == (word,)
    assert not is_named(FILE, (word,))


@pytest.mark.parametrize("word", ["$PWD/in.npz", "../here/in.npz", "cat ${DATA}in.npz"])
def test_a_file_that_is_also_spoken_of_otherwise_is_not_named(word: str) -> None:
    """What stands behind a variable would be a file of another run."""
    assert not is_named(FILE, ("python", "c.py", "in.npz", word))


def test_a_path_that_a_shell_would_quote_is_named_by_whole_words_only() -> None:
    path, other = Path("my in.npz"), Path("my in.1.npz")
    assert with_files(("my in.npz", "cat 'my in.npz'"), {path: other}) == ("my in.1.npz", "cat 'my in.npz'")
    assert not is_named(path, ("cat 'my in.npz'",))


def test_several_files_are_replaced_at_once() -> None:
    """One may have the name that another one gets."""
    files = {Path("a.json"): Path("a.1.json"), Path("a.1.json"): Path("a.1.1.json")}
    assert with_files(("a.json", "cat a.json a.1.json"), files) == ("a.1.json", "cat a.1.json a.1.1.json")


def test_a_name_like_an_option_is_no_option() -> None:
    assert with_files(("-in.npz",), {Path("-in.npz"): Path("-in.1.npz")}) == ("./-in.1.npz",)


@pytest.mark.parametrize("text", ["cannot read {}", "/a/b/{}: damaged", "{}.", "'{}'", "{} and {}"])
def test_what_a_program_says_is_the_same_in_every_place(text: str) -> None:
    said = text.replace("{}", "in.1.npz")
    assert names_undone(said, {FILE: OTHER}) == text.replace("{}", "in.npz")
    assert names_undone(said.encode(), {FILE: OTHER}) == text.replace("{}", "in.npz").encode()


@pytest.mark.parametrize("text", ["main.1.npz", "in.1.npz_old", "in.11.npz"])
def test_other_names_in_what_a_program_says_stay(text: str) -> None:
    assert names_undone(text, {FILE: OTHER}) == text
