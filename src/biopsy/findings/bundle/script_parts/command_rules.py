"""A command whose failure is told by its statuses, or by what it prints."""

import re

from biopsy.findings.bundle.script_parts.statuses import CannotSay


def status_by_rules(ended, fail_codes=(), ignored_codes=(), patterns=()):
    """1 for the statuses that count as the failure, and if there are patterns, only where one is found; else 0."""
    status, text, _ = ended
    if status in {125, 126, 127} and status not in fail_codes:
        raise CannotSay("the command could not be run, or cannot say")
    counts = True
    if fail_codes:
        counts = status in fail_codes
    elif ignored_codes:
        counts = status not in ignored_codes and (status != 0 or bool(patterns))
    if counts and (not patterns or any(re.search(pattern, text) for pattern in patterns)):
        return 1
    if status < 0:
        raise CannotSay("a signal ended the command")
    return 0
