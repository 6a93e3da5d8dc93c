// DOM from values. Text only ever becomes text nodes; there is no way to pass markup.

const NAMESPACE = 'http://www.w3.org/2000/svg'

// Outlines on a grid of 24.
const PATHS = {
  plus: 'M12 5v14M5 12h14',
  menu: 'M4 7h16M4 12h16M4 17h16',
  pencil: 'M4 20h4L19 9l-4-4L4 16zM13.5 6.5l4 4',
  download: 'M12 4v11m-4.5-4L12 15.5 16.5 11M5 19.500h14',
  trash: 'M5 7h14M10 7V4.500h4V7M7 7l1 12.500h8L17 7M10.5 10.500v6M13.5 10.500v6',
  sliders: 'M4 8h9m5 0h2M4 16h2m5 0h9M13 8a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0M6 16a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0',
  bars: 'M4 19V9m5.3 10V5m5.4 14v-7M20 19V8',
  up: 'M12 19V5.500M6 11l6-6 6 6',
  down: 'M12 5v13.500M6 13l6 6 6-6',
  stop: 'M7.5 7.500h9v9h-9z',
  copy: 'M9 9h10.500v10.500H9zM15 9V4.500H4.500V15H9',
  check: 'M5 12.5 10 17.5 19.5 7',
  retry: 'M19 12a7 7 0 1 1-2.2-5.100M19.5 4v4.500H15',
  left: 'M14.5 6 8.5 12l6 6',
  right: 'M9.5 6l6 6-6 6',
  sun: 'M12 8a4 4 0 1 0 0 8a4 4 0 1 0 0-8M12 2.500V5M12 19v2.500M2.5 12H5M19 12h2.500M5.3 5.3 7 7M17 17l1.7 1.700M18.7 5.3 17 7M7 17l-1.7 1.7',
  moon: 'M19.5 14.500A8 8 0 0 1 9.5 4.500a8 8 0 1 0 10 10z',
  contrast: 'M12 4a8 8 0 1 0 0 16a8 8 0 1 0 0-16M12 4v16M12 8h6.800M12 12h8M12 16h6.8',
  keyboard: 'M3.5 7h17v10h-17zM7 10.200h.01M10.3 10.200h.01M13.7 10.200h.01M17 10.200h.01M8 13.800h8',
  close: 'M6 6l12 12M18 6L6 18',
  pause: 'M9 6v12M15 6v12',
  play: 'M8 5.500v13l10.5-6.500z',
  image: 'M4 5h16v14H4zM4 16l5-5 4.500 4.500L16 13l4 4M14.5 8.500a1.400 1.400 0 1 0 0 2.800a1.400 1.400 0 1 0 0-2.800',
  camera: 'M4 8h3.5l1.500-2.500h6L16.5 8H20v11H4zM12 10a3.200 3.200 0 1 0 0 6.400a3.200 3.200 0 1 0 0-6.400',
  tool: 'M14.5 6.500a4 4 0 0 1 5-1.300L17 7.7 17.3 9.7 19 10l2.2-2.300A4 4 0 0 1 16 13l-7 7-3-3 7-7a4 4 0 0 1 1.5-3.500z',
}

/** An element; `set` holds attributes, on* listeners and `text`. False and null leave an attribute out. */
export function el(tag, set = {}, ...children) {
  const made = document.createElement(tag)
  for (const [name, value] of Object.entries(set)) {
    if (name === 'text') made.textContent = value
    else if (name.startsWith('on')) made.addEventListener(name.slice(2), value)
    else if (value === true) made.setAttribute(name, '')
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value)
  }
  made.append(...children.filter((child) => child !== null && child !== undefined))
  return made
}

/** The icon of a name, hidden from screen readers: what it stands for is said beside it. */
export function icon(name) {
  const svg = document.createElementNS(NAMESPACE, 'svg')
  const path = document.createElementNS(NAMESPACE, 'path')
  for (const [key, value] of Object.entries({ viewBox: '0 0 24 24', class: 'drawn', 'aria-hidden': 'true' })) {
    svg.setAttribute(key, value)
  }
  path.setAttribute('d', PATHS[name])
  svg.append(path)
  return svg
}

/** A button of an icon and a name that is read out and shown on hover. */
export function iconButton(name, label, onclick, set = {}) {
  return el('button', { type: 'button', class: 'icon', 'aria-label': label, title: label, onclick, ...set }, icon(name))
}

/** A button of words, perhaps behind an icon. */
export function wordButton(name, label, onclick, set = {}) {
  return el('button', { type: 'button', class: 'small', onclick, ...set }, name ? icon(name) : null, label)
}

/** Replace the icons that the HTML names. */
export function drawIcons(root = document) {
  for (const place of root.querySelectorAll('[data-icon]')) place.replaceWith(icon(place.dataset.icon))
}

/** The element with an id; the page has it. */
export function byId(id) {
  return document.getElementById(id)
}
