"""Makes an interpreter that is about to run a script the warm process of its checks; see ``processes.warm``.

An interpreter imports this at the end of its start, before the script, if this folder is the first on PYTHONPATH. It
imports what the script will need, and waits; the functions below return only in forks. Each fork then runs the script
as the interpreter always does: ``__main__``, ``sys.path``, tracebacks and the exit are as usual, and nothing of this
file is on the stack.

It must run in CPython 3.8 or newer, must not import biopsy, and leaves nothing in ``sys.modules``, not even
``__future__``.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


def _wait_for_requests() -> bool:
    """Become a warm process. Returns in its forks: whether this interpreter has another sitecustomize."""
    bare = set(sys.modules)
    _hide()
    _leave_nothing_behind()
    forks = _read("..", "forks.py")
    warm_imports = _read("warm_imports.py")
    state = warm_imports.state_of(os.environ, forks.STATE_VARIABLE)
    state["connections"] = forks.connections_of_environment()
    for name in set(sys.modules) - bare:
        del sys.modules[name]  # the script may have modules of its own with these names
    imports = warm_imports.WarmImports(state, bare, forks)
    is_there: bool = imports.of_the_start(_import_the_real_one)
    imports.begin()
    loop = forks.ForkLoop(state["connections"], before_fork=imports.before_fork, idle=imports.idle)
    request = loop.next_request(silent=state["ready"])
    sys.argv[:] = request["argv"]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = request["orig_argv"]
    os.environ.update(request["environment"])
    imports.in_fork()
    return is_there


def _hide() -> None:
    """Remove this folder from the import path."""
    for path in [path for path in sys.path if os.path.abspath(path) == _HERE]:
        sys.path.remove(path)
        sys.path_importer_cache.pop(path, None)


def _leave_nothing_behind() -> None:
    """Remove the compiled file that this interpreter has just written, unless biopsy was installed with such files."""
    compiled = globals().get("__cached__") or ""
    if compiled and not os.path.exists(compiled.replace("sitecustomize.", "warm_imports.")):
        try:
            os.unlink(compiled)
            os.rmdir(os.path.dirname(compiled))
        except OSError:
            pass  # it was not written, or the folder has other files


def _read(*path: str) -> "Any":
    """A file of biopsy as a module that is not in ``sys.modules`` and leaves no compiled file behind."""
    name = os.path.join(_HERE, *path)
    module = type(sys)("biopsy_" + path[-1][:-3])
    with open(name, encoding="utf-8") as source:
        exec(compile(source.read(), name, "exec"), module.__dict__)  # noqa: S102 -- our own code
    return module


def _import_the_real_one() -> bool:
    """Import the sitecustomize that this interpreter would have found without this file; False if there is none."""
    sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        return False
    return True


def _has_imported_another() -> bool:
    """Do the work of this file; returns whether another sitecustomize has been imported."""
    if "BIOPSY_FORK_CONNECTIONS" not in os.environ:  # as in forks.py, not read yet: an interpreter in this interpreter
        _hide()
        return _import_the_real_one()
    try:
        return _wait_for_requests()
    except BaseException:
        os.kill(os.getpid(), 9)  # an exit status could be taken for that of the script
        raise


if not _has_imported_another():
    raise ImportError("there is none", name="sitecustomize")  # as the interpreter expects
