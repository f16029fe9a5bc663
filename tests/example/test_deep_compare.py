"""The comparison that the model splits by itself: every figure is right, and the swarm is the one that was meant."""

from __future__ import annotations

import os
import re
import statistics
from collections import defaultdict
from pathlib import Path

import pytest

from centuria import Swarm, run_sync
from centuria.core.progress import Progress
from centuria.ending import Report
from centuria.journal import JournalReader
from tests.example.figures import table

JOB = Path(__file__).parents[2] / "examples" / "deep-compare" / "job.toml"
Row = dict[str, str]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    async def main() -> Report:
        async with Swarm(
            runs=tmp_path_factory.mktemp("deep"), rehearse=True, env={"PATH": os.environ["PATH"]}
        ) as swarm:
            return await swarm.run(JOB)

    return run_sync(main())


def sectors() -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in table():
        found[row["Sector"]].append(row)
    return {name: rows for name, rows in found.items() if len(rows) >= 5}


def median(rows: list[Row], column: str, *, positive: bool = False, times: float = 1.0) -> str:
    values = [float(row[column]) * times for row in rows if row[column]]
    values = [value for value in values if not positive or value > 0]
    return f"{statistics.median(values):.1f} ({len(values)})"


def place(rows: list[Row]) -> str:
    places = []
    for row in rows:
        if row["Price"] and row["52 Week Low"] and row["52 Week High"]:
            low, high = float(row["52 Week Low"]), float(row["52 Week High"])
            if high > low:
                places.append(100 * (float(row["Price"]) - low) / (high - low))
    return f"{statistics.median(places):.1f} ({len(places)})"


def lines(answer: str, heading: str) -> dict[str, list[str]]:
    part = answer.split(f"## By {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in rows[1:] if not set(cells[0]) <= {"-", " ", "|"}}


def test_every_sub_industry_with_five_companies_is_compared_from_four_sides_with_the_right_figures(
    report: Report,
) -> None:
    valuation, dividend = lines(report.answer, "valuation"), lines(report.answer, "dividend")
    size, place_in = lines(report.answer, "size"), lines(report.answer, "place in the 52-week range")
    expected = sectors()
    assert len(expected) > 30
    assert set(valuation) == set(size) == set(place_in) == set(expected)
    for name, rows in expected.items():
        columns = ("Price/Earnings", "Price/Sales", "Price/Book")
        assert valuation[name] == [median(rows, column, positive=True) for column in columns], name
        assert size[name] == [median(rows, "Market Cap", times=1e-9)], name
        assert place_in[name] == [place(rows)], name
        if name in dividend:
            assert dividend[name] == [median(rows, "Dividend Yield", times=100)], name


def test_the_orchestrator_made_one_collector_for_each_and_four_analysts_and_a_reviewer_who_needs_them(
    report: Report,
) -> None:
    width = len(sectors())
    assert report.exit_code == 0
    assert len(report.outcomes) == 1 + width + 4 + 1
    progress = Progress()
    with JournalReader(report.folder / "journal.sqlite") as reader:
        for record in reader.records():
            progress.record(record)
    assert {row.parent for row in progress.tasks.values()} == {None, "goal"}
    assert set(progress.tasks["review"].needs) == {"valuation", "dividend", "size", "range"}
    # By hand: five turns of the goal; three of a collector; three of an analyst and three of the reviewer after it.
    steps = progress.steps()
    assert (steps.critical, steps.serial) == (5 + 3 + 3 + 3, 5 + 3 * (width + 5))


def test_medians_of_few_companies_are_named(report: Report) -> None:
    doubts = report.answer.split("## What to be careful with")[1]
    named = re.findall(r"^- (.+?): (.+?) rests on (\d+) of (\d+) companies\.$", doubts, re.M)
    assert named
    assert all(int(n) < 5 <= int(of) and len(sectors()[name]) == int(of) for name, _, n, of in named)


def test_the_output_says_that_it_is_a_rehearsal(report: Report) -> None:
    assert report.rehearsal
    assert "no model weighed the findings" in report.answer
