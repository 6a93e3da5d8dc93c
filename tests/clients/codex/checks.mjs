// OpenAI's Codex command line judges, headless, with an empty home, an environment of four variables and no other server:
// it edits files through the tools it offers, takes a session up again, and reads what a model thought.
// servers: thinks
import { spawn } from 'node:child_process';
import { mkdtempSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { baseURL, check, model, run } from './checking.mjs';

const CODEX = fileURLToPath(new URL('../node_modules/@openai/codex/bin/codex.js', import.meta.url));
const PATIENCE_MS = 120_000;

// The page docs/how-to/clients/codex.md shows both texts as they stand here.
const CONFIG = `model = "my-model"
model_provider = "hexserve"
model_context_window = 32768
web_search = "disabled"

[model_providers.hexserve]
name = "hexserve"
base_url = "http://127.0.0.1:8000/v1"
env_key = "HEXSERVE_API_KEY"
wire_api = "responses"
`;
const CATALOG = `{
  "models": [
    {
      "slug": "my-model",
      "display_name": "my-model",
      "supported_reasoning_levels": [],
      "shell_type": "unified_exec",
      "visibility": "list",
      "supported_in_api": true,
      "priority": 1,
      "base_instructions": "You are a coding agent. Work in the current folder with the tools you have.",
      "support_verbosity": false,
      "apply_patch_tool_type": "freeform",
      "truncation_policy": { "mode": "tokens", "limit": 4000 },
      "context_window": 32768,
      "experimental_supported_tools": [],
      "input_modalities": ["text"],
      "supports_parallel_tool_calls": true,
      "supports_reasoning_summaries": false
    }
  ]
}
`;

function place(text, server) {
  return text.replaceAll('my-model', model).replaceAll('http://127.0.0.1:8000/v1', baseURL(server));
}

/** A home with nothing but the settings, and a folder to work in. */
function desk({ server = 'scripted', catalog = false, change = (text) => text } = {}) {
  const root = mkdtempSync(join(tmpdir(), 'codex-'));
  const [home, work] = [join(root, 'home'), join(root, 'work')];
  mkdirSync(join(home, '.codex'), { recursive: true });
  mkdirSync(work);
  let config = change(place(CONFIG, server));
  if (catalog) {
    const file = join(home, '.codex', 'models.json');
    writeFileSync(file, place(CATALOG, server));
    config = `model_catalog_json = ${JSON.stringify(file)}\n${config}`;
  }
  writeFileSync(join(home, '.codex', 'config.toml'), config);
  return { root, home, work };
}

/** Run `codex exec` and give back everything it said; it must end with 0 unless `fails`. */
async function codex(where, prompt, { words = [], fails = false } = {}) {
  const env = { HOME: where.home, PATH: `${dirname(process.execPath)}:/usr/bin:/bin`, LANG: 'C.UTF-8' };
  env.HEXSERVE_API_KEY = process.env.OPENAI_API_KEY;
  const flags = ['--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox'];
  const child = spawn(process.execPath, [CODEX, 'exec', ...words, ...flags, '-'], { cwd: where.work, env });
  const timer = setTimeout(() => child.kill('SIGKILL'), PATIENCE_MS);
  let said = '';
  for (const pipe of [child.stdout, child.stderr]) pipe.on('data', (text) => (said += text));
  child.stdin.end(prompt);
  const code = await new Promise((resolve) => child.on('close', resolve));
  clearTimeout(timer);
  if ((code === 0) === fails) throw new Error(`codex ended with ${code}:\n${said}`);
  return said;
}

async function at(options, action) {
  const where = desk(options);
  try {
    await action(where);
  } finally {
    rmSync(where.root, { recursive: true, force: true });
  }
}

function expect(condition, text) {
  if (!condition) throw new Error(text);
}

function call(name, values) {
  return `call: ${name} ${JSON.stringify(values)}`;
}

const PATCH = '*** Begin Patch\n*** Update File: a.txt\n@@\n-one\n+two "quoted"\n*** End Patch\n';

check('edits_a_file_with_a_command', async () => {
  await at({}, async (where) => {
    writeFileSync(join(where.work, 'a.txt'), 'one\n');
    const prompt = `${call('exec_command', { cmd: "sed -i s/one/two/ a.txt && cat a.txt" })}\nthen\nsay: it says two now`;
    const said = await codex(where, prompt);
    expect(readFileSync(join(where.work, 'a.txt'), 'utf8') === 'two\n', said);
    expect(said.trimEnd().endsWith('it says two now'), said);
  });
});

check('edits_a_file_with_its_freeform_patch_tool', async () => {
  await at({ catalog: true }, async (where) => {
    writeFileSync(join(where.work, 'a.txt'), 'one\n');
    const said = await codex(where, `${call('apply_patch', { input: PATCH })}\nthen\nsay: patched`);
    expect(readFileSync(join(where.work, 'a.txt'), 'utf8') === 'two "quoted"\n', said);
    expect(said.trimEnd().endsWith('patched'), said);
  });
});

check('several_steps_and_parallel_calls', async () => {
  await at({ catalog: true }, async (where) => {
    const write = (name) => call('exec_command', { cmd: `echo ${name} > ${name}.txt` });
    const said = await codex(where, [write('a'), write('b'), 'then', write('c'), 'then', 'say: three files'].join('\n'));
    for (const name of 'abc') expect(readFileSync(join(where.work, `${name}.txt`), 'utf8') === `${name}\n`, said);
  });
});

check('a_session_is_taken_up_again', async () => {
  await at({}, async (where) => {
    await codex(where, `${call('exec_command', { cmd: 'echo first > a.txt' })}\nthen\nsay: first done`);
    const next = `${call('exec_command', { cmd: 'echo second >> a.txt' })}\nthen\nsay: second done`;
    const said = await codex(where, next, { words: ['resume', '--last'] });
    expect(readFileSync(join(where.work, 'a.txt'), 'utf8') === 'first\nsecond\n', said);
  });
});

check('what_a_model_thought_goes_back', async () => {
  await at({ server: 'thinks' }, async (where) => {
    const said = await codex(where, `${call('exec_command', { cmd: 'echo thought > a.txt' })}\nthen\nsay: done`);
    expect(readFileSync(join(where.work, 'a.txt'), 'utf8') === 'thought\n', said);
  });
});

check('a_tool_of_a_namespace_is_called', async () => {
  await at({}, async (where) => {
    const prompt = `${call('multi_agent_v1.close_agent', { target: 'nobody' })}\nthen\nsay: nobody was there`;
    const said = await codex(where, prompt);
    expect(said.trimEnd().endsWith('nobody was there') && !said.includes('unsupported call'), said);
  });
});

check('web_search_is_refused_by_name', async () => {
  await at({ change: (text) => text.replace('web_search = "disabled"\n', '') }, async (where) => {
    const said = await codex(where, 'say: x', { fails: true });
    expect(said.includes('web_search') && said.includes('tools['), said);
  });
});

await run();
