"""The report: whole, self-contained, bounded, and deaf to whatever a label or a cause may hold."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from centuria import events as e
from centuria.core.progress import Progress
from centuria.messages import DOLLAR, CallKey, Completion, Message, Outcome, Status, Usage
from centuria.views.report import data, embedded, report
from tests.views.stories import Story, fold
from tests.views.test_text import hostile

_VOID = {"meta", "br", "input", "link", "img", "hr"}


class Page(HTMLParser):
    """Checks that every element is closed by its own tag, and keeps the scripts' texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self.open and self.open[-1] == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + text)

    @property
    def data(self) -> dict[str, object]:
        (text,) = [text for attributes, text in self.scripts if attributes.get("id") == "data"]
        found: dict[str, object] = json.loads(text)
        return found


def ids(page: Page) -> list[str]:
    rows = page.data["tasks"]
    assert isinstance(rows, list)
    return [row[0] for row in rows]


@pytest.mark.parametrize("part", [0.0, 0.01, 0.5, 1.0])
def test_the_report_is_valid_html_with_all_tasks_at_every_moment_of_a_run(part: float) -> None:
    progress = fold(Story().tell(), part)
    page = Page(report(progress))
    assert ids(page) == list(progress.tasks)
    assert page.tags.count("script") == 2
    assert page.tags.count("main") == 1


def test_the_report_holds_census_cost_tools_timeline_files_notices_and_servers() -> None:
    found = data(fold(Story().tell()))
    assert found["census"]["ok"] == 93
    assert found["rehearsal"] is True
    assert found["cost"]["cap"] == 5.0
    assert found["cost"]["loss"] > 0
    assert {row["name"] for row in found["tools"]} == {"code__code_exec", "file__file_read", "web__web_search"}
    assert found["files"] == ["table.csv", "summary.md"]
    assert any("shortened" in text for _, _, text in found["notices"])
    assert [row["slug"] for row in found["servers"] if not row["up"]] == ["db"]
    timeline = found["timeline"]
    assert {len(timeline[name]) for name in ("slot", "task", "kind", "name", "start", "took", "state")} == {
        len(timeline["slot"])
    }
    assert set(timeline["slot"]) == {*range(100), -1}
    assert set(timeline["kind"]) == {0, 1, 2, 3}
    assert found["tasks"][0][13] == "reports/T0000.md"


def test_the_report_fetches_nothing_and_forbids_the_browser_to() -> None:
    text = report(fold(Story(tasks=5).tell()))
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|\bsrc=|@import|url\(|fetch\(|XMLHttpRequest|WebSocket", text)


def test_the_page_s_script_never_makes_markup_of_text() -> None:
    text = report(Progress())
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)


def test_hostile_text_stays_data() -> None:
    evil = "</script><script>alert(1)</script><!--<script>\u2028\u2029&lt;"
    progress = hostile()
    progress.record(e.Record(99, 2000.0, e.TaskAdded(evil, 9, "s", evil)))
    progress.record(e.Record(100, 2000.0, e.TaskEnded(evil, Outcome(evil, Status.FAILED, evil))))
    text = report(progress)
    page = Page(text)
    assert page.tags.count("script") == 2
    assert "alert(1)</script>" not in text
    assert "</script><script>alert(1)</script><!--<script> &lt;" in ids(page)
    assert embedded("</script>&") == '"\\u003c/script\\u003e\\u0026"'


@pytest.mark.parametrize("path", ["javascript:alert(1)", "/etc/passwd", "../../secret.md", "..\\x", "data:text/html,x"])
def test_only_files_below_the_run_s_folder_are_linked(path: str) -> None:
    progress = Progress()
    for fact in (e.TaskAdded("a", 0, "s"), e.FileWritten(path, "a"), e.FileWritten(path + "2")):
        progress.record(e.Record(1, 0.0, fact))
    found = data(progress)
    assert found["tasks"][0][13] == ""
    assert found["files"] == []


def test_the_time_in_which_no_process_worked_is_left_out_of_the_timeline() -> None:
    progress = Progress()
    story: list[tuple[float, e.Fact]] = [
        (1000.0, e.RunStarted("r", "n", "m", False, None, 1, 1, "0")),
        (1000.0, e.TaskAdded("a", 0, "s")),
        (1001.0, e.SlotGranted(1, "agents", 0, "a", 0.0)),
        (1004.0, e.PhaseStarted("work")),
        (90_000.0, e.RunResumed(0, 1, 0, None)),
        (90_001.0, e.SlotGranted(1, "agents", 0, "a", 0.0)),
        (90_003.0, e.SlotLeft(1, "agents", 2.0)),
    ]
    for number, (at, fact) in enumerate(story):
        progress.record(e.Record(number + 1, at, fact))
    timeline = data(progress)["timeline"]
    assert timeline["start"] == [1000, 5000]
    assert timeline["took"] == [3000, 2000]
    assert data(progress)["resumed"] == [4.0]


def long_run(tasks: int, calls: int) -> Progress:
    """Many tasks with long texts, each with so many model calls, a third of them failed with a cause of its own."""
    progress = Progress()
    done, usage = Completion(Message("assistant", ""), None, "stop"), Usage(1000, 0, 0, 100)
    at = 1_790_000_000.0

    def put(fact: e.Fact) -> None:
        progress.record(e.Record(progress.seq + 1, at, fact))

    put(e.RunStarted("r", "n", "m", False, 5 * DOLLAR, 100, 100, "0"))
    for number in range(tasks):
        task = f"a-rather-long-identity-of-a-task-{number:06d}"
        put(e.TaskAdded(task, number, "s", f"{'A label that goes on ' * 6}{number}"))
        put(e.SlotGranted(number, "agents", number % 100, task, at))
        for turn in range(calls):
            key = CallKey(task, 0, turn, 0)
            at += 0.0137
            put(e.CallOpened(key, 1, "model", "m", "f", True))
            at += 0.0211
            put(e.CallClosed(key, 1, "done", 1000, usage, done, total_s=0.02))
        status = Status.OK if number % 3 else Status.FAILED
        cause = "" if number % 3 else f"{'why it failed ' * 30}{number}"
        put(e.TaskEnded(task, Outcome(task, status, cause, cost=1000 * calls, usage=usage)))
        put(e.SlotLeft(number, "agents", at))
        put(e.FileWritten(f"reports/{task}.md", task))
    return progress


def test_the_report_of_ten_thousand_tasks_is_below_ten_megabytes() -> None:
    text = report(long_run(10_000, 5))
    assert len(text.encode()) < 10_000_000
    assert len(ids(Page(text))) == 10_000


def test_beyond_its_bound_the_timeline_drops_the_shortest_spans_and_says_how_many() -> None:
    progress = fold(Story(tasks=20).tell())
    everything, timeline = data(progress)["timeline"], data(progress, most_spans=50)["timeline"]
    assert len(timeline["start"]) == 50
    assert timeline["kind"].count(0) == 20
    assert timeline["leftOut"] == len(everything["start"]) - 50 > 0
    calls = [took for took, kind in zip(everything["took"], everything["kind"], strict=True) if kind]
    kept = [took for took, kind in zip(timeline["took"], timeline["kind"], strict=True) if kind]
    assert min(kept) >= sorted(calls, reverse=True)[30]
