"""The report of a real run, in a real browser: it draws, it says what it should, and its scripts raise nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "market-reports" / "job.toml"
CHROMIUM = [
    "chromium",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--virtual-time-budget=5000",
    "--enable-logging=stderr",
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`report.html` of a rehearsal of the main example."""
    out = tmp_path_factory.mktemp("report") / "run"
    command = [sys.executable, "-c", "import sys; from centuria.cli import main; sys.exit(main())"]
    flags = ["run", str(EXAMPLE), "--rehearse", "--quiet", "--out", str(out)]
    env = {**os.environ, "CENTURIA_RUNS": str(out.parent / "runs")}
    subprocess.run([*command, *flags], check=True, timeout=120, env=env, capture_output=True)
    return out / "report.html"


def browse(report: Path, profile: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [*CHROMIUM, f"--user-data-dir={profile}", *flags, report.as_uri()]
    return subprocess.run(command, check=True, timeout=90, capture_output=True, text=True)


def test_the_report_shows_every_agent_and_its_scripts_raise_nothing(report: Path, tmp_path: Path) -> None:
    page = browse(report, tmp_path, "--dump-dom")
    assert "100 ok of 100" in page.stdout or "100 of 100" in page.stdout
    for symbol in ("NVDA", "AAPL", "GOOGL"):
        assert f"reports/{symbol}.md" in page.stdout
    assert "REHEARSAL" in page.stdout.upper()
    console = [line for line in page.stderr.splitlines() if "CONSOLE" in line]
    assert console == []


@pytest.mark.parametrize(("name", "size"), [("desktop", "1440,1200"), ("phone", "390,1200")])
def test_the_report_can_be_seen_on_a_desk_and_on_a_phone(report: Path, tmp_path: Path, name: str, size: str) -> None:
    picture = tmp_path / f"report-{name}.png"
    browse(report, tmp_path / "profile", f"--window-size={size}", f"--screenshot={picture}")
    assert picture.stat().st_size > 20_000


def test_the_page_of_a_comparison_draws_every_model_and_its_scripts_raise_nothing(tmp_path: Path) -> None:
    out = tmp_path / "compared"
    command = [sys.executable, "-c", "import sys; from centuria.cli import main; sys.exit(main())"]
    flags = ["--models", "kimi-k2.5,openai:gpt-4.1", "--limit", "5", "--rehearse", "--quiet", "--out", str(out)]
    env = {**os.environ, "CENTURIA_RUNS": str(tmp_path / "runs")}
    subprocess.run([*command, "compare", str(EXAMPLE), *flags], check=True, timeout=120, env=env, capture_output=True)
    page = browse(out / "comparison.html", tmp_path / "profile", "--dump-dom")
    assert page.stdout.count("<svg") == 2 and "openai:gpt-4.1" in page.stdout and "REHEARSAL" in page.stdout
    assert "[object" not in page.stdout
    assert [line for line in page.stderr.splitlines() if "CONSOLE" in line] == []
