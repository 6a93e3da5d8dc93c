// Questions to the user, as native dialogs: they keep the focus and close with Escape.

import { readTools } from './conversation.js'
import { el, iconButton } from './elements.js'

/** Open a dialog of some content; the promise gives what `read()` returns, or null when it was closed. */
export function ask(title, content, { yes, read = () => true, check = () => '', isDanger = false }) {
  return new Promise((answer) => {
    const failure = el('p', { class: 'failure', role: 'alert', hidden: true })
    const close = () => dialog.close()
    const submit = el('button', { type: 'submit', class: isDanger ? 'small danger' : 'small strong', text: yes })
    const buttons = [el('button', { type: 'button', class: 'small', onclick: close, text: 'Cancel' }), submit]
    let found = null
    const onsubmit = (event) => {
      event.preventDefault()
      failure.textContent = check()
      failure.hidden = !failure.textContent
      if (!failure.hidden) return
      found = read()
      dialog.close()
    }
    const form = el('form', { onsubmit }, ...content, failure, el('div', { class: 'dialog-foot' }, ...buttons))
    const dialog = framed(title, form, () => answer(found))
    dialog.showModal()
    dialog.querySelector('input, textarea, .strong, .danger')?.focus()
  })
}

function framed(title, content, closed) {
  const heading = el('h2', { id: 'dialog-title', text: title })
  const head = el('div', { class: 'dialog-head' }, heading, iconButton('close', 'Close', () => dialog.close()))
  const dialog = el('dialog', { 'aria-labelledby': 'dialog-title' }, head, content)
  dialog.addEventListener('close', () => {
    dialog.remove()
    closed()
  })
  document.body.append(dialog)
  return dialog
}

function field(id, label, input, told = '') {
  input.id = id
  const hint = told ? el('p', { class: 'told', id: `${id}-told`, text: told }) : null
  if (hint) input.setAttribute('aria-describedby', hint.id)
  return el('div', { class: 'field' }, el('label', { for: id, text: label }), input, hint)
}

/** The API key, or null. */
export function askKey() {
  const input = el('input', { type: 'password', autocomplete: 'off', required: true, spellcheck: 'false' })
  const told = 'This server wants a key. It is kept for this tab only, and forgotten when the tab is closed.'
  const content = [field('key', 'API key', input, told)]
  return ask('API key', content, { yes: 'Use key', read: () => input.value.trim() })
}

/** A new name, or null. */
export function askName(name) {
  const input = el('input', { type: 'text', required: true, maxlength: '200' })
  input.value = name
  return ask('Rename', [field('name', 'Name of the conversation', input)], { yes: 'Rename', read: () => input.value.trim() })
}

/** Whether to delete. */
export function askDelete(name) {
  const text = el('p', { text: `“${name}” and all its versions will be gone from this browser.` })
  return ask('Delete the conversation?', [text], { yes: 'Delete', isDanger: true })
}

/** 'json' or 'markdown', or null. */
export function askFormat() {
  const choice = (value, label, told, isFirst) => {
    const input = el('input', { type: 'radio', name: 'format', value, checked: isFirst })
    return el('label', { class: 'choice' }, input, el('span', {}, el('b', { text: label }), el('br'), told))
  }
  const choices = [
    choice('markdown', 'Markdown', 'What is shown, to read and to share.', true),
    choice('json', 'JSON', 'Everything, with all versions and settings.', false),
  ]
  const group = el('fieldset', {}, el('legend', { text: 'Format' }), ...choices)
  return ask('Export', [group], { yes: 'Download', read: () => group.querySelector(':checked').value })
}

/** New settings of a conversation, or null. */
export function askSettings({ system = '', temperature = null, maxTokens = null, tools = '' }) {
  const area = (value, rows) => Object.assign(el('textarea', { rows, spellcheck: 'false' }), { value })
  const number = (value, set) => Object.assign(el('input', { type: 'number', placeholder: 'default', ...set }), { value: value ?? '' })
  const inputs = {
    system: area(system, '3'),
    temperature: number(temperature, { min: '0', max: '2', step: 'any' }),
    maxTokens: number(maxTokens, { min: '1', step: '1' }),
    tools: area(tools, '5'),
  }
  inputs.tools.classList.add('mono')
  const toolsTold = 'A JSON list of functions: name, description, parameters. You are asked for what they return.'
  const content = [
    field('system', 'System prompt', inputs.system),
    el(
      'div',
      { class: 'pair' },
      field('temperature', 'Temperature', inputs.temperature),
      field('max-tokens', 'Most tokens', inputs.maxTokens),
    ),
    field('tool-list', 'Tools', inputs.tools, toolsTold),
  ]
  const check = () => {
    try {
      if (inputs.tools.value.trim()) readTools(inputs.tools.value)
      return ''
    } catch (error) {
      return `The tools cannot be read: ${error.message}`
    }
  }
  const asNumber = (input) => (input.value === '' ? null : Number(input.value))
  const read = () => ({
    system: inputs.system.value,
    temperature: asNumber(inputs.temperature),
    maxTokens: asNumber(inputs.maxTokens),
    tools: inputs.tools.value,
  })
  return ask('Settings of this conversation', content, { yes: 'Save', check, read })
}

const SHORTCUTS = [
  ['Enter', 'send the message'],
  ['Shift + Enter', 'new line'],
  ['Esc', 'stop the answer, leave an edit, close a dialog'],
  ['/', 'to the message field'],
  ['Alt + N', 'new chat'],
  ['Alt + ↑ / ↓', 'conversation before, after'],
  ['Alt + R', 'answer again'],
  ['Alt + E', 'edit the last message'],
  ['Alt + P', 'show or hide the steps'],
  ['Alt + T', 'theme: system, light, dark'],
  ['?', 'this list'],
]

/** The list of shortcuts. */
export function showShortcuts() {
  const rows = SHORTCUTS.flatMap(([keys, does]) => [
    el('dt', {}, ...keys.split(/( \+ | \/ )/).map((part) => (part.length === 3 && part.startsWith(' ') ? part : el('kbd', { text: part })))),
    el('dd', { text: does }),
  ])
  const dialog = framed('Shortcuts', el('dl', { class: 'shortcuts' }, ...rows), () => {})
  dialog.showModal()
}
