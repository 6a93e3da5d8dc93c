#!/usr/bin/env bash
# Health, models, one chat and one streamed chat against a running server: deploy/smoke.sh [URL]
set -euo pipefail
url="${1:-http://127.0.0.1:8000}"
url="${url%/}"
auth=()
if [ -n "${OPENAI_API_KEY:-}" ]; then auth=(-H "Authorization: Bearer $OPENAI_API_KEY"); fi

fail() { echo "FAILED: $*" >&2; exit 1; }
get() { curl --silent --show-error --fail --max-time 60 ${auth[@]+"${auth[@]}"} "$@"; }
ask() {
  get --no-buffer -H "Content-Type: application/json" "$url/v1/chat/completions" --data \
    "{\"model\":\"$model\",\"messages\":[{\"role\":\"user\",\"content\":\"What is the capital of France?\"}],\"max_tokens\":32,\"temperature\":0$1}"
}

get "$url/health" >/dev/null || fail "$url/health"
echo "health  ok"

models="$(get "$url/v1/models")" || fail "$url/v1/models"
model="$(sed -E 's/.*"data": *\[ *\{[^}]*"id": *"([^"]+)".*/\1/' <<<"$models")"
[ -n "$model" ] && [ "$model" != "$models" ] || fail "no model in: $models"
echo "model   $model"

answer="$(ask "")" || fail "a chat"
grep -q '"finish_reason": *"' <<<"$answer" || fail "no finish_reason in: $answer"
echo "chat    $(sed -E 's/.*"content": *"(([^"\\]|\\.)*)".*/\1/' <<<"$answer")"

stream="$(ask ',"stream":true')" || fail "a streamed chat"
[ "$(tail -n 2 <<<"$stream" | tr -d '\r\n')" = "data: [DONE]" ] || fail "the stream does not end with [DONE]"
echo "stream  $(grep -c '^data: {' <<<"$stream") chunks"
