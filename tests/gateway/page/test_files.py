"""The page's files: served from a fixed table, with headers that let nothing foreign in, and nothing inline."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path, PurePosixPath

import pytest

from centuria.gateway.page.files import routes
from tests.gateway.page.asking import Gateway

STATIC = Path(str(files("centuria.gateway.page").joinpath("static")))
ALL = sorted(path for path in STATIC.rglob("*") if path.is_file())
SCRIPTS = [path for path in ALL if path.suffix == ".js"]
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def address(path: Path) -> str:
    name = str(path.relative_to(STATIC))
    return {"index.html": "/", "docs.html": "/docs"}.get(name, f"/assets/{name}")


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_a_page_lets_nothing_in_from_elsewhere_and_is_in_no_frame(path: str) -> None:
    answer = await Gateway().ask("GET", path)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"].startswith(POLICY)
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"


async def test_every_file_is_served_without_a_key_and_asked_for_again_by_its_tag() -> None:
    gateway = Gateway()
    types = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    for path in ALL:
        answer = await gateway.ask("GET", address(path))
        assert (answer.status, answer.body) == (200, path.read_bytes()), path
        assert answer.headers["content-type"].startswith(types[path.suffix])
        assert answer.headers["cache-control"] == "no-cache"
        again = await gateway.ask("GET", address(path), if_none_match=f'"other", W/{answer.headers["etag"]}')
        assert (again.status, again.body, "content-length" in again.headers) == (304, b"", False)
        changed = await gateway.ask("GET", address(path), if_none_match='"other"')
        assert changed.status == 200
    head = await gateway.ask("HEAD", "/")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) == len((STATIC / "index.html").read_bytes())


@pytest.mark.parametrize(
    "path",
    [
        "/assets/",
        "/assets/../session.py",
        "/assets/script/../../session.py",
        "/assets/%2e%2e/session.py",
        "/assets/script/%2e%2e/%2e%2e/files.py",
        "/assets//etc/passwd",
        "/assets/script/app.js/",
        "/assets/script/app.js%00.css",
        "/assets/index.html",
        "/index.html",
    ],
)
async def test_what_is_not_in_the_table_is_not_there(path: str) -> None:
    assert (await Gateway().ask("GET", path)).status == 404


def test_the_routes_are_all_fixed_and_only_for_reading() -> None:
    for route in routes():
        assert (route.method, route.access) == ("GET", "public")
        assert "{" not in route.pattern


class _Inline(HTMLParser):
    """What of a page would run or be styled without coming from a file, and what it fetches."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "style" or (tag == "script" and "src" not in given):
            self.wrong.append(tag)
        self.wrong += [name for name in given if name.startswith("on") or name == "style"]
        self.fetched += [str(given[name]) for name in ("src", "href") if given.get(name) and tag != "a"]


@pytest.mark.parametrize("name", ["index.html", "docs.html"])
def test_a_page_has_nothing_inline_and_fetches_only_what_is_there(name: str) -> None:
    found = _Inline()
    found.feed((STATIC / name).read_text())
    assert found.wrong == []
    assert found.fetched
    assert set(found.fetched) <= {address(path) for path in ALL}


def test_scripts_make_no_markup_of_text_and_name_no_other_host() -> None:
    for path in SCRIPTS:
        text = path.read_text()
        forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|DOMParser"
        assert re.findall(forbidden, text) == [], path
        assert set(re.findall(r"https?://[^\"'`\s)]+", text)) <= {"http://www.w3.org/2000/svg"}, path
        assert "localStorage" not in text, path
        assert "sessionStorage" not in text, path


def test_every_module_that_a_script_imports_is_there() -> None:
    there = {str(path.relative_to(STATIC)) for path in SCRIPTS}
    imported: set[str] = set()
    for path in SCRIPTS:
        here = PurePosixPath(path.relative_to(STATIC).parent)
        for target in re.findall(r'(?:from|import) "([^"]+)"', path.read_text()):
            parts: list[str] = []
            for part in (here / target).parts:
                parts = parts[:-1] if part == ".." else [*parts, part]
            imported.add("/".join(parts))
    assert imported <= there
    assert there - imported == {"script/app.js", "script/docs.js"}, "a script that nothing uses"


def test_files_stay_small() -> None:
    for path in SCRIPTS:
        assert len(path.read_text().splitlines()) <= 370, path


# -- contrast ---------------------------------------------------------------------------------------------------------

TEXTS = [
    *("ink", "soft", "accent", "model", "tool", "wait", "money", "idle"),
    *("ok", "failed", "timeout", "cancelled", "budget", "blocked", "skipped"),
]
MARKS = ["model-mark", "tool-mark", "failed-mark", "money-mark", "ok-mark", "edge"]


def _luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _mixed(one: str, other: str, share: float) -> str:
    """`color-mix(in srgb, one share, other)`."""
    pairs = [(int(one[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(a * share + b * (1 - share)):02x}" for a, b in pairs)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast_in_light_and_in_dark(scheme: str) -> None:
    light, _, dark = (STATIC / "style" / "tokens.css").read_text().partition("@media")
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", light))
    if scheme == "dark":
        colours |= dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", dark))
    low = {
        f"{text} on {ground}": contrast(colours[text], colours[ground])
        for text in TEXTS
        for ground in ("paper", "card", "sunk")
    }
    low |= {f"{word} on wash": contrast(colours["ink"], colours[word]) for word in ("bad-wash", "warn-wash")}
    low["button"] = contrast(colours["on-accent"], colours["accent"])
    low["said"] = contrast(colours["paper"], colours["ink"])
    for act in ("model", "tool", "wait", "money", "failed", "ok", "timeout", "blocked", "cancelled"):
        ground = _mixed(colours[f"{act}-mark"], colours["card"], 0.13)
        low[f"{act} in its cell"] = contrast(colours[act], ground)
    assert {name: round(value, 2) for name, value in low.items() if value < 4.5} == {}
    seen = {mark: contrast(colours[mark], colours["card"]) for mark in MARKS}
    assert {name: round(value, 2) for name, value in seen.items() if value < 3} == {}
