"""`web_search`: a folder by full text, three providers over real HTTP, and never a key in an error."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from centuria.tools.folder_index import FolderIndex
from centuria.tools.serving import Refusal
from centuria.tools.web_search import (
    NOTHING_SET,
    Search,
    brave_search,
    chosen,
    nothing_set,
    searxng_search,
    tavily_search,
    tools,
)

KEY = "sk-not-to-be-seen"


@dataclass
class Provider:
    """A search provider on loopback: answers everything with the same response and keeps what it was asked."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")), 0)
        self.asked.append(head + (await reader.readexactly(length)).decode())
        extra = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        writer.write(
            f"HTTP/1.1 {self.status} X\r\ncontent-length: {len(self.body)}\r\n{extra}\r\n".encode() + self.body
        )
        try:
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        except ConnectionError:
            pass


def providers(url: str) -> list[Search]:
    return [searxng_search(url), brave_search(KEY, url), tavily_search(KEY, url)]


def body(**item: Any) -> bytes:
    results = [item, {"title": "no address"}, "rubbish", {"url": "javascript:alert(1)", "title": "bad"}]
    return json.dumps({"results": results, "web": {"results": results}}).encode()


async def test_each_provider_gives_title_url_and_snippet() -> None:
    provider = Provider(body=body(url="https://a.example/x", title="A", content="text", description="text"))
    async with provider.running() as url:
        for search in providers(url):
            assert await search("two words", 3) == [{"title": "A", "url": "https://a.example/x", "snippet": "text"}]
    searxng, brave, tavily = provider.asked
    assert searxng.startswith("GET /search?q=two+words&format=json ") or "q=two%20words&format=json" in searxng
    assert f"x-subscription-token: {KEY}" in brave.lower()
    assert "count=3" in brave
    assert f"authorization: bearer {KEY}" in tavily.lower()
    assert json.loads(tavily.split("\r\n\r\n", 1)[1]) == {"query": "two words", "max_results": 3}


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (401, "key right|format allowed"),
        (403, "key right|format allowed"),
        (429, "Try again in 7 seconds"),
        (500, "500"),
    ],
)
async def test_an_error_of_a_provider_says_what_to_do_and_shows_neither_key_nor_answer(
    status: int, sentence: str
) -> None:
    provider = Provider(status, body=f"your key {KEY} is wrong".encode(), headers={"retry-after": "7"})
    async with provider.running() as url:
        for search in providers(url):
            with pytest.raises(Refusal, match=sentence) as caught:
                await search("q", 1)
            assert KEY not in str(caught.value)
            assert caught.value.__cause__ is None


async def test_a_redirect_does_not_carry_the_key_on() -> None:
    elsewhere = Provider(body=body(url="https://a.example", title="A"))
    async with elsewhere.running() as target:
        provider = Provider(302, headers={"location": target})
        async with provider.running() as url:
            for search in providers(url):
                with pytest.raises(Refusal, match="302"):
                    await search("q", 1)
    assert elsewhere.asked == []


@pytest.mark.parametrize("answer", [b"<html>", b"[1]", b"", b"[" * 100_000])
async def test_an_answer_that_is_no_json_object_is_an_error(answer: bytes) -> None:
    async with Provider(body=answer).running() as url:
        for search in providers(url):
            with pytest.raises(Refusal, match="JSON object"):
                await search("q", 1)


async def test_an_answer_of_another_shape_has_no_results() -> None:
    async with Provider(body=b'{"results": {"a": 1}, "web": [1]}').running() as url:
        for search in providers(url):
            assert await search("q", 1) == []


async def test_an_answer_without_end_is_cut_off() -> None:
    async with Provider(body=b"x" * 5_000_000).running() as url:
        with pytest.raises(Refusal, match="more than"):
            await searxng_search(url)("q", 1)


async def test_a_provider_that_is_not_there_is_an_error_that_shows_no_key() -> None:
    async with Provider().running() as url:
        pass
    for search in providers(url):
        with pytest.raises(Refusal, match="cannot be reached") as caught:
            await search("q", 1)
        assert KEY not in str(caught.value)


