"""Two functions in place of hundreds: `search_tools` finds tools by words, `call_tool` calls what was found. Pure.

A provider takes 128 functions, and a long list costs its tokens with every request of every agent.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Any

from centuria.messages import ToolSpec

#: Neither can be the name of a server's tool: those hold `__`.
SEARCH_TOOLS, CALL_TOOL = "search_tools", "call_tool"
#: Functions that OpenAI and Moonshot take in one request.
MOST_FUNCTIONS = 128
#: The part of a model's context that a list of tools may take, and the number of tools that are always shown.
SHARE, ALWAYS_SHOWN = 0.03, 8
#: Tools of one answer: unless it is asked for more, and at most.
USUAL_FOUND, MOST_FOUND = 6, 20

_BYTES_A_TOKEN = 4
#: Okapi BM25: how soon a word that is repeated counts no more, and how much a long text is held back.
_K, _B = 1.2, 0.75
_NAME, _SERVER, _PARAMETER, _DESCRIPTION = 4.0, 2.0, 1.5, 1.0
_PREFIX = 0.5
_LEAST_PREFIX = 4
_MOST_WORDS = 64
_TEXT = 600
_WORD = re.compile(r"[^\W\d_]+|\d+")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def why_search(count: int, size: int, context: int, *, beside: int = 0) -> str:
    """Why so many functions, of so many bytes of JSON together, are to be searched; "" where all are shown.

    `context` is the model's window in tokens; `beside` functions stand beside them in a request.
    """
    if count + beside > MOST_FUNCTIONS:
        return f"a request takes at most {MOST_FUNCTIONS} functions"
    tokens = size // _BYTES_A_TOKEN
    if count > ALWAYS_SHOWN and tokens > SHARE * context:
        share = f"{100 * tokens / context:.0f} %"
        return f"their list of some {tokens:,} tokens would take {share} of the model's context in every request"
    return ""


def functions(count: int, slugs: Sequence[str]) -> tuple[ToolSpec, ToolSpec]:
    """The two functions, as every agent that sees these tools is told of them."""
    shown = ", ".join(slugs[:40]) + (f" and {len(slugs) - 40} more" if len(slugs) > 40 else "")
    search = ToolSpec(
        SEARCH_TOOLS,
        f"Find tools by what they do. There are {count:,} tools, of: {shown}. Each result has the tool's name, what it "
        f"does and the JSON Schema of its parameters; call it with {CALL_TOOL}.",
        {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "A few words: what is to be done, and with what."},
                "limit": {"type": "integer", "minimum": 1, "maximum": MOST_FOUND, "description": "Results at most."},
            },
            "required": ["query"],
        },
    )
    call = ToolSpec(
        CALL_TOOL,
        f"Call a tool that {SEARCH_TOOLS} found.",
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "The tool's name, as it was found."},
                "arguments": {"type": "object", "description": "Its arguments, by the schema of its parameters."},
            },
            "required": ["name", "arguments"],
        },
    )
    return search, call


class ToolIndex:
    """Finds tools by words of their names, descriptions and parameters. The same words always find the same."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self._specs = tuple(specs)
        self._texts = [_words_of(spec) for spec in specs]
        lengths = [sum(text.values()) for text in self._texts]
        self._lengths = lengths
        self._mean = max(1.0, sum(lengths) / max(1, len(lengths)))
        self._holders: dict[str, list[int]] = {}
        for number, text in enumerate(self._texts):
            for word in text:
                self._holders.setdefault(word, []).append(number)
        self._words = sorted(self._holders)

    def search(self, query: str, limit: int = USUAL_FOUND) -> list[ToolSpec]:
        """The tools that fit best, best first; of those that fit alike the first in the list."""
        scores: Counter[int] = Counter()
        for asked in list(dict.fromkeys(words(query)))[:_MOST_WORDS]:
            best: dict[int, float] = {}
            for word, weight in self._like(asked):
                for number in self._holders[word]:
                    best[number] = max(best.get(number, 0.0), weight * self._score(word, number))
            scores.update(best)
        ranked = sorted(scores, key=lambda number: (-round(scores[number], 9), number))
        return [self._specs[number] for number in ranked[: max(1, min(limit, MOST_FOUND))]]

    def _like(self, asked: str) -> list[tuple[str, float]]:
        """The words that a word of the query may mean: itself, those that it begins, and those that begin it."""
        found = [(asked, 1.0)] if asked in self._holders else []
        if len(asked) < _LEAST_PREFIX:
            return found
        for word in self._words[bisect_left(self._words, asked) :]:
            if not word.startswith(asked):
                break
            if word != asked:
                found.append((word, _PREFIX))
        beginnings = (asked[:size] for size in range(_LEAST_PREFIX, len(asked)))
        return found + [(word, _PREFIX) for word in beginnings if word in self._holders]

    def _score(self, word: str, number: int) -> float:
        holders = len(self._holders[word])
        rarity = math.log(1 + (len(self._specs) - holders + 0.5) / (holders + 0.5))
        often = self._texts[number][word]
        length = 1 - _B + _B * self._lengths[number] / self._mean
        return rarity * often * (_K + 1) / (often + _K * length)

    def answer(self, query: str, limit: int, room: int) -> str:
        """What a model is told that searched: JSON of at most `room` characters, schemas as far as they fit."""
        found = self.search(query, limit)
        if not found:
            names = ", ".join(spec.name for spec in self._specs[:40])
            return f"No tool fits these words. There are {len(self._specs):,} tools; the first are: {names}."[:room]
        entries: list[dict[str, Any]] = [_entry(spec, whole=False) for spec in found]
        left = room - len(_dump(entries)) - 200
        bare = 0
        for number, spec in enumerate(found):
            more = len(_dump(_entry(spec, whole=True))) - len(_dump(entries[number]))
            if more <= left:
                entries[number], left = _entry(spec, whole=True), left - more
            else:
                bare += 1
        told: dict[str, Any] = {"tools": entries}
        if bare:
            told["note"] = f"Where `parameters` are missing ({bare}) there was no room: search for that name alone."
        text = _dump(told)
        while len(text) > room and len(entries) > 1:
            entries.pop()
            text = _dump(told)
        return text


def words(text: str) -> list[str]:
    """The words of a text or a name, in lower case, without the `s` of a plural."""
    found = (part.lower() for word in _WORD.findall(text[:20_000]) for part in _HUMP.split(word))
    return [word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in found]


def _words_of(spec: ToolSpec) -> Counter[str]:
    """How much each word says of a tool."""
    slug, _, name = spec.name.partition("__")
    text: Counter[str] = Counter()
    parameters = spec.schema.get("properties", {})
    parts = (
        (name, _NAME),
        (slug, _SERVER),
        (" ".join(map(str, list(parameters)[:100])), _PARAMETER),
        (spec.description, _DESCRIPTION),
    )
    for part, weight in parts:
        for word in words(part):
            text[word] += weight  # type: ignore[assignment]
    return text


def _entry(spec: ToolSpec, *, whole: bool) -> dict[str, Any]:
    if whole:
        return {"name": spec.name, "description": spec.description, "parameters": spec.schema}
    return {"name": spec.name, "description": spec.description[:_TEXT]}


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
