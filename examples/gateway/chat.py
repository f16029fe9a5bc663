"""The gateway through OpenAI's own package: a question, a stream, and tools that the gateway runs."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ["GATEWAY"] + "/v1", api_key=os.environ["KEY"])
question = [{"role": "user", "content": "Why is the sky blue? One sentence."}]

answer = client.chat.completions.create(model="kimi-k2.5", messages=question, max_tokens=200)
print(answer.choices[0].message.content, answer.usage.total_tokens)

for chunk in client.chat.completions.create(model="kimi-k2.5", messages=question, max_tokens=200, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()

answer = client.chat.completions.with_raw_response.create(
    model="kimi-k2.5",
    messages=[{"role": "user", "content": "What does Centuria do when it is out of money? Look it up."}],
    max_tokens=400,
    extra_body={"mcp_tools": ["web_search", "file_read"], "models": ["kimi-k2.5", "local"]},
)
print(answer.parse().choices[0].message.content, answer.headers["x-centuria-cost-usd"])
