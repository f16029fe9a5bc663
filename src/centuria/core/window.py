"""A conversation in the model's window: how full it is, what its parts may take, and which part is told in short. Pure.

Sizes are bytes, because only the provider can count tokens. How many bytes a token has is learned from the usage of the
last answer; before there is one, three are assumed, which is fewer than most texts have.
"""

from __future__ import annotations

from collections.abc import Sequence

from centuria.messages import Message, Usage

#: The part of the window at which a history is told in short.
FULL = 0.85
#: The part of the window that the newest messages, which stay as they are, may take.
_KEPT = 0.2
_BYTES_A_TOKEN = 3.0
_MESSAGE = 32

SUMMARY_RULES = """\
You keep the memory of an agent whose conversation has grown too long. Below is the middle of it. Write down all that \
the agent needs in order to go on without it: what it was asked, what it found (figures, names and files exactly as \
they stand), what it decided, what failed, and what is still to be done. Leave out what does not matter any more. \
Write in the language of the conversation, and nothing but the summary."""

_TOLD = "This is what has happened so far, in short; the messages themselves were left out:\n\n"


def size(message: Message) -> int:
    """About what a message takes in a request."""
    parts = [message.content, message.reasoning or "", message.tool_call_id or ""]
    parts += [part for call in message.tool_calls for part in (call.id, call.name, call.arguments)]
    return _MESSAGE + sum(map(_bytes, parts))


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


class Window:
    """One conversation's use of a window of `context` tokens, of which answers take at most `max_tokens`.

    What goes with every request besides the messages (the tools) is not measured. It makes tokens seem shorter than
    they are, which errs to the careful side.
    """

    def __init__(self, context: int, max_tokens: int) -> None:
        self._tokens = max(1_024, context - min(max_tokens, context // 2))
        self._bytes_a_token = _BYTES_A_TOKEN

    def learn(self, sent: int, usage: Usage | None) -> None:
        """A request of so many bytes of messages had this usage."""
        if usage is not None and usage.prompt > 0:
            self._bytes_a_token = min(6.0, max(1.0, sent / usage.prompt))

    @property
    def room(self) -> int:
        """Bytes of messages that the window holds."""
        return max(1_000, int(self._tokens * self._bytes_a_token))

    def full(self, history: int) -> bool:
        """Whether so many bytes of messages are too near to its end."""
        return history >= FULL * self.room

    def shares(self, history: int, wanted: Sequence[int]) -> list[int]:
        """How many bytes each of these results may take beside the history: all that it wants, or its even share."""
        room = max(self.room // 8, int(FULL * self.room) - history) // 2
        shares = [0] * len(wanted)
        waiting = sorted(range(len(wanted)), key=lambda index: wanted[index])
        while waiting:
            share = room // len(waiting)
            first = waiting.pop(0)
            shares[first] = min(wanted[first], share)
            room -= shares[first]
        return shares

    def split(self, history: Sequence[Message], opening: int) -> int | None:
        """Where what is told in short ends: the messages `[opening:split]`. None: there is nothing that could be.

        A tool call and its results are never parted: what stays begins with an answer of the model's, or with what a
        user said.
        """
        kept, split = 0, len(history)
        for index in range(len(history) - 1, opening, -1):
            kept += size(history[index])
            if kept > _KEPT * self.room and split < len(history):
                break
            if history[index].role != "tool":
                split = index
        return split if split > opening + 1 else None


def transcript(messages: Sequence[Message], most: int) -> str:
    """The messages as a text of at most so many bytes; long ones lose their middle first."""
    share = max(200, most // max(1, len(messages)) - 40)
    parts = []
    for message in messages:
        said = message.content
        said += "".join(f"\n(calls {call.name} with {call.arguments})" for call in message.tool_calls)
        parts.append(f"### {message.role}\n{shorten(said, share)}")
    return shorten("\n\n".join(parts), most)


def told_in_short(summary: str) -> Message:
    """The message that stands for what was left out."""
    return Message("user", _TOLD + summary)


def shorten(text: str, most: int) -> str:
    """The head and the tail of a text that is longer than `most` bytes (UTF-8), with a line that says so."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= most:
        return text
    head, tail = raw[: most * 2 // 3], raw[len(raw) - most // 4 :]
    gone = len(raw) - len(head) - len(tail)
    return head.decode("utf-8", "ignore") + f"\n[... {gone} bytes left out ...]\n" + tail.decode("utf-8", "ignore")
