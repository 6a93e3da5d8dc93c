// Events out of pieces, and an answer out of its chunks.
import assert from 'node:assert/strict'
import { test } from 'node:test'

import { facts, takeChunk, thinkingTime } from './page/answer.js'
import { EventParser, events } from './page/sse.js'

const STREAM = ': hello\n\ndata: {"a": 1}\n\nevent: steps\ndata: {"b":\ndata: 2}\n\r\ndata:{"c": 3}\r\n\r\n'

test('events come whole however the text is cut', () => {
  for (let size = 1; size <= STREAM.length; size += 1) {
    const parser = new EventParser()
    const found = []
    for (let at = 0; at < STREAM.length; at += size) found.push(...parser.push(STREAM.slice(at, at + size)))
    assert.deepEqual(found.map(JSON.parse), [{ a: 1 }, { b: 2 }, { c: 3 }], `pieces of ${size}`)
  }
})

test('bytes are read to their end, and nothing behind [DONE] counts', async () => {
  const bytes = new Blob(['data: {"x": "é"}\n\ndata: [DONE]\n\ndata: {"x": "late"}\n\n']).stream()
  const found = []
  for await (const event of events(bytes)) found.push(event)
  assert.deepEqual(found, [{ x: 'é' }])
})

test('who leaves early cancels the stream', async () => {
  let isCancelled = false
  const bytes = new ReadableStream({
    pull: (control) => control.enqueue(new TextEncoder().encode('data: 1\n\n')),
    cancel: () => (isCancelled = true),
  })
  for await (const event of events(bytes)) {
    assert.equal(event, 1)
    break
  }
  await new Promise((done) => setImmediate(done))
  assert.ok(isCancelled)
})

const chunk = (delta, finish = null) => ({ choices: [{ delta, finish_reason: finish }] })

test('an answer: thought, text, end, usage', () => {
  const message = { content: '', askedAt: 1000 }
  takeChunk(message, chunk({ role: 'assistant', content: '' }), 1100)
  assert.equal(message.firstAt, undefined)
  takeChunk(message, chunk({ reasoning_content: 'Hm' }), 1500)
  takeChunk(message, chunk({ reasoning_content: '.' }), 2500)
  takeChunk(message, chunk({ content: 'Yes' }), 2600)
  takeChunk(message, chunk({}, 'stop'), 3500)
  takeChunk(message, { choices: [], usage: { prompt_tokens: 3, completion_tokens: 21 } }, 3500)
  message.endedAt = 3500
  assert.deepEqual([message.reasoning, message.content, message.finish], ['Hm.', 'Yes', 'stop'])
  assert.equal(thinkingTime(message), '1.0 s')
  assert.deepEqual(facts(message), ['21 tokens', '10.0 per second', 'first after 500 ms'])
})

test('calls are put together by their index', () => {
  const message = { content: '' }
  const call = (index, more) => chunk({ tool_calls: [{ index, ...more }] })
  takeChunk(message, call(0, { id: 'a', type: 'function', function: { name: 'f', arguments: '' } }), 1)
  takeChunk(message, call(0, { function: { arguments: '{"x":' } }), 2)
  takeChunk(message, call(1, { id: 'b', function: { name: 'g', arguments: '{}' } }), 3)
  takeChunk(message, call(0, { function: { arguments: ' 1}' } }), 4)
  assert.deepEqual(message.calls, [
    { id: 'a', name: 'f', arguments: '{"x": 1}' },
    { id: 'b', name: 'g', arguments: '{}' },
  ])
})

test('why an answer ended is said', () => {
  assert.deepEqual(facts({ state: 'stopped' }), ['stopped'])
  assert.deepEqual(facts({ state: 'done', finish: 'length' }), ['cut at the token limit'])
})
