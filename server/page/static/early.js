// Before anything is drawn: the theme that was chosen, and room for the panel if it was open.
'use strict'
{
  const root = document.documentElement
  try {
    root.dataset.theme = localStorage.getItem('hexserve.theme') || 'system'
  } catch {
    root.dataset.theme = 'system' // storage may be blocked
  }
}
