// The list of conversations.

import { el } from './elements.js'

/** Shows conversations; `pick(id)` is called for the one that is clicked. */
export class Sidebar {
  constructor(list, pick) {
    this.list = list
    this.pick = pick
  }

  show(conversations, currentId, isRunning) {
    const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.id : null
    this.list.replaceChildren(...conversations.map((each) => this.#entry(each, currentId, isRunning(each.id))))
    if (focused) this.list.querySelector(`[data-id="${focused}"]`)?.focus()
  }

  #entry(conversation, currentId, isBusy) {
    const set = {
      type: 'button',
      'data-id': conversation.id,
      'aria-current': conversation.id === currentId ? 'page' : null,
      onclick: () => this.pick(conversation.id),
    }
    const dot = isBusy ? el('span', { class: 'dot', role: 'img', 'aria-label': 'answering' }) : null
    return el('li', {}, el('button', set, el('span', { class: 'name', text: conversation.title || 'New chat' }), dot))
  }
}
