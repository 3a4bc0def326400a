// The Agents SDK with a tool, over HTTP and over a WebSocket.

import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool } from "@openai/agents";
import { z } from "zod";
import { API_KEY, BASE_URL, MODEL, run } from "./scenarios.mjs";

setTracingDisabled(true);

async function ask(options) {
  const calls = [];
  const weather = tool({
    name: "get_weather",
    description: "Get the weather for a city.",
    parameters: z.object({ city: z.string().describe("The city") }),
    execute: async (given) => {
      calls.push(given);
      return '{"weather": "rain"}';
    },
  });
  const provider = new OpenAIProvider({ apiKey: API_KEY, baseURL: BASE_URL, ...options });
  const agent = new Agent({ name: "Weather", model: MODEL, tools: [weather], modelSettings: { temperature: 0 } });
  const runner = new Runner({ modelProvider: provider });
  const result = await runner.run(agent, "Get the weather for Oslo.", { stream: true });
  for await (const _ of result);
  await provider.close?.();
  return { calls, text: result.finalOutput };
}

run({
  responses: () => ask({ useResponses: true }),
  chat: () => ask({ useResponses: false }),
  websocket() {
    globalThis.fetch = () => {
      throw new Error("this goes over HTTP");
    };
    return ask({ useResponses: true, useResponsesWebSocket: true });
  },
});
