#!/usr/bin/env bash
# The Debian packages that the system tests need. Quick where they are there already.
set -euo pipefail
missing=()
command -v chromium >/dev/null || missing+=(chromium)
compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null || command -v initdb >/dev/null || missing+=(postgresql)
[ ${#missing[@]} = 0 ] && exit 0
if ! command -v apt-get >/dev/null; then
  echo "The system tests need ${missing[*]}; install that with your package manager and run this again." >&2
  exit 1
fi
run() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
echo "Installing ${missing[*]} (once) ..."
run apt-get update -qq
DEBIAN_FRONTEND=noninteractive run apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
