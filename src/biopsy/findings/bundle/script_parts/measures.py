"""Outputs against expected ones by measures of the whole output."""

from biopsy.findings.bundle.script_parts.comparison import differs


def differs_by(found, expected, elements=None, errors=None, limits=()):
    """Whether anything that is asked of an output does not hold; prints what does not.

    elements: tolerances of each element. errors: a statistic, its quantile, and the tolerances of that statistic of all
    absolute errors, or else of all relative ones. limits: measures and their limits.
    """
    import numpy as np

    if found.shape != expected.shape or found.dtype.kind in "cOUS":
        return differs(found, expected, 0, 0)
    wrong = elements is not None and differs(found, expected, *elements)
    one, other = (side.astype(np.longdouble).ravel() for side in (found, expected))
    with np.errstate(all="ignore"):
        same = (one == other) | ((one != one) & (other != other))
        finite = np.isfinite(one) & np.isfinite(other)
        error = np.where(same, 0, np.abs(one - other))
        relative = np.where(same, 0, np.nan_to_num(error / np.abs(other), nan=np.inf, posinf=np.inf))
    if not (same | finite).all():
        print(f"{(~(same | finite)).sum()} of {same.size} elements are NaN or infinite on one side only")
        return True
    if errors is not None and not same.all():
        name, quantile, atol, rtol = errors
        seen = [statistic(values, name, quantile) for values in (error, relative)]
        beyond = atol == rtol == 0 or (seen[0] > atol and seen[1] > rtol)
        print(f"{name} of the errors: absolute {seen[0]:.6g} (limit {atol:g}), relative {seen[1]:.6g} (limit {rtol:g})")
        wrong = wrong or beyond
    for name, limit in limits:
        best = {"l2": 0.0, "cosine": 1.0}.get(name, np.inf)
        value = best if same.all() else measure(name, one[finite], other[finite], error[finite])
        kept = value <= limit if name == "l2" else value >= limit
        print(f"{name}: {value:.9g} (limit {limit:g})")
        wrong = wrong or not kept or (name == "cosine" and limit >= 1 and not same.all())
    return bool(wrong)


def statistic(values, name, quantile):
    """The max, mean, median or a quantile of errors."""
    import numpy as np

    if name == "mean":
        return values.mean()
    fraction = {"max": 1.0, "median": 0.5}.get(name, quantile)
    return np.quantile(values, fraction, method="linear" if np.isfinite(values).all() else "higher")


def measure(name, found, expected, error):
    """One figure for all elements: l2, cosine, or psnr and snr in dB."""
    import numpy as np

    norms = [np.linalg.norm(values.astype(np.float64)) for values in (found, expected, error)]
    if name == "l2":
        return norms[2]
    if name == "cosine":
        return np.dot(found / (norms[0] or 1), expected / (norms[1] or 1)) if any(norms[:2]) else 1.0
    peak = max(expected.max(initial=0), 0) or 1.0
    signal = norms[1] if name == "snr" else peak * np.sqrt(expected.size)
    with np.errstate(all="ignore"):
        return 20 * np.log10(np.float64(signal) / norms[2])
