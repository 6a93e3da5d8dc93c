// openai-node judges: what it parses, throws and emits is what an application gets.
// servers: demo limited full brief narrow thinks mistral

import assert from 'node:assert/strict';

import OpenAI from 'openai';
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';

import { baseURL, check, model, run } from './checking.mjs';

const options = { maxRetries: 0, timeout: 120_000 };
const client = new OpenAI(options);
const sdk = (server, more = {}) => new OpenAI({ ...options, baseURL: baseURL(server), ...more });
const user = (content) => [{ role: 'user', content }];
const first = async (content, more = {}) =>
  (await client.chat.completions.create({ model, messages: user(content), ...more })).choices[0];

const Place = z.object({ city: z.string(), days: z.number().int() });
const Trip = z.object({
  cities: z.array(z.object({ name: z.string(), kind: z.enum(['town', 'village']) })),
  note: z.string().nullable(),
});
const parameters = {
  type: 'object',
  properties: { city: { type: 'string' }, days: { type: 'integer' } },
  required: ['city', 'days'],
  additionalProperties: false,
};
const tool = (name) => ({ type: 'function', function: { name, parameters } });
const tools = [tool('get_weather'), tool('get_time')];
const flatTools = tools.map(({ function: f }) => ({ type: 'function', strict: false, ...f }));
const askBoth = "Use get_weather and get_time for 'Oslo' and 'Rome', 3 days and 4 days.";
const askTime = 'call: get_time {"city": "Rome", "days": 1}';

async function rejects(promise, kind, wanted = {}) {
  const error = await promise.then(
    () => assert.fail(`${kind.name} was not thrown`),
    (thrown) => thrown,
  );
  assert.ok(error.constructor === kind, `${error.constructor.name}: ${error.message}`);
  for (const [name, value] of Object.entries(wanted)) assert.equal(error[name], value, `${name}: ${error.message}`);
  return error;
}

async function all(stream) {
  const found = [];
  for await (const one of stream) found.push(one);
  return found;
}

// Chat.

check('chat', async () => {
  const answer = await client.chat.completions.create({ model, messages: user('Hello, नमस्ते 👩‍🚀') });
  assert.equal(answer.choices[0].message.content, 'Hello, नमस्ते 👩‍🚀');
  assert.equal(answer.choices[0].finish_reason, 'stop');
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  assert.ok(answer._request_id);
});

check('chat_answered_by_the_model', async () => {
  const answer = await sdk('demo').chat.completions.create({
    model: 'demo', messages: user('What is the capital of France?'), temperature: 0, max_tokens: 40,
  });
  assert.match(answer.choices[0].message.content, /Paris/);
});

check('chat_n_logprobs_and_stop', async () => {
  const answer = await client.chat.completions.create({
    model, messages: user('one two three'), n: 2, logprobs: true, top_logprobs: 2, stop: [' three'],
  });
  assert.deepEqual(answer.choices.map((choice) => choice.message.content), ['one two', 'one two']);
  for (const { logprobs } of answer.choices) {
    for (const entry of logprobs.content) assert.equal(entry.top_logprobs.length, 2);
  }
});

check('with_response', async () => {
  const { data, response, request_id } = await client.chat.completions
    .create({ model, messages: user('hi') }, { headers: { 'x-request-id': 'mine-1.2' } })
    .withResponse();
  assert.equal(data.choices[0].message.content, 'hi');
  assert.equal(response.status, 200);
  assert.equal(request_id, 'mine-1.2');
});

// Streams.

check('stream', async () => {
  const chunks = await all(await client.chat.completions.create({
    model, messages: user('one two three'), stream: true, stream_options: { include_usage: true },
  }));
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join(''), 'one two three');
  assert.equal(chunks[0].choices[0].delta.role, 'assistant');
  assert.ok(chunks.slice(0, -1).every((chunk) => chunk.usage === null));
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.ok(chunks.at(-1).usage.completion_tokens > 0);
});

