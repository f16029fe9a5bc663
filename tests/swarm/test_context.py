"""No request exceeds the window, and nothing is dropped silently."""

from __future__ import annotations

from centuria.core.window import size
from centuria.errors import ContextTooLong
from centuria.messages import Completion, Usage
from centuria.ports import Caller, ChatRequest
from centuria.settings import Limits
from centuria.testing.scripted import Answer, call, completion
from centuria.testing.tools import LocalTool
from tests.swarm.kit import GOAL, assign, create, run, told

SMALL = 16_000


def in_bytes(request: ChatRequest) -> int:
    return sum(map(size, request.messages))


def counted(request: ChatRequest, answer: str | list[object]) -> Completion:
    """An answer whose usage counts a token for every four bytes, as a provider would."""
    made = completion(answer)  # type: ignore[arg-type]
    return Completion(made.message, Usage(in_bytes(request) // 4, output=50), made.finish)


def test_a_hundred_long_results_share_the_window_and_each_can_be_read_on() -> None:
    long = "0123456789" * 2_000

    def script(request: ChatRequest, caller: Caller) -> Answer:
        if caller.key.task != GOAL:
            return f"{caller.key.task}:{long}"
        heard = told(request) or [""]
        return [
            [create("w"), *(assign("w", f"{n}", id=f"t{n}") for n in range(100))],
            [call("read_result", {"file": "reports/t42.md", "offset": 20_000})],
            heard[-1],
        ][caller.key.turn]

    def counting(request: ChatRequest, caller: Caller) -> Answer:
        return counted(request, script(request, caller))  # type: ignore[arg-type]

    ended = run(counting, context=32_000)
    second, third = ended.requests_of(GOAL)[1:3]
    assert in_bytes(second) // 4 + 16_000 < 32_000
    assert all("the whole is in reports/t" in text for text in told(second)[1:])
    assert told(third)[-1].strip() == "6789"


def test_a_file_that_an_agent_was_not_given_cannot_be_read() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        wanted = ["journal.sqlite", "../../etc/passwd", "/etc/passwd", "reports/other.md"]
        return [[call("read_result", {"file": name}) for name in wanted], "\n".join(told(request))][caller.key.turn]

    assert run(script).merged.answer.count("You were not given the file") == 4


def test_a_history_is_told_in_short_at_85_percent_of_the_window_and_calls_keep_their_results() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        if request.messages[0].content.startswith("You keep the memory"):
            return counted(request, "SUMMARY: the figures were 1, 2 and 3.")
        if caller.key.turn > 30:
            return counted(request, "SUMMARY" if "SUMMARY" in str(request.messages) else "nothing was told in short")
        return counted(request, [call("local__page", {"n": caller.key.turn})])

    page = LocalTool(lambda n: "p" * 6_000, {"type": "object"})
    ended = run(script, context=SMALL, tools={"page": page}, limits=Limits(steps=50))
    assert ended.merged.answer.strip() == "SUMMARY"
    requests = ended.requests_of(GOAL)
    assert sum(request.messages[0].content.startswith("You keep the memory") for request in requests) >= 2
    for request in requests:
        assert in_bytes(request) // 4 + 16_000 // 2 <= SMALL
        asked = [one.id for message in request.messages for one in message.tool_calls]
        assert [message.tool_call_id for message in request.messages if message.role == "tool"] == asked
    assert all(request.messages[1] == requests[0].messages[1] for request in requests if len(request.messages) > 2)


def test_a_prompt_that_the_provider_calls_too_long_is_told_in_short_and_sent_again() -> None:
    refused = []

    def script(request: ChatRequest, caller: Caller) -> Answer:
        if request.messages[0].content.startswith("You keep the memory"):
            return "short"
        if caller.key.turn < 4:
            return [call("local__page", {"n": caller.key.turn})]
        if caller.key.turn == 4:
            refused.append(len(request.messages))
            return ContextTooLong("Too long.", status=400)
        return f"{len(request.messages)} messages: {request.messages[2].content[-5:]}"

    page = LocalTool(lambda n: "p" * 6_000, {"type": "object"})
    ended = run(script, tools={"page": page}, context=200_000)
    assert refused == [10]
    assert ended.merged.answer.strip().endswith("short")


def test_a_prompt_that_cannot_be_shorter_fails_at_once() -> None:
    ended = run(lambda request, caller: ContextTooLong("Too long.", status=400))
    assert ended.outcomes[GOAL].status.value == "failed"
    assert len(ended.model.requests) == 1


def test_an_agent_that_makes_the_same_call_again_and_again_is_reminded_and_has_to_answer() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        if "This is your last turn" in request.messages[-1].content:
            return f"{caller.key.turn} turns"
        return [call("local__same", {"a": 1})]

    ended = run(script, tools={"same": LocalTool(lambda a: "same", {"type": "object"})})
    assert ended.merged.answer.strip() == "12 turns"
    heard = told(ended.requests_of(GOAL)[-1])
    assert [n for n, text in enumerate(heard, 1) if "You have made this very call" in text] == [3, 5, 8]
    assert ended.outcomes[GOAL].cut_short


def test_agents_hear_what_is_left_of_their_limits_before_the_last_turn() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        if "This is your last turn" in request.messages[-1].content:
            return "landed"
        return [call("nothing", {"n": caller.key.turn})]

    ended = run(script, limits=Limits(steps=20))
    said = [message.content for message in ended.requests_of(GOAL)[-1].messages if message.role == "user"]
    assert [text[:18] for text in said[1:]] == ["[You have used 50%", "[You have used 70%", "You have used most"]
