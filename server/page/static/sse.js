// Server-sent events out of pieces of text. Only `data` counts here; comments and names are passed over.

/** Collects pieces; `push` returns the data of every event that a piece completes. */
export class EventParser {
  #rest = ''
  #data = []

  push(text) {
    const found = []
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/)
    this.#rest = lines.pop()
    for (const line of lines) {
      if (line === '') {
        if (this.#data.length) found.push(this.#data.join('\n'))
        this.#data = []
      } else if (line.startsWith('data:')) {
        this.#data.push(line.slice(line[5] === ' ' ? 6 : 5))
      }
    }
    return found
  }
}

/** Every event of a stream of bytes as parsed JSON, until `[DONE]` or the end; then the stream is read to its end. */
export async function* events(bytes) {
  const reader = bytes.pipeThrough(new TextDecoderStream()).getReader()
  const parser = new EventParser()
  let isOver = false
  try {
    for (;;) {
      const { value, done } = await reader.read()
      if (done) return
      for (const data of parser.push(value)) {
        isOver ||= data === '[DONE]'
        if (!isOver) yield JSON.parse(data)
      }
    }
  } finally {
    reader.cancel().catch(() => {}) // it may have failed already, which the caller has heard
  }
}
