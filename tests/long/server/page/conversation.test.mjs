// Branches: editing and retrying add versions, and what is sent is what is shown.
import assert from 'node:assert/strict'
import { test } from 'node:test'

import * as tree from './page/conversation.js'

function talk() {
  const made = tree.newConversation('c', 'm', 1)
  tree.append(made, '', { id: 'q1', role: 'user', content: 'One?' }, 2)
  tree.append(made, 'q1', { id: 'a1', role: 'assistant', content: 'Yes.' }, 3)
  tree.append(made, 'a1', { id: 'q2', role: 'user', content: 'Two?' }, 4)
  tree.append(made, 'q2', { id: 'a2', role: 'assistant', content: 'No.' }, 5)
  return made
}
const ids = (conversation) => tree.path(conversation).map((message) => message.id)

test('the first thing said is the title', () => {
  assert.equal(talk().title, 'One?')
  const long = tree.newConversation('c', 'm', 1)
  tree.append(long, '', { id: 'q', role: 'user', content: ` many  words ${'word '.repeat(40)}\nsecond line` }, 2)
  const marked = tree.newConversation('c', 'm', 1)
  tree.append(marked, '', { id: 'q', role: 'user', content: '## - Title' }, 2)
  assert.equal(marked.title, 'Title')
  assert.ok(long.title.length <= 60 && long.title.startsWith('many words word') && long.title.endsWith('…'))
})

test('an edit branches: the other version is kept with all that followed it', () => {
  const made = talk()
  tree.append(made, 'a1', { id: 'q2b', role: 'user', content: 'Three?' }, 6)
  assert.deepEqual(ids(made), ['q1', 'a1', 'q2b'])
  tree.append(made, 'q2b', { id: 'a2b', role: 'assistant', content: 'Maybe.' }, 7)
  assert.deepEqual(tree.versions(made, 'q2b').map((message) => message.id), ['q2', 'q2b'])
  assert.equal(tree.chooseVersion(made, 'q2b', -1).id, 'q2')
  assert.deepEqual(ids(made), ['q1', 'a1', 'q2', 'a2'])
  assert.equal(tree.chooseVersion(made, 'q2', -1), undefined)
  tree.chooseVersion(made, 'q2', 1)
  assert.deepEqual(ids(made), ['q1', 'a1', 'q2b', 'a2b'])
})

test('a retry is another version of the answer', () => {
  const made = talk()
  tree.append(made, 'q2', { id: 'a2b', role: 'assistant', content: '' }, 6)
  assert.deepEqual(ids(made), ['q1', 'a1', 'q2', 'a2b'])
  assert.deepEqual(tree.versions(made, 'a2').map((message) => message.id), ['a2', 'a2b'])
})

test('the very first message can be edited', () => {
  const made = talk()
  tree.append(made, '', { id: 'q1b', role: 'user', content: 'Other' }, 6)
  assert.deepEqual(ids(made), ['q1b'])
  assert.equal(made.title, 'One?')
})

test('what is sent is the branch, behind the system prompt', () => {
  const made = talk()
  made.settings = { system: ' Be brief. ', temperature: 0, maxTokens: 9, tools: '' }
  assert.deepEqual(tree.requestFor(made, 'q2'), {
    model: 'm',
    temperature: 0,
    max_tokens: 9,
    messages: [
      { role: 'system', content: ' Be brief. '.trim() },
      { role: 'user', content: 'One?' },
      { role: 'assistant', content: 'Yes.' },
      { role: 'user', content: 'Two?' },
    ],
  })
  made.settings = {}
  assert.deepEqual(Object.keys(tree.requestFor(made, 'q1')), ['model', 'messages'])
})

test('calls go back with their results, and know which are missing', () => {
  const made = tree.newConversation('c', 'm', 1)
  const calls = [
    { id: 'x', name: 'f', arguments: '{}' },
    { id: 'y', name: 'g', arguments: '{}' },
  ]
  tree.append(made, '', { id: 'q', role: 'user', content: 'Do' }, 2)
  const asked = tree.append(made, 'q', { id: 'a', role: 'assistant', content: '', calls }, 3)
  assert.deepEqual(tree.openCalls(made, asked), calls)
  tree.append(made, 'a', { id: 'r', role: 'tool', callId: 'x', name: 'f', content: '1' }, 4)
  assert.deepEqual(tree.openCalls(made, asked), [calls[1]])
  const sent = tree.forServer(made, 'r')
  assert.equal(sent[1].content, null)
  assert.deepEqual(sent[1].tool_calls[1], { id: 'y', type: 'function', function: { name: 'g', arguments: '{}' } })
  assert.deepEqual(sent[2], { role: 'tool', tool_call_id: 'x', content: '1' })
})

test('tools are a list, each with or without its type', () => {
  const bare = { name: 'f', parameters: {} }
  const whole = { type: 'function', function: bare }
  assert.deepEqual(tree.readTools(JSON.stringify([bare, whole])), [whole, whole])
  for (const text of ['{}', 'no', '"x"']) assert.throws(() => tree.readTools(text), SyntaxError)
})

test('as Markdown it has what is shown', () => {
  const made = talk()
  tree.find(made, 'a2').reasoning = 'Think\ntwice'
  assert.equal(tree.asMarkdown(made), '# One?\n\n## You\n\nOne?\n\n## m\n\nYes.\n\n## You\n\nTwo?\n\n## m\n\n> Think\n> twice\n\nNo.\n')
})
