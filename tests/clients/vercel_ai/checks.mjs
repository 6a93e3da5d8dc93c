// The Vercel AI SDK judges: `ai` over @ai-sdk/openai (responses and chat) and over @ai-sdk/openai-compatible.
// servers: demo limited thinks phi

import assert from 'node:assert/strict';

import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import {
  APICallError,
  NoObjectGeneratedError,
  Output,
  ToolLoopAgent,
  generateObject,
  generateText,
  isStepCount,
  readUIMessageStream,
  streamObject,
  streamText,
  toUIMessageStream,
  tool,
} from 'ai';
import { z } from 'zod';

import { baseURL, check, model, run } from './checking.mjs';

globalThis.AI_SDK_LOG_WARNINGS = false;
const apiKey = process.env.OPENAI_API_KEY;
const openai = (server = 'scripted', key = apiKey) => createOpenAI({ baseURL: baseURL(server), apiKey: key });
const compatible = (server = 'scripted', more = {}) =>
  createOpenAICompatible({ name: 'hexserve', baseURL: baseURL(server), apiKey, includeUsage: true, supportsStructuredOutputs: true, ...more });
// Without storage at the server the SDK must be told to send whole items instead of references.
const providerOptions = { openai: { store: false } };
const routes = {
  responses: (server) => openai(server).responses(model),
  chat: (server) => openai(server).chat(model),
  compatible: (server) => compatible(server).chatModel(model),
};
const common = { maxRetries: 0, providerOptions };

const Trip = z.object({
  cities: z.array(z.object({ name: z.string(), kind: z.enum(['town', 'village']) })).min(1),
  note: z.string().nullable(),
});
const said = { cities: [{ name: 'Oslo "x"', kind: 'town' }], note: null };
const saySaid = `say: ${JSON.stringify(said)}`;
const askBoth = 'call: weather {"city": "Oslo"}\ncall: add {"a": 2, "b": 3}';
const askSteps = 'call: add {"a": 2, "b": 3}\nthen\ncall: add {"a": 5, "b": 5}\nthen\nsay: the sum is 10';

function tools(called = []) {
  return {
    weather: tool({
      description: 'Weather of a city',
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => { called.push(city); return { city, degrees: 7 }; },
    }),
    add: tool({
      description: 'Add two numbers',
      inputSchema: z.object({ a: z.number(), b: z.number() }),
      execute: async ({ a, b }) => { called.push([a, b]); return a + b; },
    }),
  };
}

async function all(stream) {
  const found = [];
  for await (const one of stream) found.push(one);
  return found;
}

function counted(usage) {
  assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0, JSON.stringify(usage));
  assert.equal(usage.totalTokens, usage.inputTokens + usage.outputTokens);
}

// One implementation for each of the three routes; the names of checks are written out below.

async function text(route) {
  const answer = await generateText({ ...common, model: routes[route](), instructions: 'Be brief.', prompt: 'Hello, नमस्ते 👩‍🚀' });
  assert.equal(answer.text, 'Hello, नमस्ते 👩‍🚀');
  assert.equal(answer.finishReason, 'stop');
  counted(answer.usage);
}

async function streamed(route) {
  const result = streamText({ ...common, model: routes[route](), prompt: 'one two three' });
  const parts = await all(result.stream);
  const kinds = parts.map((part) => part.type);
  assert.ok(!kinds.includes('error'), JSON.stringify(parts.filter((part) => part.type === 'error')));
  assert.ok(kinds.includes('text-start') && kinds.includes('text-end') && kinds.at(-1) === 'finish');
  assert.equal(parts.filter((part) => part.type === 'text-delta').map((part) => part.text).join(''), 'one two three');
  assert.equal(await result.finishReason, 'stop');
  counted(await result.usage);
}

async function cut(route) {
  const answer = await generateText({ ...common, model: routes[route](), prompt: 'one two three four five', maxOutputTokens: 2 });
  assert.equal(answer.finishReason, 'length');
}

async function object(route) {
  const answer = await generateObject({ ...common, model: routes[route](), schema: Trip, prompt: saySaid });
  assert.deepEqual(answer.object, said);
  const shortest = await generateObject({ ...common, model: routes[route](), schema: Trip, prompt: 'Where?', maxOutputTokens: 300 });
  assert.ok(Trip.safeParse(shortest.object).success);
  counted(answer.usage);
}

