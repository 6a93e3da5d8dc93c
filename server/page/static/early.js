// Before anything is drawn: what stands in for storage that is blocked, until the page is left; and the chosen theme.
'use strict'
for (const name of ['localStorage', 'sessionStorage']) {
  try {
    window[name].getItem('')
  } catch {
    const methods = {
      getItem: (key) => kept[key] ?? null,
      setItem: (key, text) => void (kept[key] = text),
      removeItem: (key) => delete kept[key],
    }
    const kept = Object.create(methods)
    Object.defineProperty(window, name, { value: kept })
  }
}
document.documentElement.dataset.theme = localStorage.getItem('hexserve.theme') || 'system'
