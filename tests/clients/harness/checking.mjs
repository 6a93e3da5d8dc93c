// For checks.mjs of a client. check(name, function) registers, run() runs all and prints one line of JSON:
// a list of {name, ok, detail}. Names are read from the source by the tests: write them as plain string literals.
const checks = [];

export const model = process.env.OPENAI_MODEL;

export function check(name, action) {
  checks.push([name, action]);
}

export function baseURL(server) {
  return process.env[`${server.toUpperCase()}_URL`];
}

export async function run() {
  const found = [];
  for (const [name, action] of checks) {
    let detail = '';
    try {
      await action();
    } catch (error) {
      detail = String(error?.stack ?? error);
      if (error?.cause) detail += `\ncaused by: ${error.cause?.stack ?? error.cause}`;
    }
    found.push({ name, ok: detail === '', detail });
  }
  console.log(JSON.stringify(found));
}
