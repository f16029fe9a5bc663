"""A subagent sees its parent's tools, or those of them that it is given, and never others."""

from __future__ import annotations

from typing import Any

from centuria.core.delegation import SPECS
from centuria.core.schemas import PLAIN, legal
from centuria.ports import Caller, ChatRequest
from centuria.settings import Job, Task
from centuria.testing.scripted import Answer, call
from centuria.testing.tools import LocalTool
from tests.core.schema_rules import RULES
from tests.swarm.kit import GOAL, Ended, assign, create, prompt_of, run, told

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def say(text: str) -> str:
    return f"said {text}"


TOOLS: dict[str, LocalTool | tuple[Any, ...]] = {
    "read": LocalTool(say, TEXT, {"slug": "file"}),
    "write": LocalTool(say, TEXT, {"slug": "file"}),
    "search": LocalTool(say, TEXT, {"slug": "web"}),
    "query": LocalTool(say, TEXT, {"slug": "db"}),
}


def job(**granted: Any) -> Job:
    return Job("goal", (Task(GOAL, "Reach the goal.", "spec", delegates=True, **granted),))


def tools_of(ended: Ended, prompt: str) -> list[str]:
    request = next(request for request, _ in ended.model.requests if prompt_of(request) == prompt)
    return [spec.name for spec in request.tools if "__" in spec.name]


def test_a_subagent_has_what_its_parent_has_or_less_and_so_have_its_own() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        match prompt_of(request), caller.key.turn:
            case ("Reach the goal.", 0):
                return [create("w")]
            case ("Reach the goal.", 1):
                return [
                    assign("w", "all"),
                    assign("w", "less", tools=["file__read"]),
                    assign("w", "web", tools=["web"]),
                ]
            case ("less", 0):
                return [create("w")]
            case ("less", 1):
                return [assign("w", "below"), assign("w", "more", tools=["file__write"])]
            case ("below", 0):
                return [call("file__write", {"text": "x"}), call("file__read", {"text": "y"})]
            case _:
                return " / ".join(told(request))

    ended = run(script, tools=TOOLS, job=job(servers=frozenset({"file"}), tools=frozenset({"web__search"})))
    assert tools_of(ended, "Reach the goal.") == tools_of(ended, "all") == ["file__read", "web__search", "file__write"]
    assert tools_of(ended, "less") == tools_of(ended, "below") == ["file__read"]
    assert tools_of(ended, "web") == ["web__search"]
    answer = ended.merged.answer
    assert "no tool 'file__write' for you" in answer and "You may call: file__read." in answer
    assert "said y" in answer
    assert "There is no tool 'file__write' to hand down. There is: file__read." in answer
    assert not any(prompt_of(request) == "more" for request, _ in ended.model.requests)


def test_what_a_parent_does_not_have_cannot_be_handed_down() -> None:
    def script(request: ChatRequest, caller: Caller) -> Answer:
        return [
            [create("w")],
            [assign("w", "x", tools=["db__query"]), assign("w", "y", tools=["db"]), assign("w", "z", tools=[])],
            "\n".join(told(request)),
        ][caller.key.turn] if caller.key.task == GOAL else "done"  # fmt: skip

    ended = run(script, tools=TOOLS, job=job(servers=frozenset({"file"})))
    assert "There is no tool 'db__query' to hand down. There is: file__read, file__write." in ended.merged.answer
    assert "There is no server 'db' to hand down. There is: file." in ended.merged.answer
    assert ended.census == {"ok": 2} and tools_of(ended, "z") == []


def test_an_orchestrators_own_functions_count_among_the_128() -> None:
    many: dict[str, LocalTool | tuple[Any, ...]] = {
        f"tool_{n}": LocalTool(say, {}, {"description": ""}) for n in range(125)
    }
    ended = run(lambda request, caller: "done", tools=many, job=job())
    names = [spec.name for spec in ended.model.requests[0][0].tools]
    assert names[:2] == ["search_tools", "call_tool"] and len(names) == 2 + len(SPECS)
    alone = Job("goal", (Task(GOAL, "Reach the goal.", "spec"),))
    ended = run(lambda request, caller: "done", tools=many, job=alone)
    assert len(ended.model.requests[0][0].tools) == 125


def test_the_swarms_own_functions_are_legal_for_every_provider() -> None:
    for spec in SPECS:
        assert legal(spec.schema, PLAIN)["properties"].keys() == spec.schema["properties"].keys()
        for name, rules in RULES.items():
            assert rules(spec.schema) == [], (spec.name, name)
