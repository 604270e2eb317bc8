"""What a diagnosis hands to the text for a tracker: each number with the model that it is of, and what may vary."""

from dataclasses import replace
from pathlib import Path

from biopsy.comparison.mismatch import ErrorSize, Mismatch
from biopsy.diagnosis.facts import Diagnosis, KnownBug, KnownFacts, SettingFacts
from biopsy.diagnosis.following import bundle_job
from biopsy.diagnosis.verdict import verdict_of
from biopsy.findings.bundle.job import EarlierFindings
from biopsy.questions.known_failures.lookup import UNREPORTED
from biopsy.questions.variation.result import Finding, Variation
from support.diagnoses import facts, failure, piece, question, settings, switch


def worst(value: float) -> Mismatch:
    return Mismatch(
        output="y", kind="mismatch", index=(0, 1), actual=value, expected=1.0, wrong=1, elements=4, times_tolerance=9.0
    )


def of_model(known: KnownFacts) -> EarlierFindings:
    asked = question()
    verdict = verdict_of(known, (), asked)
    diagnosis = Diagnosis(verdict=verdict, steps=(), facts=known, folder="diagnosis", seconds=1.0)
    job = bundle_job(Path("bundle"), asked, diagnosis, b"{}")
    assert job is not None
    return job.earlier


SMALL = replace(piece("Pow 'a'", "Add 'b'"), error=ErrorSize(worst(7.0)))
BOTH = facts(failure=replace(failure(), mismatch=worst(3.0)), piece=SMALL)


def test_a_title_names_what_mends_the_piece_that_it_is_about() -> None:
    of_piece, of_model = switch("A", mends=False), switch("A", "B")
    title = of_model_with(settings(of_piece, of_model)).title
    assert title.endswith(", unless A is disabled")
    assert of_model_with(settings(of_model)).title.endswith(", unless A + B is disabled")
    assert "unless" not in of_model_with(settings(replace(of_piece, verified=False))).title


def of_model_with(tried: SettingFacts) -> EarlierFindings:
    return of_model(replace(BOTH, settings=replace(tried, complete=False)))


def test_a_title_that_would_be_too_long_leaves_out_messages_names_and_sizes() -> None:
    refused = failure("InvalidArgument", stage="load")
    many = replace(refused, report=replace(refused.report, message=f"Node input '{'x' * 90}' is no graph input"))
    either = replace(settings(switch("A"), switch("B")), complete=False)
    known = facts(failure=many, rounding=None, settings=either)
    off = ", unless A or B is disabled"
    assert of_model(known).title == f"ONNX Runtime 9.9 cannot load Pow -> Add (InvalidArgument){off}"
    short = replace(many, report=replace(many.report, message="too old"))
    assert of_model(replace(known, failure=short)).title == f"ONNX Runtime 9.9 cannot load Pow -> Add: too old{off}"
    (found, *_) = of_model(known).notes
    assert "x" * 90 in found.text  # which the text under the title says
    more = replace(settings(switch(*(f"Fusion{at}" for at in range(20)))), complete=False)
    large = replace(known, piece=piece(*(f"Op{at} 'n'" for at in range(8))), settings=more)
    assert of_model(large).title == "ONNX Runtime 9.9 cannot load a part of 8 nodes (InvalidArgument)"


def test_a_title_names_the_types_of_a_cast() -> None:
    types = (("x", "float32 [4, 32]"), ("y", "float8_e4m3fn [4, 32]"))
    cast = replace(piece("Cast 'c'"), types=types)
    assert of_model(replace(BOTH, piece=cast)).title.endswith("one node, Cast 'c' (float32 to float8_e4m3fn)")
    assert "float8" not in of_model(replace(BOTH, piece=replace(piece("Relu 'r'"), types=types))).title


def test_a_shape_is_that_of_the_model_that_is_attached() -> None:
    told = Mismatch(output="y", kind="shape-mismatch", form="[8]", expected_form="[1, 8]", declared_form="[1, 8]")
    wrong = replace(failure("shape-mismatch"), mismatch=told)
    known = facts(failure=wrong, rounding=None, piece=replace(piece("Div 'd'"), error=ErrorSize(told)))
    observed = replace(told, form="[2]", expected_form="[1, 2]", declared_form="[1, 2]")
    earlier = of_model(known)
    assert "'y' of shape [8] where the model declares [1, 8]" in earlier.title
    attached = earlier.of_form(observed)
    for text in (attached.title, attached.notes[0].text):
        assert "'y' of shape [2] where the model declares [1, 2]" in text
    assert earlier.of_form(None) == earlier.of_form(worst(1.0)) == earlier


