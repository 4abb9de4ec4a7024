#!/usr/bin/env bash
# An operator's console as users meet it: look, plan, change the plan under load, drain, and what stays over a start.
# admin.sh ORDERMOE DATA
set -uo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/expect.sh"
begin "$@"

printf '{"prompt": "Q: 12 * 3\\nA:"}\nIn early spring\nFedon is known\n' >prompts.jsonl
for _ in {1..12}; do cat prompts.jsonl; done >many.jsonl
"$ordermoe" cluster draw --servers 3 --seed 2 --memory-ratio 8 --layers 6 --experts 8 --out three.toml >/dev/null || fail "three servers are drawn"
admin=("$ordermoe" admin --dir edge)
expect "a console needs a cluster" 2 'nowhere: no cluster is there' "$ordermoe" admin --dir nowhere members
expect "a cluster comes up" 0 '^127' "$ordermoe" cluster up --trace --model "$model" --cluster three.toml --strategy layer-shards --max-positions 400 --threads 1 --port "$(ports 8)" --dir edge
at=$(sed -n 's/^listen = \["\(.*\)"\]/\1/p' edge/nodes/s0/node.toml)
"$ordermoe" run --model "$model" --mode reference --prompts many.jsonl --max-new-tokens 24 --json 2>/dev/null </dev/null | answers >reference.txt

# ------------------------------------------------------------------------------------------------ looking

expect "members" 0 '^UN +s2 +2 +no' "${admin[@]}" members
expect "of another node" 0 '^UN +s1 +1 +yes' "${admin[@]}" --node s1 members
expect "a node that is none" 2 "found node 's9', expected one of s0, s1, s2" "${admin[@]}" --node s9 members
expect "all nodes in a line each" 0 '^UN +s2 +1 +0\.0 +0 +0 .* 2/2$' "${admin[@]}" --node s1 status
expect "a node's sessions" 0 '^s2 +token +[0-9]+ ' "${admin[@]}" --node s1 peers
expect "links as stated and as found" 0 '^s0 +s1 +yes +[0-9.]+ ' "${admin[@]}" topology
expect "which experts are where" 0 '^1 +s[012] +[0-9]' "${admin[@]}" experts --layer 1
for verb in members "plan show" experts; do
  # shellcheck disable=SC2086
  "${admin[@]}" $verb >told.txt && grep -q '^strategy: layer-shards' told.txt && grep -q '^placement: ' told.txt || fail "$verb does not tell the strategy: $(head -n 5 told.txt)"
done
expect "a layer that is none" 2 'found layer 99, expected 0 to 5' "${admin[@]}" experts --layer 99
expect "a request that is none" 2 'request 7 is not being answered at s0' "${admin[@]}" requests show 7
expect "the log's level" 0 '^level: info' "${admin[@]}" log level get
expect "another" 0 '^level: debug' "${admin[@]}" log level set debug
expect "and again" 0 'log.level_changed' "${admin[@]}" events
grep -q ' client.came client=console role=admin' edge/nodes/s0/log || fail "the log has nothing of level debug: $(tail -n 2 edge/nodes/s0/log)"
expect "as JSON" 0 '"epoch": 1' "${admin[@]}" --json members
expect "the plan" 0 '^s0 +[0-9]+ +[0-9]+' "${admin[@]}" plan show
expect "the policy" 0 '"omega_time"' "${admin[@]}" policy get
expect "no requests" 0 '^request +phase' "${admin[@]}" requests list
expect "a verb that is none" 2 "nonsense" "${admin[@]}" nonsense
expect "a group without its verb" 2 'admin plan: a subcommand is missing; expected one of show, history' "${admin[@]}" plan
expect "help has an example" 0 'ordermoe admin --dir edge plan apply' "$ordermoe" admin --help
expect "options of all verbs behind one" 0 '^UN +s1 +1 +yes' "$ordermoe" admin members --node s1 --dir edge
expect "and before it" 0 '^UN +s1 +1 +yes' "$ordermoe" admin --node s1 members --dir edge
expect "an option that is misspelt" 2 "admin members: unknown option '--nod'; did you mean --node\?" "$ordermoe" admin members --nod s1 --dir edge
expect "an option of another verb" 2 "unknown option '--drain-s'" "${admin[@]}" members --drain-s 3
# The example at the end of each verb's help is one that runs: what it names may not be there, which the node says.
n_examples=0
while IFS= read -r words; do
  read -ra verb <<<"$words"
  example=$("$ordermoe" admin "${verb[@]}" --help | sed -n 's/^  ordermoe //p' | tail -n 1)
  [[ $example == "admin $words"* ]] || fail "the help of '$words' ends with '$example'"
  read -ra example <<<"${example/ --follow/}"
  said=$("$ordermoe" "${example[@]}" --dry-run 2>&1 </dev/null)
  (($? != 2)) || [[ $said == *"ordermoe: s"[0-2]:* || $said == *"expected one of s0, s1, s2"* ]] || fail "the example of '$words' is refused: $said"
  n_examples=$((n_examples + 1))