async def test_with_nothing_set_up_the_error_says_what_to_set() -> None:
    (tool,) = tools(chosen(None, None, {}))
    with pytest.raises(Refusal) as caught:
        await tool.run({"query": "q"})
    assert str(caught.value) == NOTHING_SET
    assert all(
        name in NOTHING_SET for name in ("--searxng", "SEARXNG_URL", "BRAVE_API_KEY", "TAVILY_API_KEY", "--folder")
    )


def test_what_is_set_up_is_chosen() -> None:
    assert chosen(None, None, {"BRAVE_API_KEY": " "}) is nothing_set
    for environment in ({"BRAVE_API_KEY": KEY}, {"TAVILY_API_KEY": KEY}, {"SEARXNG_URL": "http://x"}):
        assert chosen(None, None, environment) is not nothing_set


async def test_a_query_must_have_words_and_an_end() -> None:
    (tool,) = tools(nothing_set)
    with pytest.raises(Refusal, match="empty"):
        await tool.run({"query": " \n "})
    with pytest.raises(Refusal, match="at most 400"):
        await tool.run({"query": "x" * 401})


# -- a folder --------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "chips.md").write_text("# Chip makers\n\nNvidia sells graphics processors to data centres.\n")
    (tmp_path / "sub" / "oil.txt").write_text("ExxonMobil pumps oil.\nIt pays a dividend.\n")
    (tmp_path / "page.html").write_text(
        "<title>Café &amp; bar</title><script>var nvidia</script><style>oil</style><p>Coffee<b>houses</b></p>"
    )
    (tmp_path / "table.csv").write_text("Symbol,Name\nKO,Coca-Cola\n")
    (tmp_path / "binary.txt").write_bytes(b"nvidia\0\1")
    (tmp_path / ".hidden.md").write_text("nvidia")
    return tmp_path


def paths(index: FolderIndex, query: str) -> list[str]:
    return [hit.where for hit in index.search(query, 10)]


def test_a_folder_is_searched_by_words(folder: Path) -> None:
    index = FolderIndex(folder)
    (hit,) = index.search("nvidia GRAPHICS", 5)
    assert (hit.title, hit.where) == ("Chip makers", "chips.md")
    assert "graphics processors" in hit.snippet
    assert paths(index, "dividend") == ["sub/oil.txt"]
    assert paths(index, "coca-cola") == ["table.csv"]
    assert paths(index, "cafe") == ["page.html"]
    assert paths(index, "coffee") == ["page.html"]


def test_where_no_page_has_all_words_pages_with_some_are_found(folder: Path) -> None:
    assert set(paths(FolderIndex(folder), "nvidia dividend")) == {"chips.md", "sub/oil.txt"}


def test_a_change_of_the_folder_is_seen_by_the_next_search(folder: Path) -> None:
    index = FolderIndex(folder)
    assert paths(index, "uranium") == []
    (folder / "new.txt").write_text("uranium")
    (folder / "chips.md").unlink()
    (folder / "sub" / "oil.txt").write_text("uranium and more")
    assert set(paths(index, "uranium")) == {"new.txt", "sub/oil.txt"}
    assert paths(index, "nvidia") == []
    assert paths(index, "dividend") == []


def test_an_index_reads_only_what_changed(folder: Path) -> None:
    index = FolderIndex(folder)
    index.search("nvidia", 1)
    chips = folder / "chips.md"
    info = chips.stat()
    chips.write_text("x" * info.st_size)
    os.utime(chips, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert paths(index, "nvidia") == ["chips.md"]


def test_links_out_of_the_folder_and_pipes_are_not_indexed(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.txt").write_text("plutonium")
    (folder / "link.txt").symlink_to(outside / "secret.txt")
    (folder / "linked").symlink_to(outside)
    os.mkfifo(folder / "pipe.txt")
    assert paths(FolderIndex(folder), "plutonium") == []


@settings(max_examples=100, deadline=None)
@example("AND").via("an operator alone")
@example("a NOT b OR").via("operators")
@example("NEAR(a b, 3)").via("a function")
@given(query=st.one_of(st.text(max_size=40), st.text(st.sampled_from("\"*^():{}+-. aNEOR'"), max_size=20)))
@pytest.mark.parametrize("index", [FolderIndex(Path(__file__).parent)], ids=["tests"])
def test_no_query_is_a_syntax_error(index: FolderIndex, query: str) -> None:
    try:
        assert isinstance(index.search(query, 3), list)
    except Refusal as refusal:
        assert "no letters" in str(refusal)
