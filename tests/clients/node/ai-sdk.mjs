// The AI SDK with its provider as it comes, which speaks to /v1/responses and refers to items of earlier turns.

import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { API_KEY, BASE_URL, MODEL, run } from "./scenarios.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;
const bodies = [];
const openai = createOpenAI({
  baseURL: BASE_URL,
  apiKey: API_KEY,
  fetch: (url, options) => {
    bodies.push(JSON.parse(options.body));
    return fetch(url, options);
  },
});
const calls = [];
const tools = {
  get_weather: tool({
    description: "Get the weather for a city.",
    inputSchema: z.object({ city: z.string().describe("The city") }),
    execute: async (given) => {
      calls.push(given);
      return { weather: "rain" };
    },
  }),
};
const common = { model: openai(MODEL), temperature: 0, maxRetries: 0, maxOutputTokens: 64 };

run({
  async two_turns() {
    const messages = [{ role: "user", content: "Get the weather for Oslo." }];
    const first = await generateText({ ...common, messages, tools, stopWhen: stepCountIs(4) });
    messages.push(...first.response.messages, { role: "user", content: "hello" });
    const second = await generateText({ ...common, messages, tools, stopWhen: stepCountIs(4) });
    const sent = bodies.flatMap((body) => body.input.map((item) => item.type ?? item.role));
    return { calls, first: first.text, second: second.text, sent: [...new Set(sent)], requests: bodies.length };
  },

  async stream() {
    const result = streamText({ ...common, prompt: "hello" });
    let text = "";
    for await (const piece of result.textStream) text += piece;
    const whole = await generateText({ ...common, prompt: "hello" });
    return { text, whole: whole.text, finish: await result.finishReason, usage: await result.usage };
  },

  async object() {
    const schema = z.object({
      id: z.uuid(),
      email: z.email(),
      site: z.url(),
      ip: z.ipv4(),
      when: z.iso.datetime(),
      day: z.iso.date(),
      count: z.int().positive(),
      price: z.number().nonnegative().max(100),
      done: z.boolean(),
      kind: z.enum(["a", "b"]),
      tags: z.array(z.string().max(5)).max(2),
      place: z.tuple([z.int().min(0).max(9), z.int().min(0).max(9)]),
      note: z.string().max(5).nullable(),
      shape: z.union([
        z.object({ type: z.literal("circle"), radius: z.number().min(0).max(9) }),
        z.object({ type: z.literal("square"), side: z.number().min(0).max(9) }),
      ]),
    });
    const { object } = await generateObject({ ...common, maxOutputTokens: 2000, schema, prompt: "Make one up." });
    return object;
  },
});
