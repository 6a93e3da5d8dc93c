// One picture from the camera, which is on no longer than its dialog is open.

import { ask } from './dialogs.js'
import { el } from './elements.js'

const REFUSALS = {
  NotAllowedError: 'This page is not allowed to use the camera.',
  NotFoundError: 'This device has no camera.',
}

/** A picture as a file, or null when the user takes none; an Error whose message says why there is no camera. */
export async function takePicture() {
  const stream = await openCamera()
  const video = el('video', { class: 'preview', 'aria-label': 'What the camera sees', autoplay: true, playsinline: true })
  Object.assign(video, { srcObject: stream, muted: true })
  const check = () => (video.videoWidth ? '' : 'The camera shows nothing yet.')
  try {
    return await ask('Camera', [video], { yes: 'Take picture', check, read: () => frameOf(video) })
  } finally {
    for (const track of stream.getTracks()) track.stop()
  }
}

async function openCamera() {
  if (!isSecureContext) throw new Error('Browsers open the camera only for pages over HTTPS or from this device.')
  try {
    return await navigator.mediaDevices.getUserMedia({ video: { facingMode: 'environment' } })
  } catch (error) {
    throw new Error(REFUSALS[error.name] ?? 'The camera cannot be opened: another program may use it.')
  }
}

async function frameOf(video) {
  const canvas = new OffscreenCanvas(video.videoWidth, video.videoHeight)
  canvas.getContext('2d').drawImage(video, 0, 0)
  return new File([await canvas.convertToBlob()], 'camera.png', { type: 'image/png' })
}
