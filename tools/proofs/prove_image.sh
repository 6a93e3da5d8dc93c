#!/usr/bin/env bash
# Builds the Dockerfile unchanged and tries the image, on a Debian machine without Docker and without a registry of images.
# Needs root and: apt-get install buildah podman runc debootstrap curl (for arm64 also binfmt_misc and qemu-user 10).
set -euo pipefail
usage() {
  cat <<'TEXT'
tools/proofs/prove_image.sh [OPTION...]
  --arm64           the image for ARM64, under qemu's user emulation
  --qemu FILE       a static qemu-aarch64, version 10 or newer: 7.2 dies on importing onnxruntime
  --extras NAME     the Dockerfile's EXTRAS: qnn
  --mirror URL      Debian's packages come from here; default: what debootstrap takes
  --pip-conf FILE   pip's configuration inside the build; PIP_* variables of this shell are not seen there
  --mount PATH      shown read-only at the same place inside the build; repeatable (certificates, a folder of wheels)
  --work FOLDER     where the base, the images and the log stay, so that a second run is fast; default: /var/tmp/hexserve-proof
TEXT
}
fail() { echo "FAILED: $*" >&2; exit 1; }
unusable() { echo "error: $*" >&2; exit 2; }

here="$(cd "$(dirname "$0")/../.." && pwd)"
arch=amd64 qemu="" extras="" mirror="" work=/var/tmp/hexserve-proof mounts=()
while [ $# -gt 0 ]; do
  case "$1" in
    --arm64) arch=arm64; shift; continue ;;
    -h | --help) usage; exit 0 ;;
    --qemu | --extras | --mirror | --pip-conf | --mount | --work) [ $# -gt 1 ] || unusable "$1 needs a value" ;;
    *) usage >&2; unusable "unknown option $1" ;;
  esac
  case "$1" in
    --qemu) qemu="$2" ;;
    --extras) extras="$2" ;;
    --mirror) mirror="$2" ;;
    --pip-conf) mounts+=(--volume "$(realpath "$2"):/etc/pip.conf:ro") ;;
    --mount) mounts+=(--volume "$2:$2:ro") ;;
    --work) work="$2" ;;
  esac
  shift 2
done
[ "$(id -u)" = 0 ] || unusable "chroot builds need root"
for tool in buildah podman runc debootstrap curl; do
  command -v "$tool" >/dev/null || unusable "$tool is missing"
done

suite=trixie python=3.13  # this Debian and its Python stand for the Dockerfile's base
mkdir -p "$work"
work="$(realpath "$work")"
log="$work/$arch.log" base="$work/base-$arch" image="hexserve-proof:$arch" container="hexserve-proof-$$"
storage=(--root "$work/storage" --runroot "$work/run")
: >"$log"
cleanup() {
  podman "${storage[@]}" rm --force "$container" >>"$log" 2>&1 || true
  rm -f "$work/answer.$$"
}
trap cleanup EXIT
seconds() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(seconds)" 'BEGIN { printf "%.0f s", b - a }'; }
logged() { "$@" >>"$log" 2>&1 || { tail -n 20 "$log" >&2; fail "$1 $2; all of it in $log"; }; }