async function objectStreamed(route) {
  const result = streamObject({ ...common, model: routes[route](), schema: Trip, prompt: saySaid });
  const partials = await all(result.partialObjectStream);
  assert.ok(partials.length > 1);
  assert.deepEqual(await result.object, said);
}

async function output(route) {
  const answer = await generateText({ ...common, model: routes[route](), output: Output.object({ schema: Trip }), prompt: saySaid });
  assert.deepEqual(answer.output, said);
  const result = streamText({ ...common, model: routes[route](), output: Output.object({ schema: Trip }), prompt: saySaid });
  assert.ok((await all(result.partialOutputStream)).length > 1);
  assert.deepEqual(await result.output, said);
}

async function outputKinds(route) {
  const chosen = await generateText({
    ...common, model: routes[route](), output: Output.choice({ options: ['sunny', 'rainy'] }), prompt: 'say: {"result": "rainy"}',
  });
  assert.equal(chosen.output, 'rainy');
  const listed = await generateText({
    ...common, model: routes[route](), output: Output.array({ element: z.string() }), prompt: 'say: {"elements": ["a", "b"]}',
  });
  assert.deepEqual(listed.output, ['a', 'b']);
}

async function toolCalls(route) {
  const { weather, add } = tools();
  const answer = await generateText({
    ...common, model: routes[route](), prompt: askBoth,
    tools: { weather: { ...weather, execute: undefined }, add: { ...add, execute: undefined } },
  });
  assert.equal(answer.finishReason, 'tool-calls');
  assert.deepEqual(answer.toolCalls.map((call) => [call.toolName, call.input]), [['weather', { city: 'Oslo' }], ['add', { a: 2, b: 3 }]]);
}

async function toolLoop(route) {
  const called = [];
  const answer = await generateText({
    ...common, model: routes[route](), prompt: askSteps, tools: tools(called), stopWhen: isStepCount(5),
  });
  assert.deepEqual(called, [[2, 3], [5, 5]]);
  assert.equal(answer.text, 'the sum is 10');
  assert.equal(answer.steps.length, 3);
}

async function toolLoopStreamed(route) {
  const called = [];
  const result = streamText({
    ...common, model: routes[route](), prompt: askSteps, tools: tools(called), stopWhen: isStepCount(5),
  });
  const parts = await all(result.stream);
  const errors = parts.filter((part) => part.type === 'error' || part.type === 'tool-error');
  assert.deepEqual(errors, []);
  assert.ok(parts.some((part) => part.type === 'tool-input-delta'));
  assert.deepEqual(called, [[2, 3], [5, 5]]);
  assert.equal((await result.steps).length, 3);
  assert.equal(await result.text, 'the sum is 10');
}

async function toolChoice(route) {
  const asked = { ...common, model: routes[route](), prompt: 'say: no', tools: tools() };
  const required = await generateText({ ...asked, toolChoice: 'required' });
  assert.equal(required.toolCalls.length >= 1, true);
  const named = await generateText({ ...asked, toolChoice: { type: 'tool', toolName: 'add' } });
  assert.deepEqual(named.toolCalls.map((call) => call.toolName), ['add']);
  const none = await generateText({ ...asked, toolChoice: 'none' });
  assert.deepEqual([none.text, none.toolCalls.length], ['no', 0]);
}

async function reasoning(route) {
  const answer = await generateText({ ...common, model: routes[route]('thinks'), prompt: 'hello' });
  assert.equal(answer.text, 'hello');
  assert.ok(answer.usage.outputTokenDetails.reasoningTokens > 0, JSON.stringify(answer.usage));
  return answer;
}

async function conversation(route) {
  const first = { role: 'user', content: 'first' };
  const asked = { ...common, model: routes[route]('thinks') };
  const answer = await generateText({ ...asked, messages: [first] });
  const again = await generateText({ ...asked, messages: [first, ...answer.responseMessages, { role: 'user', content: 'second' }] });
  assert.deepEqual([answer.text, again.text], ['first', 'second']);
}

async function refused(route) {
  const asked = generateText({ ...common, model: routes[route](), prompt: 'word '.repeat(40_000) });
  const error = await asked.then(() => assert.fail('not refused'), (thrown) => thrown);
  assert.ok(APICallError.isInstance(error), String(error));
  assert.equal(error.statusCode, 400);
  assert.equal(error.isRetryable, false);
  assert.match(error.message, /maximum context length is/);
}

