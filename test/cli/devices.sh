#!/usr/bin/env bash
# What servers compute on, from the command line to a cluster of processes.
# devices.sh ORDERMOE DATA
set -uo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/expect.sh"
begin "$@"

printf '{"prompt": "Q: 12 * 3\\nA:"}\nIn early spring\nFedon is known\n' >prompts.jsonl
"$ordermoe" cluster draw --servers 3 --seed 2 --memory-ratio 1.5 --layers 6 --experts 8 --out three.toml >/dev/null || fail "three servers are drawn"
# The second of them on LibTorch.
sed '/^name = "s1"/a device = "libtorch:cpu"' three.toml >mixed.toml
sed '/^name = "s[0-9]"/a device = "libtorch:cpu"' three.toml >torch.toml
sed 's/libtorch:cpu/gpu/' mixed.toml >gpu.toml
whole=("$ordermoe" run --model "$model" --prompts prompts.jsonl --strategy exact --max-new-tokens 12)
# What is said here depends on no plan: it is sought and tried as little as can be.
quick=(--search-steps 200 --trial-requests 4)
run=("${whole[@]}" "${quick[@]}")

# ----------------------------------------------------------------------------------------- in one process

expect "a device that nobody knows is refused" 2 '--device: .*device = "gpu", expected cpu' "${run[@]}" --cluster three.toml --device gpu
expect "so is one of a cluster file" 2 'gpu.toml:[0-9]+:[0-9]+: .*device = "gpu"' "${run[@]}" --cluster gpu.toml
expect "one that is not on this machine is named" 2 "device 'libtorch:cuda:99'.*cpu" "${run[@]}" --cluster three.toml --device libtorch:cuda:99
expect "coarser experts are for the kernels" 2 '--choose-precision: only the kernels' "${run[@]/#exact/ordermoe}" --cluster mixed.toml --choose-precision
expect "the kernels alone say nothing" 1 '' bash -c '"$@" 2>&1 >/dev/null | grep device' - "${run[@]}" --cluster three.toml
expect "servers on one device say which" 0 'compute on libtorch:cpu: s0, s1, s2' "${run[@]}" --cluster three.toml --device libtorch:cpu
expect "servers on several say what that means" 0 '2 kinds of device \(cpu: s0, s2; libtorch:cpu: s1\).*not claimed' "${run[@]}" --cluster mixed.toml --trace mixed.jsonl
expect "so does their trace" 0 '2 kinds of device' "$ordermoe" trace verify mixed.jsonl
expect "and their report" 0 '"mixed_devices": "servers compute' "${run[@]}" --cluster mixed.toml --json
expect "and their scores" 0 '2 kinds of device' "$ordermoe" eval --model "$model" --cluster mixed.toml --strategy exact --tokens 200 --n-problems 0

expect "logits are the device's" 0 '"shape"|tokens|logits' "$ordermoe" model logits --model "$model" --ids 1,2,3 --device libtorch:cpu --out logits.npy --json
# What is exact on one kind of device is that device's reference, id for id.
"${whole[@]}" --cluster three.toml --device libtorch:cpu --json 2>/dev/null | python3 -c 'import json, sys
for each in json.load(sys.stdin)["strategies"][0]["answers"]: print(each["token_ids"])' >servers.txt
"$ordermoe" run --model "$model" --prompts prompts.jsonl --max-new-tokens 12 --mode reference --device libtorch:cpu --json 2>/dev/null | python3 -c 'import json, sys
for each in json.load(sys.stdin)["answers"]: print(each["token_ids"])' >reference.txt
[[ -s servers.txt ]] && cmp -s servers.txt reference.txt || fail "servers on LibTorch answer otherwise than its reference"

# -------------------------------------------------------------------------------------------- processes

prepare=("$ordermoe" cluster prepare --model "$model" --strategy exact "${quick[@]}" --address s0=10.0.0.1:7400 --address s1=10.0.0.2:7400 --address s2=10.0.0.3:7400)
"${prepare[@]}" --cluster mixed.toml --dir hosts >/dev/null 2>&1 || fail "hosts of several kinds are prepared"
expect "a check of the folder says what is mixed" 0 'warning: .*2 kinds of device' "$ordermoe" cluster check --dir hosts
expect "and what each computes on" 0 '"device": "libtorch:cpu"' "$ordermoe" cluster check --dir hosts --json
sed -i '1a device = "cpu"' hosts/nodes/s1/node.toml
expect "a node on another kind than all are told is refused" 2 's1 .*expected one of kind libtorch:cpu.*in the cluster file of all nodes' "$ordermoe" cluster check --dir hosts
# Devices of other hosts need not be here.
sed '/^name = "s1"/a device = "libtorch:cuda:7"' three.toml >far.toml
expect "a plan is made where the devices are not" 0 's1' "${prepare[@]}" --cluster far.toml --dir far

up() { "$ordermoe" cluster up --model "$model" --strategy exact "${quick[@]}" --max-positions 400 --threads 1 --port "$(ports 8)" --cluster "$1" --dir "$2"; }
address_of() { sed -n 's/^listen = \["\(.*\)"\]/\1/p' "$1/nodes/s0/node.toml"; }
up mixed.toml edge >up.log 2>&1 || fail "a cluster of several kinds comes up: $(tail -n 3 up.log)"
expect "its status says so" 0 '2 kinds of device' "$ordermoe" cluster status --dir edge
expect "its topology names devices" 0 's1 +libtorch:cpu' "$ordermoe" admin --dir edge topology
expect "it answers, and says so" 0 '2 kinds of device' "$ordermoe" run --prompts prompts.jsonl --max-new-tokens 12 --connect "$(address_of edge)" --dir edge
"$ordermoe" serve --dir edge --listen 127.0.0.1:0 --json >serve.out 2>serve.err &
gateway=$!
eventually grep -q url serve.out || fail "a gateway before it: $(cat serve.err)"
url=$(python3 -c 'import json; print(json.loads(open("serve.out").readline())["url"])')
expect "its gateway claims nothing that it cannot keep" 0 '"system_fingerprint":null.*"reproducible":false' curl -sS "$url/v1/completions" -H 'Content-Type: application/json' -d '{"prompt": "a", "max_tokens": 2}'
expect "and says why" 0 '2 kinds of device' cat serve.err
kill -TERM "$gateway" && wait "$gateway"
"$ordermoe" cluster down --dir edge || fail "it ends"

up torch.toml torch >up.log 2>&1 || fail "a cluster on LibTorch comes up: $(tail -n 3 up.log)"
"$ordermoe" run --prompts prompts.jsonl --max-new-tokens 12 --connect "$(address_of torch)" --dir torch --json 2>/dev/null | python3 -c 'import json, sys
for each in json.load(sys.stdin)["answers"]: print(each["token_ids"])' >nodes.txt
cmp -s nodes.txt reference.txt || fail "nodes on LibTorch answer otherwise than its reference"
"$ordermoe" cluster down --dir torch || fail "it ends"

echo "$failures failures"
[[ $failures -eq 0 ]]
