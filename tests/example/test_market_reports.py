"""The main example: every figure of its hundred answers is right, and every report says what it must.

The script of the rehearsal is played here with the real tools over stdio, and without the rest of the program.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from centuria.core.templates import fill, fill_all
from tests.example.figures import EXAMPLE, classes, expected, largest, left_out, table
from tests.tools.stdio import Session, session, text

JOB = tomllib.loads((EXAMPLE / "job.toml").read_text(encoding="utf-8"))
SCHEMA = json.loads((EXAMPLE / "report.schema.json").read_text(encoding="utf-8"))
#: Characters of a tool's result that a model gets to see by default.
RESULT_CHARS = 20_000


@pytest.fixture(scope="module")
def answers() -> Iterator[dict[str, dict[str, Any]]]:
    """By symbol, what the script answers for each of the 100 rows."""
    with ExitStack() as stack:
        tools = {
            "file_read": stack.enter_context(session("file_read", "--root", str(EXAMPLE))),
            "code_exec": stack.enter_context(session("code_exec")),
        }
        with ThreadPoolExecutor(8) as pool:
            given = pool.map(lambda row: json.loads(play(row, tools)), largest())
            yield {row["Symbol"]: answer for row, answer in zip(largest(), given, strict=True)}


def play(row: Mapping[str, str], tools: Mapping[str, Session]) -> str:
    """The rehearsal's turns for one row, as the scripted model plays them."""
    values: dict[str, Any] = dict(row)
    for turn in JOB["rehearsal"]["turn"]:
        if "text" in turn:
            return fill(turn["text"], values)
        for call in turn["calls"]:
            result = tools[call["tool"]].call(call["tool"], **fill_all(call["arguments"], values))
            assert not result.is_error, text(result)
            assert len(text(result)) < RESULT_CHARS
            values[call["name"]] = json.loads(text(result))
    raise AssertionError("the script has no answer")


def test_a_hundred_rows_give_a_hundred_answers_in_order_of_size(answers: dict[str, dict[str, Any]]) -> None:
    assert len(answers) == 100
    caps = [answer["market_cap"] for answer in answers.values()]
    assert caps == sorted(caps, reverse=True)


def test_every_answer_fits_the_schema(answers: dict[str, dict[str, Any]]) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    validator = Draft202012Validator(SCHEMA)
    for answer in answers.values():
        validator.validate(answer)
        assert list(answer) == list(SCHEMA["properties"]) == SCHEMA["required"]


def test_every_figure_equals_an_independent_computation(answers: dict[str, dict[str, Any]]) -> None:
    tolerance = {"dividend_yield_percent": 0.00501}
    for symbol, right in expected().items():
        for name, value in right.items():
            if name not in SCHEMA["properties"]:
                continue
            given = answers[symbol][name]
            if isinstance(value, float) and name not in ("price", "market_cap"):
                assert given == pytest.approx(value, abs=tolerance.get(name, 0.0501)), (symbol, name)
            else:
                assert given == value, (symbol, name)


def test_a_missing_value_is_null_and_said_to_be_missing_never_zero(answers: dict[str, dict[str, Any]]) -> None:
    columns = {
        "Price/Earnings": "price_earnings",
        "Dividend Yield": "dividend_yield_percent",
        "Price/Book": "price_book",
    }
    seen = 0
    for row in largest():
        answer = answers[row["Symbol"]]
        for column, name in columns.items():
            if not row[column]:
                seen += 1
                assert answer[name] is None
                assert column in answer["missing"]
                assert re.search(rf"Missing in the data: .*{re.escape(column)}", answer["report"])
    assert seen == 20
    for answer in answers.values():
        assert not re.search(r"\b(None|nan|inf)\b|\$0\b", answer["report"])


def test_every_report_states_the_medians_with_their_n_or_too_few_peers(answers: dict[str, dict[str, Any]]) -> None:
    few = 0
    for symbol, right in expected().items():
        report = answers[symbol]["report"]
        for name, (median, n) in right["multiples"].items():
            (row,) = re.findall(rf"^\| {name} \| (\S+) \| ([^|]+) \| (\d+) \| (\S*) ?\|$", report, re.MULTILINE)
            assert int(row[2]) == n, (symbol, name)
            if median is None:
                few += 1
                assert n < 3
                assert row[1] == "too few peers"
                assert row[3] == ""
            else:
                assert float(row[1].replace(",", "")) == pytest.approx(median, abs=0.0501), (symbol, name)
        median, n = right["median_yield"]
        assert f"(n = {n})" in report if median is not None else "median of" not in report.split("## Dividend")[1]
    assert few > 0


