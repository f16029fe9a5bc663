"""A fake server of good manners: what a checked row looks like when all is well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from centuria.messages import Usage
from centuria.testing.replies import Calls, Document, HttpError, Reply, Text

_PAST = "This model's maximum context length is {} tokens. However, your messages resulted in {} tokens."


@dataclass(frozen=True, slots=True)
class Obliging:
    """A script for `FakeUpstream`: it knows its models, counts words as tokens, keeps `max_tokens` and `stop`, calls
    the tool that it is asked to call, and refuses what is wrong with the words of a provider."""

    models: tuple[str, ...] = ("kimi-k2.5",)
    context: int = 2000
    gap: float = 0.0

    def __call__(self, body: dict[str, Any]) -> Reply:
        return self._refusal(body) or self._answer(body)

    def _refusal(self, body: Mapping[str, Any]) -> Reply | None:
        messages = body.get("messages")
        if body.get("model") not in self.models:
            return HttpError(404, "resource_not_found_error", f"Not found the model {body.get('model')}")
        if not isinstance(messages, list) or not messages:
            return HttpError(400, "invalid_request_error", "messages: field required")
        size = _words(messages)
        if size > self.context:
            return HttpError(400, "invalid_request_error", _PAST.format(self.context, size))
        return None

    def _answer(self, body: Mapping[str, Any]) -> Reply:
        messages = body["messages"]
        last, prompt = messages[-1], _words(messages)
        asked = str(last.get("content") or "")
        if body.get("tools") and last["role"] == "user":
            cities = [city for city in ("Paris", "Tokyo") if city in asked]
            name = body["tools"][0]["function"]["name"]
            calls = tuple((name, f'{{"city": "{city}"}}') for city in cities)
            ids = tuple(f"functions.{name}:{place}" for place in range(len(calls)))
            usage = Usage(prompt, output=12 * len(calls))
            return self._as_asked(Calls(calls, ids, usage=usage, piece=5), body)
        words = [str(n) for n in range(1, 201)] if asked.startswith("Count") else ["hello"]
        return self._as_asked(self._text(words, prompt, body), body)

    def _text(self, words: list[str], prompt: int, body: Mapping[str, Any]) -> Text:
        most = body.get("max_tokens") or body.get("max_completion_tokens") or 1000
        text, finish = " ".join(words[:most]), "length" if len(words) > most else "stop"
        stops = body.get("stop") or ()
        for stop in [stops] if isinstance(stops, str) else stops:
            if stop in text:
                text, finish = text.partition(stop)[0], "stop"
        return Text(text, finish=finish, usage=Usage(prompt, output=max(1, len(text.split()))), piece=4, gap=self.gap)

    def _as_asked(self, answer: Text | Calls, body: Mapping[str, Any]) -> Reply:
        if not body.get("stream"):
            return Document(answer)
        told = bool((body.get("stream_options") or {}).get("include_usage"))
        return answer if told else replace(answer, report="none")


def _words(messages: list[Any]) -> int:
    return sum(len(str(message.get("content") or "").split()) for message in messages if isinstance(message, dict))
