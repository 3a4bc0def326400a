// The official client.

import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { API_KEY, BASE_URL, MODEL, run } from "./scenarios.mjs";

const client = new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0 });
const HELLO = [{ role: "user", content: "hello" }];
const WEATHER = {
  name: "get_weather",
  description: "Get the weather for a city.",
  parameters: {
    type: "object",
    properties: { city: { type: "string", description: "The city" } },
    required: ["city"],
  },
};
const Plan = z.object({
  title: z.string().max(16),
  count: z.int(),
  share: z.number().min(0).max(1),
  mood: z.enum(["good", "bad"]),
  due: z.iso.date(),
  notes: z.array(z.string().max(12)).max(2),
  contact: z.email().nullable(),
});

run({
  async chat() {
    const stream = await client.chat.completions.create({
      model: MODEL,
      messages: HELLO,
      temperature: 0,
      stream: true,
      stream_options: { include_usage: true },
    });
    let text = "";
    let usage = null;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    const whole = await client.chat.completions.create({ model: MODEL, messages: HELLO, temperature: 0 });
    return { text, usage, whole: whole.choices[0].message.content };
  },

  async tools() {
    const calls = [];
    const runner = client.chat.completions.runTools({
      model: MODEL,
      messages: [{ role: "user", content: "Get the weather for Oslo." }],
      temperature: 0,
      stream: true,
      tools: [
        {
          type: "function",
          function: {
            ...WEATHER,
            parse: JSON.parse,
            function: (given) => {
              calls.push(given);
              return JSON.stringify({ weather: "rain" });
            },
          },
        },
      ],
    });
    return { calls, text: await runner.finalContent() };
  },

  async zod_chat() {
    const completion = await client.chat.completions.parse({
      model: MODEL,
      messages: [{ role: "user", content: "Plan my day." }],
      response_format: zodResponseFormat(Plan, "plan"),
    });
    return completion.choices[0].message.parsed;
  },

  async zod_responses() {
    const stream = client.responses.stream({
      model: MODEL,
      input: "Plan my day.",
      text: { format: zodTextFormat(Plan, "plan") },
    });
    const types = new Set();
    for await (const event of stream) types.add(event.type);
    return { types: [...types], parsed: (await stream.finalResponse()).output_parsed };
  },

  async refused() {
    try {
      await client.responses.create({ model: MODEL, input: "hello", temperature: 9 });
    } catch (error) {
      return { name: error.constructor.name, status: error.status, param: error.param, request: error.requestID };
    }
  },
});
