// The panel beside the chat: figures, the picture of the steps, and what one of them was.

import { stepEvents } from './api.js'
import { el, icon, iconButton } from './elements.js'
import { describe, StepHistory } from './step_history.js'
import { drawSample, StepPicture } from './step_picture.js'

const AGAIN_MS = 3000
const FIGURES_MS = 250
const SUMMARY_MS = 3000
const CALM_MS = 500 // between two drawings for those who want less motion
const KINDS = [
  ['prefill', 'prompt'],
  ['decode', 'next token'],
  ['accepted', 'guess, right'],
  ['rejected', 'guess, wrong'],
  ['denoise', 'denoised'],
  ['padding', 'padding'],
]

/** Watches only while it is open and the tab is seen: nobody pays for steps that nobody looks at. */
export class StepPanel {
  #history = new StepHistory()
  #control = null
  #isOpen = false
  #selected = -1
  #frozen = null
  #frame = 0

  constructor(root, { model, isDark, closed }) {
    Object.assign(this, { root, model, isDark })
    this.#build(closed)
    this.picture = new StepPicture(this.canvas)
    document.addEventListener('visibilitychange', () => this.#watch())
    new ResizeObserver(() => this.redraw()).observe(this.canvas)
    setInterval(() => this.#isOpen && !this.#frozen && this.#showFigures(), FIGURES_MS)
    setInterval(() => this.#isOpen && this.#showSummary(), SUMMARY_MS)
  }

  get isOpen() {
    return this.#isOpen
  }

  open(isOpen) {
    this.#isOpen = isOpen
    this.root.hidden = !isOpen
    this.#watch()
    this.redraw()
    if (isOpen) this.#showFigures()
  }

  /** Begin again: another model or another key. */
  restart() {
    this.#control?.abort()
    this.#control = null
    this.#watch()
  }

  redraw() {
    if (this.#frame || !this.#isOpen) return
    const draw = () => {
      this.#frame = 0
      this.picture.draw(this.#shown, this.#selected, this.isDark())
    }
    const isCalm = matchMedia('(prefers-reduced-motion: reduce)').matches
    this.#frame = isCalm ? setTimeout(draw, CALM_MS) : requestAnimationFrame(draw)
  }

  /** Colours have changed. */
  recolour() {
    for (const [kind, canvas] of this.samples) drawSample(canvas, kind, this.isDark())
    this.redraw()
  }

  get #shown() {
    return this.#frozen ?? this.#history.steps
  }

  #build(closed) {
    this.pause = iconButton('pause', 'Pause', () => this.#togglePause())
    const head = el('div', { class: 'panel-head' }, el('h2', { text: 'Steps' }), this.pause, iconButton('close', 'Close the steps', closed))
    this.figures = Object.fromEntries(['rate', 'useful', 'queue', 'time'].map((name) => [name, el('dd', { text: '–' })]))
    const figure = (name, title) => el('div', { class: 'figure' }, el('dt', { text: title }), this.figures[name])
    const figures = el(
      'dl',
      { class: 'figures' },
      figure('rate', 'tokens / s'),
      figure('useful', 'useful rows'),
      figure('queue', 'running + waiting'),
      figure('time', 'ms per step'),
    )
    this.used = el('div', {})
    const range = { 'aria-valuemin': '0', 'aria-valuemax': '0', 'aria-valuenow': '0' }
    this.meter = el('div', { class: 'meter', role: 'meter', 'aria-label': 'KV slots in use', ...range }, this.used)
    this.slots = el('span', { text: '–' })
    const slots = el('div', { class: 'columns' }, el('span', { text: 'KV slots' }), this.meter, this.slots)
    this.summary = el('p', { class: 'unseen', id: 'steps-summary' })
    this.canvas = el('canvas', {
      class: 'picture',
      tabindex: '0',
      role: 'img',
      'aria-label': 'Rows of the last steps by request. Arrow keys describe single steps.',
      'aria-describedby': 'steps-summary',
      onpointermove: (event) => this.#select(this.picture.placeAt(event.offsetX, this.#shown)),
      onpointerleave: () => this.#select(-1),
      onkeydown: (event) => this.#step(event),
      onblur: () => this.#select(-1),
    })
    this.detail = el('p', { class: 'detail', 'aria-live': 'polite' })
    this.samples = KINDS.map(([kind]) => [kind, el('canvas', { class: 'sample', 'aria-hidden': 'true' })])
    const legend = KINDS.map(([, label], place) => el('li', {}, this.samples[place][1], label))
    this.state = el('p', { class: 'panel-state', role: 'status' })
    this.missed = el('p', { class: 'panel-state' })
    const told = 'A column is one run of the graph, a cell one of its rows, a colour one request.'
    this.root.replaceChildren(
      ...[head, figures, slots, this.canvas, this.summary, el('ul', { class: 'legend' }, ...legend)],
      ...[el('p', { class: 'told', text: told }), this.detail, this.state, this.missed],
    )
  }

  #watch() {
    const isWanted = this.#isOpen && !document.hidden
    if (!isWanted) {
      this.#control?.abort()
      this.#control = null
    } else if (!this.#control) {
      this.#control = new AbortController()
      this.#follow(this.#control)
    }
  }

  async #follow(control) {
    let wait = AGAIN_MS
    try {
      for await (const event of stepEvents(this.model(), control.signal)) {
        this.state.textContent = ''
        this.#history.take(event, performance.now())
        this.redraw()
      }
      this.state.textContent = 'The model is not loaded.'
    } catch (error) {
      if (control.signal.aborted) return
      this.state.textContent = error.status === 401 ? 'Needs an API key.' : error.message
      wait = Math.max(wait, 1000 * (error.retryAfterS ?? 0))
    }
    setTimeout(() => {
      if (this.#control !== control) return
      this.#control = null
      this.#watch()
    }, wait)
  }

  #togglePause() {
    this.#frozen = this.#frozen ? null : [...this.#history.steps]
    const label = this.#frozen ? 'Go on' : 'Pause'
    this.pause.replaceChildren(icon(this.#frozen ? 'play' : 'pause'))
    this.pause.setAttribute('aria-label', label)
    this.pause.title = label
    this.redraw()
  }

  #step(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key]
    if (!by || event.altKey) return
    event.preventDefault()
    if (!this.#frozen) this.#togglePause() // what is described must not move away
    const last = this.#shown.length - 1
    this.#select(this.#selected < 0 ? last : Math.min(last, Math.max(0, this.#selected + by)))
  }

  #select(place) {
    this.#selected = place
    const step = this.#shown[place]
    this.detail.textContent = step ? describe(step) : ''
    this.redraw()
  }

  #showFigures() {
    const now = performance.now()
    const { gauges, dropped } = this.#history
    const [useful, time] = [this.#history.usefulRows(), this.#history.medianMs()]
    const rate = this.#history.tokensPerSecond(now)
    this.figures.rate.textContent = rate >= 100 ? Math.round(rate).toLocaleString('en') : rate.toFixed(rate ? 1 : 0)
    this.figures.useful.textContent = useful === null ? '–' : `${Math.round(100 * useful)} %`
    this.figures.queue.textContent = `${gauges.running} + ${gauges.waiting}`
    this.figures.time.textContent = time === null ? '–' : time < 10 ? time.toFixed(2) : time.toFixed(0)
    this.meter.setAttribute('aria-valuemax', gauges.kv_slots_total)
    this.meter.setAttribute('aria-valuenow', gauges.kv_slots_used)
    this.used.style.width = `${(100 * gauges.kv_slots_used) / (gauges.kv_slots_total || 1)}%`
    this.slots.textContent = `${gauges.kv_slots_used.toLocaleString('en')} of ${gauges.kv_slots_total.toLocaleString('en')}`
    if (dropped) this.missed.textContent = `${dropped.toLocaleString('en')} steps came too fast to be shown.`
  }

  #showSummary() {
    this.summary.textContent = this.#history.summary(performance.now())
  }
}
