// The steps on a canvas: one step is a column of rows, the newest at the right; below it its time in the graphs.

import { bandHeights, bands } from './step_history.js'

const COLUMN = 7
const GAP = 1
const GUTTER = 38
const TIMES = 42 // height of the strip of times
const TOP = 8
const LEAST = 2
const MOST_UNIT = 26
const CELLS_FROM = 5 // rows of so many pixels are drawn one by one
const HUES = {
  light: ['#2f63cf', '#c8581d', '#1f8a58', '#9440b8', '#c2305f', '#0c7a8e', '#7d6d10', '#5b4bc4', '#a63f30', '#3f7a26'],
  dark: ['#6f9dff', '#f2945a', '#55cd92', '#cd86ec', '#f5799f', '#42c1d6', '#d3be4e', '#a99cff', '#f08878', '#8bcf69'],
}
const INKS = {
  light: { text: '#5c636b', line: '#e2e4e8', padding: '#dfe2e6', bar: '#a9b2be', mark: '#1d2127', ground: '#ffffff' },
  dark: { text: '#9aa3ad', line: '#2b3036', padding: '#343a41', bar: '#59636e', mark: '#f2f4f6', ground: '#16191d' },
}

/** Colour of a request. */
export function hueOf(sequence, isDark) {
  const hues = HUES[isDark ? 'dark' : 'light']
  return hues[sequence % hues.length]
}

/** Draws a part of a history; `selected` is the place in it of the step that is described. */
export class StepPicture {
  constructor(canvas) {
    this.canvas = canvas
    this.pen = canvas.getContext('2d')
  }

  /** How many steps fit. */
  get columns() {
    return Math.max(1, Math.floor((this.canvas.clientWidth - GUTTER) / COLUMN))
  }

  /** The place in `steps` of what is drawn at x, or -1. */
  placeAt(x, steps) {
    const first = Math.max(0, steps.length - this.columns)
    const place = first + Math.floor((x - this.#left(steps.length - first)) / COLUMN)
    return place >= first && place < steps.length ? place : -1
  }

  draw(steps, selected, isDark) {
    const { canvas, pen } = this
    const scale = devicePixelRatio || 1
    const [width, height] = [canvas.clientWidth, canvas.clientHeight]
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale)
      canvas.height = Math.round(height * scale)
    }
    pen.setTransform(scale, 0, 0, scale, 0, 0)
    this.inks = INKS[isDark ? 'dark' : 'light']
    this.isDark = isDark
    pen.clearRect(0, 0, width, height)
    const shown = steps.slice(-this.columns)
    const plot = height - TIMES - TOP
    const mostRows = Math.max(8, ...shown.map((step) => step.rows))
    const unit = Math.min(MOST_UNIT, plot / mostRows)
    this.#axes(width, plot, Math.floor(plot / unit), unit)
    const slowest = Math.max(0.001, ...shown.map((step) => step.run_ms))
    shown.forEach((step, place) => {
      const x = this.#left(shown.length) + place * COLUMN
      this.#column(step, x, plot, unit)
      const tall = Math.max(1, ((TIMES - 20) * step.run_ms) / slowest)
      pen.fillStyle = this.inks.bar
      pen.fillRect(x, height - 2 - tall, COLUMN - GAP, tall)
    })
    if (shown.length) this.#note(slowest < 10 ? slowest.toFixed(1) : String(Math.round(slowest)), height - TIMES + 24)
    this.#note('ms', height - 4)
    const at = selected - (steps.length - shown.length)
    if (at >= 0 && at < shown.length) this.#mark(this.#left(shown.length) + at * COLUMN, height)
  }

  #left(count) {
    return GUTTER + (this.columns - count) * COLUMN
  }

  #axes(width, plot, rows, unit) {
    const { pen, inks } = this
    const step = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024].find((each) => each * unit >= 34) ?? 2048
    for (let row = 0; row <= rows; row += step) {
      const y = Math.round(TOP + plot - row * unit)
      pen.fillStyle = inks.line
      pen.fillRect(GUTTER, y, width - GUTTER, 1)
      this.#note(row ? String(row) : '', y + 4)
    }
    this.#note('rows', TOP + plot + 4)
  }

  #note(text, y) {
    const { pen } = this
    pen.fillStyle = this.inks.text
    pen.font = '11px system-ui, sans-serif'
    pen.textAlign = 'right'
    pen.fillText(text, GUTTER - 6, y)
  }

  /** Rows of a graph are filled from the last one: padding is on top. */
  #column(step, x, plot, unit) {
    const parts = bands(step)
    const heights = bandHeights(parts.map(({ rows }) => rows), unit, LEAST, plot)
    let y = TOP + plot - heights.reduce((sum, each) => sum + each, 0)
    parts.forEach((part, place) => {
      if (unit >= CELLS_FROM) {
        for (let row = 0; row < part.rows; row += 1) this.#cell(part, x, y + row * unit, unit - 1)
      } else this.#cell(part, x, y, Math.max(1, heights[place] - (heights[place] > 3 ? 1 : 0)))
      y += heights[place]
    })
  }

  #cell({ kind, sequence }, x, y, height) {
    const { pen, inks } = this
    const wide = COLUMN - GAP
    const hue = kind === 'padding' ? inks.padding : hueOf(sequence, this.isDark)
    pen.fillStyle = pen.strokeStyle = hue
    pen.lineWidth = 1
    if (kind === 'padding' || kind === 'rejected') {
      pen.strokeRect(x + 0.5, y + 0.5, wide - 1, Math.max(1, height - 1))
      return
    }
    pen.globalAlpha = kind === 'prefill' ? 0.42 : 1
    pen.fillRect(x, y, wide, height)
    pen.globalAlpha = 1
    pen.fillStyle = inks.ground
    if (kind === 'accepted' && height >= 4) pen.fillRect(x + 2, y + 1.5, wide - 4, height - 3)
    if (kind === 'denoise' && height >= 4) pen.fillRect(x, y + height / 2 - 0.5, wide, 1)
  }

  #mark(x, height) {
    this.pen.strokeStyle = this.inks.mark
    this.pen.lineWidth = 1.5
    this.pen.strokeRect(x - 1.25, TOP - 4, COLUMN - GAP + 2.5, height - TOP + 3)
  }
}

/** Draw one cell of each kind, for the legend. */
export function drawSample(canvas, kind, isDark) {
  const [width, height] = [14, 12]
  const scale = devicePixelRatio || 1
  canvas.width = width * scale
  canvas.height = height * scale
  const pen = canvas.getContext('2d')
  pen.setTransform(scale, 0, 0, scale, 0, 0)
  const inks = INKS[isDark ? 'dark' : 'light']
  pen.fillStyle = pen.strokeStyle = kind === 'padding' ? inks.bar : hueOf(0, isDark)
  if (kind === 'padding' || kind === 'rejected') pen.strokeRect(0.5, 0.5, width - 1, height - 1)
  else {
    pen.globalAlpha = kind === 'prefill' ? 0.42 : 1
    pen.fillRect(0, 0, width, height)
    pen.globalAlpha = 1
    pen.fillStyle = inks.ground
    if (kind === 'accepted') pen.fillRect(3.5, 3, width - 7, height - 6)
    if (kind === 'denoise') pen.fillRect(0, height / 2 - 0.75, width, 1.5)
  }
}
