// Images that go with the next message: chosen, dropped, pasted or taken by the camera, shown beside the field until they are sent.

import { takePicture } from './camera.js'
import { el, icon } from './elements.js'

const KINDS = ['image/png', 'image/jpeg', 'image/webp', 'image/gif']
const MOST = 8
const LONGEST = 1024 // pixels of a side; conversations are kept in the browser's storage
const KEPT_BYTES = 200_000 // a small file is sent as it is

/** Calls `changed()` when one comes or goes, `failed(text, [label, does])` for what cannot be had, '' before the next ones. */
export class Pictures {
  #urls = []
  #isTaking = false

  constructor({ list, buttons, choose, camera, input, field, area, changed, failed }) {
    Object.assign(this, { list, buttons, choose, input, changed, failed })
    this.isOffered = false
    choose.addEventListener('click', () => input.click())
    camera.addEventListener('click', () => this.#photograph())
    input.addEventListener('change', async () => {
      await this.#take(input.files)
      input.value = ''
    })
    field.addEventListener('paste', (event) => this.#given(event, event.clipboardData))
    area.addEventListener('dragover', (event) => {
      if (this.isOffered && event.dataTransfer.types.includes('Files')) event.preventDefault()
    })
    area.addEventListener('drop', (event) => this.#given(event, event.dataTransfer))
  }

  get count() {
    return this.#urls.length
  }

  /** Only a model that sees is offered images; those that wait for another one go. */
  offer(isOffered) {
    this.isOffered = isOffered
    this.buttons.hidden = !isOffered
    if (!isOffered) this.take()
  }

  /** What waits, as data URLs; nothing waits afterwards. */
  take() {
    const taken = this.#urls
    this.#urls = []
    this.#show()
    return taken
  }

  async #photograph() {
    if (this.#isTaking) return
    this.#isTaking = true
    this.failed('')
    try {
      const file = await takePicture()
      if (file && this.isOffered) await this.#take([file])
    } catch (error) {
      this.failed(error.message, ['Choose images', () => this.input.click()])
    }
    this.#isTaking = false
  }

  #given(event, transfer) {
    if (!this.isOffered || !transfer.files.length) return
    event.preventDefault()
    this.#take(transfer.files)
  }

  async #take(files) {
    this.failed('')
    for (const file of files) {
      if (!KINDS.includes(file.type)) this.failed(`${file.name} is no PNG, JPEG, WebP or GIF image.`)
      else if (this.count >= MOST) this.failed(`A message takes ${MOST} images at most.`)
      else await this.#add(file)
    }
    this.#show()
  }

  async #add(file) {
    try {
      this.#urls.push(await asUrl(file))
    } catch {
      this.failed(`${file.name} is not an image that can be read.`)
    }
  }

  #show() {
    this.list.hidden = !this.count
    this.list.replaceChildren(...this.#urls.map((url, place) => this.#thumbnail(url, place)))
    this.changed()
  }

  #thumbnail(url, place) {
    const label = `Remove image ${place + 1}`
    const remove = () => {
      this.#urls.splice(place, 1)
      this.#show()
      this.choose.focus()
    }
    const button = el('button', { type: 'button', 'aria-label': label, title: label, onclick: remove }, icon('close'))
    return el('li', {}, picture(url, place), button)
  }
}

/** An image of a message, small. */
export function picture(url, place) {
  return el('img', { class: 'picture', src: url, alt: `Image ${place + 1}` })
}

async function asUrl(file) {
  const bitmap = await createImageBitmap(file)
  const share = Math.min(1, LONGEST / Math.max(bitmap.width, bitmap.height))
  if (share === 1 && file.size <= KEPT_BYTES) return readUrl(file)
  const canvas = new OffscreenCanvas(Math.max(1, bitmap.width * share), Math.max(1, bitmap.height * share))
  canvas.getContext('2d').drawImage(bitmap, 0, 0, canvas.width, canvas.height)
  return readUrl(await canvas.convertToBlob({ type: 'image/jpeg', quality: 0.9 }))
}

function readUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader()
    reader.addEventListener('load', () => resolve(reader.result))
    reader.addEventListener('error', () => reject(reader.error))
    reader.readAsDataURL(blob)
  })
}
