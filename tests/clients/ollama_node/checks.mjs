// The official `ollama` package for Node judges: what it parses, streams, throws and aborts.
// servers: embeds thinks narrow

import assert from 'node:assert/strict';
import { Ollama } from 'ollama';
import { baseURL, check, model, run } from './checking.mjs';

const tagged = `${model}:latest`;
const messages = [{ role: 'user', content: 'Hello there' }];
const tools = [
  {
    type: 'function',
    function: {
      name: 'forecast',
      description: 'Weather of a city',
      parameters: {
        type: 'object',
        required: ['city', 'days'],
        properties: { city: { type: 'string' }, days: { type: 'integer' } },
      },
    },
  },
];

function client(server = 'scripted') {
  const headers = { Authorization: `Bearer ${process.env.OLLAMA_API_KEY}` };
  return new Ollama({ host: baseURL(server).replace(/\/v1$/, ''), headers });
}

async function read(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
}

async function refused(call, status, word) {
  await assert.rejects(call, (error) => {
    assert.equal(error.name, 'ResponseError');
    assert.equal(error.status_code, status);
    assert.equal(typeof error.error, 'string');
    assert.ok(error.error.includes(word), error.error);
    return true;
  });
}

check('chat', async () => {
  const answer = await client().chat({ model, messages, options: { temperature: 0, seed: 1, num_predict: 50 } });
  assert.equal(answer.message.content, 'Hello there');
  assert.deepEqual([answer.model, answer.done, answer.done_reason], [model, true, 'stop']);
  for (const field of ['total_duration', 'prompt_eval_count', 'prompt_eval_duration', 'eval_count', 'eval_duration']) {
    assert.ok(Number.isInteger(answer[field]) && answer[field] > 0, field);
  }
  assert.ok(!Number.isNaN(new Date(answer.created_at).getTime()));
});

check('chat_streamed', async () => {
  const parts = await read(await client().chat({ model, messages, stream: true }));
  assert.equal(parts.map((part) => part.message.content).join(''), 'Hello there');
  assert.equal(parts.at(-1).done_reason, 'stop');
});

check('generate', async () => {
  const answer = await client().generate({ model, prompt: 'Hello there', system: 'Be brief', keep_alive: '10m' });
  assert.equal(answer.response, 'Hello there');
  const parts = await read(await client().generate({ model, prompt: 'Hello there', stream: true }));
  assert.equal(parts.map((part) => part.response).join(''), 'Hello there');
});

check('tools_round_trip', async () => {
  for (const stream of [false, true]) {
    const asked = [{ role: 'user', content: 'call: forecast {"city": "Paris", "days": 3}' }];
    const answer = await client().chat({ model, messages: asked, tools, stream });
    const said = stream ? (await read(answer)).find((part) => part.message.tool_calls).message : answer.message;
    const [call] = said.tool_calls;
    assert.deepEqual([call.function.name, call.function.arguments], ['forecast', { city: 'Paris', days: 3 }]);
    asked.push(said, { role: 'tool', tool_name: 'forecast', content: 'rain' });
    const second = await client().chat({ model, messages: asked, tools });
    assert.equal(second.message.content, 'rain');
  }
});

check('structured_output', async () => {
  const format = tools[0].function.parameters;
  const asked = [{ role: 'user', content: 'say: {"city": "Oslo", "days": 2}' }];
  for (const server of ['scripted', 'thinks']) {
    const answer = await client(server).chat({ model, messages: asked, format });
    assert.deepEqual(JSON.parse(answer.message.content), { city: 'Oslo', days: 2 });
  }
  const object = await client().generate({ model, prompt: "JSON with the key 'name'", format: 'json' });
  assert.deepEqual(JSON.parse(object.response), { name: '' });
});

check('thinking', async () => {
  const answer = await client('thinks').chat({ model, messages, think: true });
  assert.deepEqual([answer.message.thinking, answer.message.content], ['The user said something.', 'Hello there']);
  const silent = await client('thinks').chat({ model, messages, think: false });
  assert.deepEqual([silent.message.thinking, silent.message.content], [undefined, 'Hello there']);
  const parts = await read(await client('thinks').chat({ model, messages, think: true, stream: true }));
  assert.equal(parts.map((part) => part.message.thinking ?? '').join(''), 'The user said something.');
});

check('errors_have_a_status', async () => {
  await refused(() => client().chat({ model: 'nobody', messages }), 404, 'nobody');
  await refused(() => client().chat({ model: 'nobody', messages, stream: true }), 404, 'nobody');
  await refused(() => client().chat({ model, messages, think: true }), 400, 'think');
  await refused(() => client().chat({ model, messages, options: { num_ctx: 1e6 } }), 400, 'options.num_ctx');
  await refused(() => client().generate({ model, prompt: 'a', suffix: 'b' }), 400, 'suffix');
  await refused(() => client().generate({ model, prompt: 'a', images: [new Uint8Array([1])] }), 400, 'images');
  await refused(() => client().pull({ model }), 501, 'hexserve pull');
  await refused(() => client().delete({ model }), 501, 'hexserve pull');
  const stranger = new Ollama({ host: baseURL('scripted').replace(/\/v1$/, '') });
  await refused(() => stranger.list(), 401, 'API key');
});

check('models', async () => {
  const { models } = await client().list();
  assert.deepEqual(models.map((one) => [one.name, one.details.family]), [[tagged, 'qwen3']]);
  const loaded = (await client().ps()).models;
  assert.deepEqual([loaded[0].name, loaded[0].context_length], [tagged, 16384]);
  assert.ok(new Date(loaded[0].expires_at).getTime() > Date.now());
  const shown = await client().show({ model: tagged });
  assert.deepEqual(shown.capabilities, ['completion', 'tools']);
  assert.equal(shown.model_info['qwen3.context_length'], 16384);
  assert.match((await client().version()).version, /^\d+\.\d+\.\d+$/);
});

check('embeddings', async () => {
  const asked = client('embeds');
  const { embeddings } = await asked.embed({ model: 'embedder', input: ['The cat sat', 'on the mat'] });
  assert.deepEqual(embeddings.map((vector) => vector.length), [64, 64]);
  const { embedding } = await asked.embeddings({ model: 'embedder:latest', prompt: 'The cat sat' });
  const cosine = embedding.reduce((sum, number, place) => sum + number * embeddings[0][place], 0);
  assert.ok(cosine > 0.99999);
  await refused(() => client().embed({ model, input: 'The cat sat' }), 400, 'does not make embeddings');
});

// One request runs at a time there: the second is answered only because the first was given up.
check('stream_aborted', async () => {
  const long = [{ role: 'user', content: `say: ${'word '.repeat(3000)}` }];
  const asked = client('narrow');
  const stream = await asked.chat({ model, messages: long, stream: true });
  await assert.rejects(
    async () => {
      for await (const part of stream) {
        assert.equal(part.done, false);
        asked.abort();
      }
    },
    { name: 'AbortError' },
  );
  assert.equal((await client('narrow').chat({ model, messages })).message.content, 'Hello there');
});

await run();
