"""LiteLLM as a client of an OpenAI-compatible server."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches a price list when it is imported

import litellm

litellm.suppress_debug_info = True
URL, KEY, MODEL = os.environ["GATEWAY"], os.environ["KEY"], "openai/kimi-k2.5"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def ask(messages, key=KEY, model=MODEL, **options):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return litellm.completion(
        model=model, messages=messages, api_base=URL, api_key=key, max_retries=1, max_tokens=64, **options
    )


def chat():
    answer = ask("hello")
    usage = answer.usage
    return {
        "text": answer.choices[0].message.content,
        "model": answer.model,
        "usage": [usage.prompt_tokens, usage.completion_tokens],
    }


def stream(**options):
    text, usage = "", None
    for chunk in ask("hello", stream=True, **options):
        usage = getattr(chunk, "usage", None) or usage
        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
    return {"text": text, "usage": usage and [usage.prompt_tokens, usage.completion_tokens]}


def tools():
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    first = ask(messages, tools=[TOOL]).choices[0].message
    [call] = first.tool_calls
    messages += [first.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "7 degrees"}]
    called = [call.function.name, json.loads(call.function.arguments)]
    return {"called": called, "text": ask(messages, tools=[TOOL]).choices[0].message.content}


def tools_streamed():
    name, arguments = "", ""
    for chunk in ask("What is the weather in Oslo?", tools=[TOOL], stream=True):
        for call in chunk.choices[0].delta.tool_calls or ():
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    return {"called": [name, json.loads(arguments)]}


def error(words="hello", model=MODEL, key=KEY):
    try:
        ask(words, key, model)
    except litellm.exceptions.openai.APIStatusError as problem:
        return {"class": type(problem).__name__, "status": problem.status_code}


def broken_stream():
    begun = False
    try:
        for chunk in ask("break off", stream=True):
            begun = begun or bool(chunk.choices and chunk.choices[0].delta.content)
    except litellm.exceptions.openai.APIError as problem:
        return {"class": type(problem).__name__, "begun": begun}
    return None


print(
    json.dumps(
        {
            "chat": chat(),
            "stream": stream(),
            "stream_with_usage": stream(stream_options={"include_usage": True}),
            "tools": tools(),
            "tools_streamed": tools_streamed(),
            "wrong_key": error(key="ck-nobody"),
            "unknown_model": error(model="openai/kimi-k3"),
            "refused": error("refuse this"),
            "broken": error("be broken"),
            "no_money": error(key=os.environ["POOR"]),
            "broken_stream": broken_stream(),
        }
    ),
    flush=True,
)
os._exit(0)  # its threads of logging would hold the process for seconds
