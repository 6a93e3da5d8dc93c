// The messages that are shown, and where they are scrolled to.

import { openCalls, path, versions } from './conversation.js'
import { el } from './elements.js'
import { MessageView } from './message.js'

const NEAR_END = 80 // pixels: whoever is so near the end follows what comes
const EXAMPLES = ['What is the capital of France?', 'Tell me a short story.', 'Name three fruits.']

/** Shows one conversation. `does` are the actions of messages, `ask(text)` sends an example, `lost` takes the focus. */
export class Thread {
  #views = new Map()
  #follows = true
  #frame = 0

  constructor({ root, scroll, latest, does, ask, lost }) {
    Object.assign(this, { root, scroll, latest, does, ask, lost })
    scroll.addEventListener('scroll', () => this.#noteScroll(), { passive: true })
    latest.addEventListener('click', () => this.toEnd())
    new ResizeObserver(() => this.#follow()).observe(root)
  }

  /** Show a conversation as it is now. */
  show(conversation, isBusy) {
    const isOther = conversation.id !== this.conversation?.id
    if (isOther) {
      this.#views.clear()
      this.root.replaceChildren()
    }
    this.conversation = conversation
    this.isBusy = isBusy
    const focus = this.#focused()
    const shown = path(conversation)
    const kept = new Map(shown.map((message) => [message.id, this.#view(message)]))
    for (const [id, view] of this.#views) if (kept.get(id) !== view) view.element.remove()
    this.#views = kept
    this.root.querySelector('.welcome')?.remove()
    shown.forEach((message, place) => {
      const view = kept.get(message.id)
      if (this.root.children[place] !== view.element) this.root.insertBefore(view.element, this.root.children[place] ?? null)
      this.#update(view)
    })
    if (!shown.length) this.root.append(this.#welcome())
    if (isOther) this.toEnd()
    if (focus && !isOther) this.#focusAgain(focus)
  }

  /** Which button of which message has the focus: its message may be drawn anew, or be another version. */
  #focused() {
    const { activeElement } = document
    const place = [...this.root.children].findIndex((article) => article.contains(activeElement))
    return place < 0 ? null : { place, label: activeElement.ariaLabel }
  }

  #focusAgain({ place, label }) {
    if (this.root.contains(document.activeElement)) return
    const article = this.root.children[place]
    const same = label && article?.querySelector(`.message-foot [aria-label="${label}"]:enabled`)
    const near = same || article?.querySelector('.versions button:enabled')
    if (near) near.focus()
    else this.lost()
  }

  /** A message has grown; drawn once per frame, however many chunks come. */
  grow(message) {
    this.grown = message
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0
      const view = this.#views.get(this.grown.id)
      if (view) this.#update(view)
    })
  }

  toEnd() {
    this.#follows = true
    this.#follow()
  }

  #view(message) {
    const known = this.#views.get(message.id)
    return known?.message === message ? known : new MessageView(message, this.does)
  }

  #update(view) {
    const all = versions(this.conversation, view.message.id)
    const place = all.indexOf(view.message)
    const open = view.message.calls ? openCalls(this.conversation, view.message) : []
    view.update({ versions: all.length, place, open, isBusy: this.isBusy })
  }

  #follow() {
    if (this.#follows) this.scroll.scrollTop = this.scroll.scrollHeight
    this.#noteScroll()
  }

  #noteScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroll
    this.#follows = scrollHeight - scrollTop - clientHeight < NEAR_END
    this.latest.hidden = this.#follows
  }

  #welcome() {
    const buttons = EXAMPLES.map((text) => el('button', { type: 'button', class: 'example', onclick: () => this.ask(text), text }))
    return el(
      'div',
      { class: 'welcome' },
      el('img', { src: 'page/icon.svg', alt: '', width: '52', height: '52' }),
      el('h2', { text: 'What can I do for you?' }),
      el('div', { class: 'examples' }, ...buttons),
    )
  }
}
