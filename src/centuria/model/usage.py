"""One normaliser of token counts. Pure. Wrong in the direction of counting more, never less.

Sources: OpenAI (`prompt_tokens` include `prompt_tokens_details.cached_tokens`), Moonshot (`cached_tokens` on
top, usage also in `choices[0]`), DeepSeek (`prompt_cache_hit_tokens`), Anthropic (`input_tokens` exclude
`cache_read_input_tokens` and `cache_creation_input_tokens`; gateways pass that on under OpenAI's names), Gemini's
compatible endpoint (thinking only in `total_tokens`), xAI (`completion_tokens` exclude `reasoning_tokens`). Usages
as they were recorded, with their sources, are in `tests/model/usages`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from centuria.messages import Usage

_CAP = 10**9
_CACHE_NAMES = frozenset({"cache_read_input_tokens", "cache_creation_input_tokens"})
#: Where there is nothing else, nothing was cached and nothing thought.
_PLAIN = frozenset({"prompt_tokens", "completion_tokens", "total_tokens"})


def usage_from(raw: Any) -> Usage | None:
    """The usage that a provider reports, or None where it reports none, nothing but zeros, what no count can be,
    or no count of the answer's tokens: what is half told would be half paid."""
    if not isinstance(raw, dict):
        return None
    try:
        usage = _including(raw) if "prompt_tokens" in raw or "completion_tokens" in raw else _excluding(raw)
    except ValueError:
        return None
    return usage if usage.prompt or usage.output else None


def most_of(earlier: Usage | None, later: Usage) -> Usage:
    """Two reports of one answer: the prompt in one and the answer in the other, or one that grows, is the most of
    both."""
    if earlier is None or (earlier.prompt <= later.prompt and earlier.output <= later.output):
        return later
    if later.prompt <= earlier.prompt and later.output <= earlier.output:
        return earlier
    prompt, answer = max(earlier, later, key=_prompt), max(earlier, later, key=_output)
    return Usage(prompt.prompt, prompt.cached, prompt.cache_written, answer.output, answer.reasoning)


def _prompt(usage: Usage) -> int:
    return usage.prompt


def _output(usage: Usage) -> int:
    return usage.output


def _including(raw: Mapping[str, Any]) -> Usage:
    if raw.get("completion_tokens") is None and raw.get("total_tokens") is None:
        raise ValueError(raw)
    prompt = _count(raw.get("prompt_tokens"))
    output, total = _count(raw.get("completion_tokens")), _count(raw.get("total_tokens"))
    if raw.keys() <= _PLAIN:
        return Usage(prompt, output=max(output, total - prompt))
    details, answer = _part(raw, "prompt_tokens_details"), _part(raw, "completion_tokens_details")
    cached = _first(
        raw.get("cached_tokens"),
        details.get("cached_tokens"),
        raw.get("prompt_cache_hit_tokens"),
        raw.get("cache_read_input_tokens"),
    )
    written = _first(
        details.get("cache_write_tokens"),
        details.get("cache_creation_tokens"),
        raw.get("cache_creation_input_tokens"),
    )
    reasoning = _first(answer.get("reasoning_tokens"), raw.get("reasoning_tokens"))
    beside = cached + written
    if beside > prompt or (beside and _CACHE_NAMES & raw.keys() and total == prompt + beside + output):
        prompt += beside  # Anthropic's way of counting, under OpenAI's names
    # Some count thinking only in the total, some beside the answer.
    output = max(output, total - prompt)
    return _usage(prompt, cached, written, output + reasoning if reasoning > output else output, reasoning)


def _excluding(raw: Mapping[str, Any]) -> Usage:
    details, answer = _part(raw, "input_tokens_details"), _part(raw, "output_tokens_details")
    prompt, output = _count(raw.get("input_tokens")), _count(raw.get("output_tokens"))
    if raw.get("output_tokens") is None:
        raise ValueError(raw)
    reasoning = _count(answer.get("reasoning_tokens"))
    if "input_tokens_details" in raw:  # OpenAI's newer names: the details are parts of the whole
        return _usage(
            prompt, _count(details.get("cached_tokens")), _count(details.get("cache_write_tokens")), output, reasoning
        )
    cached = _count(raw.get("cache_read_input_tokens"))
    written = _count(raw.get("cache_creation_input_tokens"))
    return _usage(prompt + cached + written, cached, written, output, reasoning)


def _usage(prompt: int, cached: int, written: int, output: int, reasoning: int) -> Usage:
    cached = min(cached, prompt)
    return Usage(
        prompt=prompt,
        cached=cached,
        cache_written=min(written, prompt - cached),
        output=output,
        reasoning=min(reasoning, output),
    )


def _part(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = raw.get(name)
    return part if isinstance(part, dict) else {}


def _first(*values: Any) -> int:
    for value in values:
        if value is not None:
            return _count(value)
    return 0


def _count(value: Any) -> int:
    if type(value) is int and 0 <= value < _CAP:
        return value
    if value is None:
        return 0
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:20])  # some servers write every number as a string
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _CAP:
        raise ValueError(value)
    return math.ceil(value)