check('responses_text', () => text('responses'));
check('chat_text', () => text('chat'));
check('compatible_text', () => text('compatible'));
check('responses_stream_text', () => streamed('responses'));
check('chat_stream_text', () => streamed('chat'));
check('compatible_stream_text', () => streamed('compatible'));
check('responses_length', () => cut('responses'));
check('chat_length', () => cut('chat'));
check('compatible_length', () => cut('compatible'));
check('responses_generate_object', () => object('responses'));
check('chat_generate_object', () => object('chat'));
check('compatible_generate_object', () => object('compatible'));
check('responses_stream_object', () => objectStreamed('responses'));
check('chat_stream_object', () => objectStreamed('chat'));
check('compatible_stream_object', () => objectStreamed('compatible'));
check('responses_output_object', () => output('responses'));
check('chat_output_object', () => output('chat'));
check('compatible_output_object', () => output('compatible'));
check('responses_output_choice_and_array', () => outputKinds('responses'));
check('chat_output_choice_and_array', () => outputKinds('chat'));
check('compatible_output_choice_and_array', () => outputKinds('compatible'));
check('responses_tool_calls', () => toolCalls('responses'));
check('chat_tool_calls', () => toolCalls('chat'));
check('compatible_tool_calls', () => toolCalls('compatible'));
check('responses_tool_loop', () => toolLoop('responses'));
check('chat_tool_loop', () => toolLoop('chat'));
check('compatible_tool_loop', () => toolLoop('compatible'));
check('responses_tool_loop_streamed', () => toolLoopStreamed('responses'));
check('chat_tool_loop_streamed', () => toolLoopStreamed('chat'));
check('compatible_tool_loop_streamed', () => toolLoopStreamed('compatible'));
check('responses_tool_choice', () => toolChoice('responses'));
check('chat_tool_choice', () => toolChoice('chat'));
check('compatible_tool_choice', () => toolChoice('compatible'));
check('responses_reasoning_usage', () => reasoning('responses'));
check('chat_reasoning_usage', () => reasoning('chat'));
check('responses_context_length', () => refused('responses'));
check('chat_context_length', () => refused('chat'));
check('compatible_context_length', () => refused('compatible'));

check('responses_conversation', () => conversation('responses'));
check('chat_conversation', () => conversation('chat'));
check('compatible_conversation', () => conversation('compatible'));

check('responses_references_are_refused_by_name', async () => {
  const asked = { model: routes.responses(), maxRetries: 0 };
  const first = { role: 'user', content: 'first' };
  const answer = await generateText({ ...asked, messages: [first] });
  const again = generateText({ ...asked, messages: [first, ...answer.responseMessages, { role: 'user', content: 'second' }] });
  const error = await again.then(() => assert.fail('not refused'), (thrown) => thrown);
  assert.equal(error.statusCode, 400);
  assert.match(error.message, /'input\[1\]\.type' does not support 'item_reference'/);
});

check('responses_tool_loop_without_store_false', async () => {
  const called = [];
  const answer = await generateText({
    model: routes.responses(), maxRetries: 0, prompt: askSteps, tools: tools(called), stopWhen: isStepCount(5),
  });
  assert.deepEqual([called.length, answer.text], [2, 'the sum is 10']);
});

check('sixteen_at_once', async () => {
  const prompts = [...Array(16).keys()].map((number) => `number ${number}`);
  const names = Object.keys(routes);
  const answers = await Promise.all(prompts.map((prompt, index) => (index % 2
    ? generateText({ ...common, model: routes[names[index % 3]](), prompt }).then((answer) => answer.text)
    : streamText({ ...common, model: routes[names[index % 3]](), prompt }).text)));
  assert.deepEqual(answers, prompts);
});

check('chat_strict_tools', async () => {
  const asked = {
    ...common, model: routes.chat(), prompt: 'say: no', toolChoice: 'required',
    tools: { choose: tool({ inputSchema: z.object({ kind: z.enum(['x', 'y']), code: z.string().regex(/^[A-Z]{3}$/) }), strict: true }) },
  };
  const answer = await generateText(asked);
  assert.match(answer.toolCalls[0].input.code, /^[A-Z]{3}$/);
});

check('tools_without_input', async () => {
  for (const route of Object.keys(routes)) {
    const answer = await generateText({
      ...common, model: routes[route](), prompt: 'ping', tools: { ping: tool({ inputSchema: z.object({}) }) },
    });
    assert.deepEqual(answer.toolCalls.map((call) => [call.toolName, call.input]), [['ping', {}]]);
  }
});

