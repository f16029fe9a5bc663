"""Pydantic AI, by its model for OpenAI-compatible servers."""

import asyncio
import json
import os

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

URL, KEY, MODEL = os.environ["GATEWAY"], os.environ["KEY"], "kimi-k2.5"


def agent(key=KEY, name=MODEL):
    client = AsyncOpenAI(base_url=URL, api_key=key, max_retries=1)
    return Agent(OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client)))


async def chat():
    done = await agent().run("hello")
    return {
        "text": done.output,
        "model": done.response.model_name,
        "usage": [done.usage.input_tokens, done.usage.output_tokens],
    }


async def stream():
    async with agent().run_stream("hello") as done:
        text = "".join([piece async for piece in done.stream_text(delta=True)])
        return {"text": text, "usage": [done.usage.input_tokens, done.usage.output_tokens]}


def weathered():
    one = agent()

    @one.tool_plain
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return "7 degrees"

    return one


def called(messages):
    [call] = [part for message in messages for part in message.parts if isinstance(part, ToolCallPart)]
    return [call.tool_name, call.args_as_dict()]


async def tools():
    done = await weathered().run("What is the weather in Oslo?")
    return {"called": called(done.all_messages()), "text": done.output}


async def tools_streamed():
    async with weathered().run_stream("What is the weather in Oslo?") as done:
        await done.get_output()
        return {"called": called(done.all_messages())}


async def error(words="hello", name=MODEL, key=KEY):
    try:
        await agent(key, name).run(words)
    except ModelHTTPError as problem:
        return {"class": type(problem).__name__, "status": problem.status_code, "code": problem.body["code"]}


async def broken_stream():
    begun = False
    try:
        async with agent().run_stream("break off") as done:
            async for piece in done.stream_text(delta=True, debounce_by=None):
                begun = begun or bool(piece)
    except Exception as problem:
        return {"class": type(problem).__name__, "begun": begun}
    return None


async def leave():
    async with agent().run_stream("never end") as done:
        async for piece in done.stream_text(delta=True, debounce_by=None):
            if piece:
                return {"text": piece}
    return None


async def main():
    return {
        "chat": await chat(),
        "stream_with_usage": await stream(),
        "tools": await tools(),
        "tools_streamed": await tools_streamed(),
        "wrong_key": await error(key="ck-nobody"),
        "unknown_model": await error(name="kimi-k3"),
        "refused": await error("refuse this"),
        "broken": await error("be broken"),
        "no_money": await error(key=os.environ["POOR"]),
        "broken_stream": await broken_stream(),
        "leave": await leave(),
    }


print(json.dumps(asyncio.run(main())))
