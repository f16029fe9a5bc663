"""Usages as providers report them, each with its source: every token is counted once, and costs what it costs.

A file holds the `chunk` (or the whole `document`) that carries the usage, dollars per million tokens, what the usage
comes to, and the cost as a person works it out (`sum`, in millionths of a dollar).
"""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from centuria.core.prices import Price, cost, per_million
from centuria.messages import DOLLAR, Usage
from centuria.model.answer import AnswerDecoder
from centuria.model.usage import usage_from

FILES = sorted((Path(__file__).parent / "usages").glob("*.json"))
PROVIDERS = {"openai", "moonshot", "deepseek", "anthropic", "gemini", "openrouter", "xai", "ollama", "vllm", "llama"}


def recorded(file: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return value


def price_of(rates: dict[str, str]) -> Price:
    return Price(**{name: per_million(rate) for name, rate in rates.items() if name != "model"})


def read(case: dict[str, Any]) -> Usage | None:
    """Through the decoder, as the client reads it."""
    decoder = AnswerDecoder()
    if "document" in case:
        decoder.feed(json.dumps(case["document"]).encode())
    else:
        opening = {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}]}
        ending = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        for chunk in (opening, *case.get("before", ()), ending, case["chunk"]):
            decoder.feed(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        decoder.feed(b"data: [DONE]\n\n")
    decoder.close()
    return decoder.finish().usage


def test_every_provider_has_a_recorded_usage_with_its_source() -> None:
    assert {file.stem.partition("-")[0] for file in FILES} == PROVIDERS
    assert all(recorded(file)["source"] for file in FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_recorded_usage_counts_each_token_once_and_costs_what_a_person_works_out(file: Path) -> None:
    case = recorded(file)
    usage = read(case)
    assert usage == Usage(**case["usage"])
    whole = case.get("document") or case["chunk"]
    raw = whole.get("usage") or whole["choices"][0]["usage"]
    assert usage_from(raw) == usage
    assert cost(price_of(case["price"]), usage) == Decimal(case["cost"]) * DOLLAR
    # What the provider itself charged, where it said so.
    if "cost_details" in raw and "cost" in raw and raw["cost_details"]["upstream_inference_cost"] == raw["cost"]:
        assert Decimal(str(raw["cost"])) == Decimal(case["cost"])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_parts_of_a_usage_are_parts_of_its_whole(file: Path) -> None:
    usage = read(recorded(file))
    assert usage is not None
    assert usage.cached + usage.cache_written <= usage.prompt and usage.reasoning <= usage.output


@pytest.mark.parametrize(
    ("raw", "usage"),
    [
        # Thinking beside the answer, and no total that would say so.
        (
            {"prompt_tokens": 12, "completion_tokens": 1, "completion_tokens_details": {"reasoning_tokens": 386}},
            Usage(12, output=387, reasoning=386),
        ),
        # A total of zero, or smaller than its parts, says nothing.
        ({"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 0}, Usage(10, output=20)),
        # Cache fields beside a prompt that includes them: not counted again.
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 7,
                "total_tokens": 107,
                "cache_read_input_tokens": 60,
                "cache_creation_input_tokens": 30,
            },
            Usage(100, cached=60, cache_written=30, output=7),
        ),
        # The same beside one that excludes them: the total tells.
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 7,
                "total_tokens": 197,
                "cache_read_input_tokens": 60,
                "cache_creation_input_tokens": 30,
            },
            Usage(190, cached=60, cache_written=30, output=7),
        ),
    ],
)
def test_where_dialects_differ_the_numbers_themselves_decide(raw: dict[str, Any], usage: Usage) -> None:
    assert usage_from(raw) == usage
