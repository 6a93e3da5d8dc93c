// Markdown to trees: the blocks and marks that models write, and text that means harm.
import assert from 'node:assert/strict'
import { test } from 'node:test'

import { isSafe, parseInline } from './page/inline.js'
import { parseMarkdown } from './page/markdown.js'

const text = (...parts) => parts.map((part) => ({ type: 'text', text: part }))
const plain = (nodes) => nodes.map((node) => node.text ?? (node.type === 'break' ? '\n' : plain(node.children))).join('')
const only = (source) => {
  const blocks = parseMarkdown(source)
  assert.equal(blocks.length, 1, JSON.stringify(blocks))
  return blocks[0]
}

test('headings of six levels, with and without closing signs', () => {
  for (let level = 1; level <= 6; level += 1) {
    assert.deepEqual(only(`${'#'.repeat(level)} A title ##`), { type: 'heading', level, children: text('A title') })
  }
  assert.equal(only('####### seven').type, 'paragraph')
  assert.equal(only('#hashtag').type, 'paragraph')
})

test('paragraphs end at blank lines, their lines are breaks', () => {
  const [first, second] = parseMarkdown('one\ntwo\n\n\nthree')
  assert.deepEqual(first.children.map((node) => node.type), ['text', 'break', 'text'])
  assert.equal(plain(second.children), 'three')
})

test('fences keep what is in them, and one that is not closed goes to the end', () => {
  assert.deepEqual(only('```python title\nif a < b:\n    # no heading\n```'), {
    type: 'code',
    language: 'python',
    text: 'if a < b:\n    # no heading',
  })
  assert.equal(only('~~~\n```\n~~~').text, '```')
  assert.equal(only('````\n```\n````').text, '```')
  assert.deepEqual(only('```js\nhalf'), { type: 'code', language: 'js', text: 'half' })
  assert.deepEqual(parseMarkdown('before\n```\nx\n```\nafter').map((block) => block.type), ['paragraph', 'code', 'paragraph'])
  assert.equal(only('  ```\n  in\n    two\n  ```').text, 'in\n  two')
  assert.equal(only('```').text, '')
})

test('lists: bullets, numbers, nesting, tasks, loose ones', () => {
  const list = only('- one\n- two\n  - inner\n    goes on\n  - second\n- three')
  assert.deepEqual([list.isOrdered, list.isLoose, list.items.length], [false, false, 3])
  const [said, inner] = list.items[1].blocks
  assert.equal(plain(said.children), 'two')
  assert.equal(plain(inner.items[0].blocks[0].children), 'inner\ngoes on')
  const numbered = only('3. three\n4. four')
  assert.deepEqual([numbered.isOrdered, numbered.start, numbered.items.length], [true, 3, 2])
  assert.equal(only('1) a\n2) b').items.length, 2)
  assert.deepEqual(only('- [ ] open\n- [x] done\n- plain').items.map((item) => item.isDone), [false, true, null])
  assert.equal(only('- a\n\n- b').isLoose, true)
  const parts = only('1. Text\n\n   ```sh\n   ls\n   ```\n\n2. More').items
  assert.deepEqual(parts[0].blocks.map((block) => block.type), ['paragraph', 'code'])
  assert.equal(parts[0].blocks[1].text, 'ls')
  assert.deepEqual(parseMarkdown('- a\n* b').map((block) => block.items.length), [1, 1])
  assert.deepEqual(parseMarkdown('- a\n\nafter').map((block) => block.type), ['list', 'paragraph'])
})

test('a line that only looks like a list is none', () => {
  assert.equal(only('*emphasis* first').type, 'paragraph')
  assert.equal(only('-5 degrees').type, 'paragraph')
  assert.equal(only('in the year\n1984. It was').type, 'paragraph')
  assert.deepEqual(parseMarkdown('text\n- item').map((block) => block.type), ['paragraph', 'list'])
})

test('quotes hold blocks and lazy lines', () => {
  const quote = only('> # Title\n> text\ngoes on\n>\n> - item')
  assert.deepEqual(quote.blocks.map((block) => block.type), ['heading', 'paragraph', 'list'])
  assert.equal(plain(quote.blocks[1].children), 'text\ngoes on')
})

test('tables: alignment, missing cells, bars in code and behind backslashes', () => {
  const table = only('| a | b | c |\n|:--|:-:|--:|\n| 1 | `x|y` | p \\| q |\n| only |')
  assert.deepEqual(table.align, ['left', 'center', 'right'])
  assert.deepEqual(table.header.map(plain), ['a', 'b', 'c'])
  assert.deepEqual(table.rows.map((row) => row.map(plain)), [['1', 'x|y', 'p | q'], ['only', '', '']])
  assert.deepEqual(only('a | b\n--|--\n1 | 2').rows.map((row) => row.map(plain)), [['1', '2']])
  assert.equal(only('a | b\n--').type, 'paragraph')
  assert.deepEqual(parseMarkdown('text\n|a|b|\n|-|-|\n|1|2|').map((block) => block.type), ['paragraph', 'table'])
})

test('rules', () => {
  for (const source of ['---', '***', '___', ' - - - ']) assert.deepEqual(only(source), { type: 'rule' })
})

