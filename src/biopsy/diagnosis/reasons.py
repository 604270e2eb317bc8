"""Why a question could not be asked: what a verdict must then leave open."""

from __future__ import annotations

TWO_ENGINES = "two engines would have to be compared"
UNKNOWN_ENGINE = "the check does not say which engine it runs: name it with --engine before --check"
NO_PLACE = "the check has no place for settings: write {engine} where it takes an engine, and name that with --engine"
UNKNOWN_COMPARISON = "the check is not 'biopsy run', so nobody knows what it compares"
NO_PIECE = "there is no smallest part to ask about"

NOT_THOROUGH = "it takes minutes: --thorough asks it"
NO_DOWNLOAD = "--no-download"

UNABLE = frozenset({TWO_ENGINES, UNKNOWN_ENGINE, NO_PLACE, UNKNOWN_COMPARISON})
"""A question that was not asked for one of these has no answer; for any other reason it needs none."""
