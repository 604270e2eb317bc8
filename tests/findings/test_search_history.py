from biopsy import events
from biopsy.findings.report import MOST_CHECKS, SearchHistory


def ask(history: SearchHistory, number: int, outcome: str = "passed", nodes: int = 3) -> None:
    description = {"number": number, "stage": "bisect", "description": f"cut {number}", "line": "check"}
    history(events.CheckingCandidate(**description, nodes=nodes, left=nodes))
    answer = {"number": number, "stage": "bisect", "outcome": outcome, "reason": "exit status 0", "seconds": 0.5}
    history(events.CheckedCandidate(**answer, output=b"much", nodes=nodes, left=nodes))


def test_checks_are_told_in_order_with_what_was_tried_and_when() -> None:
    history = SearchHistory()
    ask(history, 0, "reproduced", nodes=9)
    ask(history, 1)
    history(events.PassDone(stage="bisect", checks=2, seconds=1.0, before=9, after=3))
    tree = history.tree()
    first, second = tree["checks"]
    assert (first["description"], first["nodes"], first["outcome"]) == ("cut 0", 9, "reproduced")
    assert 0 <= first["at"] <= second["at"]
    assert tree["outcomes"] == {"reproduced": 1, "passed": 1}
    assert tree["passes"] == [{"stage": "bisect", "before": 9, "after": 3, "checks": 2, "seconds": 1.0}]


def test_of_a_long_search_the_middle_is_left_out_and_counted() -> None:
    history = SearchHistory()
    for number in range(MOST_CHECKS + 10):
        ask(history, number)
    tree = history.tree()
    numbers = [check["number"] for check in tree["checks"]]
    half = MOST_CHECKS // 2
    assert numbers == [*range(half), *range(half + 10, MOST_CHECKS + 10)]
    assert (tree["more_checks"], tree["outcomes"]) == (10, {"passed": MOST_CHECKS + 10})


def test_what_else_a_search_meets_is_told() -> None:
    history = SearchHistory()
    history(events.FlakyFailure(2, 5, 7, 0.99))
    history(events.Resumed("r.journal", 12))
    history(events.Verified("r.onnx", 3, 3))
    tree = history.tree()
    assert tree["flaky"] == {"failed": 2, "runs": 5, "needed": 7, "confidence": 0.99}
    assert (tree["remembered"], tree["verified"]) == (12, {"failed": 3, "runs": 3, "machine": None})
    assert history.is_empty
