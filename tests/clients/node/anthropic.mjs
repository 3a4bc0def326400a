// Anthropic's official client, with its own loop of tools.

import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { z } from "zod";
import { API_KEY, BASE_URL, MODEL, run } from "./scenarios.mjs";

const client = new Anthropic({ baseURL: BASE_URL.replace(/\/v1$/, ""), apiKey: API_KEY, maxRetries: 0 });
const HELLO = [{ role: "user", content: "hello" }];
const common = { model: MODEL, max_tokens: 100, temperature: 0 };
const calls = [];
const weather = betaZodTool({
  name: "get_weather",
  description: "Get the weather for a city.",
  inputSchema: z.object({ city: z.string().describe("The city") }),
  run: async (given) => {
    calls.push(given);
    return '{"weather": "rain"}';
  },
});

function loop(stream) {
  return client.beta.messages.toolRunner({
    ...common,
    messages: [{ role: "user", content: "Get the weather for Oslo." }],
    tools: [weather],
    max_iterations: 4,
    stream,
  });
}

run({
  async messages() {
    const stream = client.messages.stream({ ...common, messages: HELLO });
    let text = "";
    stream.on("text", (piece) => {
      text += piece;
    });
    const final = await stream.finalMessage();
    const whole = await client.messages.create({ ...common, messages: HELLO });
    return { text, final: final.content[0].text, whole: whole.content[0].text, stop: final.stop_reason };
  },

  async tools() {
    const final = await loop(false).runUntilDone();
    return { calls: calls.splice(0), text: final.content.at(-1).text };
  },

  async tools_streamed() {
    const types = new Set();
    const runner = loop(true);
    for await (const stream of runner) {
      for await (const event of stream) types.add(event.delta?.type ?? event.type);
    }
    return { calls: calls.splice(0), types: [...types], text: (await runner.done()).content.at(-1).text };
  },

  async count() {
    const counted = await client.messages.countTokens({ model: MODEL, messages: HELLO });
    const { usage } = await client.messages.create({ ...common, max_tokens: 2, messages: HELLO });
    return { counted: counted.input_tokens, read: usage.input_tokens + (usage.cache_read_input_tokens ?? 0) };
  },

  async refused() {
    const stranger = new Anthropic({ baseURL: client.baseURL, apiKey: "ft_wrong", maxRetries: 0 });
    const wrong = {
      key: () => stranger.messages.create({ ...common, messages: HELLO }),
      model: () => client.messages.create({ ...common, model: "claude", messages: HELLO }),
      field: () => client.messages.create({ ...common, max_tokens: -1, messages: HELLO }),
      late_field: () => client.messages.stream({ ...common, temperature: 9, messages: HELLO }).finalMessage(),
    };
    const told = {};
    for (const [name, ask] of Object.entries(wrong)) {
      told[name] = await ask().then(
        () => "answered",
        (error) => ({ name: error.constructor.name, status: error.status, type: error.type, text: error.message }),
      );
    }
    return told;
  },
});
