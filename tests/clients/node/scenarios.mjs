// Runs the scenario that the command names and prints what it returns as one line of JSON.

export const BASE_URL = process.env.CLIENT_TEST_URL;
export const API_KEY = process.env.CLIENT_TEST_KEY;
export const MODEL = "demo-chat";

export async function run(scenarios) {
  const scenario = scenarios[process.argv[2]];
  process.stdout.write(JSON.stringify(await scenario()) + "\n");
  process.exit(0);
}
