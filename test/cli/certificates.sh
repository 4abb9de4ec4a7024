#!/usr/bin/env bash
# Certificates of a running cluster: renewed and revoked while requests run, none of which fails.
# certificates.sh ORDERMOE DATA
set -uo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/expect.sh"
begin "$@"

# ------------------------------------------------------------------------------------------- on files

cert=("$ordermoe" cert)
expect "an authority" 0 'authority, ' "${cert[@]}" init --dir files --cluster lab
expect "one for ann" 0 'state +in force' "${cert[@]}" issue ann --role viewer --dir files
first=$("${cert[@]}" show files/ann.crt --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["serial"])')
expect "it is renewed" 0 "took the place of serial $first" "${cert[@]}" renew ann --days 20 --dir files
expect "and expires soon" 0 'state +expires in (19|20) days' "${cert[@]}" show files/ann.crt
expect "nobody else is" 2 'there is none to renew; make the first with `ordermoe cert issue ben' "${cert[@]}" renew ben --dir files
expect "the older is revoked" 0 "revoked viewer ann, serial $first" "${cert[@]}" revoke ann --older --dir files
expect "the latest is not" 0 'state +expires' "${cert[@]}" show files/ann.crt
expect "all of hers are" 0 'list 2, 2 certificates' "${cert[@]}" revoke ann --dir files
expect "which shows" 0 'state +revoked' "${cert[@]}" show files/ann.crt
expect "also as JSON" 0 '"revoked": true' "${cert[@]}" show files/ann.crt --json
expect "a list of all" 0 "^ann +viewer +$first .* revoked" "${cert[@]}" list --dir files
expect "what is revoked" 0 "$first  revoked" "${cert[@]}" show files/ca.crl
expect "not twice" 2 'all of it was revoked before' "${cert[@]}" revoke ann --dir files
expect "nobody" 2 "name 'ben'" "${cert[@]}" revoke ben --dir files

# ---------------------------------------------------------------------------------- of a cluster that runs

printf '{"prompt": "Q: 12 * 3\\nA:"}\nIn early spring\nFedon is known\n' >prompts.jsonl
for _ in {1..12}; do cat prompts.jsonl; done >many.jsonl
"$ordermoe" cluster draw --servers 3 --seed 2 --memory-ratio 1.5 --layers 6 --experts 8 --out three.toml >/dev/null || fail "three servers are drawn"
"$ordermoe" cluster up --model "$model" --cluster three.toml --strategy layer-shards --max-positions 400 --threads 1 --port "$(ports 8)" --dir edge >/dev/null || fail "a cluster comes up"
"$ordermoe" run --model "$model" --mode reference --prompts many.jsonl --max-new-tokens 24 --json 2>/dev/null </dev/null | answers >reference.txt
admin=("$ordermoe" admin --dir edge)
at=$(sed -n 's/^listen = \["\(.*\)"\]/\1/p' edge/nodes/s0/node.toml)
all=edge/certificates

# s2 is on another host: nobody brings it the operator's files.
"$ordermoe" cluster down --dir edge >/dev/null
mkdir far && mv $all/s2.* far/ && cp $all/ca.crt far/
sed -i -E "s#^(authority|certificate|key) = .*/#\1 = \"$work/far/#" edge/nodes/s2/node.toml
"$ordermoe" cluster start --dir edge >/dev/null || { fail "the cluster starts again"; exit 1; }

# Somebody who may ask, and loses the key.
"${cert[@]}" issue thief --role operator --dir $all >/dev/null
mkdir -p lost/certificates && cp -r edge/cluster.toml edge/nodes lost/ && cp $all/ca.crt lost/certificates/
for end in crt key; do cp $all/thief.$end lost/certificates/console.$end; done
ask=("$ordermoe" run --prompts prompts.jsonl --max-new-tokens 2 --connect "$at" --dir)
expect "the thief asks" 0 '' "${ask[@]}" lost

touch loading
load() {
  while [[ -f loading ]]; do
    "$ordermoe" run --prompts many.jsonl --max-new-tokens 24 --connect "$at" --dir edge --json 2>>errors.txt </dev/null | answers >loaded.txt
    cmp -s reference.txt loaded.txt || echo "other answers" >>wrong.txt
    echo >>rounds.txt
  done
}
load &
loader=$!

