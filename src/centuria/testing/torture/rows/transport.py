"""Connections that break off or fall silent, and bytes in every split, framing and encoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from centuria.testing.replies import Cut, Late, Raw, Reset, Silence, Stall, Text, Verbatim, Written
from centuria.testing.torture.row import ANSWER, OK, USAGE, Row, answered, both, failed, streamed, whole
from centuria.testing.torture.writing import COUNTED, by_byte, chunk, events, paper, said, stream, text, used

OLD = Text("Old words of an attempt that fails. " * 4, usage=USAGE, piece=5)
_AGAIN = answered(requests=2)
_GIVES_UP = failed("unavailable", requests=(1, 6))


def _broken() -> list[Row]:
    half = paper(events(said({"content": ANSWER}))[6:60])
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
    fin = Raw(events(text(OLD.text), done=False).partition(b"!")[:1], end=False, after="close", billed=USAGE)
    page = Verbatim((b"SSH-2.0-OpenSSH_9.9\r\n",))
    return [
        both("reset before the headers", 36, _AGAIN, Reset(), OK),
        both("closed before the headers", 36, _AGAIN, Verbatim((b"",)), OK),
        both("closed inside the headers", 36, _AGAIN, Verbatim((head,)), OK),
        both("reset for ever", 36, failed("unavailable", requests=(2, 6)), Reset()),
        streamed("reset after the headers", 36, _AGAIN, Cut(OLD, 0.0), OK),
        streamed("reset after three chunks", 39, _AGAIN, Cut(OLD, 0.15), OK),
        streamed("reset in mid-answer, twice", 39, answered(requests=3), Cut(OLD), Cut(OLD, 0.9), OK),
        streamed("closed in mid-answer, without the last chunk", 39, _AGAIN, fin, OK),
        streamed("closed in mid-answer, as if it were the end", 39, _AGAIN, replace(fin, framing="close"), OK),
        streamed(
            "closed in the middle of a line",
            36,
            _AGAIN,
            Raw((events(text(OLD.text))[:60],), framing="close", billed=USAGE),
            OK,
        ),
        streamed(
            "reset after the finish reason, before the usage",
            36,
            answered(usage=None),
            stream(text(ANSWER), chunk(finish="stop"), done=False, end=False, after="reset"),
        ),
        streamed(
            "reset after the usage, before [DONE]",
            36,
            answered(),
            stream(text(ANSWER), chunk(finish="stop"), used(), done=False, end=False, after="reset"),
        ),
        streamed("reset after [DONE]", 36, answered(), stream(text(ANSWER, "stop"), used(), end=False, after="reset")),
        streamed("nothing but [DONE]", 36, _AGAIN, stream(), OK),
        streamed("an empty stream", 36, _AGAIN, stream(done=False), OK),
        streamed("an empty stream for ever", 36, failed("unavailable", requests=(2, 6)), stream(done=False)),
        whole("a document that breaks off", 36, _AGAIN, replace(half, length=900, end=False, after="close"), OK),
        whole("half a document, said to be all", 36, _AGAIN, half, OK),
        whole("an empty document", 36, _AGAIN, paper(b""), OK),
        both("204 and no body", 36, _AGAIN, Verbatim((b"HTTP/1.1 204 No Content\r\n\r\n",), after="keep"), OK),
        both("something that is no HTTP", 36, failed("unavailable", requests=(1, 6)), page),
        both(
            "headers of a megabyte",
            36,
            failed("unavailable", "refused", requests=(1, 6)),
            paper(said({"content": ANSWER}), headers=(("x-padding", "x" * 1_000_000),)),
        ),
        Row(
            "the connection is closed after each answer",
            36,
            (answered(), answered(requests=(1, 2))),
            (stream(text(ANSWER, "stop"), used(), after="close"), OK),
            (paper(said({"content": ANSWER}), after="close"), OK),
        ),
        both("a reset when a connection is used again", 36, (answered(), _AGAIN), OK, Reset(), OK),
    ]


def _silent() -> list[Row]:
    comments = (b": OPENROUTER PROCESSING\n\n",)
    slow = (answered(), answered())
    return [
        both("no headers for ever", 36, failed("unavailable", requests=(1, 6)), Silence()),
        both("no headers the first time", 36, _AGAIN, Silence(), OK),
        streamed("silence after the headers", 36, _AGAIN, stream(done=False, end=False), OK),
        streamed("silence in mid-answer", 36, _AGAIN, Stall(OLD), OK),
        streamed("comments for ever, and no answer", 36, _AGAIN, Raw(comments * 80, gap=0.05, billed=USAGE), OK),
        streamed(
            "comments for ever after a few words",
            36,
            _AGAIN,
            Raw((events(text("Old "), done=False), *comments * 80), gap=0.05, billed=USAGE),
            OK,
        ),
        streamed(
            "silence after the finish reason, before the usage",
            36,
            answered(usage=None),
            stream(text(ANSWER, "stop"), done=False, end=False),
        ),
        streamed("silence after [DONE]", 36, answered(), stream(text(ANSWER, "stop"), used(), end=False)),
        streamed(
            "comments, then the answer",
            36,
            answered(),
            Raw((*comments * 5, events(text(ANSWER, "stop"), used())), gap=0.02, billed=USAGE),
        ),
        whole(
            "white space for a while, then the document",
            36,
            answered(),
            replace(
                paper(b""),
                pieces=(*(b"\n",) * 5, events(said({"content": ANSWER}), done=False)[6:]),
                gap=0.02,
                framing="chunked",
            ),
        ),
        both("an answer that is late", 36, slow, Late(OK, 0.1)),
    ]


def _at_every(size: int) -> Callable[[bytes], Sequence[bytes]]:
    return lambda body: [body[place : place + size] for place in range(0, len(body), size)]


def _inside_characters(body: bytes) -> list[bytes]:
    """Cut after the first byte of each character that has several."""
    cuts = [place + 1 for place, byte in enumerate(body) if byte >= 0xC0]
    return [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]


def _split() -> list[Row]:
    def row(name: str, rewrite: Callable[[bytes], Sequence[bytes]]) -> Row:
        return streamed(name, 48, answered(), Written(OK, rewrite))

    def bytewise(ends: bytes) -> Raw:
        return Raw(tuple(by_byte(few.replace(b"\n", ends))), billed=USAGE)

    words = [{"choices": [{"delta": {"content": part}}]} for part in (ANSWER[:13], ANSWER[13:])]
    few = events(*words, {"choices": [{"delta": {}, "finish_reason": "stop"}]}, {"choices": [], "usage": COUNTED})
    one = Written(OK, by_byte, document=True, raw=paper(b"", framing="chunked"))
    return [
        Row("one byte a write", 48, (answered(),), (bytewise(b"\n"),), (one,)),
        row("seven bytes a write, line ends CRLF", lambda b: _at_every(7)(b.replace(b"\n", b"\r\n"))),
        streamed("one byte a write, line ends CRLF", 48, answered(), bytewise(b"\r\n")),
        row("line ends CR", lambda b: [b.replace(b"\n", b"\r")]),
        streamed("one byte a write, line ends CR", 48, answered(), bytewise(b"\r")),
        row("writes that end inside a character", _inside_characters),
        row("all of it in one write", lambda b: [b]),
        row("a byte order mark", lambda b: [b"\xef", b"\xbb", b"\xbf" + b]),
        row("comments between the events", lambda b: [b.replace(b"\n\n", b"\n\n: ping\n\n:\n\n")]),
        row("comments inside the events", lambda b: [b.replace(b"data:", b": ping\ndata:")]),
        row("no space after data:", lambda b: [b.replace(b"data: ", b"data:")]),
        row("event, id and retry fields", lambda b: [b.replace(b"data:", b"event: message\nid: 7\nretry: 10\ndata:")]),
        row("blank lines before, between and after", lambda b: [b"\n\n\n" + b.replace(b"\n\n", b"\n\n\n\n")]),
        row("no blank line after [DONE]", lambda b: [b.removesuffix(b"\n\n")]),
        row("no [DONE]", lambda b: [b.removesuffix(b"data: [DONE]\n\n")]),
        row("data after [DONE]", lambda b: [b + events(text(" And more."), done=False) + b"data: oops\n\n"]),
        row("JSON over several data lines", lambda b: [b.replace(b'"choices":', b'\ndata: "choices":')]),
    ]


def _framed() -> list[Row]:
    def row(name: str, **raw: object) -> Row:
        one, other = Raw((), **raw), replace(paper(b"", billed=None), **raw)  # type: ignore[arg-type]
        return Row(
            name,
            36,
            (answered(),),
            (Written(OK, _at_every(90), raw=one),),
            (Written(OK, _at_every(90), document=True, raw=other),),
        )

    stream_body = events(text(ANSWER, "stop"), used())
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(stream_body)
    hints = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
    odd = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    extended = odd + b'%x;name="v"\r\n%b\r\n0;x\r\nx-trace: 1\r\n\r\n' % (len(stream_body), stream_body)
    nothing = b"HTTP/1.1 200\r\ncontent-length: %d\r\n\r\n" % len(stream_body)

    def verbatim(name: str, *pieces: bytes, gap: float = 0.0) -> Row:
        return streamed(name, 36, answered(), Verbatim(pieces, gap, "keep", USAGE))

    return [
        row("HTTP/1.0 without a length", protocol="HTTP/1.0", framing="close"),
        row("HTTP/1.1 without a length", framing="close"),
        row("a content length", framing="length"),
        row("trailers", framing="chunked", trailers=(("x-trace-id", "1"), ("server-timing", "x"))),
        row("gzip", encoding="gzip", framing="chunked"),
        row("deflate", encoding="deflate", framing="chunked"),
        row("text/plain", content_type="text/plain; charset=latin-1"),
        row("no content type", content_type=None),
        row("the content type of the other form", content_type="application/octet-stream"),
        Row(
            "text/event-stream for a document, JSON for a stream",
            36,
            (answered(),),
            (Written(OK, _at_every(90), raw=Raw((), content_type="application/json")),),
            (Written(OK, _at_every(90), document=True, raw=Raw((), content_type="text/event-stream")),),
        ),
        both("gzip that breaks off", 36, _AGAIN, Written(OLD, _at_every(90), raw=Raw((), encoding="gzip-cut")), OK),
        both(
            "said to be gzip, and is not",
            36,
            _GIVES_UP,
            Raw((b"no gzip at all",), headers=(("content-encoding", "gzip"),), billed=USAGE),
        ),
        verbatim("slow headers", *_at_every(10)(head), stream_body, gap=0.01),
        verbatim("chunk extensions and trailers", extended),
        verbatim("early hints before the answer", hints + head + stream_body),
        verbatim("a status line without a reason", nothing + stream_body),
        streamed("a document where a stream was asked for", 36, answered(), paper(said({"content": ANSWER}))),
        whole("a stream where a document was asked for", 36, answered(), stream(text(ANSWER, "stop"), used())),
        both(
            "200 and a web page",
            36,
            _GIVES_UP,
            Raw((b"<!DOCTYPE html><html>Welcome</html>",), content_type="text/html", billed=USAGE),
        ),
        both("200 and JSON of another kind", 36, _GIVES_UP, paper({"status": "ok"})),
        both("200 and text", 36, _GIVES_UP, paper(b"Hello there", content_type="text/plain")),
    ]


def transport() -> Sequence[Row]:
    return [*_broken(), *_silent(), *_split(), *_framed()]
