"""The short way through a stream: most of its chunks differ in their text alone. Pure.

From one chunk that tells some text and nothing else, what stands around that text is learned. Where the same stands
around another text, parsing could only give the same chunk with that text: it is not parsed.
"""

from __future__ import annotations

import json
import re
from typing import Any

#: Members that tell nothing where they are as `_plain` wants them.
_CHUNK = frozenset({"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier"})
_CHOICE = frozenset({"index", "delta", "finish_reason", "logprobs"})
_DELTA = frozenset({"role", "content"})
#: The inside of a JSON string that stands for itself.
_AS_IT_IS = re.compile(r'[^"\\\x00-\x1f]+')
_PROBE = "\N{REPLACEMENT CHARACTER}?"
#: Chunks from which it may be learned. In some streams no two chunks are alike.
_TRIES = 3


class Alike:
    """Feed what was parsed to `learn`; `text` then tells the text of chunks like it."""

    def __init__(self) -> None:
        self._before = self._after = ""
        self._least = 0
        self._tries = _TRIES

    def text(self, data: str) -> str | None:
        """The text that this chunk tells, if it is like the one that was learned."""
        before, after = self._before, self._after
        if not before or len(data) < self._least or not data.startswith(before) or not data.endswith(after):
            return None
        found = _AS_IT_IS.fullmatch(data, len(before), len(data) - len(after))
        return None if found is None else found[0]

    def learn(self, data: str, chunk: Any) -> None:
        """`chunk` is what `data` was parsed to."""
        if self._before or not self._tries:
            return
        text = _plain(chunk)
        if text is None:
            return
        self._tries -= 1
        before, quoted, after = data.partition(f'"{text}"')
        if not quoted or not _AS_IT_IS.fullmatch(text):
            return
        chunk["choices"][0]["delta"]["content"] = _PROBE
        if json.loads(f'{before}"{_PROBE}"{after}') == chunk:  # it stood where the text stands, and nowhere before
            self._before, self._after = before + '"', '"' + after
            self._least = len(self._before) + len(self._after) + 1
        chunk["choices"][0]["delta"]["content"] = text


def _plain(chunk: Any) -> str | None:
    """The text of a chunk that tells nothing else."""
    if not isinstance(chunk, dict) or not _CHUNK.issuperset(chunk) or chunk.get("usage") is not None:
        return None
    choices = chunk.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or chunk.get("object") == "error":
        return None
    choice = choices[0]
    if not isinstance(choice, dict) or not _CHOICE.issuperset(choice) or choice.get("finish_reason") is not None:
        return None
    delta = choice.get("delta")
    if not isinstance(delta, dict) or not _DELTA.issuperset(delta) or choice.get("index") not in (0, None):
        return None
    text = delta.get("content")
    return text if isinstance(text, str) and text else None
