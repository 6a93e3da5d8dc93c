// What is known of the last steps, and what follows from it. Pure: times come from the caller, in milliseconds.

const KEPT = 600
const RATE_MS = 2000
const RECENT = 100

/** Takes the events of /v1/steps. */
export class StepHistory {
  steps = []
  dropped = 0
  gauges = { running: 0, waiting: 0, kv_slots_used: 0, kv_slots_total: 0 }
  #counted = []

  take(event, now) {
    for (const name of Object.keys(this.gauges)) this.gauges[name] = event[name]
    this.dropped += event.dropped
    this.steps.push(...event.steps.map((step) => ({ ...step, used: rowsUsed(step) })))
    if (this.steps.length > KEPT) this.steps.splice(0, this.steps.length - KEPT)
    const tokens = event.steps.reduce((sum, step) => sum + tokensOf(step), 0)
    if (event.steps.length) this.#counted.push({ at: now, tokens })
    while (this.#counted.length && now - this.#counted[0].at > RATE_MS) this.#counted.shift()
  }

  /** New tokens per second over the last two seconds. */
  tokensPerSecond(now) {
    const recent = this.#counted.filter(({ at }) => now - at <= RATE_MS)
    return (recent.reduce((sum, { tokens }) => sum + tokens, 0) * 1000) / RATE_MS
  }

  /** Share of the rows of the last steps that were anybody's; null before the first. */
  usefulRows() {
    const recent = this.steps.slice(-RECENT)
    const rows = recent.reduce((sum, step) => sum + step.rows, 0)
    return rows ? recent.reduce((sum, step) => sum + step.used, 0) / rows : null
  }

  /** Median time of the last steps in the graphs; null before the first. */
  medianMs() {
    const times = this.steps.slice(-RECENT).map((step) => step.run_ms)
    return times.length ? times.sort((one, other) => one - other)[times.length >> 1] : null
  }

  /** Sequences in the last steps that are drawn, for those who do not see them. */
  summary(now) {
    if (!this.steps.length) return 'No step has been seen yet.'
    const sequences = new Set(this.steps.slice(-RECENT).flatMap((step) => step.segments.map((each) => each.sequence)))
    const rate = Math.round(this.tokensPerSecond(now))
    const useful = Math.round(100 * this.usefulRows())
    return (
      `The last ${Math.min(RECENT, this.steps.length)} steps served ${count(sequences.size, 'request')}; ` +
      `${useful} percent of their rows were useful. ${count(rate, 'token')} per second. ` +
      `${this.gauges.running} running, ${this.gauges.waiting} waiting.`
    )
  }
}

/** Rows of a step that are somebody's; the others are padding. */
export function rowsUsed(step) {
  return step.segments.reduce((sum, segment) => sum + segment.rows, 0)
}

function tokensOf(step) {
  return step.segments.reduce((sum, segment) => sum + segment.tokens, 0)
}

/** One step in words. */
export function describe(step) {
  const parts = step.segments.slice(0, 6).map((segment) => {
    const guessed = segment.guesses ? `, ${segment.accepted} of ${segment.guesses} guesses right` : ''
    return `request ${segment.sequence}: ${count(segment.rows, `${segment.kind} row`)}${guessed}`
  })
  if (step.segments.length > 6) parts.push(`${step.segments.length - 6} more`)
  const head = `Step ${step.number}: ${step.used} of ${count(step.rows, 'row')}, ${step.run_ms.toFixed(1)} ms`
  return [head, ...parts].join(' · ')
}

function count(number, what) {
  return `${number} ${what}${number === 1 ? '' : 's'}`
}

/** What the rows of a step are, from its first to its last: {kind, sequence, rows}, padding first. */
export function bands(step) {
  const found = []
  const padding = step.rows - rowsUsed(step)
  if (padding > 0) found.push({ kind: 'padding', sequence: -1, rows: padding })
  for (const { sequence, kind, rows, guesses, accepted } of step.segments) {
    const own = rows - guesses
    if (own > 0) found.push({ kind, sequence, rows: own })
    if (accepted > 0) found.push({ kind: 'accepted', sequence, rows: accepted })
    if (guesses > accepted) found.push({ kind: 'rejected', sequence, rows: guesses - accepted })
  }
  return found
}

/** Height of each band when a row is `unit` high: never less than `least`, all together never more than `most`. */
export function bandHeights(rows, unit, least, most) {
  const wanted = rows.map((count) => Math.max(least, count * unit))
  const total = wanted.reduce((sum, height) => sum + height, 0)
  return total <= most ? wanted : wanted.map((height) => (height * most) / total)
}
