"""The web page in a real browser: signing in, spawning, watching and steering, by mouse, by keyboard and on a phone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from centuria.gateway.openapi.document import document
from centuria.gateway.web import Reply, Request, Route
from tests.gateway.page.browser import Line, Window, window
from tests.gateway.page.kit import (
    ADMIN,
    ADMIN_TOKEN,
    ALICE,
    ALICE_TOKEN,
    Analysts,
    Refusals,
    Served,
    companies,
    served,
    tool_host,
)
from tests.waiting import until

TOOLS = ["web__search", "code__run_code"]
pytestmark = pytest.mark.timeout(240)


def progress(one: Served, id: str) -> Any:
    work = one.swarms.working(id)
    assert work is not None
    assert work.progress is not None
    return work.progress


# -- a whole story ----------------------------------------------------------------------------------------------------


async def test_signing_in_spawning_a_hundred_agents_and_watching_them_to_their_end(tmp_path: Path) -> None:
    async with served(tmp_path, latency=(0.2, 1.0)) as one, window(one.url) as shown:
        page = shown.page
        shown.expected.append("401")
        await page.goto(one.url)
        await page.fill("#key", "ck-" + "z" * 40)
        await page.click("text=Sign in >> nth=-1")
        await page.wait_for_selector("#key-wrong:has-text('does not know this key')")
        await shown.picture("sign-in")
        await shown.sign_in(ADMIN_TOKEN)
        await page.wait_for_selector("text=No swarm has run yet")
        await shown.picture("runs-empty")

        await page.click("main >> text=Start the first one")
        await page.fill("#budget", "lots")
        await page.click("text=Start the swarm")
        assert await page.inner_text(".wrongs h2") == "2 things are not right"
        assert await page.evaluate("document.activeElement.className") == "wrongs"
        assert await page.inner_text("#goal-wrong") == "Say what the swarm is to do."
        assert await page.get_attribute("#budget", "aria-invalid") == "true"
        await shown.picture("spawn-errors", whole=True)

        await page.click(".choice button:has-text('Tasks')")
        await page.click("text=As JSON")
        await page.fill("#tasks", json.dumps(companies(100)))
        await page.fill("#agents", "100")
        await page.fill("#budget", "5")
        await page.fill("#name", "A hundred companies")
        await page.click("fieldset .actions >> text=All")
        await page.wait_for_selector("text=2 tools chosen")
        await page.click("text=Start the swarm")

        await page.wait_for_selector("h1:has-text('A hundred companies')")
        await shown.until("document.querySelectorAll('.cell:not([data-act=\"·\"])').length >= 90")
        await page.wait_for_timeout(1500)
        await shown.picture("run", whole=True)
        await shown.until("document.querySelector('.tile b').textContent === '100 of 100'")
        await page.wait_for_selector(".chip[data-status=ok]")
        await page.wait_for_selector(".cell[data-act=ok] >> nth=99")
        await page.wait_for_selector("h2:has-text('Result')")
        await page.wait_for_timeout(1200)
        await shown.picture("run-ended", whole=True)
        [(_, kept)] = await one.store.find("swarm", None)
        assert json.loads(kept.body)["ok"] == 100


async def test_a_conversation_is_seen_as_it_streams_and_stays_as_it_was(tmp_path: Path) -> None:
    async with served(tmp_path, latency=(0.1, 0.3), gap=(0.05, 0.15)) as one, window(one.url) as shown:
        page = shown.page
        await shown.sign_in(ALICE_TOKEN)
        id = await one.spawn(ALICE, tasks=companies(8), mcp_tools=TOOLS)
        await shown.open_run(id)
        await page.click(".cell:has-text('003')")
        await page.wait_for_selector("aside h2:has-text('company-003')")
        assert await page.evaluate("document.activeElement.textContent") == "company-003"
        await page.wait_for_selector(".said.user >> text=Write about company 3.")
        text = ".said.live .text:not(.soft)"
        await shown.until("(document.querySelector('.said.live .text:not(.soft)')?.textContent.length ?? 0) > 30")
        before = len(await page.inner_text(text))
        await shown.until(
            f"(document.querySelector('.said.live .text:not(.soft)')?.textContent.length ?? 0) > {before + 24}"
        )
        await shown.picture("conversation")
        await page.wait_for_selector(".said.assistant:not(.live) >> text=The company grew by 12 %")
        assert await page.locator(".said.live").is_hidden()
        assert await page.locator(".said.tool").count() == 3
        await page.click(".said.tool summary >> nth=1")
        assert "Annual report" in await page.inner_text(".said.tool pre >> visible=true >> nth=0")


async def test_limits_pauses_priorities_cancelling_and_retrying_do_what_they_say(tmp_path: Path) -> None:
    slow = tool_host(seconds=(0.5, 1.0))
    async with served(tmp_path, tools=slow, latency=(1.0, 3.0)) as one, window(one.url) as shown:
        page = shown.page
        await shown.sign_in(ADMIN_TOKEN)
        tasks = companies(30)
        tasks[4]["prompt"] += " fail 1"
        tasks[9]["prompt"] += " turns 40"
        id = await one.spawn(tasks=tasks, mcp_tools=TOOLS, max_agents=30)
        await shown.open_run(id)
        run = progress(one, id)

        limit = page.get_by_label("Limit of search")
        await limit.fill("3")
        await limit.press("Enter")
        await page.wait_for_selector("#said >> text=The limit of search is 3 now")
        assert run.resources["tool:web__search"].limit == 3
        await page.get_by_label("One more for search").click()
        await until(lambda: run.resources["tool:web__search"].limit == 4)
        await limit.fill("-5")
        await limit.press("Enter")
        await page.wait_for_selector("#said .bad")
        assert await limit.input_value() == "4"

        await page.click(".head >> text=Pause")
        await page.wait_for_selector(".chip[data-status=paused]:has-text('paused')")
        assert run.paused == {None}
        await page.click(".head >> text=Resume")
        await until(lambda: not run.paused)

        await page.get_by_role("button", name="company-009").last.click()
        await page.locator("aside select").select_option("0")
        await until(lambda: run.tasks["company-009"].priority == 0)
        await page.click("aside >> text=Pause")
        await until(lambda: run.paused == {"company-009"})
        await page.click("aside >> text=Cancel branch")
        await page.click("dialog >> text=Let it work")
        assert run.tasks["company-009"].state != "ended"
        await page.click("aside >> text=Cancel branch")
        await shown.picture("confirm")
        await page.click("dialog >> text=Cancel branch")
        await page.wait_for_selector("aside .chip[data-status=cancelled]")
        await page.click("aside >> text=Retry")
        await until(lambda: run.tasks["company-009"].epoch == 1)
        await page.wait_for_selector("aside >> text=begun 2 times")

        await page.fill("[type=search]", "company-004")
        await page.click("table.tasks >> text=company-004")
        await page.wait_for_selector("aside .note.bad:has-text('policy')")
        await page.click("aside >> text=Retry")
        await page.wait_for_selector("aside .chip[data-status=ok]")
        assert run.tasks["company-004"].status == "ok"

        await page.click(".head >> text=Cancel")
        await page.click("dialog >> text=Cancel the swarm")
        await page.wait_for_selector(".head .chip[data-status=cancelled]")


# -- keyboard ---------------------------------------------------------------------------------------------------------

_FOCUS = """() => {
  const e = document.activeElement, s = getComputedStyle(e);
  return {
    tag: e.tagName,
    text: (e.getAttribute('aria-label') || e.textContent || '').slice(0, 60),
    cell: e.classList.contains('cell'),
    visible: s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2,
  };
}"""


async def _focus(shown: Window) -> Any:
    return await shown.page.evaluate(_FOCUS)


async def test_everything_can_be_done_by_keyboard_alone_and_focus_is_always_seen(tmp_path: Path) -> None:
    async with served(tmp_path, latency=(2.0, 5.0)) as one, window(one.url) as shown:
        page, keys = shown.page, shown.page.keyboard
        id = await one.spawn(ADMIN, tasks=companies(20), mcp_tools=TOOLS, max_agents=20, name="By keyboard")
        await page.goto(one.url)
        await page.wait_for_selector("#key:focus")
        await keys.type(ADMIN_TOKEN)
        await keys.press("Enter")
        await page.wait_for_selector("h1:has-text('Runs'):focus")
        await page.wait_for_selector(".run-row")
        for _ in range(12):
            await keys.press("Tab")
            if "By keyboard" in (await _focus(shown))["text"]:
                break
        await keys.press("Enter")
        await page.wait_for_selector("h1:has-text('By keyboard'):focus")
        await page.wait_for_selector(".cell[data-act=M]")

        seen: list[str] = []
        while not (found := await _focus(shown))["cell"]:
            await keys.press("Tab")
            found = await _focus(shown)
            assert found["visible"], found
            seen.append(found["text"])
            assert len(seen) < 30, seen
        assert seen[:2] == ["Pause", "Cancel"]
        await keys.press("ArrowRight")
        await keys.press("ArrowRight")
        assert (await _focus(shown))["text"].startswith("company-002")
        await keys.press("ArrowDown")
        await keys.press("Home")
        await keys.press("End")
        last = (await _focus(shown))["text"]
        assert last.startswith(("Slot 19", "company-019", "company-018"))
        await keys.press("Home")
        await keys.press("Enter")
        await page.wait_for_selector("aside h2:has-text('company-000'):focus")
        await keys.press("Tab")
        assert (await _focus(shown))["text"] == "Close the conversation"
        await keys.press("Escape")
        await page.wait_for_selector("aside", state="detached")
        assert (await _focus(shown))["text"].startswith("company-000")

        # One stop for the whole grid, and none that holds the focus: the walk comes to the page's end.
        walk: list[str] = []
        for _ in range(90):
            await keys.press("Tab")
            found = await _focus(shown)
            if found["tag"] == "BODY" or found["text"] == "Skip to the content":
                break
            assert not found["cell"], "a second stop in the grid"
            assert found["visible"], found
            walk.append(found["text"])
        else:
            raise AssertionError(f"the focus never left the page: {walk[-10:]}")
        assert any(text.startswith("Timeline of") for text in walk)
        assert any(text.startswith("Task graph") for text in walk)
        assert "Limit of search" in walk

        await page.locator("canvas[aria-label^='Timeline']").focus()
        await keys.press("n")
        assert "from" in await page.inner_text(".pointed >> nth=0")
        await keys.press("+")
        await keys.press("Enter")
        await page.wait_for_selector("aside h2:focus")
        await keys.press("Escape")
        await page.locator("canvas[aria-label^='Task graph']").focus()
        await keys.press("ArrowRight")
        assert (await page.inner_text(".pointed >> nth=1")).startswith("company-001")
        await keys.press("ArrowDown")
        assert "needs all" in await page.inner_text(".pointed >> nth=1")
        progress(one, id)
        await page.locator(".head >> text=Cancel").focus()
        await keys.press("Enter")
        await page.wait_for_selector("dialog")
        assert (await _focus(shown))["text"] == "Let it work"
        await keys.press("Escape")
        await page.wait_for_selector("dialog", state="detached")
        assert (await _focus(shown))["text"] == "Cancel"
        # Past the bar above, in one step.
        await page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
        await page.locator(".skip").focus()
        assert await page.locator(".skip").is_visible()
        await keys.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "main"
        assert await page.evaluate("location.hash") == f"#/runs/{id}"


# -- light, dark, phone -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_every_place_fits_a_phone_in_light_and_dark(tmp_path: Path, dark: bool) -> None:
    async with served(tmp_path, latency=(0.3, 1.0)) as one, window(one.url, wide=360, high=740, dark=dark) as shown:
        page, scheme = shown.page, "dark" if dark else "light"
        await page.goto(one.url)
        await page.wait_for_selector("#key")
        assert await shown.width() <= 360
        red = await page.evaluate("Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")
        assert red < 60 if dark else red > 200
        await shown.sign_in(ADMIN_TOKEN)
        long = [{"id": "a-task-with-a-very-long-name-without-any-place-to-break-it-" + "x" * 60, "prompt": "w" * 400}]
        id = await one.spawn(tasks=[*companies(40), *long], mcp_tools=TOOLS, name="Long" + "g" * 150)
        for place in ("runs", "new", "usage", "keys", f"runs/{id}", f"runs/{id}/agents/company-002"):
            await page.goto(f"{one.url}/#/{place}")
            await page.wait_for_selector("h1, aside h2")
            await page.wait_for_timeout(1300)
            assert await shown.width() <= 360, place
            name = place.replace(id, "one").replace("/", "-")
            await shown.picture(f"phone-{scheme}-{name}", whole="agents" not in place)
        box = await page.locator("aside").bounding_box()
        assert box is not None
        assert box["width"] >= 340
        await page.click("aside >> text=Close")
        await page.wait_for_selector("aside", state="detached")


async def test_colours_follow_the_system_while_the_page_is_open(tmp_path: Path) -> None:
    async with served(tmp_path, latency=(0.3, 1.0)) as one, window(one.url) as shown:
        await shown.sign_in(ADMIN_TOKEN)
        id = await one.spawn(tasks=companies(30), mcp_tools=TOOLS)
        await shown.open_run(id)
        await shown.page.wait_for_selector(".cell[data-act=M]")
        ground = "getComputedStyle(document.body).backgroundColor"
        before = await shown.page.evaluate(ground)
        await shown.page.emulate_media(color_scheme="dark")
        assert await shown.page.evaluate(ground) != before
        await shown.page.wait_for_timeout(1500)
        await shown.picture("run-dark", whole=True)


# -- a thousand -------------------------------------------------------------------------------------------------------

#: A frame that takes the page's own thread longer is felt.
_FELT_MS = 200.0


def _longest(trace: Path) -> tuple[float, float]:
    """The longest task of the page's thread: milliseconds of processor time, and by the clock."""
    events = json.loads(trace.read_text())["traceEvents"]
    main = {
        (e["pid"], e["tid"]) for e in events if e["name"] == "thread_name" and e["args"]["name"] == "CrRendererMain"
    }
    tasks = [e for e in events if e["name"] == "RunTask" and e.get("ph") == "X" and (e["pid"], e["tid"]) in main]
    assert len(tasks) > 100
    return max(e.get("tdur", 0) for e in tasks) / 1000, max(e["dur"] for e in tasks) / 1000


