// Runs the scenario that the command names, or all of them, and prints what it returns as one line of JSON: of all, by name, or the
// error of each. All in one process, because most of its time goes into loading the client.

export const BASE_URL = process.env.CLIENT_TEST_URL;
export const API_KEY = process.env.CLIENT_TEST_KEY;
export const MODEL = "demo-chat";

export async function run(scenarios) {
  const named = process.argv[2];
  const told = {};
  for (const [name, scenario] of Object.entries(scenarios)) {
    if (named !== undefined && name !== named) continue;
    try {
      told[name] = await scenario();
    } catch (error) {
      told[name] = error.stack;
    }
  }
  process.stdout.write(JSON.stringify(named === undefined ? told : told[named]) + "\n");
  process.exit(0);
}
