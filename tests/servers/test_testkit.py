"""`mcp-testkit` on the SDK before 2.0: 65 tools, each called and each answer known beforehand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from centuria.messages import ToolEnd
from tests.servers.kit import Bench, host_of, kept, mcp_testkit, server

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALL = {
    "str_param": "s",
    "int_param": 1,
    "float_param": 0.5,
    "bool_param": True,
    "list_param": [1],
    "obj_param": {"a": 1},
}
ROWS = [{"k": "a", "n": 1}, {"k": "b", "n": 2}, {"k": "a", "n": 3}]

#: Tool, arguments, and the property `result` of its answer.
RESULTS: list[tuple[str, dict[str, Any], Any]] = [
    ("collection_chunk", {"items": [1, 2, 3], "size": 2}, [[1, 2], [3]]),
    ("collection_filter_gt", {"items": [1, 5, 2.5], "threshold": 2}, [5, 2.5]),
    ("collection_flatten", {"items": [1, [2, [3]]]}, [1, 2, 3]),
    ("collection_group_by", {"items": ROWS, "key": "k"}, {"a": [ROWS[0], ROWS[2]], "b": [ROWS[1]]}),
    ("collection_merge", {"dict_a": {"a": 1}, "dict_b": {"a": 2, "b": 3}}, {"a": 2, "b": 3}),
    ("collection_sort", {"items": [3, 1, 2], "reverse": True}, [3, 2, 1]),
    ("collection_unique", {"items": [1, 1, "1", [2], [2]]}, [1, "1", [2]]),
    ("collection_zip", {"list_a": [1, 2], "list_b": ["a", "b"]}, [[1, "a"], [2, "b"]]),
    ("conversion_bytes_to_human", {"bytes": 1536}, "1.50 KB"),
    ("conversion_celsius_to_fahrenheit", {"value": 100}, 212),
    ("conversion_decimal_to_binary", {"value": 10}, "1010"),
    ("conversion_fahrenheit_to_celsius", {"value": 212}, 100),
    ("conversion_hex_to_rgb", {"hex_color": "#ff8000"}, {"r": 255, "g": 128, "b": 0}),
    ("conversion_km_to_miles", {"value": 10}, 6.21371),
    ("conversion_miles_to_km", {"value": 10}, 16.0934),
    ("conversion_rgb_to_hex", {"r": 255, "g": 128, "b": 0}, "#ff8000"),
    ("datetime_add_days", {"date_string": "2024-02-28", "days": 2}, "2024-03-01"),
    ("datetime_day_of_week", {"date_string": "2024-03-15"}, "Friday"),
    ("datetime_days_in_month", {"year": 2024, "month": 2}, 29),
    ("datetime_diff", {"date_a": "2024-03-01", "date_b": "2024-02-01"}, 29),
    ("datetime_format", {"year": 2024, "month": 3, "day": 5, "format": "%d/%m/%y"}, "05/03/24"),
    ("datetime_is_leap_year", {"year": 1900}, False),
    (
        "datetime_parse",
        {"date_string": "2024-03-15T10:30:05"},
        {"year": 2024, "month": 3, "day": 15, "hour": 10, "minute": 30, "second": 5},
    ),
    ("datetime_week_number", {"date_string": "2024-01-08"}, 2),
    ("echo", {"message": "caf\u00e9"}, "caf\u00e9"),
    ("echo_empty", {}, ""),
    ("echo_nested", {"depth": 1}, {"level": 0, "child": {"level": 1, "child": None}}),
    ("encoding_base64_decode", {"data": "aGk="}, "hi"),
    ("encoding_base64_encode", {"text": "hi"}, "aGk="),
    ("encoding_hex_decode", {"data": "6869"}, "hi"),
    ("encoding_hex_encode", {"text": "hi"}, "6869"),
    ("encoding_md5", {"text": ""}, "d41d8cd98f00b204e9800998ecf8427e"),
    ("encoding_sha256", {"text": ""}, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
    ("encoding_url_decode", {"text": "a+b%26c"}, "a b&c"),
    ("encoding_url_encode", {"text": "a b&c"}, "a+b%26c"),
    ("math_add", {"a": 2, "b": 40}, 42),
    ("math_divide", {"a": 1, "b": 4}, 0.25),
    ("math_factorial", {"n": 20}, 2432902008176640000),
    ("math_fibonacci", {"n": 90}, 2880067194370816120),
    ("math_modulo", {"a": 7, "b": 4}, 3),
    ("math_multiply", {"a": 6, "b": 7}, 42),
    ("math_power", {"base": 2, "exponent": 10}, 1024),
    ("math_subtract", {"a": 50, "b": 8}, 42),
    ("string_char_count", {"text": "banana", "char": "a"}, 3),
    ("string_join", {"items": ["a", "b"], "delimiter": "-"}, "a-b"),
    ("string_length", {"text": "\u2713\u2713"}, 2),
    ("string_lowercase", {"text": "ABC"}, "abc"),
    ("string_replace", {"text": "aXbX", "old": "X", "new": "-"}, "a-b-"),
    ("string_reverse", {"text": "abc"}, "cba"),
    ("string_split", {"text": "a,b", "delimiter": ","}, ["a", "b"]),
    ("string_uppercase", {"text": "abc"}, "ABC"),
]
#: Tool, and what is valid and what is not.
VALIDATIONS = [
    ("validation_is_email", {"text": "a@example.org"}, {"text": "a@"}),
    ("validation_is_ipv4", {"text": "127.0.0.1"}, {"text": "256.0.0.1"}),
    ("validation_is_ipv6", {"text": "::1"}, {"text": ":::"}),
    ("validation_is_json", {"text": "[1]"}, {"text": "[1"}),
    ("validation_is_palindrome", {"text": "abba"}, {"text": "abca"}),
    ("validation_is_url", {"text": "https://example.org"}, {"text": "example.org"}),
    ("validation_is_uuid", {"text": "12345678-1234-5678-1234-567812345678"}, {"text": "1234"}),
    ("validation_matches_regex", {"text": "abc", "pattern": "^a.c$"}, {"text": "abd", "pattern": "^a.c$"}),
]
#: Those whose answers have another shape, each in a test of its own.
OTHERS = {"echo_error", "echo_large", "echo_multiple", "echo_schema", "echo_types", "get_weather"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench() -> AsyncIterator[Bench]:
    async with kept(host_of(server("kit", mcp_testkit(), limit=20))) as host:
        yield Bench(host, result_chars=200_000)


async def test_all_65_tools_register_and_each_is_called_below(bench: Bench) -> None:
    (state,) = bench.host.servers()
    assert state.up and state.tools == 65 and state.detail["protocol"] == "2025-11-25"
    called = {name for name, *_ in RESULTS} | {name for name, *_ in VALIDATIONS} | OTHERS
    assert {tool.tool for tool in bench.host.catalogue()} == called


async def test_every_answer_is_the_right_one_with_twenty_calls_at_once(bench: Bench) -> None:
    results = await asyncio.gather(*(bench.call(f"kit__{name}", arguments) for name, arguments, _ in RESULTS))
    for (name, _, expected), result in zip(RESULTS, results, strict=True):
        assert result.end is ToolEnd.OK, (name, result)
        assert json.loads(result.text) == {"result": expected}, name


async def test_every_validation_says_yes_and_no(bench: Bench) -> None:
    for name, right, wrong in VALIDATIONS:
        assert json.loads(await bench.text(f"kit__{name}", right))["valid"] is True, name
        assert json.loads(await bench.text(f"kit__{name}", wrong))["valid"] is False, name


async def test_arguments_of_every_json_type_arrive_as_they_were_sent(bench: Bench) -> None:
    assert json.loads(await bench.text("kit__echo_schema", ALL)) == ALL
    types = json.loads(await bench.text("kit__echo_types"))
    assert types["null"] is None and types["array"] == [1, "two", False] and types["float"] == 3.14
    assert json.loads(await bench.text("kit__get_weather", {"city": "Oslo"}))["condition"] == "sunny"


async def test_several_blocks_of_text_come_as_lines(bench: Bench) -> None:
    assert await bench.text("kit__echo_multiple", {"messages": ["a", "b", "c"]}) == "a\nb\nc"


async def test_a_large_answer_arrives_whole(bench: Bench) -> None:
    text = await bench.text("kit__echo_large", {"size_kb": 100})
    assert len(json.loads(text)["result"]) == 100 * 1024


async def test_a_tool_that_fails_is_a_value_and_the_model_reads_why(bench: Bench) -> None:
    result = await bench.call("kit__echo_error", {"message": "out of cheese"})
    assert result.end is ToolEnd.ERROR and "out of cheese" in result.text