check('stream_helper_events', async () => {
  const seen = [];
  let text = '';
  const stream = client.chat.completions.stream({ model, messages: user('one two three') });
  for (const name of ['connect', 'chunk', 'chatCompletion', 'message', 'content.done', 'end']) {
    stream.on(name, () => seen.push(name));
  }
  stream.on('content', (delta) => { text += delta; });
  const final = await stream.finalChatCompletion();
  await stream.done();
  assert.equal(text, 'one two three');
  assert.equal(final.choices[0].message.content, 'one two three');
  for (const name of ['connect', 'chunk', 'chatCompletion', 'message', 'content.done', 'end']) {
    assert.ok(seen.includes(name), `${name} was not emitted`);
  }
});

check('stream_helper_calls_tools', async () => {
  let deltas = '';
  const stream = client.chat.completions.stream({
    model, messages: user('call: get_weather {"city": "Zürich", "days": 5}'),
    tools: [zodFunction({ name: 'get_weather', parameters: Place })],
  });
  stream.on('tool_calls.function.arguments.delta', (event) => { deltas += event.arguments_delta; });
  const [call] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
  assert.deepEqual(call.function.parsed_arguments, { city: 'Zürich', days: 5 });
  assert.equal(deltas, call.function.arguments);
});

check('stream_to_readable_and_back', async () => {
  const stream = client.chat.completions.stream({ model, messages: user('one two') });
  const { ChatCompletionStream } = await import('openai/lib/ChatCompletionStream');
  const copy = ChatCompletionStream.fromReadableStream(stream.toReadableStream());
  assert.equal(await copy.finalContent(), 'one two');
});

check('stream_aborted', async () => {
  const demo = sdk('demo');
  const stream = await demo.chat.completions.create({
    model: 'demo', messages: user('Tell me a story.'), stream: true, max_tokens: 1500, ignore_eos: true,
  });
  for await (const chunk of stream) {
    assert.equal(chunk.object, 'chat.completion.chunk');
    break;
  }
  assert.ok(stream.controller.signal.aborted);
  const after = await demo.chat.completions.create({ model: 'demo', messages: user('Hello'), max_tokens: 4 });
  assert.equal(after.choices.length, 1);
});

check('stream_error_midway', async () => {
  const stream = await sdk('brief').chat.completions.create({
    model, messages: user('hi'), stream: true, max_tokens: 15_000, ignore_eos: true,
  });
  const seen = [];
  const reading = (async () => { for await (const chunk of stream) seen.push(chunk); })();
  await rejects(reading, OpenAI.APIError, { code: 'timeout', type: 'server_error' });
  assert.ok(seen.length > 1);
});

check('stream_behind_comments', async () => {
  const held = await sdk('narrow').chat.completions.create({
    model, messages: user('hi'), stream: true, max_tokens: 15_000, ignore_eos: true,
  });
  await held[Symbol.asyncIterator]().next();
  setTimeout(() => held.controller.abort(), 500);
  const text = await sdk('narrow').chat.completions.stream({ model, messages: user('me too') }).finalContent();
  assert.equal(text, 'me too');
});

check('abort_signal', async () => {
  const controller = new AbortController();
  const body = { model: 'demo', messages: user('Tell me a story.'), max_tokens: 1900, ignore_eos: true };
  const asked = sdk('demo').chat.completions.create(body, { signal: controller.signal });
  setTimeout(() => controller.abort(), 200);
  await rejects(asked, OpenAI.APIUserAbortError);
});

// Tools.

check('tools_auto', async () => {
  const choice = await first(askTime, { tools });
  assert.equal(choice.finish_reason, 'tool_calls');
  assert.equal(choice.message.content, null);
  assert.deepEqual(JSON.parse(choice.message.tool_calls[0].function.arguments), { city: 'Rome', days: 1 });
});

