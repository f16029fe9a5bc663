#!/usr/bin/env bash
# The Debian packages that the system tests need. Quick where they are there already.
set -euo pipefail
command -v chromium >/dev/null && exit 0
if ! command -v apt-get >/dev/null; then
  echo "The system tests need chromium; install it with your package manager and run this again." >&2
  exit 1
fi
run() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
echo "Installing chromium (once) ..."
run apt-get update -qq
DEBIAN_FRONTEND=noninteractive run apt-get install -y -qq --no-install-recommends chromium >/dev/null
