#!/usr/bin/env bash
# Installs what embedders need into a scratch prefix, builds the examples against it as they would, and runs each.
# examples.sh SOURCE BUILD ORDERMOE DATA
set -uo pipefail
source=$1
build=$2
ordermoe=$3
data=$4
work=$(mktemp -d)
trap '"$ordermoe" cluster down --dir "$work/edge" >/dev/null 2>&1; rm -rf "$work"' EXIT
failures=0

fail() {
  echo "FAILED: $1"
  failures=$((failures + 1))
}

# Compiled files stay between runs, what is installed does not.
scratch=$build/test/embedding/examples
prefix=$scratch/prefix
rm -rf "$prefix"
mkdir -p "$scratch"
cmake --install "$build" --prefix "$prefix" --component embedding >"$work/install" || { cat "$work/install"; exit 1; }

# Nothing of the inside is installed, and nothing that is installed names a place of this machine.
headers=$(cd "$prefix/include" && find . -type f | sort | tr '\n' ' ')
[[ $headers == "./ordermoe/actors.hpp ./ordermoe/node.hpp ./ordermoe/result.hpp " ]] || fail "other headers were installed: $headers"
grep -rlF -e "$source" -e "$build" "$prefix/lib"*/cmake && fail "these name the source or build folder"

cmake -S "$source/examples" -B "$scratch/build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_PREFIX_PATH="$prefix" \
  ${CMAKE_CXX_COMPILER_LAUNCHER:+-DCMAKE_CXX_COMPILER_LAUNCHER=$CMAKE_CXX_COMPILER_LAUNCHER} >"$work/configure" 2>&1 ||
  { cat "$work/configure"; exit 1; }
cmake --build "$scratch/build" >"$work/build" 2>&1 || { cat "$work/build"; exit 1; }

# expect NAME CODE PATTERN COMMAND...: the exit code, and a pattern somewhere in the output.
expect() {
  local name=$1 code=$2 pattern=$3
  shift 3
  local output
  output=$(timeout 120 "$@" 2>&1 </dev/null)
  local got=$?
  if [[ $got -ne $code ]] || ! grep -qE -- "$pattern" <<<"$output"; then
    fail "$name: exit code $got, expected $code; expected output like '$pattern', got:"
    head -n 20 <<<"$output"
  fi
  last=$output
}

model=$data/models/lineage
cluster=$data/clusters/edge8.toml
programs=$scratch/build
expect minimal 0 "answer 375" "$programs/minimal" "$model" "$cluster"
expect "minimal without a model" 1 "minimal: model: .*/none is no folder" "$programs/minimal" "$data/none" "$cluster"
expect streaming 0 "^request 0: 12 tokens, length" "$programs/streaming" "$model" "$cluster"
grep -qE "^request 1: ([6-9]|[1-9][0-9]) tokens, cancelled" <<<"$last" || fail "the second answer was not cancelled: $last"
grep -qF '"servers":[' <<<"$last" || fail "no status: $last"
expect host_actors 0 "^0 actors are left" "$programs/host_actors" "$model" "$cluster"
[[ $(grep -cE "^(length|end_of_text), [0-9]+ tokens:" <<<"$last") -eq 8 ]] || fail "eight answers were expected: $last"

"$ordermoe" cluster draw --servers 3 --seed 2 --memory-ratio 1.5 --layers 6 --experts 8 --out "$work/three.toml" >/dev/null
"$ordermoe" cluster up --model "$model" --cluster "$work/three.toml" --strategy local-only --threads 1 \
  --port $((20000 + RANDOM % 10000)) --dir "$work/edge" >"$work/up" 2>&1 || { cat "$work/up"; fail "the cluster did not come up"; }
address=$(grep -oE '127\.0\.0\.1:[0-9]+' "$work/up" | head -n 1)
expect cluster_client 0 "answer 375" "$programs/cluster_client" "$address" "$work/edge" $'Q: 75 * 5\nA:' "In early spring"
expect admin_client 0 '"answering":3' "$programs/admin_client" "$address" "$work/edge"
expect "a policy that is tried and set" 0 '^policy.set: .*"version":1' "$programs/admin_client" "$address" "$work/edge" '{"omega_time": 0.7}'
expect "a policy that is none" 1 "'nonsense'" "$programs/admin_client" "$address" "$work/edge" '{"nonsense": 1}'
# One of the processes gives way to the program, which has no plan, and with the others away waits for one until it is ended.
gone=$(cat "$work/edge/nodes/s2/pid")
kill "$gone"
for ((i = 0; i < 300; ++i)); do kill -0 "$gone" 2>/dev/null || break; sleep 0.1; done
sed -i "s|^plan = .*|plan = \"$work/plan.json\"|" "$work/edge/nodes/s2/node.toml"
"$programs/member" "$work/edge/nodes/s2/node.toml" >"$work/member" 2>&1 &
member=$!
for ((i = 0; i < 300; ++i)); do grep -q '^serves at' "$work/member" && break; sleep 0.1; done
grep -qE '^serves at 127' "$work/member" || fail "the member does not serve: $(cat "$work/member")"
grep -q '^plan.fetched epoch=1' "$work/member" || fail "the member has another plan: $(cat "$work/member")"
cmp -s "$work/plan.json" "$work/edge/plan.json" || fail "another plan came to the member"
kill -TERM $member
wait $member || fail "the member did not end well: $(tail -n 3 "$work/member")"
"$ordermoe" cluster down --dir "$work/edge" >/dev/null 2>&1
rm "$work/plan.json"
"$programs/member" "$work/edge/nodes/s2/node.toml" >"$work/member" 2>&1 &
member=$!
for ((i = 0; i < 300; ++i)); do grep -q '^plan.refused peer=s' "$work/member" && break; sleep 0.1; done
kill -TERM $member
wait $member || fail "a member that waits did not end well: $(cat "$work/member")"
grep -q 's2: was ended before the plan in force was there' "$work/member" || fail "it does not say what it waited for: $(cat "$work/member")"
expect "a member without a file" 1 'node.toml' "$programs/member" "$work/none/node.toml"
expect "a client without certificates" 1 "ca.crt" "$programs/cluster_client" "$address" "$work" "Q"
((failures == 0)) || exit 1
echo "all examples do what they say"