@pytest.mark.timeout(400)
async def test_a_thousand_agents_leave_the_page_responsive(
    tmp_path: Path, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = {"agents": 1_000, "tasks": 1_000}
    async with served(tmp_path, latency=(2.0, 8.0), **limits) as one, window(one.url) as shown:
        page = shown.page
        await shown.sign_in(ADMIN_TOKEN)
        id = await one.spawn(tasks=companies(1_000), mcp_tools=TOOLS, max_agents=1_000, budget_usd=60)
        await shown.open_run(id)
        await shown.until("document.querySelectorAll('.cell').length >= 999")
        await shown.until("document.querySelectorAll('.cell:not([data-act=\"·\"])').length >= 900")
        trace, browser = tmp_path / "trace.json", shown.context.browser
        assert browser is not None
        await browser.start_tracing(
            page=page, path=trace, categories=["devtools.timeline", "toplevel", "disabled-by-default-devtools.timeline"]
        )
        await page.wait_for_timeout(2_000)
        await page.hover(".cell >> nth=500")
        await page.click(".cell >> nth=500")
        await page.wait_for_selector("aside h2")
        await page.wait_for_timeout(1_500)
        await page.mouse.wheel(0, 1_500)
        await page.wait_for_timeout(2_000)
        await page.reload()
        await shown.until("document.querySelectorAll('.cell').length >= 999")
        await page.wait_for_timeout(2_000)
        await browser.stop_tracing()
        await page.evaluate("window.scrollTo(0, 0)")
        await shown.picture("run-thousand")
        busy, clock = _longest(trace)
        record_property("longest_task_cpu_ms", busy)
        with capsys.disabled():
            print(
                f"\na thousand agents: the page's longest task took {busy:.0f} ms of CPU, {clock:.0f} ms by the clock"
            )
        assert busy < _FELT_MS
        run = progress(one, id)
        assert run.resources["agents"].in_use > 500


# -- what comes from outside ------------------------------------------------------------------------------------------

CANARIES = [
    "<img src=x onerror=window.hit=1>",
    "<script>window.hit=1</script>",
    "<svg onload=window.hit=1>",
    "\"><iframe srcdoc='<script>parent.hit=1</script>'>",
    "javascript:window.hit=1",
    "<a href='javascript:window.hit=1'>click</a>",
    "{{constructor.constructor('window.hit=1')()}}",
    "</textarea><style>*{display:none}</style>",
    "\u202egnol\u202c \u0007 \u2028",
]


async def test_nothing_that_a_model_a_tool_or_a_task_says_becomes_markup(tmp_path: Path) -> None:
    evil = " ".join(CANARIES)
    hosts = tool_host(result=lambda query: evil)
    tasks: list[dict[str, Any]] = [{"id": "evil", "prompt": evil}]
    tasks += [{"id": f"t{number}", "prompt": canary} for number, canary in enumerate(CANARIES)]
    tasks += [{"id": "refused", "prompt": "fail 99 " + evil}]
    refusals = Refusals(message=evil)
    async with (
        served(tmp_path, Analysts(text=evil), tools=hosts, refusals=refusals) as one,
        window(one.url) as shown,
    ):
        page = shown.page
        await shown.sign_in(ADMIN_TOKEN)
        id = await one.spawn(tasks=tasks, mcp_tools=TOOLS, name=evil[:190])
        await page.wait_for_selector(".run-row")
        await shown.open_run(id)
        await page.wait_for_selector(".chip[data-status=partial]")
        for agent in ("evil", "refused"):
            await page.goto(f"{one.url}/#/runs/{id}/agents/{agent}")
            await page.wait_for_selector(f"aside h2:has-text('{agent}')")
            await page.wait_for_selector(".said.user, .note.bad")
        await page.goto(f"{one.url}/#/runs/{id}/agents/evil")
        await page.wait_for_selector(".said.tool")
        for summary in await page.query_selector_all("aside summary"):
            await summary.click()
        await page.wait_for_timeout(800)
        assert CANARIES[0] in await page.inner_text("aside")
        assert CANARIES[0] in await page.inner_text(".census")
        assert await page.evaluate("window.hit") is None
        strange = "main img, main iframe, main script, main style, a[href^='javascript']"
        assert await page.locator(strange).count() == 0
        await shown.picture("canaries", whole=True)


async def test_no_script_of_the_page_can_read_the_key_or_the_cookie(tmp_path: Path) -> None:
    async with served(tmp_path) as one, window(one.url) as shown:
        await shown.sign_in(ALICE_TOKEN)
        assert await shown.page.evaluate("document.cookie") == ""
        assert await shown.page.evaluate("Object.keys(localStorage).length + Object.keys(sessionStorage).length") == 0
        kept = await shown.page.evaluate("document.documentElement.outerHTML")
        assert ALICE_TOKEN not in kept
        [cookie] = await shown.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        shown.expected.append("TrustedHTML")
        assert (
            await shown.page.evaluate(
                "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'set' } catch { return 'refused' } })()"
            )
            == "refused"
        )


# -- who sees what, and what goes wrong -------------------------------------------------------------------------------


async def test_a_key_sees_its_own_runs_and_usage_and_an_admin_all(tmp_path: Path) -> None:
    async with served(tmp_path) as one:
        mine = await one.spawn(ALICE, tasks=companies(3), name="Of Alice")
        other = await one.spawn(ADMIN, tasks=companies(3), name="Of the operator")
        async with window(one.url) as shown:
            page = shown.page
            await shown.sign_in(ALICE_TOKEN)
            await page.wait_for_selector(".run-row:has-text('Of Alice')")
            assert await page.locator(".run-row").count() == 1
            assert await page.locator("nav >> text=Keys").count() == 0
            shown.expected.append("404")
            await page.goto(f"{one.url}/#/runs/{other}")
            await page.wait_for_selector("text=There is no such swarm, or it belongs to another key.")
            await page.goto(f"{one.url}/#/usage")
            await page.wait_for_selector("h2:has-text('By model')")
            assert await page.locator("h2:has-text('By key')").count() == 0
            await page.wait_for_selector("text=Left of the budget")
        async with window(one.url) as shown:
            page = shown.page
            await shown.sign_in(ADMIN_TOKEN)
            await page.wait_for_selector(".run-row >> nth=1")
            await page.goto(f"{one.url}/#/usage")
            await page.wait_for_selector("h2:has-text('By key')")
            await shown.picture("usage", whole=True)
            await page.click("nav >> text=Keys")
            await page.wait_for_selector("td:has-text('alice')")
            await shown.picture("keys")
            await shown.open_run(mine)
            shown.expected.append("401")  # what the page still asks for when it signs out is refused, too
            await page.click("text=Sign out")
            await page.wait_for_selector("#key")
            assert await page.evaluate("fetch('/v1/usage').then(answer => answer.status)") == 401


async def test_a_broken_line_is_told_and_taken_up_where_it_broke(tmp_path: Path) -> None:
    async with (
        served(tmp_path, latency=(1.0, 3.0)) as one,
        Line(one.url).serving() as line,
        window(line.url) as shown,
    ):
        page = shown.page
        shown.expected += ["ERR_", "Failed to load"]
        await shown.sign_in(ADMIN_TOKEN)
        id = await one.spawn(tasks=companies(20), mcp_tools=TOOLS)
        await shown.open_run(id)
        await page.wait_for_selector(".cell[data-act=M]")
        line.cut()
        await page.wait_for_selector(".note.warn:has-text('The connection to the gateway is lost')")
        await shown.picture("not-connected")
        line.mend()
        await page.click("text=Try now")
        await page.wait_for_selector(".note.warn", state="hidden")
        await page.wait_for_selector(".chip[data-status=ok]:has-text('ok')")
        assert await page.inner_text(".tile b >> nth=0") == "20 of 20"


async def test_a_session_that_is_over_asks_to_sign_in_again(tmp_path: Path) -> None:
    async with served(tmp_path) as one, window(one.url) as shown:
        await shown.sign_in(ADMIN_TOKEN)
        shown.expected.append("401")
        [cookie] = await shown.context.cookies()
        one.page.sessions.end(cookie["value"])
        await shown.page.click("nav >> text=Usage")
        await shown.page.wait_for_selector("#said >> text=Your session is over")
        await shown.page.wait_for_selector("#key:focus")


# -- the API ----------------------------------------------------------------------------------------------------------

DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "A gateway", "version": "1"},
    "paths": {
        "/v1/things/{id}": {
            "parameters": [{"$ref": "#/components/parameters/Id"}],
            "get": {
                "summary": "One thing <img src=x onerror=window.hit=1>",
                "tags": ["Things"],
                "responses": {
                    "200": {
                        "description": "It.",
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}},
                    }
                },
            },
            "post": {
                "tags": ["Things"],
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}},
                "responses": {"400": {"$ref": "#/components/responses/Wrong"}},
            },
        }
    },
    "components": {
        "parameters": {
            "Id": {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "maxLength": 40}}
        },
        "responses": {"Wrong": {"description": "It is wrong."}},
        "schemas": {
            "Thing": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string", "description": "What it is called."},
                    "kind": {"enum": ["a", "b"]},
                    "parts": {"type": "array", "items": {"$ref": "#/components/schemas/Thing"}},
                },
            }
        },
    },
}


