"""The summary at the end, `show`, and the same as JSON."""

from __future__ import annotations

import json

from centuria import events as e
from centuria.core.progress import Progress
from centuria.messages import DOLLAR, Outcome, Status
from centuria.views.digest import as_json, causes, server_remedy
from centuria.views.text import census_line, show, summary
from tests.views.stories import Story, fold
from tests.views.test_words import EVIL


def hostile() -> Progress:
    """A run whose every text was written by an enemy."""
    progress = Progress()
    facts: list[e.Fact] = [
        e.RunStarted(EVIL, EVIL, EVIL, True, 5 * DOLLAR, 2, 2, EVIL),
        e.TaskAdded(EVIL, 0, "s", EVIL),
        e.TaskAdded("b", 1, "s", EVIL),
        e.LimitSet("agents", 2, EVIL),
        e.LimitSet(f"tool:{EVIL}", 2, EVIL),
        e.SlotGranted(1, "agents", 0, EVIL, 0.0),
        e.SlotGranted(2, f"tool:{EVIL}", 0, EVIL, 0.0),
        e.TaskStarted(EVIL, 0),
        e.PhaseStarted("work"),
        e.Notice(EVIL, "warning"),
        e.FileWritten(EVIL),
        e.ServerDown(EVIL, EVIL, EVIL),
        e.TaskEnded("b", Outcome("b", Status.FAILED, EVIL, EVIL)),
    ]
    for number, fact in enumerate(facts):
        progress.record(e.Record(number + 1, 1000.0 + number, fact))
    return progress


def test_the_summary_tells_census_cost_time_tools_causes_files_and_how_to_go_on() -> None:
    text = summary(fold(Story().tell()), folder="runs/market")
    for words in (
        "market-reports: partial, kimi-k2.5",
        "REHEARSAL",
        "93 ok, 1 failed, 6 budget of 100",
        "$0 spent (would cost $",
        " of $5.00)",
        "held for lost attempts",
        "not ok",
        "p50",
        "p99",
        "web__web_search",
        "server db is down: it exited with code 1",
        "\n  Run its command by hand, or ask its URL, to see why.",
        "\n  Try all of them: centuria doctor job.toml, or centuria doctor --tools mcp.json.",
        "6 budget: The cap of run leaves no room for this call.",
        "runs/market: table.csv, summary.md, 93 results in reports/",
        "centuria resume runs/market",
    ):
        assert words in text, words
    assert all(len(line) < 200 for line in text.splitlines())


def test_a_run_of_which_all_is_ok_says_so_and_offers_no_resume() -> None:
    progress = fold(Story(tasks=20, faults=0.0).tell())
    assert census_line(progress) == "20 ok of 20"
    assert "resume" not in summary(progress, folder="x")


def test_unfinished_tasks_are_told_and_never_counted_as_ok() -> None:
    assert census_line(fold(Story().tell(), 0.5)) == "6 ok, 94 unfinished of 100"


def test_causes_that_differ_in_numbers_only_are_one_cause() -> None:
    progress = Progress()
    for number in range(30):
        cause = f"HTTP 429 after {number}.5 s." if number % 3 else "no money"
        facts = [
            e.TaskAdded(f"t{number}", number, "s"),
            e.TaskEnded(f"t{number}", Outcome(f"t{number}", Status.FAILED, cause)),
        ]
        for fact in facts:
            progress.record(e.Record(progress.seq + 1, 0.0, fact))
    found = causes(progress)
    assert [(cause.count, cause.cause, len(cause.tasks)) for cause in found] == [
        (20, "HTTP 429 after 1.5 s.", 5),
        (10, "no money", 5),
    ]


def test_the_summary_of_ten_thousand_different_failures_is_short() -> None:
    progress = Progress()
    for number in range(10_000):
        cause = "".join(chr(97 + int(digit)) for digit in str(number))
        progress.record(e.Record(1, 0.0, e.TaskAdded(f"t{number}", number, "s")))
        progress.record(e.Record(1, 0.0, e.TaskEnded(f"t{number}", Outcome(f"t{number}", Status.FAILED, cause))))
    assert len(summary(progress).splitlines()) < 30
    assert len(show(progress).splitlines()) < 240


def test_untrusted_text_reaches_the_terminal_without_control_characters() -> None:
    text = show(hostile(), folder="runs/x")
    assert all(char == "\n" or char.isprintable() for char in text)


def test_json_holds_every_task_and_every_number_and_is_strict() -> None:
    for progress in (Progress(), hostile(), fold(Story().tell(), 0.5), fold(Story().tell())):
        found = json.loads(json.dumps(as_json(progress), allow_nan=False))
        assert [row["task"] for row in found["tasks"]] == list(progress.tasks)
        assert sum(found["census"].values()) + found["unfinished"] == found["total"]
    assert found["cost"]["spent"] == round(progress.money().spent / DOLLAR, 12)
    assert found["cost"]["cap"] == 5.0
    assert found["models"][0]["total"]["p99"] > found["models"][0]["total"]["p50"] > 0


def test_nothing_has_happened_yet_and_it_can_still_be_told() -> None:
    assert "not started" in summary(Progress())


def test_a_server_that_is_down_is_told_with_what_to_do_about_it() -> None:
    assert "Install it" in server_remedy("It cannot be started: 'npx' was not found: it is not on PATH.")
    assert "Start it" in server_remedy("It cannot be reached: Connect call failed.")
    assert "by hand" in server_remedy("It ended with code 3. Its last words: bad thing")
    assert server_remedy("It wants a login: centuria login web") == ""
