// Figures and bands out of the events of /v1/steps.
import assert from 'node:assert/strict'
import { test } from 'node:test'

import { bandHeights, bands, describe, StepHistory, rowsUsed } from './page/step_history.js'

const part = (sequence, kind, rows, more = {}) => ({ sequence, kind, rows, guesses: 0, accepted: 0, tokens: 0, ...more })
const step = (number, segments, more = {}) => ({ number, rows: 8, run_ms: number, segments, ...more })
const event = (steps, more = {}) => ({ steps, dropped: 0, running: 1, waiting: 2, kv_slots_used: 3, kv_slots_total: 4, ...more })

test('rows of a step from the first to the last, padding before them', () => {
  const decode = part(2, 'decode', 4, { guesses: 3, accepted: 1, tokens: 2 })
  const made = step(1, [part(1, 'prefill', 2), decode])
  assert.equal(rowsUsed(made), 6)
  assert.deepEqual(bands(made), [
    { kind: 'padding', sequence: -1, rows: 2 },
    { kind: 'prefill', sequence: 1, rows: 2 },
    { kind: 'decode', sequence: 2, rows: 1 },
    { kind: 'accepted', sequence: 2, rows: 1 },
    { kind: 'rejected', sequence: 2, rows: 2 },
  ])
  assert.equal(bands(made).reduce((sum, { rows }) => sum + rows, 0), made.rows)
})

test('a full step has no padding', () => {
  assert.deepEqual(bands(step(1, [part(1, 'denoise', 8)])).map(({ kind }) => kind), ['denoise'])
})

test('tokens per second are those of two seconds', () => {
  const history = new StepHistory()
  assert.equal(history.tokensPerSecond(0), 0)
  history.take(event([step(1, [part(1, 'decode', 1, { tokens: 6 })])]), 1000)
  history.take(event([step(2, [part(1, 'decode', 1, { tokens: 4 })])]), 2000)
  assert.equal(history.tokensPerSecond(2500), 5)
  assert.equal(history.tokensPerSecond(3500), 2)
  assert.equal(history.tokensPerSecond(9000), 0)
})

test('gauges are the last ones, lost steps add up, old ones go', () => {
  const history = new StepHistory()
  assert.deepEqual([history.usefulRows(), history.medianMs()], [null, null])
  for (let number = 0; number < 1000; number += 1) {
    history.take(event([step(number, [part(1, 'decode', 2)])], { dropped: 1, running: number }), number)
  }
  assert.deepEqual([history.steps.length, history.steps.at(-1).number, history.dropped], [600, 999, 1000])
  assert.deepEqual(history.gauges, { running: 999, waiting: 2, kv_slots_used: 3, kv_slots_total: 4 })
  assert.equal(history.usefulRows(), 0.25)
  assert.equal(history.medianMs(), 950)
})

test('what is drawn is also said', () => {
  const history = new StepHistory()
  assert.equal(history.summary(0), 'No step has been seen yet.')
  const guessed = part(7, 'decode', 2, { guesses: 1, accepted: 1, tokens: 2 })
  history.take(event([step(1, [part(3, 'prefill', 2), guessed])]), 0)
  assert.match(history.summary(0), /The last 1 steps served 2 requests; 50 percent .* 1 token per second\. 1 running, 2 waiting\./)
  assert.equal(
    describe(history.steps[0]),
    'Step 1: 4 of 8 rows, 1.0 ms · request 3: 2 prefill rows · request 7: 2 decode rows, 1 of 1 guesses right',
  )
})

test('no band is too thin to be seen and none leaves the picture', () => {
  assert.deepEqual(bandHeights([2, 3], 10, 2, 100), [20, 30])
  assert.deepEqual(bandHeights([500, 1], 0.2, 2, 200), [100, 2])
  const crowded = bandHeights(Array(300).fill(1), 0.5, 2, 200)
  assert.ok(Math.abs(crowded.reduce((sum, height) => sum + height, 0) - 200) < 1e-9)
})
