#!/bin/sh
# The first minute: a key, a gateway, a question. CENTURIA and FLAGS are for trying it without a provider's key.
set -eu
CENTURIA=${CENTURIA:-centuria}
KEY=$($CENTURIA keys add me --budget 5 --config gateway.toml)
$CENTURIA serve --config gateway.toml ${FLAGS:-} &
trap 'kill $!' EXIT
curl --silent --retry 30 --retry-delay 1 --retry-connrefused "http://127.0.0.1:${PORT:-8080}/readyz"
curl --silent "http://127.0.0.1:${PORT:-8080}/v1/chat/completions" --header "Authorization: Bearer $KEY" --json '{
  "model": "kimi-k2.5", "messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 200}'
$CENTURIA usage --config gateway.toml
