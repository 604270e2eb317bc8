"""One engine run in a process of its own: a crash, a hang or a leak there costs this process nothing.

The child (``main``) reads one JSON request from stdin, writes the results to a file, and keeps a second
small JSON file up to date about how far it came. Both sides of the protocol stand here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create, parse_spec
from biopsy.filesystem.write import create_new, write_whole
from biopsy.isolation.cleanup import temporary_folder
from biopsy.isolation.interpreter import own_python
from biopsy.model.load import read_bytes
from biopsy.model.outputs import mark_outputs

_MOST_SHOWN = 2000  # bytes of what a dying engine printed


def run_in_child(
    model: ModelInput | Path,
    engine: str,
    feeds: Path,
    output: Path,
    *,
    outputs: Literal["all"] | Sequence[str] | None = None,
    timeout: float | None = None,
) -> Path:
    """Run ``model`` in ``engine`` (a spec such as ``onnxrt:optimization=none``) with every feed of the file ``feeds``.

    The results go to ``output`` (by its extension, best .safetensors), which is returned; its folder must exist.
    ``outputs`` marks other outputs first, as ``mark_outputs`` does. ``timeout`` is in seconds.

    Raises whatever the child raised (EngineFailure, EngineMissing, CannotCompare, ModelError, DataError, UsageError).
    EngineFailure also if it died by a signal, whose name is then the ``kind``, or was stopped at the timeout
    (``kind`` "Timeout"). Nothing but the results is left behind.
    """
    with temporary_folder(".biopsy-child-", output.parent) as scratch:
        given = _given(model, scratch)
        report = scratch / "report.json"
        request = {
            "model": str(given.path),
            "folder": str(given.folder),
            "engine": engine,
            "feeds": str(feeds),
            "output": str(output),
            "outputs": outputs if outputs is None or outputs == "all" else list(outputs),
            "report": str(report),
        }
        with create_new(scratch / "printed") as printed:
            status = _start_and_wait(request, printed, timeout)
            _raise_what_happened(engine, status, _read_report(report), _tail(printed))
    return output


def _given(model: ModelInput | Path, scratch: Path) -> ModelInput:
    """The model as a file: where it stands already, or written for the child."""
    if isinstance(model, Path):
        return ModelInput(b"", model.parent, model)
    if model.path is not None:
        return model
    path = scratch / "model.onnx"
    write_whole(path, [model.data])
    return ModelInput(b"", model.folder, path)


def _start_and_wait(request: dict[str, Any], printed: Any, timeout: float | None) -> int | None:
    """The child's exit status, negative for a signal; None if it had to be stopped at the timeout."""
    child = subprocess.Popen(
        own_python(__name__),
        stdin=subprocess.PIPE,
        stdout=printed,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        child.communicate(json.dumps(request).encode(), timeout=timeout)
    except subprocess.TimeoutExpired:
        return None
    except BrokenPipeError:  # it died before it read its request: its status tells
        child.wait()
    finally:
        if child.poll() is None:
            _stop(child)
    return child.returncode


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and what it started; also when this process is interrupted while it waits."""
    if hasattr(os, "killpg"):
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    child.wait()


def _read_report(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _tail(printed: Any) -> str:
    printed.seek(0, os.SEEK_END)
    printed.seek(max(0, printed.tell() - _MOST_SHOWN))
    text: str = printed.read().decode(errors="replace")
    return text.strip()


def _raise_what_happened(engine: str, status: int | None, report: dict[str, Any], printed: str) -> None:
    if "error" in report:
        raise rebuilt(report)
    if status == 0:
        return
    name = parse_spec(engine).name
    stage: errors.Stage | None = report.get("stage")
    if stage is None:
        raise never_looked(engine, status, printed)
    if status is None:
        raise errors.EngineFailure(f"{engine} took too long to {stage}", engine=name, stage=stage, kind="Timeout")
    if status < 0:
        kind = signal_name(-status)
        message = f"{engine} ended its process with {kind}{_quoted(printed)}"
        raise errors.EngineFailure(message, engine=name, stage=stage, kind=kind)
    raise errors.BiopsyError(f"the process of {engine} ended with status {status} without a result{_quoted(printed)}")


def never_looked(engine: str, status: int | None, printed: str) -> errors.BiopsyError:
    """A child ended, or was ended at the timeout (None), before its engine was given the model: no failure of that."""
    how = "took too long to start" if status is None else f"ended with {_end(status)}"
    return errors.BiopsyError(f"the process of {engine} {how}, before it looked at the model{_quoted(printed)}")


def _end(status: int) -> str:
    return signal_name(-status) if status < 0 else f"status {status}"


def _quoted(printed: str) -> str:
    return f"; it printed:\n{printed}" if printed else ""


def signal_name(number: int) -> str:
    """What a signal is called: ``SIGSEGV``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def rebuilt(report: dict[str, Any]) -> errors.BiopsyError:
    """The error that ``told`` has made this of."""
    message, steps = report["message"], report["next_steps"]
    if report["error"] == "EngineFailure":
        return errors.EngineFailure(
            message, engine=report["engine"], stage=report["stage"], kind=report["kind"], next_steps=steps
        )
    error_class = getattr(errors, report["error"], errors.BiopsyError)
    error: errors.BiopsyError = error_class(message, next_steps=steps)
    return error


def main() -> int:
    """The child's side: does what the request on stdin says; the report file tells how far it came."""
    request = json.load(sys.stdin)
    report = Path(request["report"])
    try:
        _serve(request, report)
    except errors.BiopsyError as error:
        report.write_text(json.dumps(told(error)), encoding="utf-8")
    except Exception as error:
        foreseen = errors.BiopsyError(f"{type(error).__name__}: {error}")
        report.write_text(json.dumps(told(foreseen)), encoding="utf-8")
    return 0


def told(error: errors.BiopsyError) -> dict[str, Any]:
    """An error as JSON carries it from process to process."""
    tree = {"error": type(error).__name__, "message": error.message, "next_steps": list(error.next_steps)}
    if isinstance(error, errors.EngineFailure):
        tree |= {"engine": error.engine, "stage": error.stage, "kind": error.kind}
    return tree


def _serve(request: dict[str, Any], report: Path) -> None:
    from biopsy.engines.runner import run_session
    from biopsy.tensors.files import read_feeds, write_results

    path = Path(request["model"])
    model = ModelInput(read_bytes(path), Path(request["folder"]), path)
    if request["outputs"] is not None:
        model = ModelInput(mark_outputs(model.data, request["outputs"]), model.folder)
    engine = create(request["engine"])
    feeds = read_feeds(Path(request["feeds"]))
    engine.version()  # imports its package
    report.write_text('{"stage": "build"}', encoding="utf-8")
    session = engine.build(model)
    report.write_text('{"stage": "run"}', encoding="utf-8")
    result = run_session(session, feeds, runner=engine.label)
    write_results(Path(request["output"]), [result])
