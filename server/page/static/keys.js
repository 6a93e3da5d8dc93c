// The API key: for this tab and until it is closed, nowhere else.

const PLACE = 'hexserve.key'

/** The key, '' when there is none. */
export function apiKey() {
  return sessionStorage.getItem(PLACE) ?? ''
}

/** Keep a key for this tab; '' forgets it. */
export function keepKey(key) {
  if (key) sessionStorage.setItem(PLACE, key)
  else sessionStorage.removeItem(PLACE)
}