emulate_arm64() {
  local table=/proc/sys/fs/binfmt_misc
  # With SME qemu 10 multiplies matrices wrongly; a Neoverse N1 has none.
  export QEMU_CPU=neoverse-n1
  [ "$(uname -m)" != aarch64 ] || return 0
  [ -e "$table/register" ] || mount -t binfmt_misc none "$table" || unusable "this kernel has no binfmt_misc"
  if [ -n "$qemu" ] && [ ! -e "$table/hexserve-arm64" ]; then
    # F: the interpreter is opened now, so it need not exist inside the image.
    printf '%s' ':hexserve-arm64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:'"$(realpath "$qemu")"':F' >"$table/register"
  fi
  grep -lq aarch64 "$table"/* 2>/dev/null || unusable "nothing runs ARM64 here: give --qemu FILE"
}

make_base() {
  [ ! -e "$base/.complete" ] || return 0
  rm -rf "$base"
  logged debootstrap --arch "$arch" --variant=minbase \
    --include=python3,python3-venv,python3-pip,python-is-python3,ca-certificates "$suite" "$base" ${mirror:+"$mirror"}
  rm -rf "$base"/var/cache/apt/archives/*.deb "$base"/var/lib/apt/lists/*
  touch "$base/.complete"
}

build() {
  local variant=()
  [ "$arch" = amd64 ] || variant=(--variant v8)
  tar -C "$base" -c . >"$work/base.tar"
  # What runs in a build sees the base's environment only, not this shell's.
  logged podman "${storage[@]}" import --arch "$arch" ${QEMU_CPU:+--change "ENV QEMU_CPU=$QEMU_CPU"} \
    "$work/base.tar" "python:$python-slim"
  rm "$work/base.tar"
  started="$(seconds)"
  logged buildah "${storage[@]}" build --format docker --isolation chroot --network host --pull-never --arch "$arch" \
    "${variant[@]}" --build-arg "PYTHON_VERSION=$python" --build-arg "EXTRAS=$extras" "${mounts[@]}" \
    --tag "$image" --file "$here/Dockerfile" "$here"
  echo "build   $(since "$started")"
  local of all
  all="$(podman "${storage[@]}" image inspect --format '{{.Size}}' "$image")"
  of="$(podman "${storage[@]}" image inspect --format '{{.Size}}' "python:$python-slim")"
  echo "size    $((all / 1000000)) MB, of which $((of / 1000000)) MB are the base"
}

# start: the address is on loopback because the container shares this machine's network. No health check: it needs systemd.
start() {
  port="$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
  url="http://127.0.0.1:$port"
  started="$(seconds)"
  logged podman "${storage[@]}" --runtime runc --cgroup-manager cgroupfs run --detach --name "$container" --network host \
    --no-healthcheck --read-only --tmpfs /tmp --cap-drop all --security-opt no-new-privileges \
    --ulimit nofile=4096:4096 --ulimit nproc=4096:4096 --env HEXSERVE_HOST=127.0.0.1 --env "HEXSERVE_PORT=$port" "$image"
  until curl --silent --fail --output /dev/null "$url/health/ready"; do
    [ "$(podman "${storage[@]}" inspect --format '{{.State.Running}}' "$container")" = true ] || {
      podman "${storage[@]}" logs "$container" >&2
      fail "the server ended before it was ready"
    }
    sleep 0.2
  done
  echo "ready   $(since "$started")"
}

ask() {
  local answer
  # The README's own command, at this port.
  answer="$(sed -n '/^curl /,/^```/p' "$here/README.md" | sed '/^```/,$d' | sed "s#http://127.0.0.1:8000#--silent --fail $url#" | bash)"
  grep -q Paris <<<"$answer" || fail "the README's curl was answered: $answer"
  echo "curl    $answer"
  "$here/deploy/smoke.sh" "$url" | sed 's/^/        /'
}

look_inside() {
  local inside=(podman "${storage[@]}" --runtime runc --cgroup-manager cgroupfs exec "$container") check
  [ "$("${inside[@]}" id -u)" = 10001 ] || fail "it does not run as uid 10001"
  "${inside[@]}" python -c 'open("/bundle/x", "w")' 2>/dev/null && fail "the root can be written to"
  [ "$("${inside[@]}" cat /proc/1/status | awk '/^CapEff/ { print $2 }')" = 0000000000000000 ] || fail "it has capabilities"
  check="$(podman "${storage[@]}" image inspect --format '{{json .HealthCheck}}' "$image")"
  python3 -c 'import json, subprocess, sys; sys.exit(subprocess.run([*sys.argv[2:], *json.loads(sys.argv[1])["Test"][1:]]).returncode)' \
    "$check" "${inside[@]}" || fail "the health check says no"
  echo "inside  uid 10001, no capabilities, read-only root, health check passes"
}

# The signal goes out when the stream has begun; the answer must still come to its end.
drain() {
  local client code
  curl --silent --no-buffer --max-time 300 -H "Content-Type: application/json" "$url/v1/chat/completions" --data \
    '{"model":"demo","messages":[{"role":"user","content":"Tell me a long story."}],"max_tokens":200,"ignore_eos":true,"stream":true}' \
    >"$work/answer.$$" &
  client=$!
  until grep -q '"content"' "$work/answer.$$"; do
    kill -0 "$client" 2>/dev/null || fail "the stream ended early: $(head -c 300 "$work/answer.$$")"
  done
  podman "${storage[@]}" --runtime runc --cgroup-manager cgroupfs kill --signal TERM "$container" >>"$log"
  grep -q '\[DONE\]' "$work/answer.$$" && fail "the stream was over before the signal: nothing is proved"
  code="$(podman "${storage[@]}" wait "$container")"
  wait "$client" || fail "the stream was cut"
  [ "$code" = 0 ] || fail "SIGTERM ended it with exit code $code"
  grep -q '\[DONE\]' "$work/answer.$$" || fail "the stream has no end"
  echo "drain   $(grep -c '^data: {' "$work/answer.$$") chunks to the end after SIGTERM, exit code 0"
}

[ "$arch" = amd64 ] || emulate_arm64
make_base
build
start
look_inside
ask
drain
