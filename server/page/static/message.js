// One message of the thread as DOM, kept in step with its data.

import { facts, thinkingTime } from './answer.js'
import { el, icon, iconButton, wordButton } from './elements.js'
import { picture } from './pictures.js'
import { copyButton, Markdown, renderCode } from './render.js'

const SAID_BY = { user: 'You', assistant: 'Model', tool: 'Result of a tool' }

/** A message. `does` = {edit(message, text), retry(message), version(message, step), results(message, texts)}. */
export class MessageView {
  #prose = new Markdown()
  #thought = new Markdown()
  #isEdited = false

  constructor(message, does) {
    this.message = message
    this.does = does
    this.body = el('div', { class: 'body' })
    this.foot = el('div', { class: 'message-foot' })
    const label = SAID_BY[message.role]
    this.element = el('article', { class: `message ${message.role}`, 'aria-label': label }, this.body, this.foot)
    if (message.role === 'assistant') this.#buildAnswer()
  }

  #buildAnswer() {
    this.summary = el('summary', {})
    this.reasoning = el('details', { class: 'fold reasoning', hidden: true }, this.summary, this.#thought.element)
    this.calls = el('div', { class: 'calls' })
    this.waiting = el('span', { class: 'waiting', role: 'img', 'aria-label': 'The model is working' })
    this.failure = el('p', { class: 'failure', hidden: true })
    this.body.append(this.reasoning, this.#prose.element, this.calls, this.waiting, this.failure)
  }

  /** Show the message as it is now; `versions` and `place` count its siblings, `open` are calls without a result. */
  update({ versions, place, open, isBusy }) {
    if (this.message.role === 'assistant') this.#updateAnswer(open, isBusy)
    else if (this.message.role === 'tool') this.#updateResult()
    else if (!this.#isEdited) this.body.replaceChildren(...this.#said())
    if (!this.#isEdited) this.foot.replaceChildren(...this.#actions(versions, place, isBusy))
  }

  #said() {
    const { images, content } = this.message
    const pictures = (images ?? []).map((url, place) => picture(url, place))
    const shown = pictures.length ? [el('div', { class: 'pictures' }, ...pictures)] : []
    return content ? [...shown, el('div', { class: 'said', text: content })] : shown
  }

  #updateAnswer(open, isBusy) {
    const { message } = this
    const isRunning = message.state === 'running'
    this.#prose.show(message.content)
    if (message.reasoning) this.#updateReasoning(isRunning && !message.content && !message.calls)
    this.waiting.hidden = !isRunning || Boolean(message.content || message.calls || message.reasoning)
    this.element.setAttribute('aria-busy', String(isRunning))
    this.failure.hidden = message.state !== 'failed'
    this.failure.textContent = message.error ?? ''
    this.#updateCalls(isRunning || isBusy ? [] : open)
  }

  #updateReasoning(isThinking) {
    this.#thought.show(this.message.reasoning)
    const took = thinkingTime(this.message)
    const title = isThinking ? 'Thinking' : took ? `Thought for ${took}` : 'Thought'
    if (this.summary.textContent !== title) this.summary.textContent = title
    if (this.reasoning.hidden || (this.wasThinking && !isThinking)) this.reasoning.open = isThinking
    this.wasThinking = isThinking
    this.reasoning.hidden = false
  }

  #updateCalls(open) {
    const key = JSON.stringify([this.message.calls, open])
    if (key === this.shownCalls) return
    this.shownCalls = key
    this.calls.replaceChildren(...(this.message.calls ?? []).map((call) => callView(call)))
    if (open.length) this.calls.append(this.#resultForm(open))
  }

  /** Fields for what the called functions would return: this page runs no tools. */
  #resultForm(open) {
    const fields = open.map((call, number) => {
      const id = `result-${this.message.id}-${number}`
      const field = el('textarea', { id, rows: '2', placeholder: 'What the function returns' })
      return { call, field, shown: el('div', {}, el('label', { for: id, text: `Result of ${call.name}` }), field) }
    })
    const send = () => this.does.results(this.message, fields.map(({ call, field }) => ({ call, text: field.value })))
    const onsubmit = (event) => {
      event.preventDefault()
      send()
    }
    const button = el('button', { type: 'submit', class: 'small strong', text: open.length > 1 ? 'Send results' : 'Send result' })
    return el('form', { class: 'results', onsubmit }, ...fields.map(({ shown }) => shown), button)
  }

  #updateResult() {
    const { content, name } = this.message
    const title = el('summary', {}, icon('tool'), `Result of ${name}`)
    this.body.replaceChildren(el('details', { class: 'fold' }, title, renderCode({ language: '', text: content })))
  }

  #actions(versions, place, isBusy) {
    const { message, does } = this
    if (message.state === 'running') return []
    const made = []
    if (versions > 1) {
      const step = (by, name, label) =>
        iconButton(name, label, () => does.version(message, by), { disabled: isBusy || !(place + by in Array(versions).fill(0)) })
      made.push(
        el(
          'span',
          { class: 'versions', role: 'group', 'aria-label': `Version ${place + 1} of ${versions}` },
          step(-1, 'left', 'Version before'),
          el('span', { class: 'count', text: `${place + 1}/${versions}` }),
          step(1, 'right', 'Version after'),
        ),
      )
    }
    if (message.content && message.role !== 'tool') made.push(copyButton(() => message.content, 'Copy'))
    if (message.role === 'user') made.push(iconButton('pencil', 'Edit', () => this.edit(), { disabled: isBusy }))
    if (message.role === 'assistant') {
      made.push(iconButton('retry', 'Retry', () => does.retry(message), { disabled: isBusy }))
      made.push(el('span', { class: 'facts', text: facts(message).join(' · ') }))
    }
    return made
  }

  /** Let the user change what was said; sending it branches the conversation. */
  edit() {
    this.#isEdited = true
    const field = el('textarea', { 'aria-label': 'Edit the message', rows: '3' })
    field.value = this.message.content
    const cancel = () => {
      this.#isEdited = false
      this.does.refresh()
      this.foot.querySelector('[aria-label="Edit"]')?.focus()
    }
    const send = () => {
      if (field.value.trim() && this.does.edit(this.message, field.value)) this.#isEdited = false
    }
    field.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
        event.preventDefault()
        send()
      } else if (event.key === 'Escape') {
        event.stopPropagation()
        cancel()
      }
    })
    const buttons = [wordButton(null, 'Cancel', cancel), wordButton(null, 'Send', send, { class: 'small strong' })]
    this.body.replaceChildren(el('div', { class: 'editor' }, field, el('div', { class: 'editor-foot' }, ...buttons)))
    this.foot.replaceChildren()
    field.focus()
    field.setSelectionRange(field.value.length, field.value.length)
  }
}

function callView({ name, arguments: text }) {
  const title = el('summary', {}, icon('tool'), 'Calls ', el('code', { text: name || '…' }))
  return el('details', { class: 'fold call', open: true }, title, renderCode({ language: 'json', text: pretty(text) }))
}

/** Arguments over several lines once they are whole. */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2)
  } catch {
    return text
  }
}
