"""What is said of a piece: never more than what agrees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from biopsy import errors, events
from biopsy.questions.known_failures.lookup import (
    KnownLookup,
    KnownMatch,
    SeenFailure,
    entry_text,
    look_up,
    new_file,
    write_entry,
)
from support.hostile_names import damaged_weight
from support.known_pieces import (
    convolution_with_a_sum,
    normalization_of_columns_in_full,
    slope_along_columns,
    there_and_back,
)
from support.measured import cpu_seconds
from support.models import chain, info, model, save, weight
from support.node_tests import node_tests
from support.real_failures import normalization_of_columns
from support.rewritten import permuted, renamed, resized, with_constant_nodes, with_identities

HERE = SeenFailure(engine="onnxrt", release="1.32.0", stage="compare", kind="mismatch")
ISSUE = "microsoft/onnxruntime#30513"


def looked_up(made: onnx.ModelProto, folder: Path, seen: SeenFailure | None = HERE) -> KnownLookup:
    return look_up(save(made, folder / "piece.onnx"), seen)


def best(found: KnownLookup) -> KnownMatch:
    assert found.best is not None
    return found.best


def told(found: KnownLookup) -> str:
    return "\n".join(f"{head} {text}" for match in found.matches for head, text in match.evidence(found.seen))


def test_a_piece_looks_like_a_known_bug_whatever_its_names_sizes_and_weights(tmp_path: Path) -> None:
    other = resized(with_identities(with_constant_nodes(renamed(permuted(normalization_of_columns(), 1), 2))), 3)
    match = best(looked_up(other, tmp_path))
    assert (match.grade, match.failure.reference, match.is_sure) == ("matches", ISSUE, True)
    assert match.sentence.startswith(f"looks like {ISSUE}: ")


def test_what_is_known_is_found_in_a_larger_piece_with_what_is_there_besides(tmp_path: Path) -> None:
    made = normalization_of_columns_in_full()
    made.graph.node.append(helper.make_node("Softplus", ["y"], ["z"]))
    made.graph.output[0].name = "z"
    found = looked_up(made, tmp_path)
    assert best(found).grade == "contains"
    assert best(found).differences == ("1 node more here: Softplus",)
    assert not best(found).is_sure
    assert found.sentence.startswith(f"contains the pattern of {ISSUE}: ")


def test_the_order_of_the_inputs_of_an_addition_does_not_matter(tmp_path: Path) -> None:
    made = normalization_of_columns()
    made.graph.node[-1].input[:] = ["gain", "d"]
    made.graph.node[2].input[:] = ["eps", "m"]
    assert best(looked_up(made, tmp_path)).is_sure


def test_a_condition_that_the_piece_leaves_open_is_told_and_nothing_is_sure(tmp_path: Path) -> None:
    made = slope_along_columns()
    made.graph.input[0].type.tensor_type.ClearField("shape")
    made.graph.output[0].type.tensor_type.ClearField("shape")
    match = best(looked_up(made, tmp_path, SeenFailure(engine="openvino", stage="compare", kind="mismatch")))
    assert (match.grade, match.is_sure) == ("possible", False)
    assert match.differences == ("is x.rank >= 3?", "is slope.size == x.shape[1]?")
    assert match.sentence.startswith("may be openvinotoolkit/openvino#33371: ")


def test_what_cannot_be_the_bug_is_not_named_at_all(tmp_path: Path) -> None:
    kept = normalization_of_columns()
    kept.graph.node[1].attribute[0].i = 1
    assert looked_up(kept, tmp_path).matches == ()
    fed = normalization_of_columns()
    fed.graph.node[2].input[:] = ["m", "fed"]
    fed.graph.input.append(info("fed", ()))
    assert looked_up(fed, tmp_path).matches == ()


def test_types_are_compared_inside_of_a_larger_piece_too(tmp_path: Path) -> None:
    for elem, known in ((1, True), (16, False)):  # float32, bfloat16
        made = there_and_back()
        made.graph.node[0].input[0] = "before"
        made.graph.node.insert(0, helper.make_node("Softplus", ["x"], ["before"]))
        made.graph.input[0].type.tensor_type.elem_type = elem
        found = looked_up(made, tmp_path, SeenFailure(engine="openvino", stage="compare", kind="mismatch"))
        assert (found.best is not None) == known


def test_a_single_node_is_known_alone_and_not_among_others(tmp_path: Path) -> None:
    assert best(looked_up(convolution_with_a_sum(), tmp_path)).failure.reference == "microsoft/onnxruntime#23284"
    more = convolution_with_a_sum()
    more.graph.node.append(helper.make_node("Softplus", ["y"], ["e"]))
    more.graph.output[0].name = "e"
    assert looked_up(more, tmp_path).matches == ()


@pytest.mark.parametrize(
    ("seen", "sentence", "line"),
    [
        (None, f"looks like {ISSUE}: ", "engine onnxrt there; the engine that fails here is not known"),
        (
            SeenFailure(engine="openvino"),
            f"has the pattern of {ISSUE}, a failure of onnxrt",
            "engine openvino here, onnxrt",
        ),
        (SeenFailure(engine="onnxrt", stage="build"), f"looks like {ISSUE}, but fails otherwise", "fails build here, "),
        (SeenFailure(engine="onnxrt", release="1.99"), f"looks like {ISSUE}: ", "release 1.99 was not tried: "),
        (HERE, f"looks like {ISSUE}: ", "fails compare · mismatch, as known"),
        (HERE, f"looks like {ISSUE}: ", "release 1.32.0 is known to fail (>=1.17.3,<=1.32.0)"),
    ],
)
def test_engine_release_and_way_of_failing_are_told(
    seen: SeenFailure | None, sentence: str, line: str, tmp_path: Path
) -> None:
    found = looked_up(normalization_of_columns(), tmp_path, seen)
    assert found.matches[0].sentence.startswith(sentence)
    assert line in told(found)
    disagrees = seen is not None and (seen.engine == "openvino" or seen.stage == "build")
    assert (found.best is None) == disagrees
    assert found.matches[0].is_sure == (seen == HERE)


def test_a_release_in_which_it_is_mended_and_that_fails_has_a_regression_or_another_bug(tmp_path: Path) -> None:
    found = looked_up(convolution_with_a_sum(), tmp_path)
    assert "known as mended in >=1.27.0,<=1.32.0, yet it fails here" in found.sentence
    assert "yet 1.32.0 fails here: a regression, or another bug" in told(found)
    assert not best(found).is_sure


def test_a_release_as_an_engine_tells_it_is_understood(tmp_path: Path) -> None:
    seen = SeenFailure(engine="openvino", release="2026.4.1-22982-e213a147257-releases/2026/4", stage="compare")
    assert best(looked_up(there_and_back(), tmp_path, seen)).release == "fails"
    odd = SeenFailure(engine="openvino", release="custom build", stage="compare")
    assert best(looked_up(there_and_back(), tmp_path, odd)).release == "unknown"


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    found = looked_up(chain(3, ("Neg", "Exp")), tmp_path)
    assert (found.matches, found.sentence) == ((), "not in our list")


def test_too_many_ways_to_compare_are_said_and_not_counted_as_no_match(tmp_path: Path) -> None:
    nodes, sums = [], ["x"]
    for number in range(300):
        nodes.append(helper.make_node("Add", [sums[-1], sums[-1]], [f"s{number}"]))
        sums.append(f"s{number}")
    made = model(nodes, [info("x")], [info(sums[-1])])
    folder = tmp_path / "list"
    folder.mkdir()
    deep = "a0"
    for number in range(12):
        deep = f"({deep} + a{number + 1})"
    entry = entry_text(looked_up(chain(1), tmp_path)).partition("# This piece")[0]
    text = f"{entry}patterns:\n  - nodes: {deep} + Neg(z)\n"
    (folder / "sums.yaml").write_text(text)
    found = look_up(save(made, tmp_path / "piece.onnx"), HERE, [folder])
    assert (found.undecided, found.broken) == (("sums",), ())
    assert found.sentence == "not in our list; 1 could not be compared in time"


def test_a_look_up_takes_less_than_50_milliseconds(tmp_path: Path) -> None:
    path = save(normalization_of_columns_in_full(), tmp_path / "piece.onnx")
    assert cpu_seconds(lambda: look_up(path, HERE), times=3) < 0.05


def odd_pieces() -> dict[str, onnx.ModelProto]:
    """Valid pieces and damaged ones on which a look-up may stumble."""

    def of(
        op: str, *, elem: int = 1, shape: tuple[int, ...] | None = (4, 4), opset: int = 13, **more: Any
    ) -> onnx.ModelProto:
        node = helper.make_node(op, ["x"], ["y"], **more)
        return model([node], [info("x", shape, elem)], [info("y", None, elem)], opset=opset, domains=["own"])

    unranked, scalar = normalization_of_columns(), normalization_of_columns()
    unranked.graph.input[0].type.tensor_type.ClearField("shape")
    del scalar.graph.input[0].type.tensor_type.shape.dim[:]
    empty = model(
        [helper.make_node("ReduceMean", ["x", "axes"], ["y"])], [info("x", (4, 4))], [info("y", None)],
        [weight("axes", shape=(0,), dtype="int64")],
    )  # fmt: skip
    silent = chain(1)
    silent.graph.node.append(helper.make_node("Print", [silent.graph.input[0].name], [], domain="own"))
    return {
        "no rank": unranked,
        "a scalar": scalar,
        "no axes": empty,
        "a keyword": of("Foo", domain="own", **{"from": 1}),
        "a dash": of("Foo", domain="own", **{"a-b": 1}),
        "infinity": of("Clip", opset=6, max=float("inf")),
        "a number that is none": of("Foo", domain="own", beta=float("nan")),
        "a text like a constant": of("Foo", domain="own", mode="None"),
        "an axis of an unknown operator": of("Foo", domain="own", axis=7),
        "axes out of range": of("ReduceMean", axes=[9]),
        "no shape": of("Softmax", shape=None, axis=1),
        "a new element type": of("Cast", elem=27, to=28),
        "an unknown element type": of("Neg", elem=99),
        "a node without outputs": silent,
        "a damaged weight": damaged_weight(),
        "a long chain": chain(300, ("Relu", "Neg")),
        "sums of itself": model(
            [helper.make_node("Add", [f"t{n}"] * 2, [f"t{n + 1}"]) for n in range(14)], [info("t0")], [info("t14")]
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", odd_pieces())
def test_an_entry_made_of_a_piece_finds_it_again(name: str, tmp_path: Path) -> None:
    piece = save(odd_pieces()[name], tmp_path / "piece.onnx")
    write_entry(tmp_path / "list" / "mine.yaml", entry_text(look_up(piece, HERE), title="mine"))
    found = look_up(piece, HERE, [tmp_path / "list"])
    assert found.broken == ()
    assert [match.grade for match in found.matches if match.failure.name == "mine"] == ["matches"]


def test_a_bug_is_recognised_where_the_rank_is_not_known(tmp_path: Path) -> None:
    assert best(looked_up(odd_pieces()["no rank"], tmp_path)).failure.reference == ISSUE


@pytest.mark.slow
def test_an_entry_made_of_any_node_test_of_onnx_finds_it_again(tmp_path: Path) -> None:
    lost = []
    for number, (name, made) in enumerate((test.name, test.model) for test in node_tests()):
        (folder := tmp_path / str(number)).mkdir()
        piece = save(made, folder / "piece.onnx")
        write_entry(folder / "list" / "mine.yaml", entry_text(look_up(piece, HERE), title="mine"))
        found = look_up(piece, HERE, [folder / "list"])
        lost += [] if any(match.failure.name == "mine" for match in found.matches) else [name]
    assert lost == []


# The user's own list


def test_entries_of_the_user_and_of_other_folders_are_looked_up_too(tmp_path: Path, no_list_of_the_user: Path) -> None:
    piece = save(chain(2, ("Neg", "Exp")), tmp_path / "piece.onnx")
    unknown = look_up(piece, HERE)
    write_entry(new_file("mine"), entry_text(unknown, title="it is mine"))
    write_entry(tmp_path / "more" / "other.yaml", entry_text(unknown))
    found = look_up(piece, HERE, [tmp_path / "more"])
    assert [match.failure.name for match in found.matches] == ["mine", "other"]
    assert found.matches[0].sentence == "looks like mine: it is mine"
    assert found.matches[1].failure.title == "onnxrt fails on Neg, Exp"
    assert all(match.is_sure for match in found.matches)
    assert found.matches[0].failure.origin == str(no_list_of_the_user / "mine.yaml")


def test_a_broken_file_is_told_in_one_line_and_the_others_count(tmp_path: Path, no_list_of_the_user: Path) -> None:
    no_list_of_the_user.mkdir(parents=True)
    (no_list_of_the_user / "a.yaml").write_text("biopsy_known: 1\n")
    remarks: list[events.Event] = []
    found = look_up(save(normalization_of_columns(), tmp_path / "piece.onnx"), HERE, listener=remarks.append)
    assert best(found).is_sure
    [line] = found.broken
    assert line.startswith(f"{no_list_of_the_user / 'a.yaml'}: ") and "\n" not in line
    assert [event.text for event in remarks if isinstance(event, events.Remark)] == [f"{line}: left out"]


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match="there is no folder"):
        look_up(save(chain(1), tmp_path / "piece.onnx"), None, [tmp_path / "nowhere"])
