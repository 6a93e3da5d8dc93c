// Anthropic's Node SDK judges: what it parses, throws and emits is what an application gets.
// servers: limited full brief narrow thinks

import assert from 'node:assert/strict';

import Anthropic from '@anthropic-ai/sdk';
import { betaZodTool } from '@anthropic-ai/sdk/helpers/beta/zod';
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod';
import { z } from 'zod';

import { baseURL, check, model, run } from './checking.mjs';

const apiKey = process.env.OPENAI_API_KEY;
const sdk = (server, more = {}) =>
  new Anthropic({ baseURL: baseURL(server).replace(/\/v1$/, ''), apiKey, maxRetries: 0, timeout: 120_000, ...more });
const client = sdk('scripted');
const user = (content) => [{ role: 'user', content }];
const body = (content, more = {}) => ({ model, max_tokens: 4000, messages: user(content), ...more });
const ask = (content, more = {}) => client.messages.create(body(content, more));
const calls = (message) => message.content.filter((block) => block.type === 'tool_use').map((call) => [call.name, call.input]);
const long = `say: ${'one two three four five '.repeat(500)}`;

const input_schema = {
  type: 'object',
  properties: { city: { type: 'string', maxLength: 20 }, days: { type: 'integer', maximum: 99 } },
  required: ['city', 'days'],
  additionalProperties: false,
};
const tools = ['get_weather', 'get_time'].map((name) => ({ name, input_schema }));
const askBoth = "Use get_weather and get_time for 'Oslo', 3 days.";
const both = tools.map(({ name }) => [name, { city: 'Oslo', days: 3 }]);
const askTime = 'call: get_time {"city": "Rome", "days": 1}';

async function rejects(promise, kind, status, type, words = '') {
  const error = await promise.then(
    () => assert.fail(`${kind.name} was not thrown`),
    (thrown) => thrown,
  );
  assert.ok(error.constructor === kind, `${error.constructor.name}: ${error.message}`);
  assert.equal(error.status, status);
  assert.deepEqual([error.error.type, error.error.error.type], ['error', type]);
  assert.ok(error.error.error.message.includes(words), error.message);
  assert.ok(error.requestID && error.requestID === error.error.request_id);
  return error;
}

async function all(stream) {
  const found = [];
  for await (const one of stream) found.push(one);
  return found;
}

// Text.

check('message', async () => {
  const answer = await ask('Hello, नमस्ते 👩‍🚀', { system: [{ type: 'text', text: 'Be brief.', cache_control: { type: 'ephemeral' } }] });
  assert.deepEqual(answer.content, [{ type: 'text', text: 'Hello, नमस्ते 👩‍🚀' }]);
  assert.deepEqual([answer.stop_reason, answer.stop_sequence, answer.role], ['end_turn', null, 'assistant']);
  assert.ok(answer.usage.input_tokens > 0 && answer.usage.output_tokens > 0 && answer._request_id);
});

check('stop_sequences_and_max_tokens', async () => {
  const stopped = await ask('one two three', { stop_sequences: [' three'] });
  assert.deepEqual([stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence], ['one two', 'stop_sequence', ' three']);
  const cut = await ask('one two three four', { max_tokens: 2 });
  assert.deepEqual([cut.stop_reason, cut.usage.output_tokens], ['max_tokens', 2]);
});

