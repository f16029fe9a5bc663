"""curl, as a shell script would use it. Only the standard library is used here."""

import json
import os
import subprocess

URL, KEY, MODEL = os.environ["GATEWAY"], os.environ["KEY"], "kimi-k2.5"


def curl(path, body=None, key=KEY, flags=()):
    argv = ["curl", "--silent", "--show-error", "--max-time", "20", *flags, f"{URL}{path}"]
    argv += ["--header", f"Authorization: Bearer {key}"]
    if body is not None:
        argv += ["--json", json.dumps(body)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def asked(words, model=MODEL, **options):
    return {"model": model, "messages": [{"role": "user", "content": words}], **options}


def chat():
    head, _, body = curl("/chat/completions", asked("hello"), flags=["--include"]).partition("\n\n")
    headers = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:])
    answer = json.loads(body)
    usage = answer["usage"]
    return {
        "text": answer["choices"][0]["message"]["content"],
        "model": answer["model"],
        "usage": [usage["prompt_tokens"], usage["completion_tokens"]],
        "request_id": headers["x-request-id"],
    }


def stream(**options):
    lines = curl("/chat/completions", asked("hello", stream=True, **options), flags=["--no-buffer"]).splitlines()
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    usage = next((chunk["usage"] for chunk in chunks if chunk.get("usage")), None)
    return {"text": text, "usage": usage and [usage["prompt_tokens"], usage["completion_tokens"]]}


def models():
    listed = [model["id"] for model in json.loads(curl("/models"))["data"]]
    return {"listed": listed, "one": json.loads(curl(f"/models/{MODEL}"))["id"]}


def error(words="hello", model=MODEL, key=KEY):
    out = curl("/chat/completions", asked(words, model), key, ["--write-out", "\n%{http_code} %header{x-request-id}"])
    body, _, end = out.rpartition("\n")
    status, request_id = end.split()
    problem = json.loads(body)["error"]
    return {"status": int(status), "code": problem["code"], "type": problem["type"], "request_id": request_id}


def leave():
    argv = ["curl", "--silent", "--no-buffer", f"{URL}/chat/completions", "--header", f"Authorization: Bearer {KEY}"]
    argv += ["--json", json.dumps(asked("never end", stream=True))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            choices = json.loads(line.removeprefix("data: "))["choices"] if line.startswith("data: {") else []
            if choices and choices[0]["delta"].get("content"):
                process.terminate()
                return {"text": choices[0]["delta"]["content"]}
    return None


print(
    json.dumps(
        {
            "chat": chat(),
            "stream": stream(),
            "stream_with_usage": stream(stream_options={"include_usage": True}),
            "models": models(),
            "wrong_key": error(key="ck-nobody"),
            "unknown_model": error(model="kimi-k3"),
            "refused": error("refuse this"),
            "broken": error("be broken"),
            "no_money": error(key=os.environ["POOR"]),
            "leave": leave(),
        }
    )
)
