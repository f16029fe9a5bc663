"""What a caller may send: every field that matters is checked, and a refusal names it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.gateway.chat.checking import check, parse, written
from centuria.gateway.problems import Problem

GOOD: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
BAD = [
    ({"model": None}, "model"),
    ({"model": ""}, "model"),
    ({"model": ["m"]}, "model"),
    ({"model": "m" * 201}, "model"),
    ({"models": []}, "models"),
    ({"models": "m"}, "models"),
    ({"models": ["n", 3]}, "model"),
    ({"models": [f"m{n}" for n in range(17)]}, "models"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": []}, "stream_options"),
    ({"stream_options": {"include_usage": "true"}}, "stream_options.include_usage"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": "50"}, "max_tokens"),
    ({"max_tokens": 10**8}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "user", "content": "hi"}, "hi"]}, "messages[1]"),
    ({"messages": [{"content": "hi"}]}, "messages[0]"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "function"}, {"type": "web_search"}]}, "tools[1].type"),
    ({"tools": [7]}, "tools[0].type"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"service_tier": "priority"}, "service_tier"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"background": True}, "background"),
    ({"plugins": [{"id": "web"}]}, "plugins"),
    ({"provider": {"only": ["dear"]}}, "provider"),
    ({"providerOptions": {"gateway": {"only": ["dear"]}}}, "providerOptions"),
    ({"preset": "@preset/dear"}, "preset"),
    ({"speed": "fast"}, "speed"),
    ({"chat_template": "{% for _ in range(9999) %}x{% endfor %}"}, "chat_template"),
    ({"mm_processor_kwargs": {"max_pixels": 10**9}}, "mm_processor_kwargs"),
    ({"enable_search": True}, "enable_search"),
    ({"search_parameters": {"mode": "on"}}, "search_parameters"),
    ({"mcp_tools": "search"}, "mcp_tools"),
    ({"mcp_tools": [""]}, "mcp_tools"),
]


@pytest.mark.parametrize(("change", "field"), BAD, ids=lambda value: json.dumps(value)[:40])
def test_a_wrong_field_is_a_400_that_names_it(change: dict[str, Any], field: str) -> None:
    with pytest.raises(Problem) as caught:
        check({**GOOD, **change})
    assert (caught.value.status, caught.value.type, caught.value.param) == (400, "invalid_request_error", field)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"a": NaN}', b'{"a": "\xff"}', b"[" * 100_000, b'{"a": 1} x']
)
def test_a_body_that_is_no_json_object_is_a_400(body: bytes) -> None:
    with pytest.raises(Problem) as caught:
        parse(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted({next(iter(change)) for change, _ in BAD} | {"prediction", "unknown"})


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5))
def test_whatever_a_body_holds_it_is_taken_or_refused_in_so_many_words(changes: dict[str, Any]) -> None:
    try:
        question = check({**GOOD, **changes})
    except Problem as problem:
        assert problem.status == 400
        assert problem.param
        return
    assert question.models
    assert question.answers >= 1
    assert json.loads(written(question.fields)) == question.fields
    assert not {"model", "models", "mcp_tools"} & set(question.fields)


def test_a_name_that_stands_twice_means_the_same_to_us_and_to_the_upstream() -> None:
    body = b'{"model": "cheap", "model": "dear", "max_tokens": 1, "max_tokens": 9, "messages": [{"role": "user"}]}'
    question = check(parse(body))
    sent = written({**question.fields, "model": "ours"})
    assert sent.count(b'"model"') == sent.count(b'"max_tokens"') == 1
    assert question.models == ("dear",)
    assert question.max_tokens == json.loads(sent)["max_tokens"] == 9


def test_the_largest_limit_counts_and_models_follow_the_model_without_twins() -> None:
    question = check({**GOOD, "max_tokens": 5, "max_completion_tokens": 50, "models": ["n", "m", "n"], "n": 3})
    assert question.max_tokens == 50
    assert question.models == ("m", "n")
    assert question.answers == 3
    assert check({**GOOD, "max_tokens": None}).max_tokens is None
    assert check({"models": ["a"], "messages": GOOD["messages"]}).models == ("a",)


def test_parts_that_are_no_text_and_predictions_are_counted() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, {"type": "file"}]
    question = check({**GOOD, "messages": [{"role": "user", "content": parts}]})
    assert (question.others, question.wholes) == (2, 1)
    urls = ["data:application/pdf;base64,x", "DATA:video/mp4;base64,x", "Data:Image/png;base64,x", "https://x/y.png"]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    question = check({**GOOD, "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "a"}]}]})
    assert (question.others, question.wholes) == (4, 2)
    kept = [{"role": "cache", "content": "cache_id=x"}, {"role": "assistant", "audio": {"id": "x"}}]
    question = check({**GOOD, "messages": [*kept, *GOOD["messages"]]})
    assert (question.others, question.wholes) == (2, 2)
    assert check({**GOOD, "prediction": {"type": "content", "content": "x" * 1_000}}).prediction > 1_000
