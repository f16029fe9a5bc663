"""What must not be kept: which names stand for secrets, and how their values are blotted out of texts. Pure."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any
from urllib.parse import quote, quote_plus

from centuria.messages import safe_text

#: Headers of a request that are written as they are; what others hold could be a secret.
CLEAR = frozenset(
    {
        *("accept", "accept-encoding", "anthropic-beta", "anthropic-version", "content-length", "content-type"),
        *("host", "http-referer", "idempotency-key", "openai-beta", "user-agent", "x-title"),
    }
)
_SECRET_WORDS = frozenset(
    {
        *("auth", "authentication", "authorization", "apikey", "cookie", "cookie2", "credential", "credentials"),
        *("jwt", "key", "passphrase", "passwd", "password", "pat", "pwd", "secret", "session", "signature", "token"),
    }
)
#: A stream of events, and the strings in its chunks that are parts of one text.
_EVENT = re.compile(rb"^data:", re.MULTILINE)
_DELTA = re.compile(
    rb'"(content|reasoning_content|reasoning|arguments|refusal|text)"\s*:\s*"((?:[^"\\]|\\.)*)"', re.DOTALL
)
#: Shorter values are placeholders ("none", "ollama") that texts may well hold, and what is covered is lost to a replay:
#: so this is more than the shortest key that an error hides.
_SHORTEST = 8


def secret_name(name: str) -> bool:
    """Whether a header, a variable or a parameter of this name holds a secret."""
    words = (word.lower() for word in re.split(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])", name))
    return name.lower() not in CLEAR and not _SECRET_WORDS.isdisjoint(words)


def secrets_in(headers: Mapping[str, str]) -> set[str]:
    """The secret values of a request's headers, without the scheme before them."""
    values = {value for name, value in headers.items() if secret_name(name)}
    return values | {value.partition(" ")[2].strip() for value in values}


class Blotter:
    """Blots secrets out, in every spelling in which they can stand in a header, a URL or a JSON text.

    Bytes keep their length, so what is cut into pieces stays cut where it was.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        spellings: set[str] = set()
        for secret in secrets:
            if len(secret) >= _SHORTEST:
                escaped = json.dumps(secret)[1:-1]
                spellings |= {secret, quote(secret, safe=""), quote_plus(secret), escaped, escaped.replace("/", "\\/")}
        encoded = sorted({safe_text(text).encode() for text in spellings}, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, encoded))) if encoded else None

    def spans(self, data: bytes) -> tuple[tuple[int, int], ...]:
        """Where secrets stand: start and length."""
        if self._pattern is None:
            return ()
        return tuple((found.start(), found.end() - found.start()) for found in self._pattern.finditer(data))

    def text(self, text: str) -> str:
        data = safe_text(text).encode()
        return cover(data, self.spans(data)).decode("utf-8", "replace")

    def data(self, value: Any) -> Any:
        """Plain JSON without secrets; None where it is none any more, because a number was one."""
        if value is None or self._pattern is None:
            return value
        try:
            text = json.dumps(value, ensure_ascii=False)
            return value if (blotted := self.text(text)) == text else json.loads(blotted)
        except (TypeError, ValueError, RecursionError):
            return None

    def pieces(self, pieces: Sequence[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
        """The pieces, blotted as the whole that they make."""
        whole = b"".join(piece for _, piece in pieces)
        spans = (*self.spans(whole), *self._spans_across(whole))
        if not spans:
            return list(pieces)
        covered = cover(whole, spans)
        ends = list(accumulate(len(piece) for _, piece in pieces))
        return [(at, covered[end - len(piece) : end]) for (at, piece), end in zip(pieces, ends, strict=True)]

    def _spans_across(self, body: bytes) -> Iterator[tuple[int, int]]:
        """Where secrets stand in a streamed text: its deltas hold a few characters each, in a JSON string each."""
        if self._pattern is None or not _EVENT.search(body):
            return
        texts: dict[bytes, list[re.Match[bytes]]] = {}
        for found in _DELTA.finditer(body):
            texts.setdefault(found[1], []).append(found)
        for deltas in texts.values():
            ends = list(accumulate(len(delta[2]) for delta in deltas))
            for start, length in self.spans(b"".join(delta[2] for delta in deltas)):
                for place in range(bisect_right(ends, start), len(deltas)):
                    before = ends[place] - len(deltas[place][2])
                    if before >= start + length:
                        break
                    low, high = max(start, before), min(start + length, ends[place])
                    yield deltas[place].start(2) + low - before, high - low


def cover(data: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    """The bytes with asterisks over these stretches, as far as it has them."""
    covered = bytearray(data)
    for start, length in spans:
        covered[start : start + length] = b"*" * len(covered[start : start + length])
    return bytes(covered)
