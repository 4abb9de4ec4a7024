#!/usr/bin/env bash
# A server joins a cluster that writes traces, and another leaves: what all of them wrote is one trace that holds.
# membership_trace.sh ORDERMOE DATA
set -uo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/expect.sh"
begin "$@"

printf 'Q: 12 * 3\nIn early spring\nFedon is known\n' >prompts.txt
for _ in {1..6}; do cat prompts.txt; done >many.txt
"$ordermoe" cluster draw --servers 4 --seed 2 --memory-ratio 4 --layers 6 --experts 8 --out four.toml >/dev/null || fail "four servers are drawn"
expect "a cluster comes up without its spare" 0 '^127' "$ordermoe" cluster up --trace --model "$model" --cluster four.toml --strategy exact \
  --max-positions 400 --threads 1 --port "$(ports 8)" --spare s3 --dir edge
admin=("$ordermoe" admin --dir edge)
listen() { sed -n 's/^listen = \["\(.*\)"\]/\1/p' "edge/nodes/$1/node.toml"; }
ask() { expect "it answers at $1" 0 '' "$ordermoe" run --prompts many.txt --max-new-tokens 24 --connect "$(listen "$1")" --dir edge; }
settles() { "${admin[@]}" members | grep -q '^change: none'; }

ask s0
"$ordermoe" node --config "$PWD/edge/nodes/s3/node.toml" >edge/nodes/s3/log 2>&1 &
echo $! >edge/nodes/s3/pid
waits() { grep -q 's3 serves at' edge/nodes/s3/log; }
eventually waits || fail "the spare does not start: $(tail -n 3 edge/nodes/s3/log)"
ask s0
expect "it is added" 0 '^member: yes' "${admin[@]}" members add s3
is_up() { "${admin[@]}" --node "$1" members | grep -qE '^UN +s3'; }
for node in s0 s1 s2 s3; do eventually is_up $node || fail "who was added does not come to $node"; done
ask s3
expect "a plan with it is proposed" 0 '^s3 +[1-9]' "${admin[@]}" plan propose
expect "and applied" 0 'epoch 1 -> [0-9]' "${admin[@]}" plan apply
ask s0
eventually settles || fail "the change to a plan with s3 does not end"
expect "another leaves" 0 'epoch [0-9] -> [0-9]' "${admin[@]}" decommission s2
eventually settles || fail "the change to a plan without s2 does not end"
removed() { "${admin[@]}" members remove s2; }
eventually removed || fail "it is not removed: $(removed 2>&1)"
kill -TERM "$(cat edge/nodes/s2/pid)"
sealed() { tail -n 1 edge/nodes/s2/trace.jsonl | grep -q '"type":"end"'; }
eventually sealed || fail "who left does not close its trace"
rm edge/nodes/s2/pid
ask s0
ask s3
"$ordermoe" cluster down --dir edge >/dev/null
expect "their traces are one" 0 '' "$ordermoe" trace merge edge/nodes/*/trace.jsonl --out merged.jsonl
expect "that holds" 0 'valid\.' "$ordermoe" trace verify merged.jsonl
grep -q '"type":"lost"' merged.jsonl || fail "nothing was lost while s3 was not there"

((failures == 0)) || { echo "$failures checks failed"; exit 1; }
echo "all checks passed"