check('ui_message_stream', async () => {
  const called = [];
  const result = streamText({ ...common, model: routes.chat(), prompt: askSteps, tools: tools(called), stopWhen: isStepCount(5) });
  let last;
  for await (const message of readUIMessageStream({ stream: toUIMessageStream({ stream: result.stream }) })) last = message;
  const shown = last.parts.filter((part) => part.type === 'text').map((part) => part.text).join('');
  assert.equal(shown, 'the sum is 10');
  assert.equal(last.parts.filter((part) => part.type === 'tool-add' && part.state === 'output-available').length, 2);
});

check('pictures_are_refused_by_name', async () => {
  const file = { type: 'file', mediaType: 'image/png', data: new Uint8Array([137, 80, 78, 71]) };
  for (const route of Object.keys(routes)) {
    const asked = generateText({ ...common, model: routes[route](), messages: [{ role: 'user', content: [file] }] });
    const error = await asked.then(() => assert.fail('not refused'), (thrown) => thrown);
    assert.equal(error.statusCode, 400, String(error));
    assert.match(error.message, /content\[0\]\.type/);
  }
});

check('compatible_reasoning_text', async () => {
  const answer = await reasoning('compatible');
  assert.match(answer.reasoningText, /said something/);
  const parts = await all(streamText({ ...common, model: routes.compatible('thinks'), prompt: 'hello' }).stream);
  assert.match(parts.filter((part) => part.type === 'reasoning-delta').map((part) => part.text).join(''), /said something/);
});

check('compatible_tools_of_another_format', async () => {
  const called = [];
  const answer = await generateText({
    ...common, model: routes.compatible('phi'), prompt: askSteps, tools: tools(called), stopWhen: isStepCount(5),
  });
  assert.deepEqual([called.length, answer.text], [2, 'the sum is 10']);
});

check('agent', async () => {
  const called = [];
  const agent = new ToolLoopAgent({ model: routes.responses(), tools: tools(called), providerOptions, instructions: 'Add.' });
  const answer = await agent.generate({ prompt: askSteps });
  assert.deepEqual([called.length, answer.text], [2, 'the sum is 10']);
});

check('compatible_completion', async () => {
  const answer = await generateText({ ...common, model: compatible().completionModel(model), prompt: 'Once' });
  assert.equal(typeof answer.text, 'string');
  counted(answer.usage);
});

check('compatible_json_without_schema', async () => {
  const answer = await generateObject({
    ...common, model: compatible('scripted', { supportsStructuredOutputs: false }).chatModel(model), output: 'no-schema',
    prompt: 'say: {"a": 1}',
  });
  assert.deepEqual(answer.object, { a: 1 });
});

check('object_cut_is_an_error', async () => {
  const asked = generateObject({ ...common, model: routes.chat(), schema: Trip, prompt: 'Where?', maxOutputTokens: 3 });
  const error = await asked.then(() => assert.fail('not thrown'), (thrown) => thrown);
  assert.ok(NoObjectGeneratedError.isInstance(error), String(error));
  assert.equal(error.finishReason, 'length');
});

check('answered_by_the_model', async () => {
  const answer = await generateText({
    ...common, model: openai('demo').chat('demo'), prompt: 'What is the capital of France?', temperature: 0, maxOutputTokens: 40,
  });
  assert.match(answer.text, /Paris/);
});

check('stream_aborted', async () => {
  const controller = new AbortController();
  const result = streamText({
    ...common, model: compatible('demo').chatModel('demo'), prompt: 'Tell me a story.', abortSignal: controller.signal,
    maxOutputTokens: 1500, providerOptions: { hexserve: { ignore_eos: true } },
  });
  const kinds = [];
  for await (const part of result.stream) {
    kinds.push(part.type);
    if (part.type === 'text-delta') controller.abort();
  }
  assert.ok(kinds.includes('abort'), kinds.join(' '));
});

check('error_401', async () => {
  const asked = generateText({ ...common, model: openai('scripted', 'sk-wrong').chat(model), prompt: 'hi' });
  const error = await asked.then(() => assert.fail('not refused'), (thrown) => thrown);
  assert.equal(error.statusCode, 401);
});

check('error_429_is_retryable', async () => {
  const asked = () => generateText({ ...common, model: openai('limited').chat(model), prompt: 'hi' });
  await asked().catch(() => undefined);
  const error = await asked().then(() => assert.fail('not refused'), (thrown) => thrown);
  assert.deepEqual([error.statusCode, error.isRetryable], [429, true]);
  assert.ok(Number(error.responseHeaders['retry-after']) > 0);
});

await run();
