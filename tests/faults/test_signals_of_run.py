"""``biopsy run``, which has nothing to save, ends by the signal that it is sent, as the page on exit statuses says."""

import signal
import subprocess
import time

import pytest

from support.command_line import BIN
from support.models import chain, save


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 5)])
def test_run_ends_by_sigterm_itself_and_with_5_by_ctrl_c(tmp_path, number: signal.Signals, status: int) -> None:
    save(chain(2), tmp_path / "m.onnx")
    (tmp_path / "slow.py").write_text("import time\n\ndef load_data():\n    open('waits', 'w')\n    time.sleep(30)\n")
    line = [str(BIN / "biopsy"), "run", "m.onnx", "--reference", "--data-loader-script", "slow.py"]
    process = subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.PIPE)
    until = time.monotonic() + 20
    while not (tmp_path / "waits").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == status
