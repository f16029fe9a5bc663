"""The decoders under a fuzzer that is guided by coverage: `pip install atheris`, then

    python -m tests.model.guided_fuzz [answer|events|refusal|recording|json|tools] -max_total_time=60

Not a part of the test command; what it finds becomes a case of `test_fuzz`.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import atheris  # type: ignore[import-not-found,unused-ignore]

with atheris.instrument_imports(include=["centuria.model", "centuria.core"]):
    from centuria.core.templates import find_json
    from centuria.errors import ConfigurationError, ModelError
    from centuria.model.answer import AnswerDecoder
    from centuria.model.exchange import Damaged, Exchange, exchange_line, read_line
    from centuria.model.failures import error_from
    from centuria.model.sse import EventDecoder
    from centuria.model.toolcalls import ToolCallMerger
    from centuria.model.usage import usage_from


def answer(data: bytes) -> None:
    told = []
    for size in (len(data) or 1, 3):
        decoder = AnswerDecoder(secret="sk-0123456789")
        try:
            for start in range(0, len(data), size):
                decoder.feed(data[start : start + size])
            decoder.close()
            told.append(repr(decoder.finish()))
        except ModelError as error:
            told.append(f"{type(error).__name__} {error} {decoder.partial}")
    assert told[0] == told[1], told


def events(data: bytes) -> None:
    whole, split = EventDecoder(), EventDecoder()
    one = whole.feed(data) + whole.close()
    two = [event for place in range(len(data)) for event in split.feed(data[place : place + 1])] + split.close()
    assert one == two


def refusal(data: bytes) -> None:
    error = error_from(400 + len(data) % 200, {"retry-after": data[:40].decode("latin-1")}, data, 1e9)
    assert len(str(error)) < 1200


def recording(data: bytes) -> None:
    try:
        found = read_line(data)
    except (Damaged, ConfigurationError):
        return
    if isinstance(found, Exchange):
        line = exchange_line(found)
        again = read_line(line)
        assert isinstance(again, Exchange) and exchange_line(again) == line


def text(data: bytes) -> None:
    find_json(data.decode("utf-8", "replace"))


def tools(data: bytes) -> None:
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        return
    usage_from(value)
    merger = ToolCallMerger()
    try:
        for fragment in value if isinstance(value, list) else [value]:
            merger.feed([fragment])
    except ModelError:
        return
    merger.calls()


TARGETS: dict[str, Callable[[bytes], None]] = {
    "answer": answer,
    "events": events,
    "refusal": refusal,
    "recording": recording,
    "json": text,
    "tools": tools,
}

if __name__ == "__main__":
    name = sys.argv.pop(1) if len(sys.argv) > 1 and sys.argv[1] in TARGETS else "answer"
    atheris.Setup(sys.argv, TARGETS[name])
    atheris.Fuzz()