done < <(sed 's/#.*//' <<'VERBS'
status
members
members add
members remove
decommission
requests list
requests show
requests cancel
peers
topology
experts
drift
plan show
plan propose
plan diff
plan apply
plan abort
plan history
policy get
policy set
drain
resume
cert show
cert reload
events
audit
log level get
log level set
token list
token create
token revoke
VERBS
)
((n_examples == 31)) || fail "$n_examples examples of 31 were run"

# On a terminal: the tab key ends a verb, an option or a value that nothing else begins like, and lists what there is else.
keys=("$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/typed_in_console.py" "$ordermoe" edge)
expect "a verb is completed" 0 '' "${keys[@]}" 'mem\t\n' '^UN +s2 '
expect "a verb of a group" 0 '' "${keys[@]}" 'plan h\t\n' '^epoch +reason'
expect "an option behind a verb" 0 '' "${keys[@]}" 'resume s1 --dr\t\n' 'nothing was done; would be operation'
expect "verbs that begin alike" 0 '' "${keys[@]}" 'p\t' '^ +peers ' '^ +plan ' '^ +policy '
expect "a line that ends none" 0 '' "${keys[@]}" 'nonsense\t\nquit later\n'
expect "what is misspelt is told, and the next line follows" 0 '' "${keys[@]}" 'mebers\nplan\nmembers\n' "^error: unknown verb 'mebers'; did you mean members" \
  '^error: plan: a verb is missing; expected one of show' '^UN +s2 '

# ---------------------------------------------------------------------------------------- another plan

expect "nothing was proposed" 2 'nothing was proposed' "${admin[@]}" plan apply
expect "a plan is proposed" 0 '^strategy: exact' "${admin[@]}" plan propose --strategy exact
expect "it differs" 0 'gains \(layer.expert\)' "${admin[@]}" plan diff
would_be() { printf '%s\n' 'plan apply' 'drain s2' '--dry-run drain s1' members | "${admin[@]}" --dry-run; }
expect "a console that only asks what would be does nothing" 0 '^epoch: 1' would_be
expect "and says so each time" 0 '^3$' bash -c "printf '%s\\n' 'plan apply' 'drain s2' '--dry-run drain s1' | '$ordermoe' admin --dir edge --dry-run | grep -c 'nothing was done'"
expect "what is no order needs no --dry-run" 2 'stand alone on a line' bash -c "echo '--dry-run help' | '$ordermoe' admin --dir edge"
expect "a line's --dry-run is not the next one's" 0 '^1$' bash -c "printf '%s\\n' '--dry-run resume s2' 'resume s2' | '$ordermoe' admin --dir edge | grep -c 'nothing was done'"
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
expect "what routers chose is told" 0 '"rows": [1-9]' "${admin[@]}" --json drift
expect "and kept with its time where some were counted" 0 '^\{"version":2,"profile":"[0-9a-f]{64}","written_ms":[0-9]{13},"activation":"' cat edge/nodes/s?/state/counts.json
printf 'plan propose --strategy layer-shards\nplan apply --drain-s 5\nplan history\npolicy set omega_time=0.75\nquit\nmembers\n' |
  "${admin[@]}" --node s2 >lines.txt 2>&1 || fail "lines are read: $(head -n 3 lines.txt)"
