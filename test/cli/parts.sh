#!/usr/bin/env bash
# Hosts with no more of a model on their disks than the plan of the start places there go over to another plan: what they lack
# comes from each other, stays over an end and a start, and goes when no plan wants it.
# parts.sh ORDERMOE DATA
set -uo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/expect.sh"
begin "$@"

printf '{"prompt": "Q: 12 * 3\\nA:"}\nIn early spring\nFedon is known\n' >prompts.jsonl
for _ in {1..6}; do cat prompts.jsonl; done >many.jsonl
"$ordermoe" cluster draw --servers 3 --seed 2 --memory-ratio 8 --layers 6 --experts 8 --out three.toml >/dev/null || fail "three servers are drawn"
"$ordermoe" run --model "$model" --mode reference --prompts many.jsonl --max-new-tokens 24 --json 2>/dev/null </dev/null | answers >reference.txt
port=$(ports 3)
expect "a cluster is prepared" 0 '' "$ordermoe" cluster prepare --model "$model" --cluster three.toml --strategy layer-shards --max-positions 400 --dir edge \
  --address s0=127.0.0.1:$port --address s1=127.0.0.1:$((port + 1)) --address s2=127.0.0.1:$((port + 2))
for node in s0 s1 s2; do
  "$ordermoe" model shard --model "$model" --plan edge/plan.json --server $node --out parts/$node >/dev/null || fail "the part of $node is written"
  sed -i "s|^model = .*|model = \"$work/parts/$node\"|; s|^threads = .*|threads = 1|" edge/nodes/$node/node.toml
done
admin=("$ordermoe" admin --dir edge)
experts() { find edge/nodes/"$1"/state/experts -name '*.safetensors' 2>/dev/null | wc -l; }
settles() { "${admin[@]}" --node "$1" members | grep -q '^change: none'; }
goes_over() {
  expect "$1 is proposed" 0 '^strategy: ' "${admin[@]}" --node s1 plan propose --strategy "$1"
  expect "and applied" 0 'epoch [0-9]+ -> [0-9]+' "${admin[@]}" --node s1 plan apply --drain-s 60
  for node in s0 s1 s2; do eventually settles $node || fail "the change does not end at $node"; done
}
answers_as_ever() {
  for end in 0 1 2; do
    "$ordermoe" run --prompts many.jsonl --max-new-tokens 24 --connect 127.0.0.1:$((port + end)) --dir edge --json 2>errors.txt </dev/null | answers >got.txt
    cmp -s reference.txt got.txt || fail "answers $1 at s$end: $(head -n 2 errors.txt)"
  done
}

expect "it comes up with parts alone" 0 '' "$ordermoe" cluster start --dir edge
answers_as_ever "of parts"

# Who cannot check what comes takes nothing, and says so; the plan stays.
mv parts/s0/experts.json kept.json
"$ordermoe" cluster down --dir edge >/dev/null
expect "it starts without the list" 0 '' "$ordermoe" cluster start --dir edge
expect "a plan for it is proposed" 0 '^strategy: exact' "${admin[@]}" --node s1 plan propose --strategy exact
expect "and cannot be prepared" 1 'the plan stays: .*experts.json.*model shard' "${admin[@]}" --node s1 plan apply
answers_as_ever "under the plan that stays"
mv kept.json parts/s0/experts.json
"$ordermoe" cluster down --dir edge >/dev/null

expect "it starts with it" 0 '' "$ordermoe" cluster start --dir edge
[[ $(experts s0) == 0 ]] || fail "experts came for a plan that was not applied"
goes_over exact
(($(experts s0) > 0)) || fail "no expert came to s0"
grep -q 'experts.fetched' edge/nodes/s0/log || fail "the log of s0 does not say that experts came"
answers_as_ever "with experts of others"

# Over an end and a start they are there; a damaged one is told.
"$ordermoe" cluster down --dir edge >/dev/null
expect "what came is checked" 0 '' "$ordermoe" cluster check --config edge/nodes/s0/node.toml
one=$(find edge/nodes/s0/state/experts -name '*.safetensors' | head -n 1)
cp "$one" whole
printf 'x' | dd of="$one" bs=1 seek=9000 conv=notrunc status=none
expect "a damaged one is refused" 2 "$(basename "$one"): found the SHA-256 .*fetches the expert again" "$ordermoe" node --config edge/nodes/s0/node.toml
cp whole "$one"
expect "it starts with what came" 0 '' "$ordermoe" cluster start --dir edge
answers_as_ever "after a start"

# Those that neither the plan nor the one before wants are gone.
kept_are_wanted() { # BEFORE: by the plan in force and the one before, what s0 hosts and its part lacks
  python3 - "$1" <<'PYTHON'
import json, os, sys
def of(path):
    return {(each["layer"], each["expert"]) for each in json.load(open(path))["experts"] if each["server"] == 0}
part = {(layer, expert) for layer, all in enumerate(json.load(open("parts/s0/part.json"))["experts"]) for expert in all}
now, before = of("edge/plan.json") - part, of(sys.argv[1]) - part
there = {tuple(map(int, name[:-len(".safetensors")].split("-"))) for name in os.listdir("edge/nodes/s0/state/experts")}
print(f"{len(there)} there, {len(now)} wanted now, {len(before)} before")
sys.exit(0 if now <= there <= now | before else 1)
PYTHON
}
cp edge/plan.json exact.json
goes_over layer-shards
expect "those of the plan before are kept" 0 'there' kept_are_wanted exact.json
(($(experts s0) > 0)) || fail "requests under the plan before could not go on after a start"
cp edge/plan.json shards.json
expect "s2 leaves" 0 'epoch [0-9] -> [0-9]' "${admin[@]}" --node s1 decommission s2 --strategy exact
for node in s0 s1 s2; do eventually settles $node || fail "the change without s2 does not end at $node"; done
expect "those of the one before that are gone" 0 'there' kept_are_wanted shards.json
"$ordermoe" run --prompts many.jsonl --max-new-tokens 24 --connect 127.0.0.1:$port --dir edge --json 2>errors.txt </dev/null | answers >got.txt
cmp -s reference.txt got.txt || fail "answers without s2: $(head -n 2 errors.txt)"
[[ -z $(find edge/nodes -name '*.coming') ]] || fail "something came in part"
"$ordermoe" cluster down --dir edge >/dev/null

((failures == 0)) || { echo "$failures checks failed"; exit 1; }
echo "all checks passed"
