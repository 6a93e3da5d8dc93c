// Trees of markdown to DOM. Elements are made one by one and text is only ever text.

import { el, icon } from './elements.js'
import { parseMarkdown } from './markdown.js'

const TAGS = { strong: 'strong', emphasis: 'em', deleted: 'del' }
const COPIED_MS = 1600

/** Keeps an element in step with a text that grows: blocks that did not change stay as they are. */
export class Markdown {
  #shown = []

  constructor() {
    this.element = el('div', { class: 'prose' })
  }

  show(text) {
    const blocks = parseMarkdown(text).map((block) => ({ block, key: JSON.stringify(block) }))
    let same = 0
    while (same < blocks.length && blocks[same].key === this.#shown[same]) same += 1
    while (this.element.childNodes.length > same) this.element.lastChild.remove()
    this.element.append(...blocks.slice(same).map(({ block }) => renderBlock(block)))
    this.#shown = blocks.map(({ key }) => key)
  }
}

function renderBlock(block) {
  switch (block.type) {
    case 'heading': // the page has the first level
      return el(`h${Math.min(6, block.level + 1)}`, { class: `level-${block.level}` }, ...renderInline(block.children))
    case 'code':
      return renderCode(block)
    case 'quote':
      return el('blockquote', {}, ...block.blocks.map(renderBlock))
    case 'list':
      return renderList(block)
    case 'table':
      return renderTable(block)
    case 'rule':
      return el('hr')
    default:
      return el('p', {}, ...renderInline(block.children))
  }
}

function renderList(block) {
  const set = block.isOrdered && block.start !== 1 ? { start: block.start } : {}
  const items = block.items.map(({ isDone, blocks }) => {
    const parts = blocks.flatMap((inner) =>
      inner.type === 'paragraph' && !block.isLoose ? renderInline(inner.children) : [renderBlock(inner)],
    )
    if (isDone === null) return el('li', {}, ...parts)
    const box = el('span', { class: 'box', role: 'img', 'aria-label': isDone ? 'done' : 'to do' })
    if (isDone) box.append(icon('check'))
    return el('li', { class: 'task' }, box, ...parts)
  })
  return el(block.isOrdered ? 'ol' : 'ul', set, ...items)
}

function renderTable({ header, align, rows }) {
  const row = (tag, cells) =>
    el('tr', {}, ...cells.map((cell, column) => el(tag, { class: align[column] }, ...renderInline(cell))))
  const body = el('tbody', {}, ...rows.map((cells) => row('td', cells)))
  const table = el('table', {}, el('thead', {}, row('th', header)), body)
  return el('div', { class: 'wide-table', tabindex: '0', role: 'region', 'aria-label': 'Table' }, table)
}

/** A block of code with its language and a button that copies it. */
export function renderCode({ language, text }) {
  const copy = copyButton(() => text, 'Copy code')
  const head = el('div', { class: 'code-head' }, el('span', { text: language || 'text' }), copy)
  const label = `Code${language ? `, ${language}` : ''}`
  return el('div', { class: 'code' }, head, el('pre', { tabindex: '0', role: 'region', 'aria-label': label }, el('code', { text })))
}

function renderInline(nodes) {
  return nodes.map((node) => {
    switch (node.type) {
      case 'text':
        return document.createTextNode(node.text)
      case 'code':
        return el('code', { text: node.text })
      case 'break':
        return el('br')
      case 'link': {
        const set = { href: node.address, target: '_blank', rel: 'noopener noreferrer nofollow' }
        return el('a', set, ...renderInline(node.children))
      }
      default:
        return el(TAGS[node.type], {}, ...renderInline(node.children))
    }
  })
}

/** A button that copies what `read` returns and says so for a moment. */
export function copyButton(read, label, set = {}) {
  const button = el('button', { type: 'button', class: 'icon', 'aria-label': label, title: label, ...set }, icon('copy'))
  const show = (name, said) => {
    button.replaceChildren(icon(name))
    button.setAttribute('aria-label', said)
  }
  button.addEventListener('click', async () => {
    await copyText(read())
    show('check', 'Copied')
    setTimeout(() => show('copy', label), COPIED_MS)
  })
  return button
}

/** A page of plain HTTP from another machine has no clipboard of its own; there the old command still works. */
async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text)
  const field = el('textarea', { class: 'unseen' })
  field.value = text
  document.body.append(field)
  field.select()
  document.execCommand('copy')
  field.remove()
}
