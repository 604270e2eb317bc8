"""Makes an interpreter that is about to run a script the warm process of its checks; see ``processes.warm``.

An interpreter imports this at the end of its own start, before it looks at the script, if this folder is the first on
PYTHONPATH. Here it imports what the script will need, and then waits: whatever is below returns in forks only. Each
fork goes on to run the script as the interpreter always does, so that ``__main__``, ``sys.path``, tracebacks and the
exit are its own work, and nothing of this file is on its stack.

It runs in any CPython from 3.8 on, imports nothing of biopsy, and leaves nothing in ``sys.modules``: not even
``__future__``.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


def _wait_for_requests() -> bool:
    """Become a warm process, and return in its forks: whether this interpreter has another file of this name."""
    bare = set(sys.modules)
    _hide()
    _leave_nothing_behind()
    forks = _read("..", "forks.py")
    warm_imports = _read("warm_imports.py")
    state = warm_imports.told(os.environ, forks.STATE_VARIABLE)
    state["connections"] = forks.connections_of_environment()
    for name in set(sys.modules) - bare:
        del sys.modules[name]  # the script may have modules of the same names, and imports its own
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
    """Take this folder from where modules are looked for."""
    for path in [path for path in sys.path if os.path.abspath(path) == _HERE]:
        sys.path.remove(path)
        sys.path_importer_cache.pop(path, None)


def _leave_nothing_behind() -> None:
    """Remove the compiled file that this interpreter has just written, unless biopsy was installed with all of them."""
    compiled = globals().get("__cached__") or ""
    if compiled and not os.path.exists(compiled.replace("sitecustomize.", "warm_imports.")):
        try:
            os.unlink(compiled)
            os.rmdir(os.path.dirname(compiled))
        except OSError:
            pass  # it was not written, or others stand there


def _read(*path: str) -> "Any":
    """A file of biopsy as a module that nobody else can see, and that leaves no compiled file behind."""
    name = os.path.join(_HERE, *path)
    module = type(sys)("biopsy_" + path[-1][:-3])
    with open(name, encoding="utf-8") as source:
        exec(compile(source.read(), name, "exec"), module.__dict__)  # noqa: S102 -- our own code
    return module


def _import_the_real_one() -> bool:
    """Import what this interpreter would have found in place of this file; False if there is none."""
    sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        return False
    return True


def _instead_of_this() -> bool:
    """Whether there is another file of this name, which has been imported."""
    if "BIOPSY_FORK_CONNECTIONS" not in os.environ:  # as in forks.py, not read yet: an interpreter in this interpreter
        _hide()
        return _import_the_real_one()
    try:
        return _wait_for_requests()
    except BaseException:
        os.kill(os.getpid(), 9)  # a status could be that of the script
        raise


if not _instead_of_this():
    raise ImportError("there is none", name="sitecustomize")  # which the interpreter expects