test('marks, also in each other', () => {
  assert.deepEqual(parseInline('**bold** and *slanted*'), [
    { type: 'strong', children: text('bold') },
    ...text(' and '),
    { type: 'emphasis', children: text('slanted') },
  ])
  assert.deepEqual(parseInline('**a *b* c**'), [
    { type: 'strong', children: [...text('a '), { type: 'emphasis', children: text('b') }, ...text(' c')] },
  ])
  assert.deepEqual(parseInline('***both***'), [{ type: 'strong', children: [{ type: 'emphasis', children: text('both') }] }])
  assert.deepEqual(parseInline('~~gone~~'), [{ type: 'deleted', children: text('gone') }])
  assert.deepEqual(parseInline('__x__ _y_').map((node) => node.type), ['strong', 'text', 'emphasis'])
})

test('signs that are no marks stay', () => {
  for (const source of ['snake_case_name', '2 * 3 * 4', 'a ** b', '5*', '**', '* *', '~', 'a_b', '**open']) {
    assert.equal(plain(parseInline(source)), source)
  }
  assert.equal(parseInline('snake_case_name').length, 1)
  assert.deepEqual(parseInline('\\*not\\* \\`code\\`'), text('*not* `code`'))
})

test('code in a line hides every mark', () => {
  assert.deepEqual(parseInline('`**a**`'), [{ type: 'code', text: '**a**' }])
  assert.deepEqual(parseInline('`` a ` b ``'), [{ type: 'code', text: 'a ` b' }])
  assert.deepEqual(parseInline('**`a**b`**'), [{ type: 'strong', children: [{ type: 'code', text: 'a**b' }] }])
  assert.equal(plain(parseInline('a ` b')), 'a ` b')
})

test('links, bare addresses, and pictures as links', () => {
  const [link] = parseInline('[the **text**](https://example.org/a_(b) "title")')
  assert.deepEqual([link.type, link.address], ['link', 'https://example.org/a_(b)'])
  assert.deepEqual(parseInline('see https://example.org/x?y=1.'), [
    ...text('see '),
    { type: 'link', address: 'https://example.org/x?y=1', children: text('https://example.org/x?y=1') },
    ...text('.'),
  ])
  assert.equal(parseInline('<mailto:a@b.c>')[0].address, 'mailto:a@b.c')
  assert.deepEqual(parseInline('![a cat](https://example.org/cat.png)').map((node) => node.type), ['link'])
  assert.equal(parseInline('(https://example.org)')[1].address, 'https://example.org')
  assert.equal(parseInline('[a] and [b]').length, 1)
})

const HARM = [
  '[x](javascript:alert(1))',
  '[x](JaVaScRiPt:alert(1))',
  '[x]( javascript:alert(1))',
  '[x](data:text/html,<script>alert(1)</script>)',
  '[x](vbscript:x)',
  '[x](file:///etc/passwd)',
  '[x](//example.org)',
  '[x](/v1/models)',
  '![x](javascript:alert(1))',
  '<javascript:alert(1)>',
  '[x](java\tscript:alert(1))',
  '[x](&#106;avascript:alert(1))',
]

test('no address runs or leads into the own server', () => {
  const links = (nodes) => nodes.flatMap((node) => [...(node.type === 'link' ? [node] : []), ...links(node.children ?? [])])
  for (const source of HARM) {
    const found = parseMarkdown(source).flatMap((block) => links(block.children))
    assert.deepEqual(found, [], source)
  }
  assert.ok(!isSafe('https:'))
})

test('HTML is text', () => {
  const source = '<img src=x onerror=alert(1)> <script>alert(1)</script> <b>x</b>'
  assert.deepEqual(only(source).children, text(source))
})

test('no text gets lost', () => {
  const source = 'A <b>x</b> [y] (z) `c` 100 % _ * ~ \\ end'
  assert.equal(plain(only(source).children), source.replace('`c`', 'c'))
})

test('hostile lengths and depths are read in time that grows with the length', () => {
  const many = 40_000
  const sources = [
    '*a '.repeat(many),
    '**a '.repeat(many),
    '['.repeat(many),
    '[a]('.repeat(many),
    '`'.repeat(many),
    '` '.repeat(many),
    '_'.repeat(many),
    '<https://'.repeat(many / 4),
    '> '.repeat(many),
    `${'> '.repeat(500)}deep`,
    '- '.repeat(500),
    Array.from({ length: 500 }, (_, depth) => `${' '.repeat(2 * depth)}- x`).join('\n'),
    '|a'.repeat(many),
    `|${'a|'.repeat(1000)}\n|${'-|'.repeat(1000)}\n`.repeat(3),
    '```\n'.repeat(many / 2),
    '1. '.repeat(many / 4),
    '*'.repeat(many),
    '~~a'.repeat(many),
    '!['.repeat(many),
    '\\'.repeat(many),
    'http://'.repeat(many / 4),
    '- a\n\n'.repeat(3000),
    '\n'.repeat(many),
  ]
  for (const source of sources) assert.ok(Array.isArray(parseMarkdown(source)))
})

test('every beginning of a text can be shown while it streams', () => {
  const source = '# T\n\n1. **a** `b`\n   - [x] c\n\n| a | b |\n|---|---|\n| [l](https://e.org) | ~~d~~ |\n\n> q\n\n```js\nx\n```\n'
  for (let end = 0; end <= source.length; end += 1) assert.ok(Array.isArray(parseMarkdown(source.slice(0, end))))
})