check('tools_choices', async () => {
  assert.equal((await first('get_weather', { tools, tool_choice: 'none' })).message.content, 'get_weather');
  const required = await first('say: no', { tools, tool_choice: 'required' });
  assert.equal(required.message.tool_calls[0].function.name, 'get_weather');
  const named = await first('say: no', { tools, tool_choice: { type: 'function', function: { name: 'get_time' } } });
  assert.equal(named.message.tool_calls[0].function.name, 'get_time');
});

check('tools_parallel_streamed', async () => {
  const stream = client.chat.completions.stream({ model, messages: user(askBoth), tools });
  const calls = (await stream.finalMessage()).tool_calls;
  assert.deepEqual(calls.map((call) => call.function.name), ['get_weather', 'get_time']);
  assert.equal(new Set(calls.map((call) => call.id)).size, 2);
});

check('tools_in_another_format', async () => {
  const stream = sdk('mistral').chat.completions.stream({ model, messages: user(askBoth), tools });
  const calls = (await stream.finalMessage()).tool_calls;
  assert.deepEqual(calls.map((call) => call.function.name), ['get_weather', 'get_time']);
});

function runner(stream) {
  const called = [];
  const made = client.chat.completions.runTools({
    model, stream,
    messages: user('call: add {"a": 2, "b": 3}\nthen\ncall: add {"a": 5, "b": 5}'),
    tools: [{
      type: 'function',
      function: {
        name: 'add',
        parse: JSON.parse,
        parameters: { type: 'object', properties: { a: { type: 'number' }, b: { type: 'number' } }, required: ['a', 'b'] },
        function: ({ a, b }) => { called.push([a, b]); return String(a + b); },
      },
    }],
  });
  return [made, called];
}

check('run_tools', async () => {
  const [made, called] = runner(false);
  assert.equal(await made.finalContent(), '5\n10');
  assert.deepEqual(called, [[2, 3], [5, 5]]);
  assert.equal((await made.totalUsage()).prompt_tokens > 0, true);
});

check('run_tools_streamed', async () => {
  const [made, called] = runner(true);
  assert.equal(await made.finalContent(), '5\n10');
  assert.deepEqual(called, [[2, 3], [5, 5]]);
});

// Structured output.

check('parse_with_zod', async () => {
  const answer = await client.chat.completions.parse({
    model, messages: user('Where?'), response_format: zodResponseFormat(Trip, 'trip'), max_tokens: 300,
  });
  assert.ok(Trip.safeParse(answer.choices[0].message.parsed).success);
});

check('parse_what_was_said', async () => {
  const said = { cities: [{ name: 'Oslo "x"', kind: 'town' }], note: null };
  const answer = await client.chat.completions.parse({
    model, messages: user(`say: ${JSON.stringify(said)}`), response_format: zodResponseFormat(Trip, 'trip'),
  });
  assert.deepEqual(answer.choices[0].message.parsed, said);
});

check('parse_shapes_of_zod', async () => {
  const Branch = z.object({ value: z.number().int(), get parts() { return z.array(Branch); } });
  const Everything = z.object({
    shape: z.discriminatedUnion('kind', [
      z.object({ kind: z.literal('circle'), radius: z.number() }),
      z.object({ kind: z.literal('square'), side: z.number().int() }),
    ]),
    branch: Branch,
    when: z.iso.datetime(),
    mail: z.email(),
    id: z.uuid(),
    code: z.string().regex(/^[A-Z]{2}-[0-9]{3}$/),
    word: z.string().min(2).max(5),
    even: z.number().int().min(10).multipleOf(2),
    pair: z.array(z.boolean()).length(2),
    maybe: z.union([z.string(), z.number(), z.null()]),
  });
  const answer = await client.chat.completions.parse({
    model, messages: user('Anything'), response_format: zodResponseFormat(Everything, 'everything'), max_tokens: 600,
  });
  assert.ok(Everything.safeParse(answer.choices[0].message.parsed).success);
});

check('parse_tools_with_zod', async () => {
  const answer = await client.chat.completions.parse({
    model, messages: user(askTime), tools: [zodFunction({ name: 'get_time', parameters: Place })],
  });
  assert.deepEqual(answer.choices[0].message.tool_calls[0].function.parsed_arguments, { city: 'Rome', days: 1 });
});