printf '# what follows fails\ndrain s9\npolicy set omega_time=0.5\n' | "${admin[@]}" --json >said.txt 2>errors.txt
[[ $? -eq 2 && ! -s said.txt ]] && grep -q "^ordermoe: line 2: found node 's9'" errors.txt || fail "lines that nobody types go on behind a failure: $(cat said.txt errors.txt)"
for pattern in 'epoch 2 -> 3' '^epoch +reason' 'omega_time": 0.75'; do
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

# ------------------------------------------------------------------------------------------------ tokens

"$ordermoe" cert issue eve --role viewer --dir edge/certificates >/dev/null || fail "a viewer's certificate is issued"
mkdir viewer && cp -r edge/cluster.toml edge/nodes viewer && mkdir viewer/certificates && cp edge/certificates/ca.crt viewer/certificates
for end in crt key; do cp -p "edge/certificates/eve.$end" "viewer/certificates/console.$end"; done
viewer=("$ordermoe" admin --dir viewer)
expect "a viewer looks" 0 '^UN' "${viewer[@]}" status
expect "and no more" 2 'takes a certificate of role operator, this one is of viewer' "${viewer[@]}" resume s1
expect "a token is made" 0 '^token: in deploy.token' "${admin[@]}" token create deploy --role operator --ttl 1h --out deploy.token
expect "it is there" 0 '^deploy +operator +holds' "${admin[@]}" --node s2 token list
expect "a secret goes into no file that is there" 1 'deploy.token' "${admin[@]}" token create other --role viewer --out deploy.token
"${admin[@]}" token list </dev/null | grep -q '^other ' && fail "a token was made whose secret nobody has"
expect "it raises a viewer's role" 0 '^drained: no' "${viewer[@]}" --token-file deploy.token resume s1
expect "not beyond its own" 2 'role admin' "${viewer[@]}" --token-file deploy.token plan apply
grep -q 'audit.done operation=s1.1.[0-9]* who=eve role=operator token=deploy' edge/nodes/s1/log || fail "the audit does not name the token"
grep -rqF "$(sed 's/.*_//' deploy.token)" edge && fail "a secret is in the cluster's folder"
[[ $(stat -c %a edge/nodes/s1/state/tokens.json) == 600 ]] || fail "others may read the tokens of a node"
chmod 644 deploy.token
expect "a secret that others may read" 2 'others than its owner may read it; chmod 600' "${viewer[@]}" --token-file deploy.token resume s1
chmod 600 deploy.token
expect "a token is revoked" 0 '^name: deploy' "${admin[@]}" token revoke deploy
does_not_hold() { [[ $("${viewer[@]}" --token-file deploy.token resume s1 2>&1) == *"does not hold"* ]]; }
eventually does_not_hold || fail "a revoked token holds"

# ---------------------------------------------------------------------------------------------- draining

expect "a node is drained" 0 '^drained: yes' "${admin[@]}" drain s0
expect "its users are told" 1 's0\) is drained; ask another node' "$ordermoe" run --prompts prompts.jsonl --max-new-tokens 4 --connect "$at" --dir edge
expect "it says so" 0 '^UL +s0' "${admin[@]}" --node s0 members
expect "so does the cluster's status" 1 '^s0 +127[^ ]+ +drained ' "$ordermoe" cluster status --dir edge
expect "with how to end that" 1 '2 of 3 nodes serve; s0 is drained: .*resume s0' "$ordermoe" cluster status --dir edge
expect "texts are scored without it" 0 's0 is drained: others are asked in its place' "$ordermoe" eval --tokens 100 --connect "$at" --dir edge
expect "it is resumed" 0 '^drained: no' "${admin[@]}" resume s0
"$ordermoe" run --prompts many.jsonl --max-new-tokens 24 --connect "$at" --dir edge --json 2>errors.txt </dev/null | answers >after.txt
cmp -s reference.txt after.txt || fail "answers afterwards: $(head -n 2 errors.txt)"

