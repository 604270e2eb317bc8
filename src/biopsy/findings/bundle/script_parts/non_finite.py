"""Outputs that hold what is no number."""

from biopsy.findings.bundle.script_parts.statuses import CannotSay


def find_non_finite(outputs_of, inputs):
    """1 if any output of any sample holds NaN or infinity, else 0; prints which."""
    import numpy as np

    wrong = False
    if not inputs:
        raise CannotSay("there is nothing to run")
    for number, feed in enumerate(inputs):
        for name, value in outputs_of(feed).items():
            if value.dtype.kind in "fc":
                odd = value.size - np.isfinite(value).sum()
                print(f"sample {number}, output {name!r}: {odd} of {value.size} elements are NaN or infinite")
                wrong = wrong or odd > 0
    return int(wrong)
