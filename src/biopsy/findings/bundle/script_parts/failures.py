"""How a script shows a failure of any engine: values that differ or are not finite, errors, crashes, commands."""

import json
import os
import re
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from subprocess import PIPE, STDOUT, TimeoutExpired, call
from subprocess import run as run_process


class CannotSay(Exception):
    """Something is missing, or something else fails."""


def exit_status(main):
    """What main returns, else 125: for any exception, Python itself would exit with 1."""
    try:
        return main()
    except (CannotSay, ImportError) as error:
        print(f"cannot say: {error}")
    except Exception:
        traceback.print_exc(file=sys.stdout)
        print("cannot say: something else fails")
    return 125


TIMEOUT = -1000  # in the place of an exit status


def end_name(status):
    """SIGSEGV and the like for minus the number of a signal, else the exit status."""
    if status == TIMEOUT:
        return "no end in time"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"exit status {status}"


def read(path, samples):
    """The tensors of each sample by their names in the model; the samples say what each is called in the file."""
    import numpy as np

    if not any(samples):  # the model takes nothing
        return [{} for _ in samples]
    with np.load(path, allow_pickle=False) as file:
        return [{name: file[key] for name, key in names.items()} for names in samples]


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


def expect_failure(load, run, kind, said):
    """1 if the model cannot be built, or where there is something to run, cannot be run: by an error of this kind."""
    try:
        model = load()
    except (CannotSay, ImportError):
        raise
    except Exception as error:
        if run is not None:
            raise CannotSay(f"it cannot even be built: {error}") from error
        return judged(error, kind, said)
    print("it is built")
    if run is None:
        return 0
    try:
        run(model)
    except Exception as error:
        return judged(error, kind, said)
    print("it runs")
    return 0


def judged(error, kind, said):
    """1 if an error is of the kind that was seen."""
    text = " ".join(str(error).split())
    print(f"{type(error).__name__}: {text}")
    if kind != type(error).__name__ and kind.lower() not in text.lower().replace(" ", ""):
        raise CannotSay(f"it fails, but not by {kind}: {said}")
    if said not in text:
        print(f"when this script was made it said: {said}")
    return 1


def watch_child(work, script, ends_by, seconds):
    """1 if a process that does the work ends in this way: by a signal, or not in time; 0 if it ends well."""
    if sys.argv[1:] == ["child"]:
        work()
        return 0
    try:
        status = call([sys.executable, script, "child"], timeout=seconds)
    except TimeoutExpired:
        status = TIMEOUT
    print(f"the process that ran the model ended: {end_name(status)}")
    if status and end_name(status) != ends_by:
        raise CannotSay(f"it fails, but not as it did: {ends_by}")
    return int(status != 0)


def run_command(words, folder, seconds):
    """Its exit status, or minus the signal; what it printed; and its verdict, if it wrote one.

    In the words, "{}" is the model and "{python}" this Python.
    """
    names = {"{}": str(folder / "model.onnx"), "{python}": sys.executable}
    typed = [re.sub(r"\{(python)?\}", lambda found: names[found[0]], word) for word in words]
    if (folder / words[0]).is_file():
        (folder / words[0]).chmod(0o755)  # unpacking may have lost it
    with tempfile.TemporaryDirectory() as scratch:
        told = Path(scratch) / "verdict.json"
        variables = {**os.environ, "BIOPSY_VERDICT": str(told), "BIOPSY_SETTINGS": "none"}
        try:
            done = run_process(typed, cwd=folder, env=variables, stdout=PIPE, stderr=STDOUT, timeout=seconds)
        except TimeoutExpired:
            return TIMEOUT, "", {}
        except OSError as error:
            raise CannotSay(f"the command does not start: {error}") from error
        verdict = json.loads(told.read_bytes()) if told.exists() and told.stat().st_size else {}
    text = done.stdout.decode("utf-8", "replace")
    print(text.rstrip("\n"))
    print(f"the command ended: {end_name(done.returncode)}")
    return done.returncode, text, verdict


def command_status(ended, status, raised, verdict):
    """1 if it failed as it did when this script was made: the same status, exception and verdict; 0 if it passed."""
    found, text, said = ended
    if found == 0 and said.get("outcome") != "fails":
        return 0
    seen = {key: said.get(key, "") for key in verdict}
    if (found, last_exception(text), seen) != (status, raised, verdict):
        told = [end_name(status), raised, *verdict.values()]
        raise CannotSay(f"it fails, but not as it did: {', '.join(filter(None, told))}")
    return 1


def last_exception(text):
    """The name of the exception that a program of Python died of; "" if there is none."""
    _, traceback, rest = text.rpartition("Traceback (most recent call last):")
    names = re.findall(r"^([A-Za-z_][\w.]*)(?:: .*)?$", rest, re.MULTILINE)
    return names[0].rpartition(".")[2] if traceback and names else ""


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
