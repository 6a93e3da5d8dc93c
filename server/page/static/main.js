// The page: wires storage, runs, the thread and the panel together.

import { ApiError, chatModels } from './api.js'
import { Runs, newId } from './chat.js'
import { Composer } from './composer.js'
import { append, asMarkdown, chooseVersion, newConversation, path } from './conversation.js'
import { askDelete, askFormat, askKey, askName, askSettings, showShortcuts } from './dialogs.js'
import { byId, drawIcons, el } from './elements.js'
import { keepKey } from './keys.js'
import { Pictures } from './pictures.js'
import { StepPanel } from './step_panel.js'
import { Sidebar } from './sidebar.js'
import { Store } from './store.js'
import { themeSwitch } from './theme.js'
import { Thread } from './thread.js'

const STEPS = 'hexserve.steps'
const WIDE = matchMedia('(min-width: 1180px)')
const AGAIN_MS = 2000

class Page {
  models = []

  constructor() {
    drawIcons()
    this.store = new Store({ changed: (id) => this.#changedElsewhere(id), failed: (text) => this.#tell(text) })
    this.runs = new Runs({
      save: (conversation) => this.store.save(conversation),
      changed: (conversation, message) => this.#grown(conversation, message),
      ended: (conversation, message) => this.#ended(conversation, message),
      refused: (conversation, message) => this.#needKey(() => this.#again(conversation, message)),
    })
    this.sidebar = new Sidebar(byId('chats'), (id) => this.open(this.store.get(id)))
    const does = {
      edit: (message, text) => this.say(text, message.parent, message.images ?? []),
      retry: (message) => this.runs.start(this.current, message.parent),
      version: (message, step) => this.#version(message, step),
      results: (message, given) => this.#giveResults(message, given),
      refresh: () => this.show(),
    }
    const [root, scroll, latest] = [byId('thread'), byId('scroll'), byId('latest')]
    const [ask, lost] = [(text) => this.say(text), () => byId('prompt').focus({ preventScroll: true })]
    this.thread = new Thread({ root, scroll, latest, does, ask, lost })
    this.composer = new Composer({
      form: byId('composer'),
      field: byId('prompt'),
      sendButton: byId('send'),
      stopButton: byId('stop'),
      send: (text) => this.say(text),
      stop: () => this.runs.stop(this.current.id),
      extras: () => this.pictures?.count ?? 0,
    })
    this.pictures = new Pictures({
      list: byId('pictures'),
      buttons: byId('adding'),
      choose: byId('add-picture'),
      camera: byId('take-picture'),
      input: byId('picture-file'),
      field: byId('prompt'),
      area: byId('frame'),
      changed: () => this.composer.refresh(),
      failed: (text, action) => this.#tell(text, action),
    })
    const close = () => this.showSteps(false)
    this.panel = new StepPanel(byId('steps'), { model: () => this.current.model, isDark, closed: close })
    this.nextTheme = themeSwitch(byId('theme'), () => this.panel.recolour())
    this.#listen()
    this.open(this.store.current ?? this.store.all()[0] ?? this.#fresh())
    const wanted = localStorage.getItem(STEPS)
    this.showSteps(wanted === null ? WIDE.matches : wanted === 'open' && WIDE.matches, false)
    this.loadModels()
  }

  /** Show a conversation. */
  open(conversation) {
    this.current = conversation
    this.store.current = conversation
    this.#toggleSidebar(false)
    if (this.models.length) this.#showModels()
    this.show()
    byId('prompt').focus({ preventScroll: true })
  }

  /** Draw the current conversation anew. */
  show() {
    const { current } = this
    const isBusy = this.runs.isRunning(current.id)
    this.thread.show(current, isBusy)
    this.composer.show(isBusy)
    byId('title').textContent = current.title || 'New chat'
    document.title = current.title ? `${current.title} · hexserve` : 'hexserve'
    byId('chat-tools').hidden = !current.messages.length
    this.#list()
  }

  /** Say something: at the end, or behind `parent`, which branches the conversation when something is there already.
   * True when it is said. */
  say(text, parent = path(this.current).at(-1)?.id ?? '', images = null) {
    const { current } = this
    if (this.runs.isRunning(current.id)) return
    if (!current.model) return this.#tell('There is no model to ask.')
    const shown = images ?? this.pictures.take()
    const message = { id: newId(), role: 'user', content: text, ...(shown.length ? { images: shown } : {}) }
    const asked = append(current, parent, message, Date.now())
    this.#answer(current, asked.id)
    return true
  }

  newChat() {
    this.open(this.current.messages.length ? this.#fresh() : this.current)
  }

  async loadModels() {
    try {
      const found = await chatModels()
      this.models = found.map(({ name }) => name)
      this.devices = new Map(found.map(({ name, device }) => [name, device]))
      this.seeing = new Set(found.filter(({ sees }) => sees).map(({ name }) => name))
      this.#tell(this.models.length ? '' : 'No model of this server can chat.')
      this.#showModels()
    } catch (error) {
      if (error.status === 401) return this.#needKey(() => this.loadModels())
      this.#tell(error.message)
      if (error instanceof ApiError) setTimeout(() => this.loadModels(), Math.max(AGAIN_MS, 1000 * error.retryAfterS))
      else throw error
    }
  }

  showSteps(isOpen, isKept = true) {
    this.panel.open(isOpen)
    byId('frame').classList.toggle('with-steps', isOpen)
    byId('show-steps').setAttribute('aria-expanded', String(isOpen))
    if (isKept) localStorage.setItem(STEPS, isOpen ? 'open' : 'closed')
    if (isKept) byId('show-steps').focus()
  }

  #answer(conversation, parent) {
    this.runs.start(conversation, parent)
    this.thread.toEnd()
    this.#say('The model is answering.')
  }

  #fresh() {
    return newConversation(newId(), this.current?.model ?? this.models[0] ?? '', Date.now())
  }

  #grown(conversation, message) {
    if (conversation !== this.current) return
    if (message.content || message.reasoning || message.calls) this.thread.grow(message)
    else this.show()
  }

  #ended(conversation, message) {
    if (conversation !== this.current) return this.#list()
    this.show()
    const said = { failed: message.error, stopped: 'Stopped.' }[message.state]
    this.#say(said ?? (message.content || 'The model calls a tool.'))
  }

