// What a program does with the Anthropic SDK for TypeScript: `anthropic_sdk.mjs SCENARIO URL` prints one JSON object of what it saw.
import Anthropic from "@anthropic-ai/sdk";

const [scenario, baseURL] = process.argv.slice(2);
const client = new Anthropic({ baseURL, apiKey: "sk-dummy", timeout: 30_000 });
const model = "claude-sim";
const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = ["get_weather", "get_time"].map((name) => ({ name, description: name, input_schema: schema }));
const say = (content) => [{ role: "user", content }];
const textOf = (message) => message.content.filter((block) => block.type === "text").map((block) => block.text).join("");

const scenarios = {
  async text() {
    const request = { model, max_tokens: 200, messages: say("Say something.") };
    const whole = await client.messages.create(request);
    let streamed = "";
    const stream = client.messages.stream(request).on("text", (text) => (streamed += text));
    const final = await stream.finalMessage();
    const output_tokens = [whole.usage.output_tokens, final.usage.output_tokens];
    return { text: textOf(whole), streamed, final: textOf(final), stop: final.stop_reason, output_tokens };
  },

  async tools() {
    const messages = say("get_weather and get_time, please.");
    const asked = await client.messages.stream({ model, max_tokens: 300, tools, messages }).finalMessage();
    const calls = asked.content.filter((block) => block.type === "tool_use");
    const results = calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: `${call.name}: sunny` }));
    messages.push({ role: "assistant", content: asked.content }, { role: "user", content: results });
    const answer = await client.messages.create({ model, max_tokens: 300, tools, messages });
    return { stop: asked.stop_reason, calls: calls.map((call) => [call.name, call.input]), answer: textOf(answer) };
  },

  async fault() {
    const seen = { before: 0 };
    try {
      const stream = client.messages.stream({ model, max_tokens: 200, messages: say("[[fault:error-mid]]") });
      for await (const event of stream) if (event.type === "content_block_delta") seen.before++;
    } catch (error) {
      seen.error = error.error?.error?.type ?? String(error);
    }
    try {
      await client.messages.create({ model, max_tokens: 200, messages: say("[[fault:503]]") }, { maxRetries: 0 });
    } catch (error) {
      seen.refused = error.status;
    }
    seen.then = textOf(await client.messages.create({ model, max_tokens: 200, messages: say("Again.") }));
    return seen;
  },

  async count() {
    const messages = say("How many tokens is this?");
    const counted = await client.messages.countTokens({ model, messages, tools });
    const { usage } = await client.messages.create({ model, max_tokens: 10, messages, tools });
    return { counted: counted.input_tokens, billed: usage.input_tokens + (usage.cache_read_input_tokens ?? 0) };
  },

  async models() {
    const ids = [];
    for await (const one of client.models.list()) ids.push(one.id);
    const one = await client.models.retrieve(model);
    try {
      await client.models.retrieve("no-such-model");
    } catch (error) {
      return { ids, one: one.id, missing: error.status };
    }
    return { ids };
  },

  async interrupt() {
    const stream = client.messages.stream({ model, max_tokens: 20000, messages: say("[[tokens:20000]]") });
    let pieces = 0;
    for await (const event of stream) if (event.type === "content_block_delta" && ++pieces === 5) break;
    stream.abort();
    return { pieces };
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