field() { "${admin[@]}" --node "$1" --json cert show | python3 -c 'import json, sys; print(json.load(sys.stdin)["nodes"][0]["result"][sys.argv[1]])' "$2" 2>/dev/null; }
shows() { [[ $(field "$1" "$2") == "$3" ]]; }
expect "what would change" 0 'nothing was done' "${admin[@]}" --dry-run cert reload
for node in s0 s1; do
  before=$(field $node serial)
  [[ -n $before ]] || fail "$node tells its serial"
  "${cert[@]}" renew $node --dir $all >/dev/null || fail "$node is renewed"
  took_another() { local now; now=$(field $node serial); [[ -n $now && $now != "$before" ]]; }
  eventually took_another || fail "$node does not take its new certificate"
done
cp $all/ca.key far/ && cp $all/issued far/ 2>/dev/null
"${cert[@]}" renew s2 --dir far >/dev/null || fail "s2 is renewed"
cat far/issued >>$all/issued && rm far/ca.key far/issued && cp far/s2.crt $all/
expect "at once by an order" 0 '^s2 +(yes|no)' "${admin[@]}" --node s2 cert reload
"${cert[@]}" revoke thief --dir $all >/dev/null
revoked_ns=$(date +%s%N)
is_refused() { ! "${ask[@]}" lost >asked.txt 2>&1 </dev/null && grep -q 'is revoked' asked.txt; }
eventually is_refused || fail "a revoked key is not refused: $(head -n 1 asked.txt)"
took_ms=$((($(date +%s%N) - revoked_ns) / 1000000))
echo "a revoked key is refused after $took_ms ms"
((took_ms < 5000)) || fail "a revoked key is refused after $took_ms ms only"
for node in s0 s1 s2; do
  eventually shows $node revocations 1 || fail "$node does not hear of what is revoked"
done
[[ -f edge/nodes/s2/state/ca.crl ]] || fail "s2 does not keep what is revoked"
for node in s0 s1 s2; do "${cert[@]}" revoke $node --older --dir $all >/dev/null || fail "the older ones of $node are revoked"; done
expect "all are told" 0 '^s2 ' "${admin[@]}" cert reload
for node in s0 s1 s2; do
  eventually shows $node revocations 4 || fail "$node does not hear that more is revoked"
  eventually shows $node revoked False || fail "$node takes itself to be revoked"
done
expect "who did it" 0 'cert.reload' "${admin[@]}" --node s0 audit
rm loading
wait $loader
[[ -f wrong.txt ]] && fail "answers while certificates change: $(head -n 3 errors.txt)"
(($(wc -l <rounds.txt) >= 1)) || fail "nothing was asked meanwhile"
for node in s0 s1 s2; do
  events=$("${admin[@]}" --node $node events) && [[ $events == *session.up* ]] || fail "$node tells what happened"
  ! lost=$(grep -m1 'session\.down' <<<"$events") || fail "$node lost a peer: $lost"
done
grep -q 'its certificate is ordermoe://.*/operator/thief, which is revoked' edge/nodes/s0/log || fail "the log does not say who was refused"

# What is broken is said once, and changes nothing.
echo nonsense >$all/ca.crl
broken() { [[ $(grep -c 'identity.files_broken.*found no list of revoked' edge/nodes/s0/log) == 1 ]]; }
eventually broken || fail "a broken file is not told once"
expect "a console that has it is not let go by it" 2 'found no list of revoked' "${ask[@]}" edge
rm $all/ca.crl
shows s0 revocations 4 || fail "a broken file brings back what was revoked"
expect "all is as it was" 0 '' "${ask[@]}" edge

# A list that begins anew has a number that nodes know better.
"${cert[@]}" revoke ann --dir $all >/dev/null 2>&1 && fail "somebody who is not there is revoked"
"${cert[@]}" issue ann --dir $all >/dev/null
"${cert[@]}" revoke ann --dir $all >/dev/null
expect "a list that begins anew counts nowhere" 0 'is list 1, and s0 has list 4; bring back the latest' "${admin[@]}" --node s0 cert reload
cp edge/nodes/s0/state/ca.crl $all/ca.crl

# A node whose certificate is revoked is out within 5 s, and does not start again.
"${cert[@]}" revoke s1 --dir $all >/dev/null || fail "s1 is revoked"
revoked_ns=$(date +%s%N)
is_out() { "${admin[@]}" --node s0 members | grep -q '^DN *s1'; }
eventually is_out || fail "a revoked node stays"
took_ms=$((($(date +%s%N) - revoked_ns) / 1000000))
echo "a revoked node is out after $took_ms ms"
((took_ms < 5000)) || fail "a revoked node is out after $took_ms ms only"
"$ordermoe" cluster down --dir edge >/dev/null
expect "s1 does not start" 2 'is revoked; make another' "$ordermoe" node --config edge/nodes/s1/node.toml

((failures == 0)) || { echo "$failures checks failed"; exit 1; }
echo "all checks passed"
