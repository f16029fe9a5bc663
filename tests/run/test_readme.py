"""The README: short, and what it shows runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_short_and_names_the_two_commands() -> None:
    assert len(README.splitlines()) < 150
    assert "make demo" in README and "make test" in README


def test_its_python_example_runs_without_a_key_and_says_that_it_is_a_rehearsal(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "NVDA ok" in done.stdout and "AAPL ok" in done.stdout
    assert "This is a rehearsal" in done.stderr


def test_every_file_that_it_names_is_there() -> None:
    named = re.findall(r"\]\(([\w/.-]+)\)", README) + re.findall(r"`((?:tests|examples|docs)/[\w/.-]+)`", README)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