  /** Ask again after a key was given: what failed for want of it goes. */
  #again(conversation, message) {
    conversation.messages = conversation.messages.filter((other) => other !== message)
    this.#answer(conversation, message.parent)
    if (!this.models.length) this.loadModels()
  }

  async #needKey(then) {
    if (document.querySelector('dialog[open]')) return
    const key = await askKey()
    if (!key) return this.#tell('This server wants an API key.', ['Give a key', () => this.#needKey(then)])
    keepKey(key)
    this.#tell('')
    this.panel.restart()
    then()
  }

  #version(message, step) {
    chooseVersion(this.current, message.id, step)
    this.store.save(this.current)
    this.show()
  }

  #giveResults(message, given) {
    const { current } = this
    let parent = message.id
    for (const { call, text } of given) {
      const result = { id: newId(), role: 'tool', callId: call.id, name: call.name, content: text }
      parent = append(current, parent, result, Date.now()).id
    }
    this.#answer(current, parent)
  }

  #showModels() {
    const select = byId('model')
    if (!this.models.includes(this.current.model)) this.current.model = this.models[0] ?? ''
    const shown = (name) => [name, this.devices.get(name)].filter(Boolean).join(' · ')
    select.replaceChildren(...this.models.map((name) => el('option', { value: name, text: shown(name) })))
    select.value = this.current.model
    this.pictures.offer(this.seeing.has(this.current.model))
  }

  #list() {
    this.sidebar.show(this.store.all(), this.current.id, (id) => this.runs.isRunning(id))
  }

  #changedElsewhere(id) {
    const found = this.store.get(id)
    if (!found) return this.#forget(id)
    if (id === this.current.id && !this.runs.isRunning(id)) this.current = found
    this.show()
  }

  /** A conversation is gone, here or in another tab: nothing more comes of it. */
  #forget(id) {
    this.runs.drop(id)
    if (id === this.current.id) this.open(this.store.all()[0] ?? this.#fresh())
    else this.#list()
  }

  async #rename() {
    const name = await askName(this.current.title)
    if (!name) return
    this.current.title = name
    this.store.save(this.current)
    this.show()
  }

  async #delete() {
    const gone = this.current
    if (!(await askDelete(gone.title))) return
    this.store.remove(gone.id)
    this.#forget(gone.id)
  }

  async #export() {
    const { current } = this
    const format = await askFormat()
    if (!format) return
    const isJson = format === 'json'
    const text = isJson ? JSON.stringify(current, null, 2) : asMarkdown(current)
    const address = URL.createObjectURL(new Blob([text], { type: isJson ? 'application/json' : 'text/markdown' }))
    const name = (current.title || 'conversation').replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-+|-+$/g, '').slice(0, 60)
    el('a', { href: address, download: `${name || 'conversation'}.${isJson ? 'json' : 'md'}` }).click()
    setTimeout(() => URL.revokeObjectURL(address), 10_000)
  }

  async #settings() {
    const { current } = this
    const given = await askSettings(current.settings)
    if (!given) return
    current.settings = given
    if (current.messages.length) this.store.save(current)
  }

  #listen() {
    const on = (id, does) => byId(id).addEventListener('click', does)
    on('new-chat', () => this.newChat())
    on('shortcuts', showShortcuts)
    on('rename', () => this.#rename())
    on('delete', () => this.#delete())
    on('export', () => this.#export())
    on('settings', () => this.#settings())
    on('show-steps', () => this.showSteps(!this.panel.isOpen))
    on('show-sidebar', () => this.#toggleSidebar(true))
    on('veil', () => this.#toggleSidebar(false))
    byId('model').addEventListener('change', (event) => {
      this.current.model = event.target.value
      this.pictures.offer(this.seeing.has(this.current.model))
      if (this.current.messages.length) this.store.save(this.current)
      this.panel.restart()
    })
    addEventListener('keydown', (event) => this.#key(event))
  }

  #key(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || document.querySelector('dialog[open]')) return
    const isTyping = event.target.matches('input, textarea, select')
    const does = event.altKey ? this.#withAlt(event.code) : isTyping ? null : this.#plain(event.key)
    if (event.key === 'Escape') this.#escape()
    else if (does) {
      event.preventDefault()
      does()
    }
  }

  #withAlt(code) {
    const others = this.store.all()
    const place = others.findIndex(({ id }) => id === this.current.id)
    const near = (step) => () => others[place + step] && this.open(others[place + step])
    const last = (label) => () => [...byId('thread').querySelectorAll(`[aria-label="${label}"]`)].at(-1)?.click()
    return {
      KeyN: () => this.newChat(),
      KeyP: () => this.showSteps(!this.panel.isOpen),
      KeyT: () => this.nextTheme(),
      KeyR: last('Retry'),
      KeyE: last('Edit'),
      ArrowUp: near(-1),
      ArrowDown: near(1),
    }[code]
  }

  #plain(key) {
    return { '/': () => byId('prompt').focus(), '?': showShortcuts }[key]
  }

  #escape() {
    if (byId('frame').classList.contains('with-sidebar')) this.#toggleSidebar(false)
    else this.runs.stop(this.current.id)
  }

  /** On narrow screens the list lies over the thread. */
  #toggleSidebar(isOpen) {
    byId('frame').classList.toggle('with-sidebar', isOpen)
    byId('veil').hidden = !isOpen
    byId('show-sidebar').setAttribute('aria-expanded', String(isOpen))
    if (isOpen) byId('new-chat').focus()
  }

  #say(text) {
    byId('said').textContent = text
  }

  #tell(text, action = null) {
    const button = action && el('button', { type: 'button', class: 'small', text: action[0], onclick: action[1] })
    byId('notice').hidden = !text
    byId('notice').replaceChildren(text, ...(button ? [button] : []))
  }
}

function isDark() {
  const { theme } = document.documentElement.dataset
  return theme === 'dark' || (theme === 'system' && matchMedia('(prefers-color-scheme: dark)').matches)
}

new Page()