@pytest.mark.parametrize("wide", [1440, 360])
async def test_the_api_is_drawn_from_its_document_whatever_that_holds(tmp_path: Path, wide: int) -> None:
    async def strange(request: Request) -> Reply:
        return Reply.of(DOCUMENT)

    routes = [Route("GET", "/openapi.json", strange, "public")]
    async with served(tmp_path, routes=routes) as one, window(one.url, wide=wide) as shown:
        page = shown.page
        await page.goto(f"{one.url}/docs")
        await page.wait_for_selector("h1:has-text('A gateway')")
        assert await page.locator(".call").count() == 2
        text = await page.inner_text("main")
        for part in (
            "/v1/things/{id}",
            "length ≤ 40",
            "required",
            '"a" | "b"',
            "list of Thing",
            "It is wrong.",
            "<img src=x",
        ):
            assert part in text
        assert await page.evaluate("window.hit") is None
        assert await shown.width() <= wide
        await shown.picture(f"docs-{wide}", whole=True)


async def test_the_gateways_own_document_is_drawn_whole(tmp_path: Path) -> None:
    async def own(request: Request) -> Reply:
        return Reply.of(document())

    routes = [Route("GET", "/openapi.json", own, "public")]
    async with served(tmp_path, routes=routes) as one, window(one.url) as shown:
        await shown.page.goto(f"{one.url}/docs")
        await shown.page.wait_for_selector(".call")
        calls = sum(len(methods) for methods in document()["paths"].values())
        assert await shown.page.locator(".call").count() == calls
        assert await shown.page.locator(".api > nav a").count() == calls
        await shown.picture("docs")


