// What a program does with Vercel's AI SDK and its Anthropic provider: `ai_sdk.mjs SCENARIO URL` prints one JSON object of what it saw.
import { createAnthropic } from "@ai-sdk/anthropic";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [scenario, url] = process.argv.slice(2);
const model = createAnthropic({ baseURL: `${url}/v1`, apiKey: "sk-dummy" })("claude-sim");
const called = [];
const named = (name) =>
  tool({
    description: name,
    inputSchema: z.object({ city: z.string() }),
    execute: async (input) => {
      called.push([name, input]);
      return `${name}: sunny`;
    },
  });
const tools = { get_weather: named("get_weather"), get_time: named("get_time") };

const scenarios = {
  async text() {
    const whole = await generateText({ model, prompt: "Say something.", maxOutputTokens: 200 });
    const stream = streamText({ model, prompt: "Say something.", maxOutputTokens: 200 });
    let streamed = "";
    for await (const part of stream.textStream) streamed += part;
    const output_tokens = [whole.usage.outputTokens, (await stream.usage).outputTokens];
    return { text: whole.text, streamed, final: await stream.text, stop: await stream.finishReason, output_tokens };
  },

  async tools() {
    const stream = streamText({ model, tools, prompt: "get_weather and get_time, please.", stopWhen: stepCountIs(3), maxOutputTokens: 300 });
    await stream.consumeStream();
    const steps = await stream.steps;
    return { stop: steps[0].finishReason, calls: called, answer: await stream.text };
  },

  async fault() {
    const seen = { before: 0 };
    const stream = streamText({ model, prompt: "[[fault:error-mid]]", maxOutputTokens: 200, maxRetries: 0, onError: () => {} });
    for await (const part of stream.fullStream) {
      if (part.type === "text-delta" || part.type === "reasoning-delta") seen.before++;
      if (part.type === "error") seen.error = part.error?.type ?? part.error?.data?.error?.type ?? String(part.error?.message ?? part.error);
    }
    try {
      await generateText({ model, prompt: "[[fault:503]]", maxRetries: 0 });
    } catch (error) {
      seen.refused = error.statusCode;
    }
    seen.then = (await generateText({ model, prompt: "Again.", maxOutputTokens: 200 })).text;
    return seen;
  },

  async interrupt() {
    const stop = new AbortController();
    const prompt = "[[tokens:20000]]";
    const stream = streamText({ model, prompt, maxOutputTokens: 20000, abortSignal: stop.signal, onError: () => {} });
    let pieces = 0;
    for await (const part of stream.fullStream) {
      if (part.type.endsWith("-delta") && ++pieces === 5) break;
    }
    stop.abort();
    return { pieces };
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
