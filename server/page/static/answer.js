// A message of the model, built from the chunks of its stream.

/** Take one chunk in; `at` is now in milliseconds. */
export function takeChunk(message, chunk, at) {
  if (chunk.usage) message.usage = { prompt: chunk.usage.prompt_tokens, completion: chunk.usage.completion_tokens }
  const choice = chunk.choices?.[0]
  if (!choice) return
  const { content, reasoning_content: thought, tool_calls: calls } = choice.delta ?? {}
  if (thought || content || calls) message.firstAt ??= at
  if (thought) {
    message.reasoning = (message.reasoning ?? '') + thought
    message.thoughtUntil = at
  }
  if (content) message.content += content
  for (const call of calls ?? []) takeCall(message, call)
  if (choice.finish_reason) message.finish = choice.finish_reason
}

function takeCall(message, { index, id, function: called }) {
  message.calls ??= []
  const known = (message.calls[index] ??= { id: '', name: '', arguments: '' })
  if (id) known.id = id
  if (called?.name) known.name = called.name
  known.arguments += called?.arguments ?? ''
}

const SHORTEST_S = 0.1 // what came all at once has no pace

/** What a finished message says of itself: tokens, tokens per second, time to the first one, why it ended. */
export function facts(message) {
  const said = []
  const tokens = message.usage?.completion
  const seconds = (message.endedAt - message.firstAt) / 1000
  if (tokens) said.push(`${tokens} ${tokens === 1 ? 'token' : 'tokens'}`)
  if (tokens > 1 && seconds >= SHORTEST_S) said.push(`${rate((tokens - 1) / seconds)} per second`)
  if (message.firstAt && message.askedAt) said.push(`first after ${duration(message.firstAt - message.askedAt)}`)
  if (message.state === 'stopped') said.push('stopped')
  else if (message.finish === 'length') said.push('cut at the token limit')
  return said
}

/** How long the model thought, or null. */
export function thinkingTime(message) {
  return message.thoughtUntil && message.firstAt ? duration(message.thoughtUntil - message.firstAt) : null
}

function rate(perSecond) {
  return perSecond.toFixed(perSecond < 100 ? 1 : 0)
}

function duration(ms) {
  return ms < 1000 ? `${Math.max(1, Math.round(ms))} ms` : `${(ms / 1000).toFixed(1)} s`
}
