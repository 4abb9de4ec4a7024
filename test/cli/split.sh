#!/usr/bin/env bash
# Both halves of a cluster give up the other (`members remove --lost`) and change their plan. When they see each other again they stay
# two clusters, whatever one operator says at one of them; the documented way out makes them one.
# split.sh ORDERMOE DATA
set -uo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/expect.sh"
begin "$@"

printf 'Q: 12 * 3\nIn early spring\nFedon is known\n' >prompts.txt
"$ordermoe" cluster draw --servers 4 --seed 2 --memory-ratio 4 --layers 6 --experts 8 --out four.toml >/dev/null || fail "four servers are drawn"
"$ordermoe" run --model "$model" --mode reference --prompts prompts.txt --max-new-tokens 16 --json 2>/dev/null </dev/null | answers >reference.txt
"$ordermoe" cluster prepare --model "$model" --cluster four.toml --strategy exact --max-positions 400 --dir edge \
  $(first=$(ports 4); for m in 0 1 2 3; do echo "--address s$m=127.0.0.1:$((first + m))"; done) >/dev/null || { fail "a cluster is prepared"; exit 1; }
listen() { sed -n 's/^listen = \["\(.*\)"\]/\1/p' "edge/nodes/$1/node.toml"; }
admin() { "$ordermoe" admin --dir edge --node "$@"; }
# Each is a host of its own.
for node in s0 s1 s2 s3; do
  sed -i 's#"../../\(plan\|profile\).json"#"\1.json"#; /^threads/d; 1a threads = 1' edge/nodes/$node/node.toml
  cp edge/plan.json edge/profile.json edge/nodes/$node/
done
start() {
  for node in "$@"; do
    "$ordermoe" node --config "$PWD/edge/nodes/$node/node.toml" >>"edge/nodes/$node/log" 2>&1 &
    echo $! >"edge/nodes/$node/pid"
  done
}
end() {
  local pids=()
  for node in "$@"; do
    pids+=("$(cat edge/nodes/$node/pid)")
    rm edge/nodes/$node/pid
  done
  kill "${pids[@]}"
  wait "${pids[@]}"
}
sees() { admin "$1" members | grep -qE "^$3 +$2"; }     # WHO WHOM STATE
says() { grep -q "$2" "edge/nodes/$1/log"; }            # WHO WHAT
answers_of() { "$ordermoe" run --prompts prompts.txt --max-new-tokens 16 --connect "$(listen "$1")" --dir edge --json 2>errors.txt </dev/null | answers; }
epoch() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["epoch"])' "edge/nodes/$1/plan.json"; }

# half ONE OTHER GONE...: these two alone give up the rest, and go on by a plan without it.
half() {
  local one=$1 other=$2 gone
  shift 2
  start "$one" "$other"
  eventually sees "$one" "$other" UN || fail "$one and $other do not find each other"
  for gone in "$@"; do expect "$one gives up $gone" 0 '^member: no' admin "$one" members remove "$gone" --lost; done
  expect "$one plans without them" 0 '' admin "$one" plan propose --strategy exact
  expect "and goes by it" 0 'epoch 1 -> [0-9]+' admin "$one" plan apply
  answers_of "$one" >half.txt
  cmp -s reference.txt half.txt || fail "answers of half a cluster at $one: $(head -n 2 errors.txt)"
  end "$one" "$other"
}
half s0 s1 s2 s3
half s2 s3 s0 s1
cmp -s edge/nodes/s0/plan.json edge/nodes/s2/plan.json && fail "both halves go by one plan"
[[ $(epoch s0) -gt 1 && $(epoch s2) -gt 1 ]] || fail "a half did not change its plan"

# ---------------------------------------------------------------------------- they see each other again

apart() {
  for each in 's0 s2' 's0 s3' 's1 s2' 's1 s3'; do
    set -- $each
    sees "$1" "$2" U. && fail "$1 is with $2"
    sees "$2" "$1" U. && fail "$2 is with $1"
  done
  for node in s0 s2; do
    answers_of $node >half.txt
    cmp -s reference.txt half.txt || fail "answers of $node: $(head -n 2 errors.txt)"
  done
}
start s0 s1 s2 s3
for pair in 's0 s1' 's1 s0' 's2 s3' 's3 s2'; do
  set -- $pair
  eventually sees "$1" "$2" UN || fail "$1 does not find $2 of its half"
done
apart
cp edge/nodes/s2/plan.json before.json
# One operator says that a host of the other half belongs to this one: that one does not.
expect "s2 is added at one half" 0 '^member: yes' admin s0 members add s2
refused() { says s0 'session.refused peer=s2\|connection.failed who="s2 .*expected a node of the member list' || says s2 'expected a node of the member list'; }
eventually refused || fail "s2 does not refuse who it gave up"
apart
# Both say so: then their plans keep them from each other, and neither half goes over to the other's by itself.
expect "s0 is added at the other half" 0 '^member: yes' admin s2 members add s0
differ() { says s0 'hello.plan: found' || says s2 'hello.plan: found'; }
eventually differ || fail "nobody says that the plans differ"
apart
cmp -s before.json edge/nodes/s2/plan.json || fail "a half took the other's plan while it went on by its own"
for node in s0 s1 s2 s3; do
  says $node 'plan.fetched' && fail "$node fetched a plan"
done

# ---------------------------------------------------------------------------------------- the way out

end s2 s3
for node in s2 s3; do rm -f edge/nodes/$node/state/members.json edge/nodes/$node/plan.json edge/nodes/$node/profile.json; done
start s2 s3
expect "s3 is added at the half that stays" 0 '^member: yes' admin s0 members add s3
for node in s2 s3; do
  for other in s0 s1; do eventually sees $other $node UN || fail "$node does not come to $other: $(tail -n 2 edge/nodes/$node/log)"; done
  cmp -s edge/nodes/s0/plan.json edge/nodes/$node/plan.json || fail "$node goes by another plan than s0"
done
for pair in 's2 s3' 's3 s2'; do
  set -- $pair
  eventually sees "$1" "$2" UN || fail "$1 does not find $2"
done
for node in s0 s1 s2 s3; do
  answers_of $node >whole.txt
  cmp -s reference.txt whole.txt || fail "answers of $node in the end: $(head -n 2 errors.txt)"
done
end s0 s1 s2 s3

echo "$failures failures"
[[ $failures -eq 0 ]]