check('count_tokens', async () => {
  const asked = { system: 'Be brief.', tools, messages: user('Hello there') };
  const { input_tokens } = await client.messages.countTokens({ model, ...asked });
  const { usage } = await client.messages.create({ model, max_tokens: 99, ...asked });
  assert.equal(input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
});

// Streams.

check('stream', async () => {
  const kinds = (await all(await client.messages.create(body('one two', { stream: true })))).map((event) => event.type);
  assert.deepEqual(kinds.slice(0, 2), ['message_start', 'content_block_start']);
  assert.deepEqual(kinds.slice(-3), ['content_block_stop', 'message_delta', 'message_stop']);
});

check('stream_helper_events', async () => {
  const seen = [];
  const stream = client.messages.stream(body('one two three'));
  for (const name of ['connect', 'text', 'contentBlock', 'message', 'finalMessage', 'end']) stream.on(name, () => seen.push(name));
  assert.equal(await stream.finalText(), 'one two three');
  const final = await stream.finalMessage();
  assert.ok(final.stop_reason === 'end_turn' && final.usage.output_tokens > 0);
  assert.deepEqual([...new Set(seen)], ['connect', 'text', 'contentBlock', 'message', 'finalMessage', 'end']);
});

check('stream_aborted', async () => {
  const stream = client.messages.stream(body(long));
  stream.on('text', () => stream.abort());
  await assert.rejects(stream.done(), Anthropic.APIUserAbortError);
  assert.equal((await ask('still there')).content[0].text, 'still there');
});

check('stream_behind_pings', async () => {
  const narrow = sdk('narrow');
  const held = await narrow.messages.create(body(long, { stream: true }));
  await held[Symbol.asyncIterator]().next();
  setTimeout(() => held.controller.abort(), 500);
  assert.equal(await narrow.messages.stream(body('me too')).finalText(), 'me too');
});

check('stream_error_midway', async () => {
  const events = (await sdk('brief').messages.create(body(long, { stream: true })))[Symbol.asyncIterator]();
  assert.equal((await events.next()).value.type, 'message_start');
  const drained = async () => { while (!(await events.next()).done); };
  await assert.rejects(drained(), (error) => error instanceof Anthropic.APIError && /timeout_error/.test(error.message));
});

// Tools.

check('tools_round_trip', async () => {
  const messages = user("What is the weather in 'Oslo' for 3 days?");
  const asked = await client.messages.create({ model, max_tokens: 200, tools, messages });
  assert.deepEqual([calls(asked), asked.stop_reason], [[['get_weather', { city: 'Oslo', days: 3 }]], 'tool_use']);
  const result = { type: 'tool_result', tool_use_id: asked.content.at(-1).id, content: [{ type: 'text', text: 'rain' }] };
  messages.push({ role: 'assistant', content: asked.content }, { role: 'user', content: [result] });
  assert.equal((await client.messages.create({ model, max_tokens: 200, tools, messages })).content[0].text, 'rain');
});

check('tools_choices', async () => {
  assert.deepEqual(calls(await ask(askBoth, { tools })), both);
  for (const type of ['auto', 'any']) {
    const one = await ask(askBoth, { tools, tool_choice: { type, disable_parallel_tool_use: true } });
    assert.equal(calls(one).length, 1);
  }
  const forced = await ask('say: no', { tools, tool_choice: { type: 'tool', name: 'get_time' } });
  assert.deepEqual(calls(forced).map(([name]) => name), ['get_time']);
  assert.deepEqual(calls(await ask('get_time', { tools, tool_choice: { type: 'none' } })), []);
});

check('tools_streamed', async () => {
  const inputs = [];
  const stream = client.messages.stream(body(askBoth, { tools }));
  stream.on('inputJson', (part) => inputs.push(part));
  assert.deepEqual(calls(await stream.finalMessage()), both);
  assert.ok(inputs.length > 4);
});

check('tool_runner', async () => {
  const weather = betaZodTool({
    name: 'get_weather', description: 'Weather of a city',
    inputSchema: z.object({ city: z.string(), days: z.number().int() }),
    run: ({ city, days }) => `${city}: rain for ${days} days`,
  });
  for (const stream of [false, true]) {
    const runner = client.beta.messages.toolRunner(body("Weather in 'Oslo', 3 days", { tools: [weather], stream }));
    assert.equal((await runner.runUntilDone()).content[0].text, 'Oslo: rain for 3 days');
  }
});

check('output_of_a_zod_schema', async () => {
  const Trip = z.object({ kind: z.enum(['long', 'short']), days: z.number().int() });
  const answer = await client.messages.parse(body('A trip', { output_config: { format: zodOutputFormat(Trip) } }));
  assert.ok(Trip.safeParse(answer.parsed_output).success);
});

// Thinking.

check('thinking', async () => {
  const thinks = sdk('thinks');
  const answer = await thinks.messages.create(body('Hi', { thinking: { type: 'enabled', budget_tokens: 1024 } }));
  assert.deepEqual(answer.content.map((block) => block.thinking ?? block.text), ['The user said something.', 'Hi']);
  const messages = [...user('Hi'), { role: 'assistant', content: answer.content }, ...user('again')];
  assert.equal((await thinks.messages.create({ model, max_tokens: 99, messages })).content[0].text, 'again');
});

check('thinking_streamed', async () => {
  const seen = [];
  const stream = sdk('thinks').messages.stream(body('Hi', { thinking: { type: 'adaptive' } }));
  for (const name of ['thinking', 'signature', 'text']) stream.on(name, () => seen.push(name));
  const final = await stream.finalMessage();
  assert.deepEqual([...new Set(seen)], ['thinking', 'signature', 'text']);
  assert.ok(final.content[0].signature);
});

// Models.

check('models', async () => {
  assert.deepEqual((await all(client.models.list())).map((one) => one.id), [model]);
  assert.equal((await client.models.retrieve(model)).display_name, model);
});

// Errors.

check('error_400', async () => {
  const image = { type: 'image', source: { type: 'url', url: 'http://x/y.png' } };
  await rejects(ask([image]), Anthropic.BadRequestError, 400, 'invalid_request_error', 'messages[0].content[0].source');
  await rejects(ask('word '.repeat(40_000)), Anthropic.BadRequestError, 400, 'invalid_request_error', 'prompt is too long');
});

check('error_401', async () => {
  const asked = sdk('scripted', { apiKey: 'sk-wrong' }).messages.create(body('hi'));
  await rejects(asked, Anthropic.AuthenticationError, 401, 'authentication_error');
});

check('error_404', async () => {
  await rejects(ask('hi', { model: 'other' }), Anthropic.NotFoundError, 404, 'not_found_error', "'other'");
});

check('error_429', async () => {
  const limited = sdk('limited');
  await limited.messages.create(body('hi')).catch(() => undefined);
  const error = await rejects(limited.messages.create(body('hi')), Anthropic.RateLimitError, 429, 'rate_limit_error');
  assert.ok(Number(error.headers.get('retry-after')) > 0);
});

check('error_529_then_retried', async () => {
  const held = await sdk('full').messages.create(body(long, { stream: true }));
  await held[Symbol.asyncIterator]().next();
  await rejects(sdk('full').messages.create(body('hi')), Anthropic.OverloadedError, 529, 'overloaded_error');
  setTimeout(() => held.controller.abort(), 300);
  const retried = await sdk('full', { maxRetries: 5 }).messages.create(body('again'));
  assert.equal(retried.content[0].text, 'again');
});

check('sixteen_at_once', async () => {
  const numbers = [...Array(16).keys()].map((number) => `number ${number}`);
  const answers = await Promise.all(numbers.map(async (text, index) => {
    if (index % 2) return (await ask(text)).content[0].text;
    return client.messages.stream(body(text)).finalText();
  }));
  assert.deepEqual(answers, numbers);
});

await run();
