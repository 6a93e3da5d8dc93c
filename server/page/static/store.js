// Conversations in this browser's storage, one entry each, so that two tabs disturb each other as little as possible.

const PREFIX = 'hexserve.chat.'
const CURRENT = 'hexserve.current'

/** Owns what is stored. `changed` hears of what other tabs do; `failed` of a storage that is full. */
export class Store {
  #chats = new Map()

  constructor({ changed, failed }) {
    this.failed = failed
    for (const key of Object.keys(localStorage)) if (key.startsWith(PREFIX)) this.#read(key)
    addEventListener('storage', ({ key }) => {
      if (!key?.startsWith(PREFIX)) return
      this.#chats.delete(key.slice(PREFIX.length))
      this.#read(key)
      changed(key.slice(PREFIX.length))
    })
  }

  /** All conversations, the one used last first. */
  all() {
    return [...this.#chats.values()].sort((one, other) => other.updated - one.updated)
  }

  get(id) {
    return this.#chats.get(id)
  }

  /** The conversation that was shown last. */
  get current() {
    return this.get(localStorage.getItem(CURRENT) ?? '')
  }

  set current(conversation) {
    localStorage.setItem(CURRENT, conversation?.id ?? '')
  }

  save(conversation) {
    this.#chats.set(conversation.id, conversation)
    try {
      localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation))
    } catch {
      this.failed('This browser keeps no more: delete old conversations, or this one is lost with the tab.')
    }
  }

  remove(id) {
    this.#chats.delete(id)
    localStorage.removeItem(PREFIX + id)
  }

  #read(key) {
    try {
      const read = JSON.parse(localStorage.getItem(key))
      if (!Array.isArray(read?.messages)) return
      for (const message of read.messages) if (message.state === 'running') message.state = 'stopped'
      this.#chats.set(read.id, read)
    } catch {
      // Not ours, or cut off: it stays where it is and is not shown.
    }
  }
}
