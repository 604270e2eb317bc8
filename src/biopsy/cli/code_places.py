"""Where nodes come from in the code of their author: a line for each place, not for each node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.model.node_source import NodeSource

_MOST_PLACES = 6
_MOST_NODES = 8


def say_places(
    console: Console, sources: Sequence[NodeSource | None], *, head: str = "from  ", called: str = "node"
) -> None:
    """Say the places of some nodes that were listed before, and which of them come from each, counted from 1.

    Of several nodes it is said first what they are together. Nothing is said of nodes without a source. ``called`` is
    what they were listed as.
    """
    from biopsy.model.sources import group_name, places_of

    places = places_of(sources)
    name = group_name(sources) if len(sources) > 1 else ""
    if name:
        console.say(f"{head} {name}")
    for place in places[:_MOST_PLACES]:
        numbers = ", ".join(str(node + 1) for node in place.nodes[:_MOST_NODES])
        more = ", ..." if len(place.nodes) > _MOST_NODES else ""
        of = f" ({called} {numbers}{more})" if len(sources) > 1 else ""
        console.say(f"{head} {place.text}{of}")
    if len(places) > _MOST_PLACES:
        console.say(f"{'':<{len(head)}} and {len(places) - _MOST_PLACES} more places")
