// The page's own lists agree with each other.
import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { test } from 'node:test'

const sources = readdirSync('page').map((name) => [name, readFileSync(`page/${name}`, 'utf8')])
const scripts = sources.filter(([name]) => name.endsWith('.js')).map(([, text]) => text).join('\n')
const sheets = sources.filter(([name]) => name.endsWith('.css')).map(([, text]) => text).join('\n')
const html = readFileSync('page/index.html', 'utf8')

test('every id that a script wants is in the page', () => {
  const wanted = [...scripts.matchAll(/byId\('([^']+)'\)|\bon\('([^']+)',/g)].map((found) => found[1] ?? found[2])
  assert.ok(wanted.length > 15)
  for (const id of wanted) assert.ok(html.includes(`id="${id}"`), id)
})

test('every icon that is named can be drawn', async () => {
  const known = scripts.match(/const PATHS = \{([\s\S]*?)\n\}/)[1]
  const named = [...html.matchAll(/data-icon="(\w+)"/g), ...scripts.matchAll(/(?:iconButton|\bicon)\('(\w+)'/g)]
  assert.ok(named.length > 15)
  for (const [, name] of named) assert.match(known, new RegExp(`^  ${name}: `, 'm'))
})

test('no rule of the sheets is for a class that nobody has', () => {
  const given = new Set(`${html} ${scripts}`.match(/[\w-]+/g))
  const styled = new Set([...sheets.matchAll(/\.([a-z][\w-]*)(?=[^{}]*\{)/g)].map(([, name]) => name))
  const built = /^level-\d$/
  assert.deepEqual([...styled].filter((name) => !given.has(name) && !built.test(name)), [])
})
