"""`make test` calls pytest twice: together they run every test once, and a failure in either is a failure of both."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import os, time
from pathlib import Path
import pytest


@pytest.fixture(autouse=True)
def _noted(request):
    note = Path("ran") / f"{time.monotonic_ns()}-{os.getpid()}"
    began = time.monotonic_ns()
    yield
    note.write_text(f"{request.node.nodeid}\\n{began}\\n{time.monotonic_ns()}")


@pytest.mark.parametrize("number", range(8))
def test_beside_others(number):
    time.sleep(0.05)


@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.alone)])
def test_of_which_one_runs_alone(number):
    time.sleep(0.05)


@pytest.mark.alone
class TestAlone:
    @pytest.mark.parametrize("number", range(2))
    def test_one(self, number):
        time.sleep(0.05)


@pytest.mark.alone
def test_that_may_fail_alone():
    assert os.environ.get("FAILS") != "alone"


def test_that_may_fail_beside_others():
    assert os.environ.get("FAILS") != "beside"
"""
IDS = sorted(
    "test_them.py::" + name
    for name in (
        *(f"test_beside_others[{number}]" for number in range(8)),
        *(f"test_of_which_one_runs_alone[{number}]" for number in (1, 2)),
        *(f"TestAlone::test_one[{number}]" for number in range(2)),
        "test_that_may_fail_alone",
        "test_that_may_fail_beside_others",
    )
)
ALONE = {name for name in IDS if "TestAlone" in name or name.endswith(("runs_alone[2]", "fail_alone"))}


def make(folder: Path, fails: str = "") -> tuple[int, str, dict[str, list[tuple[int, int]]]]:
    """The Makefile's own recipe on a few tests in `folder`: its code, what it said, and when each test ran."""
    shutil.copy(ROOT / "Makefile", folder)
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    markers = "".join(f"\n    {marker}" for marker in options["markers"])
    (folder / "pytest.ini").write_text(f"[pytest]\naddopts = {options['addopts']}\nmarkers ={markers}\n")
    (folder / "test_them.py").write_text(TESTS)
    (folder / "ran").mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MAKE"))}
    done = subprocess.run(
        ["make", "pytest", f"BIN={Path(sys.executable).parent}"],
        cwd=folder,
        env=env | {"FAILS": fails, "PYTEST_ADDOPTS": "-p no:asyncio -p no:anyio -p no:hypothesispytest -p no:timeout"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    ran: dict[str, list[tuple[int, int]]] = {}
    for note in (folder / "ran").iterdir():
        name, began, ended = note.read_text().split("\n")
        ran.setdefault(name, []).append((int(began), int(ended)))
    return done.returncode, done.stdout + done.stderr, ran


def test_both_calls_together_run_every_test_once_and_those_marked_alone_beside_no_other(tmp_path: Path) -> None:
    code, said, ran = make(tmp_path)
    assert code == 0, said
    assert sorted(ran) == IDS and {len(times) for times in ran.values()} == {1}, ran
    spans = {name: times[0] for name, times in ran.items()}
    for name in ALONE:
        began, ended = spans[name]
        assert [other for other, (b, e) in spans.items() if other != name and b < ended and began < e] == [], name
    counts = Counter(name in ALONE for name in ran)
    assert f"{counts[False]} passed" in said and f"{counts[True]} passed" in said and "all passed" in said


@pytest.mark.parametrize(("part", "named"), [("beside", "(side by side)"), ("alone", "(alone)")])
def test_a_failure_in_either_call_fails_both_and_the_other_still_runs(tmp_path: Path, part: str, named: str) -> None:
    code, said, ran = make(tmp_path, fails=part)
    assert code != 0 and f"there were failures {named}" in said and "all passed" not in said
    assert sorted(ran) == IDS
