#!/usr/bin/env bash
# An operator's console as users meet it: look, plan, change the plan under load, drain, and what stays over a start.
# admin.sh ORDERMOE DATA
set -uo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/expect.sh"
ordermoe=$1
data=$2
work=$(mktemp -d)
nodes() { cat "$work"/*/nodes/*/pid 2>/dev/null; }
# Whatever went wrong, no node outlives this.
trap 'for pid in $(nodes); do kill -9 "$pid" 2>/dev/null; done; rm -rf "$work"' EXIT
cd "$work" || exit 1
export ORDERMOE_DATA=$data OPENBLAS_NUM_THREADS=1
model=$data/models/lineage


printf '{"prompt": "Q: 12 * 3\\nA:"}\nIn early spring\nFedon is known\n' >prompts.jsonl
for _ in {1..12}; do cat prompts.jsonl; done >many.jsonl
"$ordermoe" cluster draw --servers 3 --seed 2 --memory-ratio 8 --layers 6 --experts 8 --out three.toml >/dev/null || fail "three servers are drawn"
admin=("$ordermoe" admin --dir edge)
expect "a console needs a cluster" 2 'nowhere: no cluster is there' "$ordermoe" admin --dir nowhere members
expect "a cluster comes up" 0 '^127' "$ordermoe" cluster up --trace --model "$model" --cluster three.toml --strategy layer-shards --max-positions 400 --threads 1 --port $((20000 + $$ % 20000)) --dir edge
at=$(sed -n 's/^listen = \["\(.*\)"\]/\1/p' edge/nodes/s0/node.toml)
"$ordermoe" run --model "$model" --mode reference --prompts many.jsonl --max-new-tokens 24 --json 2>/dev/null </dev/null | answers >reference.txt

# ------------------------------------------------------------------------------------------------ looking

expect "members" 0 '^UN +s2 +2 +no' "${admin[@]}" members
expect "of another node" 0 '^UN +s1 +1 +yes' "${admin[@]}" --node s1 members
expect "a node that is none" 2 "found node 's9', expected one of s0, s1, s2" "${admin[@]}" --node s9 members
expect "as JSON" 0 '"epoch": 1' "${admin[@]}" --json members
expect "the plan" 0 '^s0 +[0-9]+ +[0-9]+' "${admin[@]}" plan show
expect "the policy" 0 '"omega_time"' "${admin[@]}" policy get
expect "no requests" 0 '^request +phase' "${admin[@]}" requests list
expect "a verb that is none" 2 "nonsense" "${admin[@]}" nonsense
expect "help has an example" 0 'ordermoe admin --dir edge plan apply' "$ordermoe" admin --help

# ---------------------------------------------------------------------------------------- another plan

expect "nothing was proposed" 2 'nothing was proposed' "${admin[@]}" plan apply
expect "a plan is proposed" 0 '^strategy: exact' "${admin[@]}" plan propose --strategy exact
expect "it differs" 0 'gains \(layer.expert\)' "${admin[@]}" plan diff
expect "what would be" 0 'nothing was done; would be operation s0.1.[0-9]+, epoch 1 -> 2' "${admin[@]}" --dry-run plan apply
"$ordermoe" run --prompts many.jsonl --max-new-tokens 24 --connect "$at" --dir edge --json 2>errors.txt </dev/null | answers >loaded.txt &
load=$!
expect "it is applied under load" 0 'epoch 1 -> 2' "${admin[@]}" plan apply
wait "$load"
cmp -s reference.txt loaded.txt || fail "answers while the plan changes: $(head -n 2 errors.txt)"
for node in s0 s1 s2; do
  expect "all go by it" 0 '^epoch: 2' "${admin[@]}" --node "$node" members
