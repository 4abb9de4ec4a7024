#!/usr/bin/env bash
# A cluster of processes whose sessions go over CAF: up, answers, traces, a node that is killed, one of the other channel.
# cluster_caf.sh ORDERMOE DATA
set -uo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/expect.sh"
begin "$@"

printf '{"prompt": "Q: 12 * 3\\nA:"}\nIn early spring\nFedon is known\n' >prompts.jsonl
"$ordermoe" cluster draw --servers 3 --seed 2 --memory-ratio 1.5 --layers 6 --experts 8 --out three.toml >/dev/null || fail "three servers are drawn"
run=("$ordermoe" run --prompts prompts.jsonl --max-new-tokens 24 --json)
up=("$ordermoe" cluster up --model "$model" --cluster three.toml --max-positions 400 --threads 1)
expect "a channel that is none is refused" 2 "--channel: found 'quic'; expected one of asio, caf" "${up[@]}" --channel quic --dir odd

# Tokens go from server to server: the strategy with the most frames.
expect "a cluster starts" 0 '^127\.0\.0\.1:[0-9]+$' "${up[@]}" --strategy exact --channel caf --trace --port "$(ports 8)" --dir edge
expect "a console sees it" 0 '^UN +s2 +2 +no' "$ordermoe" admin --dir edge members
all_serve() { [[ $("$ordermoe" cluster status --dir edge | grep -cE 'yes +1 +2/2') == 3 ]]; }
eventually all_serve || fail "not all of it serves: $("$ordermoe" cluster status --dir edge)"
expect "it is said what this channel does not prove" 0 'channel caf: CAF tells nobody whose certificate' "$ordermoe" cluster check --dir edge
expect "to programs as well" 0 '"warnings": \[$' "$ordermoe" cluster check --dir edge --json
mapfile -t address < <(sed -n 's/^listen = \["\(.*\)"\]/\1/p' edge/nodes/s*/node.toml)
"${run[@]}" --model "$model" --mode reference 2>/dev/null </dev/null | answers >reference.txt
[[ $(grep -c '\[' reference.txt) == 3 ]] || fail "the reference answers"
same_answers() { # ADDRESS WHEN
  "${run[@]}" --connect "$1" --dir edge 2>errors.txt </dev/null | answers >cluster.txt
  cmp -s reference.txt cluster.txt || fail "$1 answers otherwise $2: $(head -n 2 errors.txt)"
}
for at in "${address[@]}"; do same_answers "$at" "at first"; done

# ------------------------------------------------------------------------------------- who may not come

# A console that has the certificates alone takes the other channel.
mkdir console && cp -r edge/certificates console/
before=$SECONDS
expect "another channel is refused with a reason" 2 'speaks no protocol of ours; all nodes and clients of a cluster need the same channel' "${run[@]}" --connect "${address[0]}" --dir console
((SECONDS - before <= 6)) || fail "a refusal takes $((SECONDS - before)) s"
"$ordermoe" cert init --dir other/certificates --cluster edge3 >/dev/null
"$ordermoe" cert issue console --dir other/certificates --role admin >/dev/null
cp -r edge/cluster.toml edge/nodes other/ && rm other/nodes/*/pid
expect "a foreign certificate is refused" 1 'cannot reach a node at .*certificate' "${run[@]}" --connect "${address[0]}" --dir other
rm other/certificates/console.* && cp edge/certificates/ca.* other/certificates/
"$ordermoe" cert issue console --dir other/certificates --role viewer >/dev/null
expect "a viewer gets no answer" 2 "viewer's certificate asks for no answers" "${run[@]}" --connect "${address[0]}" --dir other
for at in "${address[@]}"; do same_answers "$at" "after others came"; done

# ------------------------------------------------------------------------------ nobody can be refused

"$ordermoe" cert issue thief --dir edge/certificates --role viewer >/dev/null
"$ordermoe" cert revoke thief --dir edge/certificates >/dev/null || fail "a certificate is revoked"
expect "a list of what is revoked is not taken" 2 'revokes 1 certificates .* set channel = "asio" in all node files' "$ordermoe" admin --dir edge cert reload
expect "a check refuses it" 2 's0 .*ca.crl: revokes 1 certificates .* set channel = "asio"' "$ordermoe" cluster check --dir edge
expect "no node starts with it" 2 'node s0: ca.crl: revokes 1 certificates' "$ordermoe" node --config edge/nodes/s0/node.toml
rm edge/certificates/ca.crl
expect "without it they do" 0 '^s0 ' "$ordermoe" cluster check --dir edge

# ------------------------------------------------------------------------------------- one is killed

killed=$(cat edge/nodes/s2/pid)
kill -9 "$killed"
not_all() { "$ordermoe" cluster status --dir edge >status.txt 2>&1; [[ $? -eq 1 ]] && grep -q '1/2' status.txt; }
eventually not_all || fail "a status without one node: $(cat status.txt)"
# One of the other channel in its place hears why nobody speaks with it.
sed 's/^channel = "caf"/channel = "asio"/; s/^state = .*/state = "asio"/; s/^trace = .*//' edge/nodes/s2/node.toml >edge/nodes/s2/asio.toml
"$ordermoe" cluster check --config edge/nodes/s2/asio.toml >/dev/null || fail "a node file of the other channel"
"$ordermoe" node --config "$work/edge/nodes/s2/asio.toml" >asio.log 2>&1 &
echo $! >edge/nodes/s2/pid
eventually grep -q 'its channel is not caf' edge/nodes/s0/log || fail "those that dial a node of another channel do not say why: $(tail -n 3 edge/nodes/s0/log)"
kill "$(cat edge/nodes/s2/pid)"
wait
"$ordermoe" node --config "$work/edge/nodes/s2/node.toml" >>edge/nodes/s2/log 2>&1 &
echo $! >edge/nodes/s2/pid
eventually "$ordermoe" cluster status --dir edge || fail "the killed node is not back: $("$ordermoe" cluster status --dir edge 2>&1)"
for at in "${address[@]}"; do same_answers "$at" "after a node came back"; done

