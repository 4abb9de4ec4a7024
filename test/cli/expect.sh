# shellcheck shell=bash
# Sourced by the scripts of this folder: what they check with, and how they say that it failed.
failures=0

# begin ORDERMOE DATA: in a folder of its own, which goes with the script, and with it every node below it and whatever else
# is in `others`, by number.
begin() {
  ordermoe=$1
  data=$2
  model=$data/models/lineage
  others=()
  work=$(mktemp -d)
  trap 'for pid in "${others[@]}" $(nodes); do kill -9 "$pid" 2>/dev/null; done; rm -rf "$work"' EXIT
  cd "$work" || exit 1
  export ORDERMOE_DATA=$data OPENBLAS_NUM_THREADS=1
}
nodes() { cat "$work"/*/nodes/*/pid 2>/dev/null; }

# ports N: a port that is free, as are the N - 1 behind it. Below those that outgoing connections take.
ports() {
  python3 -c 'import random, socket, sys
n = int(sys.argv[1])
while True:
    first, held = random.randrange(10000, 32000 - n), [socket.socket() for _ in range(n)]
    try:
        for i, each in enumerate(held):
            each.bind(("127.0.0.1", first + i))
    except OSError:
        continue
    finally:
        for each in held:
            each.close()
    print(first)
    break' "$1"
}

fail() {
  echo "FAILED: $1"
  failures=$((failures + 1))
}

# expect NAME CODE PATTERN COMMAND...: the exit code, and a pattern somewhere in the output.
expect() {
  local name=$1 code=$2 pattern=$3
  shift 3
  local output
  output=$("$@" 2>&1 </dev/null)
  local got=$?
  if [[ $got -ne $code ]] || ! grep -qE -- "$pattern" <<<"$output"; then
    fail "$name: exit code $got, expected $code; expected output like '$pattern', got:"
    head -n 5 <<<"$output"
  fi
}

# What of a run's JSON does not depend on where it ran.
answers() { python3 -c 'import json, sys
for each in json.load(sys.stdin)["answers"]: print([each[member] for member in ("token_ids", "text", "finish")])'; }

# Until the command succeeds; a minute is more than anything takes.
eventually() {
  local limit=$((SECONDS + 60))
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < limit)) || return 1
    sleep 0.05
  done
}