done
expect "it is kept" 0 '"epoch": 2' grep -m1 '"epoch"' edge/plan.json
printf 'plan propose --strategy layer-shards\nplan apply --drain-s 5\nplan history\nnot a verb\npolicy set omega_time=0.75\nquit\nmembers\n' |
  "${admin[@]}" --node s2 >lines.txt 2>&1 || fail "lines are read: $(head -n 3 lines.txt)"
for pattern in 'epoch 2 -> 3' '^epoch +reason' 'omega_time": 0.75' 'not'; do
  grep -qE -- "$pattern" lines.txt || fail "lines: expected '$pattern', got: $(head -n 20 lines.txt)"
done
grep -q '^state' lines.txt && fail "a line after quit is read"
# A server tells its recorder when it resumes, which the leader does not wait for.
has_change() { "${admin[@]}" --node s2 plan history | grep -qE '^3 +order'; }
eventually has_change || fail "the change is not in the history"
expect "the policy is everywhere" 0 '0.75' "${admin[@]}" --node s0 policy get
expect "what happened" 0 'plan.changed \{"epoch":3\}' "${admin[@]}" --node s1 events
expect "who did it" 0 's2.1.[0-9]+ +console +admin +done' "${admin[@]}" --node s2 audit
grep -q 'audit.ordered operation=s0.1.[0-9]* who=console role=admin' edge/nodes/s0/log || fail "the log has no audit"

# ---------------------------------------------------------------------------------------------- draining

expect "a node is drained" 0 '^drained: yes' "${admin[@]}" drain s0
expect "its users are told" 1 's0\) is drained; ask another node' "$ordermoe" run --prompts prompts.jsonl --max-new-tokens 4 --connect "$at" --dir edge
expect "it says so" 0 '^UL +s0' "${admin[@]}" --node s0 members
expect "it is resumed" 0 '^drained: no' "${admin[@]}" resume s0
"$ordermoe" run --prompts many.jsonl --max-new-tokens 24 --connect "$at" --dir edge --json 2>errors.txt </dev/null | answers >after.txt
cmp -s reference.txt after.txt || fail "answers afterwards: $(head -n 2 errors.txt)"

# ---------------------------------------------------------------------------------- over an end and a start

"$ordermoe" cluster down --dir edge
"$ordermoe" trace merge edge/nodes/*/trace.jsonl --out merged.jsonl >/dev/null || fail "traces are merged"
expect "the merged trace is right" 0 'valid\.' "$ordermoe" trace verify merged.jsonl
[[ $(grep -c '"type":"plan"' merged.jsonl) == 2 ]] || fail "the merged trace does not have two changes of plan"
expect "the cluster starts again" 0 '' "$ordermoe" cluster start --dir edge
expect "by the plan that it had" 0 '^epoch: 3' "${admin[@]}" members
kill -9 "$(cat edge/nodes/s1/pid)"
expect "a plan needs everybody" 1 'not connected, and every server has to take part|was lost|plan in force' bash -c "$(printf '%q ' "${admin[@]}") plan propose --strategy exact >/dev/null; for _ in {1..100}; do $(printf '%q ' "${admin[@]}") members | grep -q '^DN' && break; sleep 0.1; done; $(printf '%q ' "${admin[@]}") plan apply"
"$ordermoe" node --config "$PWD/edge/nodes/s1/node.toml" >>edge/nodes/s1/log 2>&1 &
echo $! >edge/nodes/s1/pid
for _ in {1..200}; do "${admin[@]}" members | grep -q '^UN *s1' && break; sleep 0.1; done
expect "and has it when it is back" 0 'epoch 3 -> 4' "${admin[@]}" plan apply
"$ordermoe" run --prompts many.jsonl --max-new-tokens 24 --connect "$at" --dir edge --json 2>errors.txt </dev/null | answers >back.txt
cmp -s reference.txt back.txt || fail "answers with a node that came back: $(head -n 2 errors.txt)"
"$ordermoe" cluster down --dir edge

((failures == 0)) || { echo "$failures checks failed"; exit 1; }
echo "all checks passed"
