// Markdown inside of a line, to a tree. Pure. Every search has a bound, so hostile text costs no more than its length.

const LONGEST_SPAN = 2000 // characters between the signs of one emphasis or link
const DEEPEST = 8
const ESCAPABLE = /[!-/:-@[-`{-~]/
const ADDRESS = /^https?:\/\/[^\s<>"'`]+/i
const IN_BRACKETS = /^<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/i
const LINK_END = /^\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/
const SAFE = /^(?:https?:|mailto:)/i
const MARKS = [
  ['**', 'strong'],
  ['__', 'strong'],
  ['~~', 'deleted'],
  ['*', 'emphasis'],
  ['_', 'emphasis'],
]

/** Nodes of a text: {type: 'text' | 'code' | 'break' | 'link' | 'strong' | 'emphasis' | 'deleted', ...}. */
export function parseInline(text, depth = 0) {
  const nodes = []
  let plain = ''
  let at = 0
  const searched = new Map() // sign -> up to where nothing closes it, so that no stretch is searched twice
  const flush = () => {
    if (plain) nodes.push({ type: 'text', text: plain })
    plain = ''
  }
  while (at < text.length) {
    const found = nodeAt(text, at, depth, searched)
    if (found?.node.type === 'text') {
      plain += found.node.text
      at = found.end
    } else if (found) {
      flush()
      nodes.push(found.node)
      at = found.end
    } else if (text[at] === '\\' && ESCAPABLE.test(text[at + 1] ?? '')) {
      plain += text[at + 1]
      at += 2
    } else {
      plain += text[at]
      at += 1
    }
  }
  flush()
  return nodes
}

function nodeAt(text, at, depth, searched) {
  switch (text[at]) {
    case '\n':
      return { node: { type: 'break' }, end: at + 1 }
    case '\\':
      return text[at + 1] === '\n' ? { node: { type: 'break' }, end: at + 2 } : null
    case '`':
      return codeAt(text, at)
    case '!':
    case '[':
      return linkAt(text, at, depth, searched)
    case '<':
      return bracketAt(text, at)
    case 'h':
    case 'H':
      return addressAt(text, at)
    case '*':
    case '_':
    case '~':
      return depth < DEEPEST ? markAt(text, at, depth, searched) : null
    default:
      return null
  }
}

function codeAt(text, at) {
  const ticks = /^`+/.exec(text.slice(at, at + LONGEST_SPAN))[0]
  const window = text.slice(at + ticks.length, at + ticks.length + LONGEST_SPAN)
  for (let from = 0; ; ) {
    const end = window.indexOf(ticks, from)
    if (end < 0) return { node: { type: 'text', text: ticks }, end: at + ticks.length }
    const run = /^`+/.exec(window.slice(end))[0]
    if (run.length === ticks.length) {
      const inner = window.slice(0, end).replace(/\n/g, ' ')
      const trimmed = /^ .*[^ ].* $/.test(inner) ? inner.slice(1, -1) : inner
      return { node: { type: 'code', text: trimmed }, end: at + 2 * ticks.length + end }
    }
    from = end + run.length
  }
}

/** [text](address), and ![text](address): no picture is loaded, it is a link to it. */
function linkAt(text, at, depth, searched) {
  const open = text[at] === '!' ? at + 1 : at
  if (text[open] !== '[' || depth >= DEEPEST) return null
  const close = closing(text, open, searched)
  if (close < 0) return null
  const target = LINK_END.exec(text.slice(close + 1, close + 1 + LONGEST_SPAN))
  if (!target) return null
  const label = text.slice(open + 1, close)
  const address = target[1].replace(/\\([!-/:-@[-`{-~])/g, '$1')
  const children = parseInline(label || address, DEEPEST) // a link holds no link, and its marks are rare
  const end = close + 1 + target[0].length
  return { node: isSafe(address) ? { type: 'link', address, children } : { type: 'text', text: text.slice(at, end) }, end }
}

function closing(text, open, searched) {
  const limit = Math.min(text.length, open + LONGEST_SPAN)
  const from = Math.max(open, searched.get(']') ?? 0)
  if (!text.slice(from, limit).includes(']')) {
    searched.set(']', limit)
    return -1
  }
  let level = 0
  for (let at = open; at < limit; at += 1) {
    if (text[at] === '\\') at += 1
    else if (text[at] === '[') level += 1
    else if (text[at] === ']' && --level === 0) return at
  }
  return -1
}

function bracketAt(text, at) {
  const found = IN_BRACKETS.exec(text.slice(at, at + LONGEST_SPAN + 10))
  return found && { node: link(found[1]), end: at + found[0].length }
}

function addressAt(text, at) {
  if (at > 0 && /\w/.test(text[at - 1])) return null
  const found = ADDRESS.exec(text.slice(at, at + LONGEST_SPAN))
  if (!found) return null
  let address = found[0].replace(/[.,;:!?*_~]+$/, '')
  while (address.endsWith(')') && count(address, ')') > count(address, '(')) address = address.slice(0, -1)
  return { node: link(address), end: at + address.length }
}

function count(text, sign) {
  return text.split(sign).length - 1
}

function link(address) {
  return { type: 'link', address, children: [{ type: 'text', text: address }] }
}

/** Only what leads to another page or a letter; a browser must also read it as that. */
export function isSafe(address) {
  if (!SAFE.test(address)) return false
  try {
    return ['http:', 'https:', 'mailto:'].includes(new URL(address).protocol)
  } catch {
    return false
  }
}

function markAt(text, at, depth, searched) {
  for (const [mark, type] of MARKS) {
    if (!text.startsWith(mark, at)) continue
    const end = markEnd(text, at, mark, searched)
    if (end > 0) {
      const children = parseInline(text.slice(at + mark.length, end), depth + 1)
      return { node: { type, children }, end: end + mark.length }
    }
  }
  const run = /^[*_~]+/.exec(text.slice(at, at + LONGEST_SPAN))[0] // nothing closes it: no sign of it is tried again
  return { node: { type: 'text', text: run }, end: at + run.length }
}

function markEnd(text, at, mark, searched) {
  const begin = at + mark.length
  const isWord = mark[0] === '_'
  if (/\s|^$/.test(text[begin] ?? '') || (isWord && /\w/.test(text[at - 1] ?? ''))) return -1
  const limit = Math.min(text.length, begin + LONGEST_SPAN)
  for (let end = Math.max(begin, searched.get(mark) ?? 0); end < limit; end += 1) {
    if (text[end] === '`') end = Math.max(end, skipCode(text, end, limit))
    else if (text[end] === '\\') end += 1
    else if (end > begin && text.startsWith(mark, end)) {
      if (mark.length === 1 && text[end + 1] === mark) {
        end += 1 // the sign of a stronger one
        continue
      }
      if (/\s/.test(text[end - 1]) || (isWord && /\w/.test(text[end + mark.length] ?? ''))) continue
      if (mark.length === 2 && text[end + 2] === mark[0]) continue // ***: the inner one closes first
      return end
    }
  }
  searched.set(mark, limit)
  return -1
}

function skipCode(text, at, limit) {
  const end = text.indexOf('`', at + 1)
  return end > 0 && end < limit ? end : at
}
