// The field for the next message.

const HIGHEST = 240 // pixels, then it scrolls

/** Calls `send(text)` on Enter and on the button, which says whether the text is taken, `stop()` on the other button.
 * `extras()` counts what goes with it. */
export class Composer {
  constructor({ form, field, sendButton, stopButton, send, stop, extras }) {
    Object.assign(this, { form, field, sendButton, stopButton, send, extras })
    form.addEventListener('submit', (event) => {
      event.preventDefault()
      this.submit()
    })
    field.addEventListener('input', () => this.#fit())
    field.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
        event.preventDefault()
        this.submit()
      }
    })
    stopButton.addEventListener('click', () => {
      stop()
      field.focus()
    })
    this.#fit()
  }

  submit() {
    const text = this.field.value
    if (this.isBusy || !(text.trim() || this.extras())) return
    if (!this.send(text)) return
    this.field.value = ''
    this.#fit()
  }

  /** While an answer comes, the button stops it. */
  show(isBusy) {
    const hadFocus = [this.sendButton, this.stopButton].includes(document.activeElement)
    this.isBusy = isBusy
    this.sendButton.hidden = isBusy
    this.stopButton.hidden = !isBusy
    if (hadFocus) (isBusy ? this.stopButton : this.field).focus()
    this.#fit()
  }

  /** What goes with the text has changed. */
  refresh() {
    this.#fit()
  }

  #fit() {
    this.field.style.height = 'auto'
    this.field.style.height = `${Math.min(HIGHEST, this.field.scrollHeight)}px`
    this.sendButton.disabled = !(this.field.value.trim() || this.extras())
  }
}
