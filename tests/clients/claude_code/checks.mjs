// Claude Code judges, run headless in an empty home with the settings of docs/how-to/clients/claude-code.md and nothing else.
// servers: wide

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { baseURL, check, model, run } from './checking.mjs';

const program = fileURLToPath(new URL('../node_modules/.bin/claude', import.meta.url));
const folders = [];
const settings = {
  ANTHROPIC_BASE_URL: baseURL('wide').replace(/\/v1$/, ''),
  ANTHROPIC_API_KEY: process.env.OPENAI_API_KEY,
  ANTHROPIC_MODEL: model,
  ANTHROPIC_SMALL_FAST_MODEL: model,
  CLAUDE_CODE_MAX_CONTEXT_TOKENS: '65536',
  CLAUDE_CODE_MAX_OUTPUT_TOKENS: '4096',
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
};

// A project with one file, and a home with nothing in it.
async function project() {
  const folder = await mkdtemp(join(tmpdir(), 'claude-code-'));
  folders.push(folder);
  const [home, work] = [join(folder, 'home'), join(folder, 'work')];
  await Promise.all([mkdir(home), mkdir(work)]);
  const notes = join(work, 'notes.txt');
  await writeFile(notes, 'one two three\n');
  return { home, work, notes };
}

// What it prints as its result, and the events before it.
async function claude({ home, work }, prompt, changed = {}, more = []) {
  const flags = ['-p', prompt, '--permission-mode', 'acceptEdits', '--output-format', 'stream-json', '--verbose', ...more];
  const env = { PATH: process.env.PATH, HOME: home, USERPROFILE: home, TMPDIR: home, ...settings, ...changed };
  const child = spawn(program, flags, { cwd: work, env, stdio: ['ignore', 'pipe', 'pipe'], timeout: 120_000 });
  const [out, errors] = await Promise.all([child.stdout, child.stderr].map(async (pipe) => {
    let text = '';
    for await (const part of pipe.setEncoding('utf8')) text += part;
    return text;
  }));
  const events = out.trim().split('\n').map((line) => {
    try {
      return JSON.parse(line);
    } catch {
      return assert.fail(`no JSON: ${line}\n${errors}`);
    }
  });
  const result = events.at(-1);
  assert.equal(result.type, 'result', out);
  return { result, events };
}

const used = (events) => events.flatMap((event) => (event.type === 'assistant' ? event.message.content : []))
  .filter((block) => block.type === 'tool_use').map((block) => block.name);

check('answers', async () => {
  const { result } = await claude(await project(), 'say: Hello from the model.');
  assert.deepEqual([result.is_error, result.result], [false, 'Hello from the model.']);
});

check('edits_a_file_by_tool_calls', async () => {
  const place = await project();
  const edit = { file_path: place.notes, old_string: 'two', new_string: '2' };
  const { result, events } = await claude(place, [
    'Replace a word in notes.txt.',
    `call: Read ${JSON.stringify({ file_path: place.notes })}`,
    'then',
    `call: Edit ${JSON.stringify(edit)}`,
    'then',
    'say: The word is replaced.',
  ].join('\n'));
  assert.deepEqual(used(events), ['Read', 'Edit']);
  assert.equal(await readFile(place.notes, 'utf8'), 'one 2 three\n');
  assert.deepEqual([result.is_error, result.result], [false, 'The word is replaced.']);
  assert.ok(result.usage.cache_read_input_tokens > result.usage.input_tokens, 'the prompt was computed once');
});

check('two_calls_at_once_and_one_that_fails', async () => {
  const place = await project();
  const { result, events } = await claude(place, [
    'Look around.',
    'call: Bash {"command": "cat notes.txt", "description": "show the notes"}',
    'call: Read {"file_path": "/no/such/file"}',
    'then',
    'say: I have seen it.',
  ].join('\n'));
  assert.deepEqual(used(events), ['Bash', 'Read']);
  assert.equal(result.result, 'I have seen it.');
});

check('a_tool_that_is_loaded_later', async () => {
  const { result, events } = await claude(await project(), [
    'Find a tool.',
    'call: ToolSearch {"query": "select:NotebookEdit"}',
    'then',
    'say: Found.',
  ].join('\n'));
  assert.deepEqual(used(events), ['ToolSearch']);
  assert.equal(result.result, 'Found.');
});

// An MCP server with one tool, which Claude Code starts and asks by itself.
const weather = `
import { createInterface } from 'node:readline';
const inputSchema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
const serverInfo = { name: 'weather', version: '1' };
const answers = {
  initialize: ({ protocolVersion }) => ({ protocolVersion, capabilities: { tools: {} }, serverInfo }),
  'tools/list': () => ({ tools: [{ name: 'get', description: 'weather of a city', inputSchema }] }),
  'tools/call': (params) => ({ content: [{ type: 'text', text: 'rain in ' + params.arguments.city }] }),
};
for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line);
  const result = answers[method]?.(params) ?? {};
  if (id !== undefined) console.log(JSON.stringify({ jsonrpc: '2.0', id, result }));
}
`;

check('a_tool_of_an_mcp_server', async () => {
  const place = await project();
  const file = join(place.home, 'weather.mjs');
  await writeFile(file, weather);
  const config = JSON.stringify({ mcpServers: { weather: { command: process.execPath, args: [file] } } });
  const { result, events } = await claude(
    place,
    'call: mcp__weather__get {"city": "Oslo"}\nthen\nsay: over',
    { ENABLE_TOOL_SEARCH: 'false', MCP_TIMEOUT: '60000' },
    ['--mcp-config', config, '--strict-mcp-config', '--allowedTools', 'mcp__weather__get'],
  );
  assert.deepEqual([used(events), result.result], [['mcp__weather__get'], 'over']);
  const results = events.filter((event) => event.type === 'user').flatMap((event) => event.message.content);
  assert.match(JSON.stringify(results), /rain in Oslo/);
});

check('all_tools_at_once', async () => {
  const { result } = await claude(await project(), 'say: All of them.', { ENABLE_TOOL_SEARCH: 'false' });
  assert.deepEqual([result.is_error, result.result], [false, 'All of them.']);
});

check('a_search_of_the_web_is_refused_by_name', async () => {
  const { events } = await claude(
    await project(),
    'call: WebSearch {"query": "weather"}\nthen\nsay: over',
    { ENABLE_TOOL_SEARCH: 'false' },
    ['--allowedTools', 'WebSearch'],
  );
  const results = events.filter((event) => event.type === 'user').flatMap((event) => event.message.content);
  assert.match(results.at(-1).content, /web_search_20250305/);
});

check('a_model_that_is_not_served_is_told', async () => {
  const { result } = await claude(await project(), 'say: hi', { ANTHROPIC_MODEL: 'another' });
  assert.ok(result.is_error && /another/.test(result.result), result.result);
});

check('a_prompt_that_is_too_long_is_told', async () => {
  const narrow = { ANTHROPIC_BASE_URL: baseURL('scripted').replace(/\/v1$/, '') }; // its own prompt does not fit there
  const { result } = await claude(await project(), 'say: hi', narrow);
  assert.ok(result.is_error && /too long/i.test(result.result), result.result);
});

try {
  await run();
} finally {
  await Promise.all(folders.map((folder) => rm(folder, { recursive: true, force: true })));
}
