// The official `openai` package for Node.js.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(pathToFileURL(`${process.env.MODULES}/`));
const OpenAI = require("openai");
const { GATEWAY: baseURL, KEY: apiKey, POOR } = process.env;
const model = "kimi-k2.5";
const tool = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather in a city.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};
const client = new OpenAI({ baseURL, apiKey, maxRetries: 1 });
const said = (content) => [{ role: "user", content }];
const counted = (usage) => usage && [usage.prompt_tokens, usage.completion_tokens];

async function chat() {
  const answer = await client.chat.completions.create({ model, messages: said("hello"), max_tokens: 64 });
  const { content } = answer.choices[0].message;
  return { text: content, model: answer.model, usage: counted(answer.usage), request_id: answer._request_id };
}

async function headers() {
  const raw = await client.chat.completions.create({ model, messages: said("hello"), max_tokens: 64 }).asResponse();
  await raw.text();
  return Object.fromEntries([...raw.headers].filter(([name]) => name.startsWith("x-")));
}

async function stream(options) {
  let text = "";
  let usage = null;
  for await (const chunk of await client.chat.completions.create({ model, messages: said("hello"), stream: true, ...options })) {
    usage = chunk.usage ?? usage;
    text += chunk.choices[0]?.delta?.content ?? "";
  }
  return { text, usage: counted(usage) };
}

async function tools() {
  const messages = said("What is the weather in Oslo?");
  const first = await client.chat.completions.create({ model, messages, tools: [tool], max_tokens: 64 });
  const [call] = first.choices[0].message.tool_calls;
  messages.push(first.choices[0].message, { role: "tool", tool_call_id: call.id, content: "7 degrees" });
  const last = await client.chat.completions.create({ model, messages, tools: [tool], max_tokens: 64 });
  const called = [call.function.name, JSON.parse(call.function.arguments)];
  return { called, text: last.choices[0].message.content };
}

async function toolsStreamed() {
  let name = "";
  let args = "";
  const messages = said("What is the weather in Oslo?");
  for await (const chunk of await client.chat.completions.create({ model, messages, tools: [tool], stream: true })) {
    for (const call of chunk.choices[0]?.delta?.tool_calls ?? []) {
      name += call.function.name ?? "";
      args += call.function.arguments ?? "";
    }
  }
  return { called: [name, JSON.parse(args)] };
}

async function models() {
  const listed = [];
  for await (const found of client.models.list()) listed.push(found.id);
  return { listed, one: (await client.models.retrieve(model)).id };
}

async function error({ words = "hello", of = model, key = apiKey, stream = false }) {
  try {
    await client.withOptions({ apiKey: key }).chat.completions.create({ model: of, messages: said(words), stream });
  } catch (problem) {
    const { status, code, type, param, message, requestID } = problem;
    return { class: problem.constructor.name, status, code, type, param, message, request_id: requestID };
  }
  return null;
}

async function brokenStream() {
  let begun = false;
  try {
    for await (const chunk of await client.chat.completions.create({ model, messages: said("break off"), stream: true })) {
      begun ||= Boolean(chunk.choices[0]?.delta?.content);
    }
  } catch (problem) {
    return { class: problem.constructor.name, begun };
  }
  return null;
}

async function leave() {
  for await (const chunk of await client.chat.completions.create({ model, messages: said("never end"), stream: true })) {
    const text = chunk.choices[0]?.delta?.content;
    if (text) return { text }; // leaving the loop aborts the request
  }
  return null;
}

console.log(
  JSON.stringify({
    chat: await chat(),
    headers: await headers(),
    stream: await stream({}),
    stream_with_usage: await stream({ stream_options: { include_usage: true } }),
    tools: await tools(),
    tools_streamed: await toolsStreamed(),
    models: await models(),
    wrong_key: await error({ key: "ck-nobody" }),
    unknown_model: await error({ of: "kimi-k3" }),
    refused: await error({ words: "refuse this" }),
    refused_stream: await error({ words: "refuse this", stream: true }),
    broken: await error({ words: "be broken" }),
    no_money: await error({ key: POOR }),
    broken_stream: await brokenStream(),
    leave: await leave(),
  }),
);
