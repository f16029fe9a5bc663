"""The official `openai` package for Python."""

import json
import os

import openai

URL, KEY, MODEL = os.environ["GATEWAY"], os.environ["KEY"], "kimi-k2.5"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=1)


def said(words):
    return [{"role": "user", "content": words}]


def chat():
    answer = client.chat.completions.create(model=MODEL, messages=said("hello"), max_tokens=64)
    return {
        "text": answer.choices[0].message.content,
        "model": answer.model,
        "usage": [answer.usage.prompt_tokens, answer.usage.completion_tokens],
        "request_id": answer._request_id,
    }


def headers():
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=said("hello"), max_tokens=64)
    return {name: value for name, value in raw.headers.items() if name.lower().startswith("x-")}


def stream(**options):
    pieces, usage = [], None
    with client.chat.completions.create(model=MODEL, messages=said("hello"), stream=True, **options) as chunks:
        for chunk in chunks:
            usage = chunk.usage or usage
            pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
    return {"text": "".join(pieces), "usage": usage and [usage.prompt_tokens, usage.completion_tokens]}


def tools():
    messages = said("What is the weather in Oslo?")
    first = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], max_tokens=64)
    [call] = first.choices[0].message.tool_calls
    messages += [first.choices[0].message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "7 degrees"}]
    last = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], max_tokens=64)
    return {
        "called": [call.function.name, json.loads(call.function.arguments)],
        "text": last.choices[0].message.content,
    }


def tools_streamed():
    chunks = client.chat.completions.create(
        model=MODEL, messages=said("What is the weather in Oslo?"), tools=[TOOL], stream=True
    )
    name, arguments = "", ""
    for chunk in chunks:
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or ():
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    return {"called": [name, json.loads(arguments)]}


def models():
    return {"listed": [model.id for model in client.models.list()], "one": client.models.retrieve(MODEL).id}


def error(words="hello", model=MODEL, key=KEY, stream=False):
    try:
        client.with_options(api_key=key).chat.completions.create(model=model, messages=said(words), stream=stream)
    except openai.APIStatusError as problem:
        return {
            "class": type(problem).__name__,
            "status": problem.status_code,
            "code": problem.code,
            "type": problem.type,
            "param": problem.param,
            "message": problem.message,
            "request_id": problem.request_id,
        }


def broken_stream():
    pieces = []
    try:
        for chunk in client.chat.completions.create(model=MODEL, messages=said("break off"), stream=True):
            pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
    except openai.APIError as problem:
        return {"class": type(problem).__name__, "begun": bool(pieces)}


def leave():
    with client.chat.completions.create(model=MODEL, messages=said("never end"), stream=True) as chunks:
        for chunk in chunks:
            if chunk.choices and chunk.choices[0].delta.content:
                return {"text": chunk.choices[0].delta.content}
    return None


print(
    json.dumps(
        {
            "chat": chat(),
            "headers": headers(),
            "stream": stream(),
            "stream_with_usage": stream(stream_options={"include_usage": True}),
            "tools": tools(),
            "tools_streamed": tools_streamed(),
            "models": models(),
            "wrong_key": error(key="ck-nobody"),
            "unknown_model": error(model="kimi-k3"),
            "refused": error("refuse this"),
            "refused_stream": error("refuse this", stream=True),
            "broken": error("be broken"),
            "no_money": error(key=os.environ["POOR"]),
            "broken_stream": broken_stream(),
            "leave": leave(),
        }
    )
)