# ------------------------------------------------------------------------------ a gateway before it

"$ordermoe" serve --listen 127.0.0.1:0 --json --dir edge >gateway.out 2>gateway.err &
others+=($!)
eventually grep -q url gateway.out || fail "a gateway answers: $(cat gateway.err)"
url=$(python3 -c 'import json; print(json.loads(open("gateway.out").readline())["url"])')
reaches() { [[ $(curl -sS "$url/ordermoe/status" | python3 -c 'import json, sys; print(sum("epoch" in each for each in json.load(sys.stdin)["servers"]))') == "$1" ]]; }
streams() { curl -sS "$url/v1/completions" -d '{"prompt": "Q: 12 * 3\nA:", "max_tokens": 24, "stream": true}' >stream.txt && grep -qx 'data: \[DONE\]' stream.txt && ! grep -q '"error"' stream.txt; }
eventually reaches 3 || fail "a gateway reaches all: $(curl -sS "$url/ordermoe/status")"
streams || fail "a gateway streams: $(tail -n 3 stream.txt)"
kill -9 "$(cat edge/nodes/s2/pid)"
eventually reaches 2 || fail "a gateway misses who is gone"
"$ordermoe" node --config "$work/edge/nodes/s2/node.toml" >>edge/nodes/s2/log 2>&1 &
echo $! >edge/nodes/s2/pid
eventually reaches 3 || fail "a gateway reaches who is back"
# The others dial it by themselves: until they have, all refuse.
eventually "$ordermoe" cluster status --dir edge || fail "the others do not reach who is back: $("$ordermoe" cluster status --dir edge 2>&1)"
streams || fail "a gateway streams again: $(tail -n 3 stream.txt)"
kill "${others[0]}"
eventually "$ordermoe" cluster status --dir edge || fail "the node is not back: $("$ordermoe" cluster status --dir edge 2>&1)"
"$ordermoe" cluster down --dir edge || fail "a cluster ends"
[[ -z $(nodes) ]] || fail "process numbers are left behind"

# ------------------------------------------------------------------------------------------- traces

expect "it starts again" 0 '^127' "$ordermoe" cluster start --dir edge
[[ -s edge/nodes/s0/trace.1.jsonl ]] || fail "the trace of an earlier start is gone: $(ls edge/nodes/s0)"
for at in "${address[@]}"; do same_answers "$at" "after all began anew"; done
# What travels with requests of a gateway (what ran, chances, penalties) is in the traces as well.
"$ordermoe" serve --listen 127.0.0.1:0 --json --dir edge >gateway.out 2>gateway.err &
others=($!)
eventually grep -q url gateway.out || fail "a gateway answers again: $(cat gateway.err)"
url=$(python3 -c 'import json; print(json.loads(open("gateway.out").readline())["url"])')
eventually streams || fail "a gateway streams for the traces: $(tail -n 3 stream.txt)"
curl -sS "$url/v1/completions" -d '{"prompt": "Fedon is known", "max_tokens": 20, "logprobs": 3, "top_p": 0.9, "frequency_penalty": 0.5, "logit_bias": {"5": 1}}' >chances.json
grep -q '"token_logprobs"' chances.json || fail "chances come back: $(cat chances.json)"
kill "${others[0]}"
"$ordermoe" cluster down --dir edge || fail "a cluster ends again"
expect "traces are merged" 0 '' "$ordermoe" trace merge edge/nodes/s0/trace.jsonl edge/nodes/s1/trace.jsonl edge/nodes/s2/trace.jsonl --out whole.jsonl
expect "and what they say is so" 0 '' "$ordermoe" trace verify whole.jsonl

echo "$failures failures"
[[ $failures -eq 0 ]]
