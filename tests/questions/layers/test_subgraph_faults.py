"""When two subgraphs are wrong in the same way."""

import pytest

from biopsy.questions.layers.findings import Failure
from biopsy.questions.layers.groups import SubgraphFault


def failing(message: str, kind: str = "Error") -> SubgraphFault:
    return SubgraphFault(failure=Failure("load", kind, message))


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("no kernel for 'a'", "no kernel for 'b'", True),
        ("refused:\n- Add: f16\n- Mul: f16", "refused:\n- Mul: f16", True),
        ("refused:\n- Add: f16", "refused:\n- Mul: f16", False),
        ("refused operations: Add, Mul", "refused operations: Mul", True),
        ("out of memory", "no kernel", False),
    ],
)
def test_subgraphs_fail_alike_as_in_a_reduction_if_their_messages_have_an_item_in_common(
    one: str, other: str, alike: bool
) -> None:
    assert failing(one).is_like(failing(other)) is alike


def test_what_a_dying_process_printed_does_not_matter() -> None:
    assert failing("core dumped", "SIGSEGV").is_like(failing("Aborted", "SIGSEGV"))
    assert not failing("", "SIGSEGV").is_like(failing("", "SIGABRT"))
    assert not failing("", "SIGSEGV").is_like(SubgraphFault())