def test_a_shape_that_only_a_piece_declares_is_not_called_right() -> None:
    told = Mismatch(output="y", kind="shape-mismatch", form="[8]", expected_form="[1, 8]")
    wrong = replace(failure("shape-mismatch"), mismatch=told)
    earlier = of_model(facts(failure=wrong, rounding=None, piece=replace(piece("Div 'd'"), error=ErrorSize(told))))
    attached = earlier.of_form(replace(told, form="[2]", declared_form="[2]"))
    where = "'y' of shape [2] where ONNX Runtime (all graph optimizations disabled) gives [1, 8]"
    assert where in attached.notes[0].text and "is right" not in attached.title


def test_the_user_s_own_code_is_not_told() -> None:
    known = replace(BOTH, piece=replace(SMALL, places=("secret.py:3 in Model.forward",)))
    assert "secret.py" in verdict_of(known, (), question()).in_full
    assert not any("secret.py" in note.text for note in of_model(known).notes)


def test_a_number_is_said_of_the_part_or_of_the_whole_model() -> None:
    text = verdict_of(BOTH, (), question()).text
    assert "In that part, 'y' is 7 at [0, 1], expected 1;" in text and "In the whole model" not in text
    found = [note.text for note in of_model(BOTH).notes if note.label == "found"]
    assert "In the whole model, 'y' is 3 at [0, 1], expected 1;" in found[0]


def test_what_may_vary_is_said_in_a_line() -> None:
    def found(varies: str | None) -> list[str]:
        known = replace(BOTH, piece=replace(SMALL, variation=varies))
        return [note.text for note in of_model(known).notes if note.label == "found"][1:]

    assert found("fails only if the keepdims of ReduceMean is 0 (2 tried)") == [
        "As far as was tried, the attached model fails only if the keepdims of ReduceMean is 0 (2 tried)."
    ]
    assert found("") == found(None) == []


def test_the_short_sentence_about_what_may_vary_names_a_few_of_each() -> None:
    free = tuple(Finding(what="size", name=f"axis {at}", text="any", still=("1", "2")) for at in range(5))
    one = Finding(what="size", name="rows of w", text="2", short="at least 2", gone=("1",))
    fixed = tuple(replace(one, name=f"rows of w{at}") for at in range(5))
    variation = Variation(free=free, fixed=fixed, together="always")
    assert variation.brief.count("tried") == 6 and variation.brief.count("2 more") == 2
    assert variation.sentence.count("tried") == 10
    assert Variation(fixed=(replace(one, short=""),)).brief == Variation().brief == ""
    of_default = Finding(
        what="attribute", name="keepdims of ReduceMean", text="any", is_explicit=False, still=("0", "1")
    )
    assert Variation(free=(of_default,)).brief == Variation(kept="the values are golden").brief == ""


def test_a_model_has_the_name_that_it_has_in_the_bundle() -> None:
    refused = failure("Fail", stage="load")
    message = "Load model from model.onnx failed: no such operator"
    told = replace(refused, report=replace(refused.report, message=message.replace("model.onnx", "net/my.onnx")))
    asked = replace(question(), model=Path("net/my.onnx"))
    known = facts(failure=told, rounding=None, piece=piece(*["Foo"] * 30))
    diagnosis = Diagnosis(verdict=verdict_of(known, (), asked), steps=(), facts=known, folder="d", seconds=1.0)
    job = bundle_job(Path("bundle"), asked, diagnosis, b"{}")
    assert job is not None and message in job.earlier.title
    assert "piece.onnx" not in job.earlier.title and "a part of 30 nodes" in job.earlier.title


def test_a_bug_without_a_public_report_is_told_by_what_is_wrong() -> None:
    mechanism = "the product of k and 1 / q becomes k / q"
    known = replace(
        BOTH, known_bug=KnownBug(sentence=f"may be own-entry {UNREPORTED}: {mechanism}", reference="own-entry")
    )
    texts = [note.text for note in of_model(known).notes]
    assert f"It may be a bug of which no public report is known: {mechanism}." in texts
    assert not any("own-entry" in text for text in texts)
    private = KnownBug(sentence=f"looks like theirs: {mechanism}", reference="theirs")
    assert not any(mechanism in note.text for note in of_model(replace(BOTH, known_bug=private)).notes)
