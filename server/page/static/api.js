// The server's API. Addresses are relative to the page, so that it also works below a path of a proxy.

import { apiKey } from './keys.js'
import { events } from './sse.js'

/** An answer that is not a success, or none at all (status 0). */
export class ApiError extends Error {
  constructor(status, message, retryAfterS = 0) {
    super(message)
    this.status = status
    this.retryAfterS = retryAfterS
  }
}

/** The models that can chat, as {name, sees, device}, each with its adapters behind it; what is not known yet counts as one. */
export async function chatModels(signal) {
  const answer = await ask('v1/models', { signal })
  const listed = (await answer.json()).data.filter((model) => model.meta.generates !== false)
  const sees = (meta) => Boolean(meta.capabilities?.includes('vision'))
  return listed.map(({ id, meta }) => ({ name: id, sees: sees(meta), device: meta.device ?? '' }))
}

/** The chunks of an answer; throws ApiError, also in the middle. */
export async function* chatChunks(body, signal) {
  const asked = { ...body, stream: true, stream_options: { include_usage: true } }
  const headers = { 'Content-Type': 'application/json' }
  const answer = await ask('v1/chat/completions', { method: 'POST', headers, body: JSON.stringify(asked), signal })
  for await (const chunk of read(answer)) {
    if (chunk.error) throw new ApiError(answer.status, chunk.error.message)
    yield chunk
  }
}

/** The events of GET /v1/steps of a model. */
export async function* stepEvents(model, signal) {
  const query = model ? `?model=${encodeURIComponent(model)}` : ''
  yield* read(await ask(`v1/steps${query}`, { signal }))
}

async function* read(answer) {
  try {
    yield* events(answer.body)
  } catch (error) {
    throw error.name === 'AbortError' ? error : new ApiError(0, 'The connection to the server broke.')
  }
}

async function ask(path, { headers = {}, ...rest }) {
  const key = apiKey()
  const shown = key ? { ...headers, Authorization: `Bearer ${key}` } : headers
  let answer
  try {
    answer = await fetch(path, { ...rest, headers: shown })
  } catch (error) {
    throw error.name === 'AbortError' ? error : new ApiError(0, 'The server does not answer.')
  }
  if (!answer.ok) {
    const body = await answer.json().catch(() => null)
    const message = body?.error?.message ?? `The server answered ${answer.status}.`
    throw new ApiError(answer.status, message, Number(answer.headers.get('Retry-After')) || 0)
  }
  return answer
}
