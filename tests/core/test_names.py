"""Tool names: legal for every provider, never two alike, and the same in whatever order servers start."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from centuria.core.names import is_slug, manifest_key, parse, qualify, slug_of, slugs_of, unknown_tool

OPENAI = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
KIMI = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{2,63}", re.ASCII)

tools = st.text(min_size=1, max_size=80) | st.text("ab-_2DhC3.é", min_size=1, max_size=70)
slugs = st.from_regex(r"[a-z][a-z0-9-]{0,15}", fullmatch=True).filter(lambda text: text.isascii())
servers = st.text(max_size=30) | st.text("ab-_. é3", max_size=20)


@pytest.mark.parametrize(
    ("server", "slug"),
    [
        ("brave_search", "brave-search"),
        ("GitHub", "github"),
        ("file", "file"),
        ("my.server", "my-server"),
        ("3d printer", "s-3d-printer"),
    ],
)
def test_a_server_may_have_any_name(server: str, slug: str) -> None:
    assert slug_of(server) == slug


@pytest.mark.parametrize("server", ["chrome-devtools-mcp", "sequential-thinking"])
def test_a_long_server_name_keeps_its_head_and_gets_four_of_the_hash(server: str) -> None:
    slug = slug_of(server)
    assert slug[:10] == server[:10]
    assert re.fullmatch(r"[a-z-]+-[a-z2-7]{4}", slug)
    assert len(slug) <= 16
    assert slug == slug_of(server)


@given(servers, st.sets(slugs, max_size=5))
def test_a_slug_is_always_legal_and_never_one_that_is_taken(server: str, taken: set[str]) -> None:
    slug = slug_of(server, taken=taken)
    assert is_slug(slug)
    assert slug not in taken
    again = slug_of(server, taken={slug, *taken})
    assert is_slug(again)
    assert again not in {slug, *taken}


@given(st.lists(servers, max_size=8, unique=True), st.randoms(use_true_random=False))
def test_the_slugs_of_all_servers_differ_and_do_not_depend_on_their_order(names: list[str], chance: object) -> None:
    found = slugs_of(names)
    assert set(found) == set(names)
    assert len(set(found.values())) == len(names)
    assert all(is_slug(slug) for slug in found.values())
    chance.shuffle(names)  # type: ignore[attr-defined]
    assert slugs_of(names) == found


def test_servers_whose_names_are_alike_all_get_the_hash() -> None:
    found = slugs_of(["web_search", "web-search", "db"])
    assert found["db"] == "db"
    assert all(re.fullmatch(r"web-search-[a-z2-7]{4}", found[name]) for name in ("web_search", "web-search"))


@given(slugs, tools)
def test_a_name_is_legal_for_openai_and_kimi(slug: str, tool: str) -> None:
    name = qualify(slug, tool)
    assert OPENAI.fullmatch(name)
    assert KIMI.fullmatch(name)


@example("s", "-_2E")
@example("s", "a-_-_C3-_A9-")
@given(slugs, tools)
def test_a_name_is_reversible_or_hashed(slug: str, tool: str) -> None:
    assert parse(qualify(slug, tool)) in ((slug, tool), (slug, None))
    if len(tool) <= 46 and re.fullmatch(r"[A-Za-z0-9_]+", tool, re.ASCII):
        assert parse(qualify(slug, tool)) == (slug, tool)


@given(slugs, tools, slugs, tools)
def test_two_tools_never_have_one_name(slug: str, tool: str, slug2: str, tool2: str) -> None:
    assert (qualify(slug, tool) == qualify(slug2, tool2)) == ((slug, tool) == (slug2, tool2))


@example(".", "-_2E")
@example("é", "-_C3-_A9")
@example("-_", "-_2D_")
@given(st.text("ab-_2D41hC3é", min_size=1, max_size=6), st.text("ab-_2D41hC3é", min_size=1, max_size=6))
def test_names_that_look_like_escapes_are_told_apart(one: str, two: str) -> None:
    assert (qualify("s", one) == qualify("s", two)) == (one == two)


def test_a_name_that_is_too_long_keeps_its_head_and_tells_create_from_delete() -> None:
    stem = "organisation_repository_pull_request_review_comment_thread_"
    create, delete = qualify("github", stem + "create"), qualify("github", stem + "delete")
    assert create != delete
    assert len(create) <= 64
    assert create.startswith("github__organisation_repository")
    assert parse(create) == ("github", None)


@given(st.text(max_size=70) | st.text("ab_-2DCé41", max_size=20))
def test_whatever_a_model_writes_is_read_only_if_it_is_the_very_name_of_a_tool(text: str) -> None:
    found = parse(text)
    if found is not None and found[1] is not None:
        assert qualify(found[0], found[1]) == text


@pytest.mark.parametrize("name", ["", "search", "__x", "web__", "Web__x", "web__b-_41", "web__-_FF", "a" * 70])
def test_what_is_no_name_of_ours_is_none(name: str) -> None:
    assert parse(name) is None


def test_a_bad_slug_or_an_empty_tool_name_is_refused() -> None:
    for slug, tool in (("Web", "x"), ("", "x"), ("a_b", "x"), ("web", ""), ("web\n", "x")):
        with pytest.raises(ValueError, match=r"slug|no name"):
            qualify(slug, tool)


def test_an_agent_that_calls_what_it_was_not_given_is_told_what_it_may_call() -> None:
    said = unknown_tool("web__serch", ["web__search", "file__read"])
    assert "Did you mean web__search?" in said
    assert "file__read, web__search" in said
    assert unknown_tool("x", []).endswith("You have no tools.")
    assert len(unknown_tool("x" * 10_000 + "\ud800", [f"t__{i}" for i in range(1000)])) < 400


def test_a_tool_with_another_schema_is_another_tool_and_the_order_of_keys_is_nothing() -> None:
    one = manifest_key("db", "add", {"type": "object", "properties": {"a": {}, "b": {}}})
    assert one == manifest_key("db", "add", {"properties": {"b": {}, "a": {}}, "type": "object"})
    assert re.fullmatch(r"[0-9a-f]{64}", one)
    assert one != manifest_key("db", "add", {"type": "object", "properties": {"a": {}}})
    assert one != manifest_key("db2", "add", {"type": "object", "properties": {"a": {}, "b": {}}})
    assert one != manifest_key("db", "add2", {"type": "object", "properties": {"a": {}, "b": {}}})