check('parse_cut_is_an_error', async () => {
  const body = { model, messages: user('Where?'), response_format: zodResponseFormat(Trip, 'trip'), max_tokens: 3 };
  await rejects(client.chat.completions.parse(body), OpenAI.LengthFinishReasonError ?? (await lengthError()));
});

const lengthError = async () => (await import('openai/error')).LengthFinishReasonError;

check('parse_on_the_model', async () => {
  const Small = z.object({ kind: z.enum(['cat', 'dog']), old: z.boolean() });
  const answer = await sdk('demo').chat.completions.parse({
    model: 'demo', messages: user('Hi'), response_format: zodResponseFormat(Small, 'pet'), max_tokens: 300,
  });
  assert.ok(Small.safeParse(answer.choices[0].message.parsed).success);
});

// Reasoning.

check('reasoning_content', async () => {
  const answer = await sdk('thinks').chat.completions.create({ model, messages: user('hello') });
  assert.equal(answer.choices[0].message.content, 'hello');
  assert.match(answer.choices[0].message.reasoning_content, /said something/);
  assert.ok(answer.usage.completion_tokens_details.reasoning_tokens > 0);
});

// Responses.

check('responses', async () => {
  const answer = await client.responses.create({ model, input: 'Hello there', store: false });
  assert.equal(answer.output_text, 'Hello there');
  assert.equal(answer.status, 'completed');
  assert.ok(answer.usage.total_tokens > 0);
});

check('responses_stream', async () => {
  const stream = client.responses.stream({ model, input: 'one two three', store: false });
  const events = await all(stream);
  const final = await stream.finalResponse();
  assert.equal(final.output_text, 'one two three');
  assert.equal(events[0].type, 'response.created');
  assert.equal(events.at(-1).type, 'response.completed');
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, index) => index));
});

check('responses_incomplete', async () => {
  const answer = await client.responses.create({ model, input: 'one two three four five', max_output_tokens: 2, store: false });
  assert.equal(answer.status, 'incomplete');
  assert.equal(answer.incomplete_details.reason, 'max_output_tokens');
});

check('responses_parse_with_zod', async () => {
  const answer = await client.responses.parse({
    model, input: 'Where?', text: { format: zodTextFormat(Trip, 'trip') }, max_output_tokens: 300, store: false,
  });
  assert.ok(Trip.safeParse(answer.output_parsed).success);
});

check('responses_parse_tools_with_zod', async () => {
  const answer = await client.responses.parse({
    model, input: askTime, tools: [zodResponsesFunction({ name: 'get_time', parameters: Place })], store: false,
  });
  const [call] = answer.output.filter((item) => item.type === 'function_call');
  assert.deepEqual(call.parsed_arguments, { city: 'Rome', days: 1 });
});

check('responses_tool_loop', async () => {
  const input = user(askTime);
  const asked = await client.responses.create({ model, input, tools: flatTools, store: false });
  const [call] = asked.output.filter((item) => item.type === 'function_call');
  assert.deepEqual([call.name, JSON.parse(call.arguments)], ['get_time', { city: 'Rome', days: 1 }]);
  input.push(...asked.output, { type: 'function_call_output', call_id: call.call_id, output: "ten o'clock" });
  assert.equal((await client.responses.create({ model, input, tools: flatTools, store: false })).output_text, "ten o'clock");
});

check('responses_tools_streamed', async () => {
  const stream = client.responses.stream({ model, input: askBoth, tools: flatTools, store: false });
  const events = await all(stream);
  const calls = (await stream.finalResponse()).output.filter((item) => item.type === 'function_call');
  assert.deepEqual(calls.map((call) => call.name), ['get_weather', 'get_time']);
  const done = events.filter((event) => event.type === 'response.function_call_arguments.done');
  assert.deepEqual(done.map((event) => event.arguments), calls.map((call) => call.arguments));
});

