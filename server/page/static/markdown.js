// Markdown to a tree of blocks. Pure: it knows no DOM. HTML is text like any other.

import { parseInline } from './inline.js'

const DEEPEST = 10
const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`]*)$/
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$/
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/
const QUOTE = /^ {0,3}> ?/
const ITEM = /^( {0,3})([-*+]|(\d{1,9})[.)])(?:( {1,4})(?! )|(?=\s|$)|( )(?= {4}))(.*)$/
const TASK = /^\[([ xX])\]\s+/
const DELIMITERS = /^ {0,3}\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/

/** The blocks of a text. */
export function parseMarkdown(text) {
  return parseBlocks(text.replace(/\r\n?/g, '\n').replace(/\t/g, '    ').split('\n'), 0)
}

function parseBlocks(lines, depth) {
  const blocks = []
  let at = 0
  while (at < lines.length) {
    const line = lines[at]
    if (!line.trim()) {
      at += 1
      continue
    }
    const taken =
      takeFence(lines, at) ??
      takeLine(line) ??
      (depth < DEEPEST ? takeQuote(lines, at, depth) ?? takeList(lines, at, depth) : null) ??
      takeTable(lines, at) ??
      takeParagraph(lines, at, depth)
    blocks.push(taken.block)
    at += taken.lines
  }
  return blocks
}

function takeFence(lines, at) {
  const found = FENCE.exec(lines[at])
  if (!found) return null
  const [, indent, fence, info] = found
  const inner = []
  let next = at + 1
  for (; next < lines.length; next += 1) {
    const end = FENCE.exec(lines[next])
    if (end && end[2][0] === fence[0] && end[2].length >= fence.length && !end[3].trim()) break
    inner.push(lines[next].replace(new RegExp(`^ {0,${indent.length}}`), ''))
  }
  const block = { type: 'code', language: info.trim().split(/\s/)[0], text: inner.join('\n') }
  return { block, lines: Math.min(next, lines.length - 1) - at + 1 }
}

function takeLine(line) {
  const heading = HEADING.exec(line)
  if (heading) {
    return { block: { type: 'heading', level: heading[1].length, children: parseInline(heading[2] ?? '') }, lines: 1 }
  }
  return RULE.test(line) ? { block: { type: 'rule' }, lines: 1 } : null
}

function takeQuote(lines, at, depth) {
  if (!QUOTE.test(lines[at])) return null
  const inner = []
  let next = at
  for (; next < lines.length; next += 1) {
    if (QUOTE.test(lines[next])) inner.push(lines[next].replace(QUOTE, ''))
    else if (lines[next].trim() && !beginsBlock(lines, next)) inner.push(lines[next])
    else break
  }
  return { block: { type: 'quote', blocks: parseBlocks(inner, depth + 1) }, lines: next - at }
}

function takeList(lines, at, depth) {
  const first = ITEM.exec(lines[at])
  if (!first || RULE.test(lines[at])) return null
  const items = []
  let next = at
  let isLoose = false
  while (next < lines.length) {
    const item = ITEM.exec(lines[next])
    if (!item || RULE.test(lines[next]) || sign(item) !== sign(first)) break
    const width = item[1].length + item[2].length + (item[4] ?? ' ').length
    const inner = [item[6]]
    next += 1
    for (; next < lines.length; next += 1) {
      const line = lines[next]
      if (!line.trim()) {
        if (!continues(lines, next, width, first)) break
        inner.push('')
      } else if (indentOf(line) >= width) inner.push(line.slice(width))
      else if (ITEM.test(line) || beginsBlock(lines, next) || !lines[next - 1].trim()) break
      else inner.push(line.trimStart()) // a paragraph that goes on
    }
    while (inner.length > 1 && !inner.at(-1)) inner.pop()
    isLoose ||= inner.includes('') && inner.some((line, place) => !line && indentOf(inner[place + 1] ?? '  ') < 2)
    items.push(makeItem(inner, depth))
    const blank = next
    while (next < lines.length && !lines[next].trim()) next += 1
    if (next > blank && ITEM.test(lines[next] ?? '')) isLoose = true
  }
  const block = { type: 'list', isOrdered: first[3] !== undefined, start: Number(first[3] ?? 1), isLoose, items }
  return { block, lines: next - at }
}

function sign(item) {
  return item[3] === undefined ? item[2] : item[2].at(-1)
}

/** Whether what follows blank lines still belongs to an item whose text begins at `width`. */
function continues(lines, at, width) {
  let next = at
  while (next < lines.length && !lines[next].trim()) next += 1
  return next < lines.length && indentOf(lines[next]) >= width
}

function makeItem(inner, depth) {
  const task = TASK.exec(inner[0])
  if (!task) return { isDone: null, blocks: parseBlocks(inner, depth + 1) }
  const rest = [inner[0].slice(task[0].length), ...inner.slice(1)]
  return { isDone: task[1] !== ' ', blocks: parseBlocks(rest, depth + 1) }
}

function indentOf(line) {
  return line.length - line.trimStart().length
}

function takeTable(lines, at) {
  if (!isTable(lines, at)) return null
  const header = cells(lines[at])
  const align = cells(lines[at + 1]).map(alignment)
  const rows = []
  let next = at + 2
  for (; next < lines.length && lines[next].trim() && lines[next].includes('|'); next += 1) {
    const row = cells(lines[next])
    rows.push(header.map((_, column) => parseInline(row[column] ?? '')))
  }
  const block = { type: 'table', align, header: header.map((cell) => parseInline(cell)), rows }
  return { block, lines: next - at }
}

function isTable(lines, at) {
  const below = lines[at + 1]
  if (!lines[at].includes('|') || below === undefined || !below.includes('-') || !DELIMITERS.test(below)) return false
  return cells(lines[at]).length === cells(below).length
}

/** Cells between the bars of a row; a bar in code or behind a backslash is no border. */
function cells(line) {
  const found = ['']
  let isCode = false
  const row = line.trim().replace(/^\|/, '').replace(/(?<!\\)\|$/, '')
  for (let at = 0; at < row.length; at += 1) {
    if (row[at] === '`') isCode = !isCode
    if (row[at] === '\\' && row[at + 1] === '|') {
      found[found.length - 1] += '|'
      at += 1
    } else if (row[at] === '|' && !isCode) found.push('')
    else found[found.length - 1] += row[at]
  }
  return found.map((cell) => cell.trim())
}

function alignment(cell) {
  if (cell.endsWith(':')) return cell.startsWith(':') ? 'center' : 'right'
  return 'left'
}

function takeParagraph(lines, at, depth) {
  let next = at + 1
  while (next < lines.length && lines[next].trim() && !(depth < DEEPEST && beginsBlock(lines, next))) next += 1
  const text = lines.slice(at, next).map((line) => line.trim())
  return { block: { type: 'paragraph', children: parseInline(text.join('\n')) }, lines: next - at }
}

/** Whether a line ends a paragraph because another block begins with it. */
function beginsBlock(lines, at) {
  const line = lines[at]
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)) return true
  const item = ITEM.exec(line)
  return (item !== null && Boolean(item[6].trim()) && (item[3] === undefined || item[3] === '1')) || isTable(lines, at)
}
