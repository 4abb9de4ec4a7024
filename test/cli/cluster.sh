#!/usr/bin/env bash
# A cluster of processes as users meet it: up, status, answers, a node that is killed, down.
# cluster.sh ORDERMOE DATA
set -uo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/expect.sh"
begin "$@"

# status_of MEMBER... of node FIRST, from `cluster status`.
status_of() { "$ordermoe" cluster status --dir "$1" --json 2>/dev/null | python3 -c 'import json, sys
node = json.load(sys.stdin)["nodes"][int(sys.argv[1])]
for member in sys.argv[2:]: node = node[int(member) if member.isdigit() else member]
print(node)' "${@:2}"; }
# Whether a process does: what is only not buried yet has no command line.
runs() { grep -q . "/proc/$1/cmdline" 2>/dev/null; }
ended() { ! runs "$1"; }

printf '{"prompt": "Q: 12 * 3\\nA:"}\nIn early spring\nFedon is known\n' >prompts.jsonl
"$ordermoe" cluster draw --servers 3 --seed 2 --memory-ratio 1.5 --layers 6 --experts 8 --out three.toml >/dev/null || fail "three servers are drawn"
up=("$ordermoe" cluster up --model "$model" --cluster three.toml --search-steps 200 --max-positions 400 --threads 1)
run=("$ordermoe" run --prompts prompts.jsonl --max-new-tokens 24 --json)

# --------------------------------------------------------------------------------------- what is refused

expect "a cluster needs a folder" 2 '--dir' "${up[@]}"
expect "no cluster is in an empty folder" 2 'nowhere: no cluster is there; start one' "$ordermoe" cluster status --dir nowhere
expect "nor can it be started" 2 'nowhere: no cluster is there' "$ordermoe" cluster start --dir nowhere
expect "nor ended" 2 'nowhere: no cluster is there' "$ordermoe" cluster down --dir nowhere
sed 's/^name = "s2"/name = "S_2"/; s/"s2"/"S_2"/g' three.toml >capital.toml
expect "a name that no certificate can have is refused" 2 "name of a server: found 'S_2'" "$ordermoe" cluster up --model "$model" --cluster capital.toml --search-steps 200 --dir capital
[[ ! -e capital ]] || fail "a refused cluster left a folder"
expect "a connection needs certificates" 2 '--dir DIR belong together' "$ordermoe" run --prompts prompts.jsonl --connect 127.0.0.1:1
expect "certificates need a connection" 2 '--dir DIR belong together' "$ordermoe" run --model "$model" --prompts prompts.jsonl --dir edge
expect "a cluster has its own model" 2 '--model: .*own configuration' "${run[@]}" --connect 127.0.0.1:1 --dir edge --model "$model"
expect "an address is checked" 2 '--connect: .*here' "${run[@]}" --connect here --dir edge
expect "certificates that are not there are named" 2 'nowhere/certificates/ca.crt' "${run[@]}" --connect 127.0.0.1:1 --dir nowhere
expect "a node needs a file" 2 'nowhere.toml' "$ordermoe" node --config nowhere.toml

# ----------------------------------------------------------------------- several hosts, before they start

prepare=("$ordermoe" cluster prepare --model "$model" --cluster three.toml --search-steps 200 --dir hosts)
expect "every host needs an address" 2 '--address: none for server s2' "${prepare[@]}" --address s0=10.0.0.1:7400 --address s1=10.0.0.2:7400
expect "of two hosts that nobody can dial neither reaches the other" 2 'cannot reach each other' "${prepare[@]}" --address s0=10.0.0.1:7400 --address s1=- --address s2=-
expect "an address is of a server" 2 "found the name 'x'" "${prepare[@]}" --address x=10.0.0.1:7400
[[ ! -e hosts ]] || fail "a refused preparation left a folder"
expect "hosts are prepared" 0 's2 +dials only' "${prepare[@]}" --address s0=10.0.0.1:7400 --address s1=10.0.0.2:7400 --address s2=-
expect "what is prepared belongs together" 0 's2 +[0-9]+ +[0-9.]+ +-$' "$ordermoe" cluster check --dir hosts
expect "one node alone" 0 '"weight_bytes": [1-9]' "$ordermoe" cluster check --config hosts/nodes/s1/node.toml --json
sed 's|^state = .*|state = "/proc/nope"|' hosts/nodes/s1/node.toml >hosts/nodes/s1/odd.toml
expect "a state that cannot be kept is named by a check" 2 'node s1: state /proc/nope: cannot be made' "$ordermoe" cluster check --config hosts/nodes/s1/odd.toml
expect "and by the node" 1 'node s1: state /proc/nope: cannot be made' "$ordermoe" node --config hosts/nodes/s1/odd.toml
sed 's|^state = .*|&\ntrace = "/nope/t"|' hosts/nodes/s1/node.toml >hosts/nodes/s1/odd.toml
expect "so is a trace" 2 'node s1: trace: /nope/t: there is no folder /nope' "$ordermoe" cluster check --config hosts/nodes/s1/odd.toml
cp hosts/nodes/s1/node.toml kept.toml && mv hosts/nodes/s1/odd.toml hosts/nodes/s1/node.toml
expect "of a folder other hosts may have what is not here" 0 's1 +[0-9]+ +[0-9.]+ +-$' "$ordermoe" cluster check --dir hosts
mv kept.toml hosts/nodes/s1/node.toml
expect "a state may be made" 0 's1 +[0-9]+ +[0-9.]+ +-$' "$ordermoe" cluster check --config hosts/nodes/s1/node.toml
[[ ! -e hosts/nodes/s1/state ]] || fail "a check left a state"
expect "a check is of something" 2 '--config FILE for one node, or --dir DIR' "$ordermoe" cluster check
printf '\n[drift]\nhalf_life_s = 60\n' >>hosts/nodes/s2/node.toml
expect "what all nodes have alike is compared" 2 'drift.half_life_s: node s0 has 1800 and node s2 60' "$ordermoe" cluster check --dir hosts
sed -i '/^\[drift\]/,$d' hosts/nodes/s2/node.toml
sed -i 's/^listen = .*/listen = []/' hosts/nodes/s1/node.toml
expect "a pair that cannot meet is named" 2 'nodes s1 and s2: neither has an address' "$ordermoe" cluster check --dir hosts
sed -i 's/^name = "s1"/name = "s9"/' hosts/nodes/s1/node.toml
expect "a node that would not start is named" 2 's9 .*has no server of that name' "$ordermoe" cluster check --dir hosts
mv hosts/certificates/s0.key hosts/certificates/s0.gone
expect "a key that is not there is named" 2 's0 .*s0.key' "$ordermoe" cluster check --dir hosts

# ------------------------------------------------------------------------------------------ a rehearsal

rehearse=("${up[@]}" --port "$(ports 8)" --dir rehearsed)
expect "only a rehearsal is dilated" 2 '--dilation: nothing is rehearsed' "${rehearse[@]}" --dilation 2
expect "only links that are made are slowed" 2 '--dilation: only the links of --netns' "${rehearse[@]}" --rehearse --dilation 2
expect "nodes must greet each other in time" 2 '--dilation: found 900, expected [0-9]+ at most' "${rehearse[@]}" --rehearse --netns --dilation 900
expect "rows are not sent in fewer bytes than they have" 2 'rows of this model are up to 2 times the bytes that measured charges' "${rehearse[@]}" --rehearse --costs measured
[[ ! -e rehearsed ]] || fail "a refused rehearsal left a folder"
expect "hosts rehearse as well" 0 's0' "${prepare[@]/hosts/rehearsing}" --rehearse --address s0=10.0.0.1:7400 --address s1=10.0.0.2:7400 --address s2=10.0.0.3:7400
expect "links may stay as stated" 0 's0' "${prepare[@]/hosts/stated}" --links stated --address s0=10.0.0.1:7400 --address s1=10.0.0.2:7400 --address s2=10.0.0.3:7400
grep -q '^links = "stated"' stated/nodes/s2/node.toml || fail "nodes are not told that links stay as stated"
grep -q '^\[rehearsal\]' rehearsing/nodes/s2/node.toml || fail "hosts are not told that they rehearse"
rm -r rehearsing
expect "the model's own charges" 0 's0' "${prepare[@]/hosts/rehearsing}" --costs measured --address s0=10.0.0.1:7400 --address s1=10.0.0.2:7400 --address s2=10.0.0.3:7400
printf '\n[rehearsal]\n' >>rehearsing/nodes/s1/node.toml
expect "a node checks that its rows fit" 2 'stretch = 1, expected 2 at least' "$ordermoe" node --config rehearsing/nodes/s1/node.toml
expect "a rehearsal starts" 0 '^127\.0\.0\.1:[0-9]+$' "${rehearse[@]}" --rehearse --load-period-ms 0
at=$(sed -n 's/^listen = \["\(.*\)"\]/\1/p' rehearsed/nodes/s0/node.toml)
expect "it answers, and says what its times are" 0 '"dilation": 1' "${run[@]}" --connect "$at" --dir rehearsed
expect "to people as well" 0 'a rehearsal at dilation 1: its times are' "$ordermoe" run --prompts prompts.jsonl --max-new-tokens 2 --connect "$at" --dir rehearsed
expect "and how near they are" 0 'rehearsal at dilation 1: .* Of [1-9][0-9]* batches [0-9]+ took longer' "$ordermoe" cluster status --dir rehearsed
"$ordermoe" cluster down --dir rehearsed
sed -i '/^\[rehearsal\]/,$d' rehearsed/nodes/s2/node.toml
# Those that rehearse and those that do not are no cluster: the start of all would wait for ever.
for node in s0 s1 s2; do
  # The log of one has no room, which its standard error tells once.
  ORDERMOE_LOG_FILE=$([[ $node != s1 ]] || echo /dev/full) "$ordermoe" node --config "$PWD/rehearsed/nodes/$node/node.toml" >>"rehearsed/nodes/$node/log" 2>&1 &
  echo $! >"rehearsed/nodes/$node/pid"
done
eventually grep -q 'hello.rehearsal: found' rehearsed/nodes/s2/log || fail "a node that does not rehearse is not refused"
expect "an end says what it ended" 0 '^3 nodes ended: s0, s1, s2$' "$ordermoe" cluster down --dir rehearsed
[[ $(grep -c 'ordermoe: log: /dev/full: cannot be written (No space left on device): records are lost' rehearsed/nodes/s1/log) == 1 ]] || fail "a log without room: $(tail -n 3 rehearsed/nodes/s1/log)"
expect "or that there was nothing" 0 '"ended": \[\]' "$ordermoe" cluster down --dir rehearsed --json

# Namespaces of its own, where this may make them.
if ((EUID == 0)) && command -v tc >/dev/null && command -v pgrep >/dev/null && ip netns add "probe$$" 2>/dev/null; then
  ip netns del "probe$$"
  relays() { pgrep -f "^$ordermoe relay .*--to $apart" >pids.txt; }
  expect "a rehearsal on links of its own" 0 '^10\.77\.' "${rehearse[@]/rehearsed/apart}" --netns --rehearse --dilation 2
  at=$(sed -n 's/^listen = \["\(.*\)"\]/\1/p' apart/nodes/s0/node.toml)
  apart=${at%.*}.
  relays || fail "no relays run"
  expect "it answers" 0 '"dilation": 2' "${run[@]}" --connect "$at" --dir apart
  expect "it ends" 0 '' "$ordermoe" cluster down --dir apart
  eventually eval '! relays' || fail "relays go on after the end: $(cat pids.txt)"
  [[ ! -e apart/namespaces ]] || fail "namespaces stay"

  # What a class of a link always has must not be more than its share of the uplink, whatever the class above it says.
  "$ordermoe" cluster draw --servers 3 --seed 2 --memory-ratio 1.5 --layers 6 --experts 8 --uplink-gbps 0.1 --out shared.toml >/dev/null
  shared=("$ordermoe" cluster up --model "$model" --strategy layer-shards --threads 1 --netns)
  expect "a cluster whose links share uplinks" 0 '^10\.77\.' "${shared[@]}" --cluster shared.toml --dir shared
  while read -r _ space; do
    tc -n "$space" class show dev eth0 >classes.txt
    [[ $(grep -c 'parent 1:fffe .*rate 50Mbit ceil 100Mbit' classes.txt) == 2 ]] || fail "links do not share an uplink: $(cat classes.txt)"
  done <shared/namespaces
  expect "it answers, too" 0 '"answers"' "${run[@]}" --connect "$(sed -n 's/^listen = \["\(.*\)"\]/\1/p' shared/nodes/s0/node.toml)" --dir shared
  "$ordermoe" cluster down --dir shared >/dev/null
  "$ordermoe" cluster draw --servers 3 --seed 2 --memory-ratio 1.5 --layers 6 --experts 8 --sites 2 --site-uplink-gbps 0.1 --out sites.toml >/dev/null
  expect "uplinks of sites are for virtual time" 2 'leave uplink_gbps of \[\[sites\]\] out' "${shared[@]}" --cluster sites.toml --dir sites
fi

# ------------------------------------------------------------- without a profile, and with parts of the model

expect "a strategy that substitutes needs a profile" 2 'only exact, layer-shards, shard-chains, parallax and random place then; .*calibrate --connect' "$ordermoe" plan --model "$model" --cluster three.toml --profile none --strategy ordermoe
expect "an exact one does without" 0 'every expert is taken to be chosen as often' "$ordermoe" cluster up --model "$model" --cluster three.toml --profile none --strategy layer-shards --max-positions 400 --threads 1 --port "$(ports 8)" --dir plain
"${run[@]}" --model "$model" --mode reference 2>/dev/null </dev/null | answers >reference.txt
plain=$(sed -n 's/^listen = \["\(.*\)"\]/\1/p' plain/nodes/s0/node.toml)
"${run[@]}" --connect "$plain" --dir plain 2>errors.txt </dev/null | answers >cluster.txt
cmp -s reference.txt cluster.txt || fail "a cluster without a profile answers otherwise: $(head -n 2 errors.txt)"
# What is measured over it is what one process measures, and nobody here holds an expert.
# Budgets are tuned on what follows in the text, of which there is little here.
head -c 6000 "$data/eval/calibration.txt" >little.txt
calibrate=("$ordermoe" calibrate --tokens 300 --seed 3 --text little.txt)
"${calibrate[@]}" --model "$model" --out single.json >/dev/null || fail "one process calibrates"
expect "a cluster is calibrated" 0 'nats a token' "${calibrate[@]}" --connect "$plain" --dir plain --out connected.json
cmp single.json connected.json || fail "a cluster's profile is another"
mkdir -p watches && cp -r plain/certificates plain/cluster.toml plain/nodes plain/plan.json watches/
rm watches/certificates/console.* watches/nodes/*/pid
"$ordermoe" cert issue console --dir watches/certificates --role viewer >/dev/null
expect "a viewer calibrates nothing" 2 "viewer's certificate runs no experts" "${calibrate[@]}" --connect "$plain" --dir watches --out watched.json
[[ ! -e watched.json ]] || fail "a refused calibration left a profile"
expect "another model is not what is served" 2 'serves a model with digest' "${calibrate[@]}" --connect "$plain" --dir plain --model "$data/models/upcycled" --out other.json
expect "something is calibrated" 2 'give --model DIR, or --connect' "${calibrate[@]}"
# Likewise its scores, behind a prompt in chunks.
perplexity() { python3 -c 'import json, sys
one = json.load(sys.stdin)["strategies"][0]; print(one["perplexity"], one["exact_match"])'; }
eval=("$ordermoe" eval --tokens 200 --prompt-tokens 40 --n-problems 2 --json)
"${eval[@]}" --model "$model" --cluster three.toml --strategy layer-shards 2>/dev/null | perplexity >alone.txt
"${eval[@]}" --connect "$plain" --dir plain 2>errors.txt | perplexity >connected.txt
[[ -s alone.txt ]] && cmp alone.txt connected.txt || fail "a cluster scores otherwise: $(cat alone.txt connected.txt errors.txt)"
expect "a cluster has its own strategy" 2 '--strategy: a cluster that runs has its own' "${eval[@]}" --connect "$plain" --dir plain --strategy exact
expect "a cluster tells of its waits as its nodes were started" 2 '--load-period-ms: a cluster that runs has its own' "${eval[@]}" --connect "$plain" --dir plain --load-period-ms 0
expect "something is scored" 2 'give --model DIR and --cluster FILE, or --connect' "${eval[@]}"
expect "a score tells where experts ran" 0 'slots run where the token was: exactly' "$ordermoe" eval --tokens 100 --connect "$plain" --dir plain
# A plan with a budget, tried on the running cluster, is the one that a whole model gives.
budget=("$ordermoe" plan --model "$model" --cluster three.toml --profile single.json --quality-budget 1 --search-steps 100 --trial-requests 4)
"${budget[@]}" --out single-plan.json >/dev/null || fail "one process plans"
expect "a plan is tried on a cluster" 0 'copies of 48 experts' "${budget[@]}" --connect "$plain" --dir plain --out connected-plan.json
cmp single-plan.json connected-plan.json || fail "a plan that was tried on a cluster is another"
"$ordermoe" cluster down --dir plain || fail "a cluster without a profile ends"
expect "a plan that was tried starts without the model" 0 '^127' "$ordermoe" cluster up --model "$model" --cluster three.toml --plan connected-plan.json --profile connected.json --max-positions 400 --threads 1 --port "$(ports 8)" --dir planned
planned=$(sed -n 's/^listen = \["\(.*\)"\]/\1/p' planned/nodes/s0/node.toml)
expect "it scores within its budget" 0 'of the budget spent' "$ordermoe" eval --tokens 200 --connect "$planned" --dir planned
"$ordermoe" cluster down --dir planned || fail "a planned cluster ends"
for name in s0 s1 s2; do
  expect "the part of $name is written" 0 "what $name needs of the model" "$ordermoe" model shard --model "$model" --plan plain/plan.json --server "$name" --out "part-$name"
  sed -i "s|^model = .*|model = \"$work/part-$name\"|" "plain/nodes/$name/node.toml"
done
expect "a part is whole" 0 'valid' "$ordermoe" model verify --model part-s1 --checksums
expect "a server that the plan does not have" 2 'has no server of that name, expected one of s0, s1, s2' "$ordermoe" model shard --model "$model" --plan plain/plan.json --server s9 --out part-s9
[[ $(du -b part-s0/model.safetensors | cut -f1) -lt $(du -b "$model/model.safetensors" | cut -f1) ]] || fail "a part is not smaller"
expect "parts are what their nodes need" 0 's2 +[0-9]+ +[0-9.]+ +-$' "$ordermoe" cluster check --dir plain
expect "nodes start on parts" 0 '^127' "$ordermoe" cluster start --dir plain
"${run[@]}" --connect "$plain" --dir plain 2>errors.txt </dev/null | answers >cluster.txt
cmp -s reference.txt cluster.txt || fail "nodes with parts answer otherwise: $(head -n 2 errors.txt)"
"$ordermoe" cluster down --dir plain || fail "nodes with parts end"
sed -i "s|^model = .*|model = \"$work/part-s2\"|" plain/nodes/s0/node.toml
expect "another server's part is named" 2 'not in this part of the model, which is that of server s2' "$ordermoe" cluster check --config plain/nodes/s0/node.toml

# ------------------------------------------------------------------------------------------ it runs

expect "a cluster starts" 0 '^127\.0\.0\.1:[0-9]+$' "${up[@]}" --port "$(ports 8)" --dir edge
all_serve() { [[ $("$ordermoe" cluster status --dir edge | grep -cE 'yes +1 +2/2') == 3 ]]; }
eventually all_serve || fail "not all of it serves: $("$ordermoe" cluster status --dir edge)"
expect "it is not made twice" 2 'there is a cluster already' "${up[@]}" --dir edge
expect "nor started twice" 2 'all nodes run already: s0, s1, s2; .*cluster down --dir edge' "$ordermoe" cluster start --dir edge
mapfile -t address < <(sed -n 's/^listen = \["\(.*\)"\]/\1/p' edge/nodes/s*/node.toml)
((${#address[@]} == 3)) || fail "three nodes listen"
for options in "" "--temperature 0.8 --seed 5" "--stop spring"; do
  # shellcheck disable=SC2086
  "${run[@]}" --model "$model" --mode reference $options 2>/dev/null </dev/null | answers >reference.txt
  [[ $(grep -c '\[' reference.txt) == 3 ]] || fail "the reference answers"
  for at in "${address[@]}"; do
    # shellcheck disable=SC2086
    "${run[@]}" --connect "$at" --dir edge $options 2>errors.txt </dev/null | answers >cluster.txt
    cmp -s reference.txt cluster.txt || fail "$at answers otherwise ($options): $(head -n 2 errors.txt)"
  done
done
expect "answers are printed as they come" 0 '^\[2\] In early spring' "$ordermoe" run --prompts prompts.jsonl --max-new-tokens 8 --connect "${address[1]}" --dir edge
for _ in $(seq 12); do echo 'In early spring'; done >twelve.txt
expect "few at once" 0 '"answers"' "$ordermoe" run --prompts twelve.txt --max-new-tokens 4 --at-once 2 --connect "${address[0]}" --dir edge --json
[[ $(status_of edge 0 status ended_requests) -ge 12 ]] || fail "answers are counted"
printf '{"messages": [{"role": "user", "content": "Hi"}]}\n' >chat.jsonl
expect "conversations are not sent" 2 'chat.jsonl:1: ' "$ordermoe" run --prompts chat.jsonl --connect "${address[0]}" --dir edge
head -c 4000 /dev/zero | tr '\0' 'x' >long.txt
expect "a prompt beyond the limit is refused by the node" 2 'positions|context' "$ordermoe" run --prompts long.txt --connect "${address[0]}" --dir edge

# Certificates of another authority.
"$ordermoe" cert init --dir other/certificates --cluster edge3 >/dev/null
"$ordermoe" cert issue console --dir other/certificates --role admin >/dev/null
expect "a foreign certificate is refused" 2 'cannot reach a node at .*a certificate of another authority: is --dir the folder of this cluster' "${run[@]}" --connect "${address[0]}" --dir other
# Of this one, but nobody who may ask.
mkdir -p looks && cp -r edge/certificates looks/
rm looks/certificates/console.*
"$ordermoe" cert issue console --dir looks/certificates --role viewer >/dev/null
expect "a viewer gets no answer" 2 "viewer's certificate asks for no answers" "${run[@]}" --connect "${address[0]}" --dir looks

# A node's own file.
node=edge/nodes/s1/node.toml
bad() { # NAME SED PATTERN [CODE]
  sed "$2" "$node" >edge/nodes/s1/bad.toml
  expect "$1" "${4:-2}" "$3" "$ordermoe" node --config edge/nodes/s1/bad.toml
}
bad "a node file with an unknown key" 's/^threads/theads/' 'bad.toml:[0-9]+:1: found the unknown key .theads. in a node file'
bad "a node of another name" 's/^name = "s1"/name = "s9"/' 'three.toml|cluster.toml has no server of that name, expected one of s0, s1, s2'
bad "a node with another's certificate" 's/s1\.\(crt\|key\)/s0.\1/' 's0.crt: is of ordermoe://edge3/node/s0, expected node s1'
bad "a node without a member" '/^name = "s2"/,$d; $d' 'bad.toml|members besides itself, expected 2'
bad "a member that is no server" 's/^name = "s2"/name = "s7"/' 'its member s7 is no server'
bad "a node whose plan is none" 's/plan.json/cluster.toml/' 'cluster.toml:1:1: .*JSON'
bad "a member's address" 's/^address = "127.0.0.1:[0-9]*"/address = "berlin"/' 'address of member s0: .*berlin'
bad "an address that is taken" 's/^state = .*/state = "again"/' "cannot listen at ${address[1]}" 1
rm edge/nodes/s1/bad.toml
printf 'many\n' >edge/nodes/s1/state/boot.bad
sed 's/^state = .*/state = "odd"/' "$node" >edge/nodes/s1/bad.toml
mkdir edge/nodes/s1/odd && mv edge/nodes/s1/state/boot.bad edge/nodes/s1/odd/boot
expect "a count of starts that is none" 2 "odd/boot: found 'many" "$ordermoe" node --config edge/nodes/s1/bad.toml
rm -r edge/nodes/s1/bad.toml edge/nodes/s1/odd
expect "nobody was disturbed by all this" 0 'yes +1 +2/2' "$ordermoe" cluster status --dir edge

# ------------------------------------------------------------------------------------- one is killed

killed=$(cat edge/nodes/s2/pid)
kill -9 "$killed"
eventually ended "$killed" || fail "a killed node goes on"
not_all() { "$ordermoe" cluster status --dir edge >status.txt 2>&1; [[ $? -eq 1 ]] && grep -q '1/2' status.txt; }
eventually not_all || fail "a status without one node: $(cat status.txt)"
grep -qE '^s2 .* no +cannot reach a node at' status.txt || fail "the killed node is not named: $(cat status.txt)"
grep -q '0 of 3 nodes serve' status.txt || fail "the status does not count: $(cat status.txt)"
expect "the killed node is started" 0 'starting s2; already there: s0, s1' "$ordermoe" cluster start --dir edge
expect "and is back" 0 '^s2 .* yes ' "$ordermoe" cluster status --dir edge
[[ $(status_of edge 2 status boot) == 2 ]] || fail "its second start is not counted"
"${run[@]}" --connect "${address[0]}" --dir edge --stop spring 2>/dev/null | answers >cluster.txt
cmp -s reference.txt cluster.txt || fail "after a node came back the answers are others"

# ---------------------------------------------------------------------------------------------- down

mapfile -t running < <(nodes)
# Seen from within, the folder has another name.
(cd edge/nodes && "$ordermoe" cluster down --dir ..) || fail "a cluster ends"
for pid in "${running[@]}"; do runs "$pid" && fail "process $pid goes on after the end"; done
[[ -z $(nodes) ]] || fail "process numbers are left behind: $(ls "$work"/*/nodes/*/pid)"
expect "an end that has come is none again" 0 '' "$ordermoe" cluster down --dir edge
expect "it starts again" 0 '"boot": 3' "$ordermoe" cluster start --dir edge --json
expect "and ends" 0 '' "$ordermoe" cluster down --dir edge/

# A node that cannot start ends the start of all.
sed -i 's/^key = .*/key = "no.key"/' edge/nodes/s2/node.toml
expect "a start that fails says why" 1 'node s2 ended at its start.*' "$ordermoe" cluster start --dir edge
"$ordermoe" cluster start --dir edge >told.txt 2>&1
grep -q 'no.key' told.txt || fail "a start that fails is not told in the words of the node: $(<told.txt)"
[[ $(wc -l <told.txt) == 2 ]] || fail "a start that fails tells of those before: $(<told.txt)"
[[ -z $(nodes) ]] || fail "a failed start left nodes"

echo "$failures failures"
[[ $failures -eq 0 ]]
