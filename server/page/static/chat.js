// Answers under way: one for each conversation at most, also of conversations that are not shown.

import { takeChunk } from './answer.js'
import { ApiError, chatChunks } from './api.js'
import { append, requestFor } from './conversation.js'

const SAVE_EVERY_MS = 1000

/** A new id; crypto.randomUUID is missing where the page came over plain HTTP. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, '0')).join('')
}

/** Runs requests. `changed(conversation, message)` after every chunk, `ended` once, `refused` when a key is missing. */
export class Runs {
  #running = new Map()

  constructor({ save, changed, ended, refused }) {
    this.save = save
    this.changed = changed
    this.ended = ended
    this.refused = refused
  }

  isRunning(id) {
    return this.#running.has(id)
  }

  /** Stop the answer of a conversation; false when there is none. */
  stop(id) {
    this.#running.get(id)?.abort()
    return this.#running.has(id)
  }

  /** Stop the answer of a conversation that is gone: it is not kept any more. */
  drop(id) {
    this.stop(id)
    this.#running.delete(id)
  }

  /** Ask for an answer to the message `parent`. */
  async start(conversation, parent) {
    const now = Date.now()
    const empty = { id: newId(), role: 'assistant', content: '', state: 'running', askedAt: now, model: conversation.model }
    const message = append(conversation, parent, empty, now)
    const control = new AbortController()
    this.#running.set(conversation.id, control)
    this.save(conversation)
    this.changed(conversation, message)
    try {
      await this.#follow(conversation, message, control.signal)
      message.state = 'done'
    } catch (error) {
      fail(message, error)
    }
    if (!this.#running.delete(conversation.id)) return
    message.endedAt = Date.now()
    this.save(conversation)
    this.ended(conversation, message)
    if (message.status === 401) this.refused(conversation, message)
  }

  async #follow(conversation, message, signal) {
    let savedAt = Date.now()
    for await (const chunk of chatChunks(requestFor(conversation, message.parent), signal)) {
      takeChunk(message, chunk, Date.now())
      this.changed(conversation, message)
      if (Date.now() - savedAt > SAVE_EVERY_MS) {
        savedAt = Date.now()
        this.save(conversation)
      }
    }
    if (!message.finish) throw new ApiError(0, 'The answer broke off.')
  }
}

function fail(message, error) {
  if (error.name === 'AbortError') {
    message.state = 'stopped'
    return
  }
  message.state = 'failed'
  message.status = error.status
  message.error = error.message
  if (!(error instanceof ApiError)) console.error(error) // a fault of the page, not of the server
}