async def test_a_gateway_without_a_document_says_so(tmp_path: Path) -> None:
    async with served(tmp_path) as one, window(one.url) as shown:
        shown.expected.append("404")
        await shown.page.goto(f"{one.url}/docs")
        await shown.page.wait_for_selector("text=This gateway has no OpenAPI document.")


@pytest.mark.parametrize(("rehearsal", "words"), [(True, "would cost"), (False, "spent")])
async def test_small_dollars_are_told_whole_and_those_of_a_rehearsal_as_what_it_would_cost(
    rehearsal: bool, words: str, tmp_path: Path
) -> None:
    draw = """async ([rehearsal, dollars]) => {
        const [{ spend }, { tiles }, { Fold }] = await Promise.all(
            ["parts/spend.js", "parts/tiles.js", "fold.js"].map(file => import("/assets/script/" + file)));
        const starts = [], plain = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
            if (this.textAlign === "right") starts.push([text, x - this.measureText(text).width]);
            plain.call(this, text, x, y);
        };
        const fold = new Fold(), money = spend(), figures = tiles();
        const spent = dollars * 1e12;
        Object.assign(fold, { rehearsal, seq: 1, spent, cap: null, spending: [[0, 0], [5, spent]] });
        document.body.replaceChildren(figures.node, money.node);
        await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
        money.update(fold, 10);
        figures.update(fold, 10);
        return [starts, figures.node.innerText + money.node.innerText];
    }"""
    async with served(tmp_path) as one, window(one.url) as shown:
        await shown.page.goto(one.url)
        starts, text = await shown.page.evaluate(draw, [rehearsal, 0.009342])
        assert [label for label, _ in starts] == ["$0", "$0.004671", "$0.009342"]
        assert all(start >= 0 for _, start in starts), starts
        assert text.lower().count(words) == 2
        assert text.lower().count("would cost" if words == "spent" else "spent") == 0
