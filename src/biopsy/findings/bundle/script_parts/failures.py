"""The parts of a script that show a failure of any engine: wrong values, NaN or infinity, errors, crashes, commands."""

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
    """What main returns, or 125 for an exception, for which Python itself would exit with 1."""
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
    """The name of a signal, such as SIGSEGV, if the status is minus its number; else the exit status in words."""
    if status == TIMEOUT:
        return "no end in time"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"exit status {status}"


def read(path, samples):
    """The tensors of each sample by name; the samples map that name to the key in the file."""
    import numpy as np

    if not any(samples):  # the model takes nothing
        return [{} for _ in samples]
    with np.load(path, allow_pickle=False) as file:
        return [{name: file[key] for name, key in names.items()} for names in samples]


def differs(actual, expected, atol, rtol):
    """Whether |actual - expected| > atol + rtol * |expected| anywhere. NaN is equal to NaN, and infinity to itself."""
    import numpy as np

    if actual.shape != expected.shape:
        print(f"the shape is {list(actual.shape)} instead of {list(expected.shape)}")
        return True
    with np.errstate(all="ignore"):
        same = (actual == expected) | ((actual != actual) & (expected != expected))
        error = np.where(same, 0.0, np.inf)
        if expected.dtype.kind not in "OUS":
            wide = np.clongdouble if "c" in (actual.dtype.kind, expected.dtype.kind) else np.longdouble
            error = np.where(same, 0, np.abs(actual.astype(wide) - expected.astype(wide)))
            excess = error - atol - rtol * np.abs(expected.astype(wide))
            same |= (excess <= 0) & (atol + rtol > 0)
    if same.all():
        print(f"all {same.size} elements are within atol {atol:g}, rtol {rtol:g}")
        return False
    at = np.unravel_index(np.where(same, -1, np.nan_to_num(error, nan=np.inf, posinf=np.inf)).argmax(), same.shape)
    print(f"{same.size - same.sum()} of {same.size} elements are beyond atol {atol:g}, rtol {rtol:g}")
    print(f"  the worst, at {list(map(int, at))}: {actual[at]} instead of {expected[at]}, difference {error[at]:.6g}")
    return True


def compare(outputs_of, inputs, expected, limits, differs=differs):
    """1 if any output of any sample is out of tolerance, else 0; prints what differs."""
    wrong = False
    if not expected or len(inputs) != len(expected):
        raise CannotSay("there is nothing to compare")
    for number, (feed, expected_outputs) in enumerate(zip(inputs, expected)):
        outputs = outputs_of(feed)
        for name, value in expected_outputs.items():
            print(f"sample {number}, output {name!r}: ", end="")
            if name not in outputs:
                print("missing")
            wrong = name not in outputs or differs(outputs[name], value, **limits[name]) or wrong
    return int(wrong)


def differs_by(actual, expected, elements=None, errors=None, limits=()):
    """Whether an output is beyond its limits; prints each of them.

    elements: (atol, rtol) for each element. errors: (statistic, quantile, atol, rtol), where that statistic of the
    absolute errors must be within atol, or that of the relative errors within rtol. limits: (measure, limit) pairs.
    """
    import numpy as np

    if actual.shape != expected.shape or actual.dtype.kind in "cOUS":
        return differs(actual, expected, 0, 0)
    wrong = elements is not None and differs(actual, expected, *elements)
    one, other = (side.astype(np.longdouble).ravel() for side in (actual, expected))
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


def measure(name, actual, expected, error):
    """A measure of all elements: l2, cosine, or psnr and snr in dB."""
    import numpy as np

    norms = [np.linalg.norm(values.astype(np.float64)) for values in (actual, expected, error)]
    if name == "l2":
        return norms[2]
    if name == "cosine":
        return np.dot(actual / (norms[0] or 1), expected / (norms[1] or 1)) if any(norms[:2]) else 1.0
    peak = max(expected.max(initial=0), 0) or 1.0
    signal = norms[1] if name == "snr" else peak * np.sqrt(expected.size)
    with np.errstate(all="ignore"):
        return 20 * np.log10(np.float64(signal) / norms[2])


def expect_failure(load, kind, message):
    """1 if building the model fails with an error of this kind, else 0."""
    try:
        load()
    except (CannotSay, ImportError):
        raise
    except Exception as error:
        return judged(error, kind, message)
    print("it is built")
    return 0


def judged(error, kind, message):
    """1 if an error is of this kind; its message may be another one."""
    text = " ".join(str(error).split())
    print(f"{type(error).__name__}: {text}")
    if kind != type(error).__name__ and kind.lower() not in text.lower().replace(" ", ""):
        raise CannotSay(f"it fails, but not by {kind}: {message}")
    if message not in text:
        print(f"when this script was made it said: {message}")
    return 1


def watch_child(work, script, ends_by, seconds):
    """1 if a process that does the work ends as expected, by a signal or not in time; 0 if it ends with status 0."""
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
    """The exit status of a command (or minus the signal), its output, and the verdict that it wrote, if any.

    In the words, "{}" is the model and "{python}" this Python.
    """
    names = {"{}": str(folder / "model.onnx"), "{python}": sys.executable}
    typed = [re.sub(r"\{(python)?\}", lambda match: names[match[0]], word) for word in words]
    if (folder / words[0]).is_file():
        (folder / words[0]).chmod(0o755)  # unpacking may have lost it
    with tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch) / "verdict.json"
        variables = {**os.environ, "BIOPSY_VERDICT": str(written), "BIOPSY_SETTINGS": "none"}
        try:
            done = run_process(typed, cwd=folder, env=variables, stdout=PIPE, stderr=STDOUT, timeout=seconds)
        except TimeoutExpired:
            return TIMEOUT, "", {}
        except OSError as error:
            raise CannotSay(f"the command does not start: {error}") from error
        verdict = json.loads(written.read_bytes()) if written.exists() and written.stat().st_size else {}
    text = done.stdout.decode("utf-8", "replace")
    print(text.rstrip("\n"))
    print(f"the command ended: {end_name(done.returncode)}")
    return done.returncode, text, verdict


def command_status(ended, status, raised, verdict):
    """1 if it failed as it did when this script was made: the same status, exception and verdict; 0 if it passed."""
    status_now, text, verdict_now = ended
    died = verdict_now.get("looked") and not verdict_now.get("outcome")  # perhaps with status 0
    if status_now == 0 and verdict_now.get("outcome") != "fails" and not died:
        return 0
    now = {key: verdict_now.get(key, "") for key in verdict}
    if (status_now, last_exception(text), now) != (status, raised, verdict):
        before = [end_name(status), raised, *verdict.values()]
        raise CannotSay(f"it fails, but not as it did: {', '.join(filter(None, before))}")
    return 1


def last_exception(text):
    """The name of the exception that ended a Python program; "" if there is none."""
    _, traceback, after = text.rpartition("Traceback (most recent call last):")
    names = re.findall(r"^([A-Za-z_][\w.]*)(?:: .*)?$", after, re.MULTILINE)
    return names[0].rpartition(".")[2] if traceback and names else ""


def status_by_rules(ended, fail_codes=(), ignored_codes=(), patterns=()):
    """1 if the status counts as the failure and the output matches one of the patterns, if there are any; else 0."""
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
