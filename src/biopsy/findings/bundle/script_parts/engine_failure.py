"""An engine that cannot build or run the model, and says so."""

from biopsy.findings.bundle.script_parts.statuses import CannotSay


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