# ---------------------------------------------------------------------------------- over an end and a start

"$ordermoe" cluster down --dir edge
"$ordermoe" trace merge edge/nodes/*/trace.jsonl --out merged.jsonl >/dev/null || fail "traces are merged"
expect "the merged trace is right" 0 'valid\.' "$ordermoe" trace verify merged.jsonl
[[ $(grep -c '"type":"plan"' merged.jsonl) == 2 ]] || fail "the merged trace does not have two changes of plan"
expect "the cluster starts again" 0 '' "$ordermoe" cluster start --dir edge
has_policy() { "${admin[@]}" policy get | grep -q 'omega_time": 0.75'; }
eventually has_policy || fail "the policy is not kept"
expect "by the plan that it had" 0 '^epoch: 3' "${admin[@]}" members
"${admin[@]}" drain s0 >/dev/null || fail "a node is drained again"
kill -9 "$(cat edge/nodes/s1/pid)"
expect "who is missing is started, also where another is drained" 0 'starting s1; already there: s0, s2' "$ordermoe" cluster start --dir edge
expect "a drain lasts meanwhile" 0 '^UL +s0' "${admin[@]}" --node s0 members
"${admin[@]}" resume s0 >/dev/null || fail "a node is resumed again"
kill -9 "$(cat edge/nodes/s1/pid)"
expect "a plan needs everybody" 1 'not connected, and every server has to take part|was lost|plan in force' bash -c "$(printf '%q ' "${admin[@]}") plan propose --strategy exact >/dev/null; for _ in {1..100}; do $(printf '%q ' "${admin[@]}") members | grep -q '^DN' && break; sleep 0.1; done; $(printf '%q ' "${admin[@]}") plan apply"
# A flag goes before the environment.
ORDERMOE_LOG_LEVEL=error ORDERMOE_LOG_FORMAT=json "$ordermoe" node --config "$PWD/edge/nodes/s1/node.toml" --log-level debug --log-file "$PWD/s1.jsonl" >>edge/nodes/s1/log 2>&1 &
echo $! >edge/nodes/s1/pid
for _ in {1..200}; do "${admin[@]}" members | grep -q '^UN *s1' && break; sleep 0.1; done
expect "it tells of all when it is back" 0 '^UN +s0' "${admin[@]}" --node s1 status
expect "and has it when it is back" 0 'epoch 3 -> 4' "${admin[@]}" plan apply
"$ordermoe" run --prompts many.jsonl --max-new-tokens 24 --connect "$at" --dir edge --json 2>errors.txt </dev/null | answers >back.txt
cmp -s reference.txt back.txt || fail "answers with a node that came back: $(head -n 2 errors.txt)"
"$ordermoe" cluster down --dir edge
python3 - s1.jsonl <<'PYTHON' || fail "the log as JSON: $(head -n 3 s1.jsonl)"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert all({"time", "level", "node", "event"} <= line.keys() and line["node"] == "s1" for line in lines)
assert {"node.ready", "session.up", "client.came", "node.ends"} <= {line["event"] for line in lines}, lines
PYTHON
expect "a log makes no folders" 1 'log: nowhere/s1.log: there is no folder nowhere; make it' "$ordermoe" node --config edge/nodes/s1/node.toml --log-file nowhere/s1.log
[[ ! -e nowhere ]] || fail "a log made a folder"
expect "a level that is none" 2 "ORDERMOE_LOG_LEVEL: found 'loud', expected one of debug" env ORDERMOE_LOG_LEVEL=loud "$ordermoe" node --config edge/nodes/s1/node.toml

((failures == 0)) || { echo "$failures checks failed"; exit 1; }
echo "all checks passed"
