from biopsy.reduction.passes.removal import inputs
from support.models import chain, info
from support.passes import assert_valid, run_pass


def test_unread_inputs_are_removed_at_once() -> None:
    made = chain(1)
    made.graph.input.extend([info("mask"), info("other")])
    run = run_pass(inputs, made)
    assert len(run.tried) == 1
    assert run.model == chain(1)
    assert_valid(run.model)


def test_an_input_that_the_failure_needs_stays() -> None:
    made = chain(1)
    made.graph.input.extend([info(f"u{number}") for number in range(8)])
    run = run_pass(inputs, made, lambda candidate: any(entry.name == "u5" for entry in candidate.graph.input))
    assert [entry.name for entry in run.model.graph.input] == ["t0", "u5"]


def test_an_input_that_is_an_output_is_used() -> None:
    made = chain(1)
    made.graph.output.append(info("t0"))
    assert run_pass(inputs, made).tried == []