check('responses_reasoning', async () => {
  const thinks = sdk('thinks');
  const answer = await thinks.responses.create({ model, input: 'hello', store: false });
  assert.deepEqual(answer.output.map((item) => item.type), ['reasoning', 'message']);
  const input = [...user('hello'), ...answer.output, ...user('again')];
  assert.equal((await thinks.responses.create({ model, input, store: false })).output_text, 'again');
});

// Plain completions, models.

check('completions_every_prompt_form', async () => {
  for (const [prompt, answers] of [['Hello', 1], [['Hello', 'you'], 2], [[20, 21], 1], [[[20, 21], [22]], 2]]) {
    const answer = await client.completions.create({ model, prompt });
    assert.deepEqual(answer.choices.map((choice) => choice.text), Array(answers).fill(' ok'));
  }
});

check('completions_stream', async () => {
  const chunks = await all(await client.completions.create({ model, prompt: 'Hello', stream: true }));
  assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(''), ' ok');
});

check('models', async () => {
  const listed = await all(await client.models.list());
  assert.deepEqual(listed.map((one) => one.id), [model]);
  assert.equal((await client.models.retrieve(model)).id, model);
  await rejects(client.models.retrieve('no/such'), OpenAI.NotFoundError, { code: 'model_not_found' });
});

// Errors.

check('error_400', async () => {
  await rejects(first('hi', { temperature: 3 }), OpenAI.BadRequestError, { status: 400, param: 'temperature' });
  await rejects(first('word '.repeat(40_000)), OpenAI.BadRequestError, { code: 'context_length_exceeded' });
  await rejects(first('hi', { stream: true, top_logprobs: 2 }), OpenAI.BadRequestError, { type: 'invalid_request_error' });
});

check('error_401', async () => {
  await rejects(sdk('scripted', { apiKey: 'sk-wrong' }).models.list(), OpenAI.AuthenticationError, { code: 'invalid_api_key' });
});

check('error_404', async () => {
  const asked = client.chat.completions.create({ model: 'other', messages: user('hi') });
  await rejects(asked, OpenAI.NotFoundError, { code: 'model_not_found', param: 'model' });
  await rejects(client.moderations.create({ model, input: 'hi' }), OpenAI.NotFoundError, { status: 404 });
});

check('error_429', async () => {
  const limited = sdk('limited');
  await limited.chat.completions.create({ model, messages: user('hi') }).catch(() => undefined);
  const asked = limited.chat.completions.create({ model, messages: user('hi') });
  const error = await rejects(asked, OpenAI.RateLimitError, { code: 'rate_limit_exceeded' });
  assert.ok(Number(error.headers.get('retry-after')) > 0 && error.requestID);
});

check('error_503_then_retried', async () => {
  const body = { model, messages: user('hi'), stream: true, max_tokens: 15_000, ignore_eos: true };
  const held = await sdk('full').chat.completions.create(body);
  await held[Symbol.asyncIterator]().next();
  const refused = sdk('full').chat.completions.create({ model, messages: user('hi') });
  await rejects(refused, OpenAI.InternalServerError, { status: 503 });
  setTimeout(() => held.controller.abort(), 300);
  const retried = await sdk('full', { maxRetries: 5 }).chat.completions.create({ model, messages: user('again') });
  assert.equal(retried.choices[0].message.content, 'again');
});

check('timeout', async () => {
  const body = { model: 'demo', messages: user('Tell me a story.'), max_tokens: 1900, ignore_eos: true };
  await rejects(sdk('demo', { timeout: 300 }).chat.completions.create(body), OpenAI.APIConnectionTimeoutError);
});

check('sixteen_at_once', async () => {
  const numbers = [...Array(16).keys()].map((number) => `number ${number}`);
  const answers = await Promise.all(numbers.map(async (text, index) => {
    if (index % 2) return (await first(text)).message.content;
    return client.chat.completions.stream({ model, messages: user(text) }).finalContent();
  }));
  assert.deepEqual(answers, numbers);
});

await run();
