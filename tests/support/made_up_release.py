"""A made-up release of onnxruntime, in an environment of its own: it does what its session options say."""

import sys
import sysconfig
from pathlib import Path

PACKAGE = '''
"""A session gives its only input back, unless it was told to fail: by the config entry "do.build" or "do.run".

With MADE_UP=dies-in-forks in the environment it works in no fork of the process that has imported it."""

import os
import signal
import sys
import time

import numpy as np

__version__ = "0.0.7"


class GraphOptimizationLevel:
    ORT_DISABLE_ALL, ORT_ENABLE_BASIC, ORT_ENABLE_EXTENDED, ORT_ENABLE_ALL = range(4)


class ExecutionMode:
    ORT_PARALLEL = 1


class SessionOptions:
    def __init__(self):
        self.entries = {}

    def add_session_config_entry(self, key, value):
        self.entries[key] = value


class RunOptions:
    pass


class Port:
    def __init__(self, name):
        self.name, self.type, self.shape = name, "tensor(float)", [2]


class Fail(Exception):
    pass


LOADED_IN = os.getpid()


def do(what):
    if os.environ.get("MADE_UP") == "dies-in-forks" and os.getpid() != LOADED_IN:
        os._exit(1)
    if what.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[what])
    elif what.startswith("exit"):
        os._exit(int(what[4:]))
    elif what == "hang":
        time.sleep(1000)
    elif what == "memory":
        global taken
        taken = np.ones(400 << 20, "u1")
        time.sleep(1000)
    elif what == "print":
        print("made up: printed")
        sys.stdout.flush()
    elif what == "fail":
        raise Fail("it is made up")


class InferenceSession:
    def __init__(self, data, options, providers=None, disabled_optimizers=None, enable_fallback=1):
        self.options = options
        do(options.entries.get("do.build", ""))

    def get_inputs(self):
        return [Port("x")]

    def get_outputs(self):
        return [Port("y")]

    def get_providers(self):
        return get_available_providers()

    def get_provider_options(self):
        return {}

    def run(self, names, feed, options):
        do(self.options.entries.get("do.run", ""))
        return [feed["x"] + float(self.options.entries.get("plus", 0))]


def get_available_providers():
    return ["CPUExecutionProvider"]


def get_all_providers():
    return get_available_providers()


def set_default_logger_severity(severity):
    pass
'''


def made_up_release(folder: Path) -> Path:
    """Make the environment in a folder; returns its interpreter, which finds NumPy where this one does."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.symlink_to(Path(sys.executable).resolve())
    home = Path(sys.base_prefix, "bin")
    (folder / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    packages = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (packages / "onnxruntime").mkdir(parents=True)
    (packages / "onnxruntime" / "__init__.py").write_text(PACKAGE)
    (packages / "onnxruntime-0.0.7.dist-info").mkdir()
    (packages / "onnxruntime-0.0.7.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: onnxruntime\nVersion: 0.0.7\n"
    )
    (packages / "numpy.pth").write_text(sysconfig.get_paths()["platlib"])
    return python
