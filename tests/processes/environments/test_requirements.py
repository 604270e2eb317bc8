"""What is asked for: spelled in any way and order, it is the same."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy import errors
from biopsy.processes.environments.interpreter import Interpreter, parsed, pinned
from biopsy.processes.environments.prepared import Plan
from biopsy.text import normalized

HERE = Interpreter(path=Path("/usr/bin/python3"), version="3.11.7", tags=())
names = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,8}([-_.]{1,2}[A-Za-z0-9]{1,4}){0,2}", fullmatch=True)
versions = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda parts: f"{parts[0]}.{parts[1]}")
requirements = st.tuples(names, st.sampled_from(["==", "<", ">=", "~="]), versions).map("".join)


def key(asked: list[str]) -> str:
    return Plan(wanted=parsed(asked), interpreter=HERE).key


@given(st.lists(requirements, min_size=1, max_size=5))
def test_order_blanks_and_repetition_do_not_matter(asked: list[str]) -> None:
    other = [f" {text} " for text in reversed(asked)] + asked[:1]
    assert parsed(other) == parsed(asked)
    assert key(other) == key(asked)


@given(names)
def test_a_name_is_the_same_in_all_its_spellings(name: str) -> None:
    spelled = name.upper().replace("-", "_").replace(".", "-")
    assert normalized(spelled) == normalized(name) == normalized(normalized(name))


@given(names)
def test_the_name_of_an_environment_is_that_of_one_of_ours(name: str) -> None:
    from biopsy.processes.environments.cache import _OURS

    assert _OURS.fullmatch(key([name]))


def test_another_python_is_another_environment() -> None:
    wanted = parsed(["bolt==1.0"])
    other = Interpreter(path=HERE.path, version="3.11.8", tags=())
    assert Plan(wanted=wanted, interpreter=HERE).key != Plan(wanted=wanted, interpreter=other).key


@pytest.mark.parametrize(
    ("text", "version"),
    [("bolt==1.0", "1.0"), ("bolt===1.0", "1.0"), ("bolt==1.*", None), ("bolt>=1", None), ("bolt==1,<2", None)],
)
def test_a_requirement_is_pinned_by_one_version(text: str, version: str | None) -> None:
    (wanted,) = parsed([text])
    assert (None if (found := pinned(wanted)) is None else str(found)) == version


@pytest.mark.parametrize("text", ["bolt==", "bolt 1.0", "--index-url=x", "bolt; rm -rf", "\x1b[2J"])
def test_what_is_none_is_named_in_one_line(text: str) -> None:
    with pytest.raises(errors.UsageError) as caught:
        parsed([text])
    assert caught.value.message.isprintable()
