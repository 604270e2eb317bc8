"""What PyTorch would set by itself when it first captures a module."""

import os
import tempfile

os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), "torchinductor_tests"))  # noqa: PTH118
