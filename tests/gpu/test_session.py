"""The session's script without a GPU: a step that fails, or is none, is named and counted."""

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).with_name("session.sh")


def test_what_fails_is_named_and_counted(tmp_path):
    command = ["bash", str(SCRIPT), str(tmp_path / "out"), "+record", "no-such-step"]
    ended = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", "PYTHON": "/bin/false"}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert set(ended.stdout.splitlines()[-1].removeprefix("== failed: ").split()) == {"record", "no-such-step"}
    assert "no step no-such-step" in ended.stdout
