// Light, dark, or what the system says. `early.js` sets it before the page is drawn.

import { icon } from './elements.js'

const PLACE = 'hexserve.theme'
const THEMES = ['system', 'light', 'dark']
const ICONS = { system: 'contrast', light: 'sun', dark: 'moon' }

/** Make a button that goes through the themes; `changed` hears of every change, the system's too. */
export function themeSwitch(button, changed) {
  const root = document.documentElement
  const show = () => {
    const theme = root.dataset.theme
    button.replaceChildren(icon(ICONS[theme]), `Theme: ${theme}`)
    changed()
  }
  const next = () => {
    root.dataset.theme = THEMES[(THEMES.indexOf(root.dataset.theme) + 1) % THEMES.length]
    localStorage.setItem(PLACE, root.dataset.theme)
    show()
  }
  button.addEventListener('click', next)
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', changed)
  show()
  return next
}
