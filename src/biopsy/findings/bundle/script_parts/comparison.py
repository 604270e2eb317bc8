"""Outputs against expected ones."""

from biopsy.findings.bundle.script_parts.statuses import CannotSay


def differs(found, expected, atol, rtol):
    """Whether |found - expected| > atol + rtol * |expected| anywhere. NaN is equal to NaN, and infinity to itself."""
    import numpy as np

    if found.shape != expected.shape:
        print(f"the shape is {list(found.shape)} instead of {list(expected.shape)}")
        return True
    with np.errstate(all="ignore"):
        same = (found == expected) | ((found != found) & (expected != expected))
        error = np.where(same, 0.0, np.inf)
        if expected.dtype.kind not in "OUS":
            wide = np.clongdouble if "c" in (found.dtype.kind, expected.dtype.kind) else np.longdouble
            error = np.where(same, 0, np.abs(found.astype(wide) - expected.astype(wide)))
            excess = error - atol - rtol * np.abs(expected.astype(wide))
            same |= (excess <= 0) & (atol + rtol > 0)
    if same.all():
        print(f"all {same.size} elements are within atol {atol:g}, rtol {rtol:g}")
        return False
    at = np.unravel_index(np.where(same, -1, np.nan_to_num(error, nan=np.inf, posinf=np.inf)).argmax(), same.shape)
    print(f"{same.size - same.sum()} of {same.size} elements are beyond atol {atol:g}, rtol {rtol:g}")
    print(f"  the worst, at {list(map(int, at))}: {found[at]} instead of {expected[at]}, difference {error[at]:.6g}")
    return True


def compare(outputs_of, inputs, expected, limits, differs=differs):
    """1 if any output of any sample is out of tolerance, else 0; prints what differs."""
    wrong = False
    if not expected or len(inputs) != len(expected):
        raise CannotSay("there is nothing to compare")
    for number, (feed, wanted) in enumerate(zip(inputs, expected)):
        found = outputs_of(feed)
        for name, value in wanted.items():
            print(f"sample {number}, output {name!r}: ", end="")
            if name not in found:
                print("missing")
            wrong = name not in found or differs(found[name], value, **limits[name]) or wrong
    return int(wrong)
