"""Listeners to events that are made of others."""

from biopsy import events

RESUMED, SAID = events.Resumed("journal", 3), events.Remark("something")


def test_both_listeners_are_told_everything() -> None:
    first: list[events.Event] = []
    second: list[events.Event] = []
    listener = events.both(first.append, second.append)
    listener(RESUMED)
    listener(SAID)
    assert first == second == [RESUMED, SAID]


def test_a_listener_is_not_told_of_the_kind_that_it_goes_without() -> None:
    heard: list[events.Event] = []
    listener = events.without(events.Resumed, heard.append)
    listener(RESUMED)
    listener(SAID)
    assert heard == [SAID]
