"""Failures that are not the original's: none leads astray, each is named."""

from onnx import helper

from support.models import info, model, save, weight

VERDICT = """
import json
def fail(**said):
    open(os.environ['BIOPSY_VERDICT'], 'w').write(json.dumps(said))
    sys.exit(1)
"""


def test_a_cut_that_uncovers_another_error_of_the_engine_is_not_followed(place) -> None:
    """Both are wrong only when they run, and whichever runs first is what the engine complains of."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="n0"),
        helper.make_node("Reshape", ["a", "seven"], ["b"], name="n1"),
        helper.make_node("Relu", ["b"], ["c"], name="n2"),
        helper.make_node("Gather", ["x", "nine"], ["d"], name="n3"),
        helper.make_node("Relu", ["d"], ["e"], name="n4"),
    ]
    weights = [weight("seven", 7, dtype="int64", shape=(1,)), weight("nine", 9, dtype="int64", shape=(1,))]
    save(
        model(nodes, [info("x", ("N", 2))], [info("c", ("M",)), info("e", ("K", 2))], weights), place.folder / "m.onnx"
    )
    check = ["biopsy", "run", "{}", "--onnxrt", "--input-shapes", "x:[2,2]"]
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--keep-other", "others", "--jobs", "1", "--check", *check)
    assert ran.status == 0, ran.told
    (kept,) = place.nodes()
    assert kept in {"n1", "n3"}
    assert "also met" in ran.told
    assert ("Gather" if kept == "n1" else "Reshape") in ran.told.partition("also met")[2]
    other = set(place.nodes("others/other_failure_1.onnx"))
    assert kept not in other


def test_a_cut_that_another_stage_refuses_is_not_followed(place) -> None:
    place.model()
    check = place.check(
        VERDICT
        + "if 'n5' in names and 'n6' in names: fail(engine='e', stage='compare', kind='mismatch')\n"
        + "fail(engine='e', stage='build', kind='Refused')"
    )
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--check", *check)
    assert (ran.status, place.nodes()) == (0, ["n5", "n6"]), ran.told
    assert "build · Refused · e" in ran.told.partition("also met")[2]


def test_with_match_message_the_last_line_tells_failures_apart_and_with_any_nothing_does(place) -> None:
    place.model()
    check = place.check(
        "print('wrong: 17' if 'n8' in names else 'refused: 17'); sys.exit('n5' in names or 'n8' in names)"
    )
    for match, left in (("message", ["n8"]), ("any", ["n5", "n8"])):
        ran = place.reduce("m.onnx", "-o", "r.onnx", "--match", match, "--check", *check)
        assert ran.status == 0, ran.told
        assert place.nodes()[0] in left
        assert ("also met" in ran.told) == (match == "message")


def test_an_engine_that_is_missing_stops_at_once_and_is_named(place) -> None:
    place.model()
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--check", "biopsy", "run", "{}", "--trt")
    assert ran.status == 4
    assert "could not be run" in ran.told
    assert "tensorrt" in ran.told.lower()
    assert place.files() == {"m.onnx"}


def test_an_engine_that_goes_missing_on_the_way_stops_the_search_and_the_best_is_kept(place) -> None:
    place.model()
    (place.folder / "check.sh").write_text(
        "if grep -q n5 $1; then exit 1; fi\necho >> passed.txt\n"
        "if [ $(wc -l < passed.txt) -gt 2 ]; then biopsy run $1 --engine nosuch; fi\n"
    )
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--jobs", "1", "--check", "bash", "check.sh", "{}")
    assert ran.status == 4, ran.told
    assert "nosuch" in ran.told
    assert "r.onnx, which fails in the same way" in ran.told
    assert "n5" in place.nodes()
    assert len(place.nodes()) < 12
    (place.folder / "check.sh").write_text("grep -q n5 $1 && exit 1; exit 0\n")
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--jobs", "1", "--check", "bash", "check.sh", "{}")
    assert ran.status == 2  # the script is another one: its answers are not mixed with those of before
    for path in place.folder.glob("r.onnx.journal*"):
        path.unlink()


def test_a_check_that_fails_on_anything_is_told_whatever_it_says_of_the_original(place) -> None:
    place.model()
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--check", *place.check("sys.exit(1)"))
    assert ran.status == 4
    assert "a model of one Identity node fails this check in the same way" in ran.told
    assert place.files() == {"m.onnx"}
