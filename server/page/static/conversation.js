// A conversation is a tree of messages: editing or retrying one adds a sibling, and nothing is ever lost by it.
// `chosen` says for each parent ('' = the root) which child is shown.

/** An empty conversation. */
export function newConversation(id, model, now) {
  return { id, title: '', created: now, updated: now, model, settings: {}, messages: [], chosen: {} }
}

/** Add a message below `parent` and show it; returns it. */
export function append(conversation, parent, message, now) {
  const made = { ...message, parent }
  conversation.messages.push(made)
  conversation.chosen[parent] = made.id
  conversation.updated = now
  if (!conversation.title && made.role === 'user') conversation.title = titleOf(made.content)
  return made
}

/** The message of an id. */
export function find(conversation, id) {
  return conversation.messages.find((message) => message.id === id)
}

/** The messages that are shown, from the first to the last. */
export function path(conversation) {
  const children = new Map()
  for (const message of conversation.messages) {
    if (!children.has(message.parent)) children.set(message.parent, [])
    children.get(message.parent).push(message)
  }
  const found = []
  let below = children.get('')
  while (below) {
    const parent = below[0].parent
    const shown = below.find((message) => message.id === conversation.chosen[parent]) ?? below.at(-1)
    found.push(shown)
    below = children.get(shown.id)
  }
  return found
}

/** All versions of a message, itself included, in the order in which they were made. */
export function versions(conversation, id) {
  const { parent } = find(conversation, id)
  return conversation.messages.filter((message) => message.parent === parent)
}

/** Show another version of a message: the one `step` places further, if there is one. */
export function chooseVersion(conversation, id, step) {
  const all = versions(conversation, id)
  const other = all[all.findIndex((message) => message.id === id) + step]
  if (other) conversation.chosen[other.parent] = other.id
  return other
}

/** The messages up to one, as the API takes them. */
export function forServer(conversation, lastId) {
  const shown = []
  for (let id = lastId; id; id = find(conversation, id).parent) shown.unshift(find(conversation, id))
  const system = conversation.settings.system?.trim()
  return [...(system ? [{ role: 'system', content: system }] : []), ...shown.map(asSent)]
}

function asSent(message) {
  if (message.role === 'tool') return { role: 'tool', tool_call_id: message.callId, content: message.content }
  if (message.role === 'assistant' && message.calls?.length) {
    const calls = message.calls.map((call) => ({
      id: call.id,
      type: 'function',
      function: { name: call.name, arguments: call.arguments },
    }))
    return { role: 'assistant', content: message.content || null, tool_calls: calls }
  }
  return { role: message.role, content: message.images?.length ? withImages(message) : message.content }
}

function withImages({ images, content }) {
  const parts = images.map((url) => ({ type: 'image_url', image_url: { url } }))
  return content ? [...parts, { type: 'text', text: content }] : parts
}

/** What is asked of the server for an answer to the message of `lastId`. */
export function requestFor(conversation, lastId) {
  const { temperature, maxTokens, tools } = conversation.settings
  const body = { model: conversation.model, messages: forServer(conversation, lastId) }
  if (Number.isFinite(temperature)) body.temperature = temperature
  if (Number.isFinite(maxTokens)) body.max_tokens = maxTokens
  if (tools?.trim()) body.tools = readTools(tools)
  return body
}

/** Tools from text: a JSON list of functions, each with or without its `{"type": "function"}` around it. */
export function readTools(text) {
  const listed = JSON.parse(text)
  if (!Array.isArray(listed)) throw new SyntaxError('The tools must be a JSON list.')
  return listed.map((tool) => (tool?.type === 'function' ? tool : { type: 'function', function: tool }))
}

/** Calls of a message whose results are not there yet. */
export function openCalls(conversation, message) {
  const below = conversation.messages.filter((other) => other.role === 'tool')
  const answered = new Set(below.filter((other) => isBelow(conversation, other, message.id)).map((one) => one.callId))
  return (message.calls ?? []).filter((call) => !answered.has(call.id))
}

function isBelow(conversation, message, id) {
  for (let at = message.parent; at; at = find(conversation, at).parent) if (at === id) return true
  return false
}

function titleOf(text) {
  const line = text.trim().split('\n')[0].replace(/^[#>*\-\s]+/, '').replace(/\s+/g, ' ') || 'Untitled'
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line
}

/** The conversation as Markdown: what is shown of it. */
export function asMarkdown(conversation) {
  const names = { user: 'You', assistant: conversation.model || 'Model', tool: 'Result' }
  const parts = [`# ${conversation.title || 'Conversation'}`]
  for (const message of path(conversation)) {
    parts.push(`## ${names[message.role]}`)
    if (message.reasoning) parts.push(message.reasoning.trim().replace(/^/gm, '> '))
    if (message.images) parts.push(`*Images: ${message.images.length}*`)
    if (message.content) parts.push(message.content.trim())
    for (const call of message.calls ?? []) parts.push(`\`\`\`json\n${call.name} ${call.arguments}\n\`\`\``)
  }
  return `${parts.join('\n\n')}\n`
}
