"""Checks that do to the candidate what they should not."""

import pytest

HARM = {
    "deletes": "os.remove(path)",
    "empties": "open(path, 'w').close()",
    "cuts": "os.truncate(path, 40)",
    "rewrites": "open(path, 'wb').write(b'another model')",
    "replaces": "os.rename(path, path + '.txt'); os.rename(sys.argv[0] + '.txt', path)",
    "makes a folder of": "os.remove(path); os.mkdir(path)",
    "makes a full folder of": "os.remove(path); os.makedirs(path + '/a/b'); open(path + '/a/f', 'w').close()",
    "makes a pipe of": "os.remove(path); os.mkfifo(path)",
    "makes a link of": "os.remove(path); os.symlink('precious.txt', path)",
    "makes a dead link of": "os.remove(path); os.symlink('nowhere', path)",
    "locks": "os.chmod(path, 0)",
}
QUICK = {"deletes", "rewrites", "makes a full folder of", "makes a pipe of", "makes a link of"}


CASES = [
    pytest.param(harm, "12"[number % 2], marks=[] if name in QUICK else pytest.mark.slow, id=name)
    for number, (name, harm) in enumerate(HARM.items())
]


@pytest.mark.parametrize(("harm", "jobs"), CASES)
def test_whatever_a_check_does_to_the_candidate_the_result_is_right(place, harm: str, jobs: str) -> None:
    place.model()
    (place.folder / "precious.txt").write_text("untouched")
    before = "path = sys.argv[1]\nopen(sys.argv[0] + '.txt', 'w').write('rubbish')\n" if "rename" in harm else ""
    check = place.check(f"path = sys.argv[1]\n{before}{harm}\nsys.exit('n5' in names)")
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--jobs", jobs, "--check", *check)
    assert ran.status == 0, ran.told
    assert place.nodes() == ["n5"]
    assert place.files() == {"m.onnx", "r.onnx"}
    assert (place.folder / "precious.txt").read_text() == "untouched"


@pytest.mark.parametrize(
    "place_of_candidates", ["elsewhere.onnx", pytest.param("polygraphy_debug.onnx", marks=pytest.mark.slow)]
)
def test_a_check_that_knows_the_place_by_itself_and_makes_a_folder_there_does_no_harm(
    place, place_of_candidates
) -> None:
    place.model()
    check = place.check("sys.exit('n5' in names)")[:-1]
    code = (place.folder / "check.py").read_text().replace("sys.argv[1]", repr(place_of_candidates))
    harm = f"os.remove({place_of_candidates!r}); os.mkdir({place_of_candidates!r})"
    (place.folder / "check.py").write_text(code.replace("sys.exit", f"{harm}\nsys.exit"))
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--iter-artifact", place_of_candidates, "--check", *check)
    assert (ran.status, place.nodes()) == (0, ["n5"]), ran.told
    assert place.files() == {"m.onnx", "r.onnx"}


def test_the_folder_of_the_candidates_is_made_again_where_a_check_removes_it(place) -> None:
    (place.folder / "sub").mkdir()
    place.model()
    check = place.check("import shutil; shutil.rmtree('sub', ignore_errors=True); sys.exit('n5' in names)")
    line = ("m.onnx", "-o", "r.onnx", "--iter-artifact", "sub/c.onnx", "--jobs", "1")  # more remove each other's
    ran = place.reduce(*line, "--check", *check)
    assert (ran.status, place.nodes()) == (0, ["n5"]), ran.told
    assert place.files() == {"m.onnx", "r.onnx"}
