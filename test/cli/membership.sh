#!/usr/bin/env bash
# Who belongs to a cluster changes while requests run: a server joins and takes experts, another leaves for good, and none of
# the others starts again. Then one is gone without notice, and given up.
# membership.sh ORDERMOE DATA
set -uo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/expect.sh"
begin "$@"

printf '{"prompt": "Q: 12 * 3\\nA:"}\nIn early spring\nFedon is known\n' >prompts.jsonl
for _ in {1..12}; do cat prompts.jsonl; done >many.jsonl
"$ordermoe" cluster draw --servers 5 --seed 2 --memory-ratio 4 --layers 6 --experts 8 --out five.toml >/dev/null || fail "five servers are drawn"
"$ordermoe" run --model "$model" --mode reference --prompts many.jsonl --max-new-tokens 24 --json 2>/dev/null </dev/null | answers >reference.txt
"$ordermoe" run --model "$model" --mode reference --prompts prompts.jsonl --max-new-tokens 24 --json 2>/dev/null </dev/null | answers >few.txt
up=("$ordermoe" cluster up --model "$model" --cluster five.toml --strategy exact --max-positions 400 --threads 1 --port "$(ports 8)" --dir edge)
expect "nobody is a spare that is not there" 2 "found 's9', expected a server" "${up[@]}" --spare s9
"$ordermoe" plan --model "$model" --cluster five.toml --strategy exact --out whole.json >/dev/null 2>&1 || fail "a plan for all"
expect "a plan that needs the spare" 2 'the plan has experts, .* on s4; leave --plan out' "${up[@]}" --plan whole.json --spare s4
expect "a cluster comes up without its spare" 0 '^127' "${up[@]}" --spare s4 || exit 1
[[ -f edge/nodes/s4/pid ]] && fail "the spare runs"
admin=("$ordermoe" admin --dir edge)
# From now on a node has plan and profile to itself, as on a host of its own.
apart() { sed -i 's#"../../\(plan\|profile\).json"#"\1.json"#' "edge/nodes/$1/node.toml"; }
apart s4
listen() { sed -n 's/^listen = \["\(.*\)"\]/\1/p' "edge/nodes/$1/node.toml"; }
boots() { "$ordermoe" cluster status --dir edge --json | python3 -c 'import json, sys
for each in json.load(sys.stdin)["nodes"]: print(each["name"], each["status"]["boot"])'; }
experts() { "${admin[@]}" --json plan show | python3 -c 'import json, sys
print([each["experts"] for each in json.load(sys.stdin)["result"]["servers"] if each["name"] == sys.argv[1]][0])' "$1"; }
ask() { "$ordermoe" run --prompts "$1" --max-new-tokens 24 --connect "$(listen "$2")" --dir edge --json 2>>"$3" </dev/null | answers; }
start() {
  "$ordermoe" node --config "$PWD/edge/nodes/$1/node.toml" >"edge/nodes/$1/log" 2>&1 &
  echo $! >"edge/nodes/$1/pid"
}

# Until requests under the plan before have ended, and it is gone: members do not change before.
settles() { "${admin[@]}" members | grep -q '^change: none'; }

expect "status leaves the spare out" 0 '^s3 .* 3/3 ' "$ordermoe" cluster status --dir edge
expect "it is no member" 0 '^-- +s4' "${admin[@]}" members
expect "nor in the line for each node" 0 '^-- +s4' "${admin[@]}" status
[[ $(experts s4) == 0 ]] || fail "the spare hosts experts"

# Requests at two nodes until `loading` is gone.
touch loading
load() {
  while [[ -f loading ]]; do
    ask many.jsonl "$1" "errors.$1.txt" >"loaded.$1.txt"
    cmp -s reference.txt "loaded.$1.txt" || echo "other answers at $1" >>wrong.txt
    echo >>"rounds.$1.txt"
  done
}
loaders=()
for node in s0 s1; do
  load "$node" &
  loaders+=($!)
done

# ------------------------------------------------------------------------------------------------ joining

expect "a host without a plan is checked" 0 's4 .*it has no plan, and fetches the one in force' "$ordermoe" cluster check --config edge/nodes/s4/node.toml
start s4
waits() { grep -q 'plan.refused peer=s[0-3] .*expected a node of the member list' edge/nodes/s4/log; }
eventually waits || fail "the spare does not ask for the plan: $(tail -n 3 edge/nodes/s4/log)"
expect "it says what it waits for" 0 's4 asks the other members for the plan in force.* members add s4' cat edge/nodes/s4/log
expect "who is no member is not let in" 0 '^-- +s4' "${admin[@]}" members
[[ -e edge/nodes/s4/plan.json ]] && fail "who is no member was told the plan"
expect "only servers of the cluster" 2 "found 's7', expected one of s0, s1, s2, s3, s4" "${admin[@]}" members add s7
expect "only where somebody can be dialled" 2 "address: found 'nowhere'" "${admin[@]}" members add s4 --address nowhere
expect "what would be" 0 'nothing was done' "${admin[@]}" --dry-run members add s4
expect "it is added" 0 '^member: yes' "${admin[@]}" members add s4
is_up() { "${admin[@]}" --node "$1" members | grep -qE '^UN +s4'; }
for node in s0 s1 s2 s3 s4; do
  eventually is_up $node || fail "who was added does not come to $node: $("${admin[@]}" --node $node members)"
done
for each in plan profile; do
  cmp -s edge/$each.json edge/nodes/s4/$each.json || fail "another $each than that in force came to s4"
done
expect "it came from a member" 0 'plan.fetched epoch=1 bytes=[0-9]+ peer=s[0-3]' cat edge/nodes/s4/log
[[ -e edge/nodes/s4/state/joining ]] && fail "something is left of what came: $(ls edge/nodes/s4/state/joining)"
expect "not twice" 2 's4 is a member' "${admin[@]}" members add s4
expect "a plan with it" 0 '^s4 +[1-9]' "${admin[@]}" plan propose
expect "is applied" 0 'epoch 1 -> [0-9]' "${admin[@]}" plan apply
(($(experts s4) > 0)) || fail "who joined has no experts"
ask prompts.jsonl s4 errors.s4.txt >joined.txt
cmp -s few.txt joined.txt || fail "answers of who joined: $(head -n 2 errors.s4.txt)"

# ------------------------------------------------------------------------------------------------ leaving

eventually settles || fail "the change to a plan with s4 does not end"
expect "who hosts experts stays" 1 's2 hosts experts, .*; take that from it with' "${admin[@]}" members remove s2
expect "who is connected is not lost" 2 '.*lost: s2 is connected' "${admin[@]}" members remove s2 --lost
expect "what would move" 0 'loses \(layer.expert\)' "${admin[@]}" --dry-run decommission s2
expect "a plan that needs s2, for later" 0 '^s2 ' "${admin[@]}" --node s3 plan propose --strategy layer-shards
expect "it leaves" 0 'epoch [0-9] -> [0-9]' "${admin[@]}" decommission s2
[[ $(experts s2) == 0 ]] || fail "who leaves hosts experts"
expect "again is nothing new" 0 '^drained: yes' "${admin[@]}" decommission s2
# What is under the plan before may keep it a while.
expect "who takes requests is not removed" 1 's2 still takes requests|a change of plan is under way' bash -c "$(printf '%q ' "${admin[@]}") resume s2 && $(printf '%q ' "${admin[@]}") members remove s2"
expect "it takes none" 0 '^drained: yes' "${admin[@]}" drain s2
removed() { "${admin[@]}" members remove s2; }
eventually removed || fail "it is not removed: $(removed 2>&1)"
expect "it is no member" 0 '^-- +s2' "${admin[@]}" --node s4 members
kill -9 "$(cat edge/nodes/s2/pid)"
rm edge/nodes/s2/pid
cp edge/plan.json edge/profile.json edge/nodes/s2/
apart s2
expect "what was proposed before is not applied" 2 'follows the plan of epoch|is no member any more' "${admin[@]}" --node s3 plan apply
expect "a plan goes on without it" 0 'epoch [0-9]+ -> [0-9]+' bash -c "$(printf '%q ' "${admin[@]}") plan propose --strategy layer-shards && $(printf '%q ' "${admin[@]}") plan apply"
rm loading
wait "${loaders[@]}"
[[ -f wrong.txt ]] && fail "answers while members change: $(sort wrong.txt | uniq -c) $(head -n 3 errors.*.txt)"
for node in s0 s1; do
  [[ -s rounds.$node.txt ]] || fail "nothing was asked of $node meanwhile"
done
expect "nobody started again" 0 '^s0 1
s1 1
s3 1' boots
for node in s0 s1 s3 s4; do
  grep 'session\.down' "edge/nodes/$node/log" | grep -v 'peer=s2' && fail "$node lost a peer that did not leave"
done

# ---------------------------------------------------------------------------------------- gone for good

strategy=(plan propose --strategy exact)
expect "experts are everywhere" 0 'epoch [0-9]+ -> [0-9]+' bash -c "$(printf '%q ' "${admin[@]}" "${strategy[@]}") && $(printf '%q ' "${admin[@]}") plan apply"
(($(experts s3) > 0)) || fail "s3 has no experts"
kill -9 "$(cat edge/nodes/s3/pid)"
rm edge/nodes/s3/pid
is_down() { "${admin[@]}" members | grep -qE '^DN +s3'; }
eventually is_down || fail "who died is not missed"
eventually settles || fail "the change before its death does not end"
expect "who is dead is not decommissioned" 1 's3 is not connected to s[0-9]; start it, or give it up' "${admin[@]}" decommission s3
expect "nor removed like that" 1 's3 hosts experts, .* give it up with --lost' "${admin[@]}" members remove s3
expect "it is given up" 0 '^member: no' "${admin[@]}" members remove s3 --lost
expect "the others do without it" 0 'epoch [0-9]+ -> [0-9]+' bash -c "$(printf '%q ' "${admin[@]}" "${strategy[@]}") && $(printf '%q ' "${admin[@]}") plan apply"
ask many.jsonl s0 errors.after.txt >after.txt
cmp -s reference.txt after.txt || fail "answers without who is gone: $(head -n 2 errors.after.txt)"

# It is kept over an end and a start, and who comes back is not let in.
"$ordermoe" cluster down --dir edge >/dev/null
cp edge/nodes/s1/state/members.json kept.json
echo half >edge/nodes/s1/state/members.json
expect "a broken roll is told" 2 'members.json.* copy the file from another node' "$ordermoe" node --config "$PWD/edge/nodes/s1/node.toml"
cp kept.json edge/nodes/s1/state/members.json
expect "the others start" 0 '^127' "$ordermoe" cluster start --dir edge
expect "without those" 0 '^-- +s3' "${admin[@]}" members
start s2
refuses() { grep -q 'expected a node of the member list' edge/nodes/s2/log; }
eventually refuses || fail "who left is let in again: $(tail -n 3 edge/nodes/s2/log)"
expect "nor has it anybody" 0 '^DN +s0' "${admin[@]}" --node s2 members
expect "what it is asked ends by name" 1 'is not connected|away' "$ordermoe" run --prompts prompts.jsonl --max-new-tokens 4 --connect "$(listen s2)" --dir edge
expect "it does not say who is a member" 1 's2 is connected to no more than half of the other members' "${admin[@]}" --node s2 members remove s1 --lost
ask many.jsonl s1 errors.end.txt >end.txt
cmp -s reference.txt end.txt || fail "answers at the end: $(head -n 2 errors.end.txt)"
# Its plan is that of the day when it left: it fetches the one in force.
cmp -s edge/plan.json edge/nodes/s2/plan.json && fail "the plan did not change since s2 left"
expect "it is added again" 0 '^member: yes' "${admin[@]}" members add s2
is_back() { "${admin[@]}" --node s4 members | grep -qE '^UN +s2'; }
eventually is_back || fail "who is added again does not come: $(tail -n 3 edge/nodes/s2/log)"
cmp -s edge/plan.json edge/nodes/s2/plan.json || fail "who came back goes by another plan"
expect "which came from a member" 0 'plan.fetched epoch=[0-9]+ ' cat edge/nodes/s2/log
"$ordermoe" cluster down --dir edge >/dev/null

((failures == 0)) || { echo "$failures checks failed"; exit 1; }
echo "all checks passed"