def test_the_text_of_every_report_says_the_same_as_its_figures(answers: dict[str, dict[str, Any]]) -> None:
    for symbol, answer in answers.items():
        report: str = answer["report"]
        assert report.startswith("# ")
        assert f"({symbol})" in report.splitlines()[0]
        assert f"rank {answer['rank_in_sector']} of {answer['sector_size']} in {answer['sector']}." in report
        assert f"${answer['price']:,.2f}" in report
        position = re.search(r"(\d+)% of the way up", report)
        assert position is not None
        assert abs(int(position[1]) - answer["position_in_52_week_range_percent"]) <= 0.56
        premium, n = answer["pe_premium_percent"], answer["sector_median_pe_n"]
        if premium is not None:
            words = re.search(
                r"times earnings it trades (.*?) the sector median P/E of ([\d.,]+) \(n = (\d+)\)", report
            )
            assert words is not None, symbol
            assert float(words[2].replace(",", "")) == answer["sector_median_pe"]
            assert int(words[3]) == n
            assert _fits(words[1], premium), (symbol, words[1], premium)
        elif answer["price_earnings"] is None:
            assert "It has no P/E in the data" in report
        else:
            assert "there is no sector median (too few peers" in report
        for heading in ("## Size", "## Valuation", "## 52-week range", "## Dividend", "## What to know", "## Sources"):
            assert heading in report
        assert 1200 < len(report) < 3000


def _fits(words: str, premium: float) -> bool:
    if words == "in line with":
        return abs(premium) <= 5.05
    if found := re.fullmatch(r"at a (premium|discount) of (\d+)% to", words):
        signed = int(found[2]) if found[1] == "premium" else -int(found[2])
        return abs(signed - premium) <= 0.56
    if found := re.fullmatch(r"at ([\d.,]+) times", words):
        return premium > 100 and abs(float(found[1].replace(",", "")) - (premium / 100 + 1)) <= 0.051
    return False


def test_two_rows_of_one_company_are_marked_and_counted_once(answers: dict[str, dict[str, Any]]) -> None:
    assert sorted(map(sorted, classes().values())) == [["FOX", "FOXA"], ["GOOG", "GOOGL"], ["NWS", "NWSA"]]
    for symbol, in_class in (("GOOGL", "Class A"), ("GOOG", "Class C")):
        answer = answers[symbol]
        assert (answer["share_class"], answer["rank_in_sector"], answer["sector_size"]) == (in_class, 1, 3)
        assert f"{in_class} is one of two listed share classes" in answer["report"]
    assert [symbol for symbol, answer in answers.items() if answer["share_class"]] == ["GOOGL", "GOOG"]
    # A third company of the same sector sees Alphabet once, too.
    assert answers["META"]["sector_size"] == 3


def test_companies_without_a_market_capitalisation_are_left_out_and_said_in_the_ranks(
    answers: dict[str, dict[str, Any]],
) -> None:
    assert len(left_out()) == 34
    assert not left_out() & set(answers)
    for symbol, right in expected().items():
        said = re.search(
            r"^- (\d+) more of the sector ha(?:s|ve) no market capitalisation", answers[symbol]["report"], re.M
        )
        assert (int(said[1]) if said else 0) == right["without_cap"]


def test_the_sandbox_computes_what_python_computes(answers: dict[str, dict[str, Any]]) -> None:
    spec = importlib.util.spec_from_file_location("analysis", EXAMPLE / "analysis.py")
    assert spec is not None
    assert spec.loader is not None
    analysis = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(analysis)
    everything = table()
    for row in largest():
        sector = [other for other in everything if other["Sector"] == row["Sector"]]
        assert analysis.analyse(row, sector) == answers[row["Symbol"]]


def test_the_prompt_names_every_column_of_the_data_and_no_other() -> None:
    with (EXAMPLE / "sp500-financials.csv").open(newline="", encoding="utf-8") as file:
        columns = next(csv.reader(file))
    listed = re.search(r"Columns: (.*?)\. Cells", JOB["job"]["prompt"], re.DOTALL)
    assert listed is not None
    assert " ".join(listed[1].split()).split(", ") == columns


def test_the_prompt_shows_calls_that_work() -> None:
    prompt = fill(JOB["job"]["prompt"], largest()[0])
    calls = [json.loads(line) for line in re.findall(r"^ *(\{.*\})$", prompt, re.MULTILINE)]
    assert [call["where"] for call in calls] == [{"Symbol": "NVDA"}, {"Sector": "Semiconductors"}]


def test_the_rehearsed_summary_lists_what_was_left_out() -> None:
    summary = fill(
        JOB["rehearsal"]["merge"]["text"],
        {"count": 100, "top": "| top |", "left_out": "Salesforce (CRM)", "left_out_count": 34, "failed": "none"},
    )
    assert "Left out: 34 companies\n\nSalesforce (CRM)" in summary
    assert "| top |" in summary
