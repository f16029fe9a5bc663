"""LangChain, by its package for OpenAI-compatible models."""

import json
import os

import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

URL, KEY, MODEL = os.environ["GATEWAY"], os.environ["KEY"], "kimi-k2.5"


def model(key=KEY, name=MODEL, **options):
    return ChatOpenAI(base_url=URL, api_key=key, model=name, max_retries=1, **options)


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return "7 degrees"


def chat():
    answer = model().invoke("hello")
    usage = answer.usage_metadata
    return {
        "text": answer.content,
        "model": answer.response_metadata["model_name"],
        "usage": [usage["input_tokens"], usage["output_tokens"]],
    }


def stream(**options):
    whole = None
    for chunk in model(**options).stream("hello"):
        whole = chunk if whole is None else whole + chunk
    usage = whole.usage_metadata
    return {"text": whole.content, "usage": usage and [usage["input_tokens"], usage["output_tokens"]]}


def tools():
    bound = model().bind_tools([get_weather])
    messages = [HumanMessage("What is the weather in Oslo?")]
    first = bound.invoke(messages)
    [call] = first.tool_calls
    messages += [first, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
    return {"called": [call["name"], call["args"]], "text": bound.invoke(messages).content}


def tools_streamed():
    whole = None
    for chunk in model().bind_tools([get_weather]).stream("What is the weather in Oslo?"):
        whole = chunk if whole is None else whole + chunk
    [call] = whole.tool_calls
    return {"called": [call["name"], call["args"]]}


def error(words="hello", name=MODEL, key=KEY):
    try:
        model(key, name).invoke(words)
    except openai.APIStatusError as problem:
        # LangChain's own classes are subclasses of OpenAI's
        kind = next(one.__name__ for one in type(problem).__mro__ if one.__module__.startswith("openai"))
        return {"class": kind, "status": problem.status_code, "code": problem.code}


def broken_stream():
    begun = False
    try:
        for chunk in model().stream("break off"):
            begun = begun or bool(chunk.content)
    except openai.APIError as problem:
        return {"class": type(problem).__name__, "begun": begun}
    return None


def leave():
    chunks = model().stream("never end")
    for chunk in chunks:
        if chunk.content:
            chunks.close()
            return {"text": chunk.content}
    return None


print(
    json.dumps(
        {
            "chat": chat(),
            "stream": stream(stream_usage=False),
            "stream_with_usage": stream(stream_usage=True),
            "tools": tools(),
            "tools_streamed": tools_streamed(),
            "wrong_key": error(key="ck-nobody"),
            "unknown_model": error(name="kimi-k3"),
            "refused": error("refuse this"),
            "broken": error("be broken"),
            "no_money": error(key=os.environ["POOR"]),
            "broken_stream": broken_stream(),
            "leave": leave(),
        }
    )
)
