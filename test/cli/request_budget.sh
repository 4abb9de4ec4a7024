#!/usr/bin/env bash
# Requests with quality budgets of their own: at a cluster of processes whose plan does substitute, by `run --connect`, over HTTP
# and by `ordermoe chat`, and in an emulated run. With 0 answers are the reference's.
# request_budget.sh ORDERMOE DATA
set -uo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/expect.sh"
begin "$@"

plan_percent=20
"$ordermoe" cluster draw --servers 3 --seed 2 --memory-ratio 1.5 --layers 6 --experts 8 --out three.toml >/dev/null || fail "three servers are drawn"
printf '{"prompt": "Q: 12 * 3\\nA:"}\nIn early spring\nFedon is known\nThe old mill\nQ: 75 * 5\n' >prompts.jsonl
printf '{"prompt": "Q: 12 * 3\\nA:", "quality_budget_percent": 0}\nIn early spring\n{"prompt": "Fedon is known", "quality_budget_percent": 3}\n{"prompt": "The old mill", "quality_budget_percent": 90}\n{"prompt": "Q: 75 * 5", "quality_budget_percent": 0}\n' >mixed.jsonl
run=("$ordermoe" run --max-new-tokens 24 --json)
# told EXPRESSION FILE: of the answers of a JSON report, called a; `r` has those of the reference.
told() { python3 -c 'import json, sys
def answers(name):
    report = json.load(open(name))
    return report["answers"] if "answers" in report else report["strategies"][0]["answers"]
a, r = answers(sys.argv[2]), answers("reference.json")
sys.exit(0 if eval(sys.argv[1]) else 1)' "$1" "$2" || { cat "$2" >&2; fail "$3"; }; }
"${run[@]}" --prompts prompts.jsonl --model "$model" --mode reference >reference.json || fail "the reference answers"

# ------------------------------------------------------------------------------------------ a cluster

expect "a cluster with a budget starts" 0 '^127' "$ordermoe" cluster up --model "$model" --cluster three.toml --strategy local-only --quality-budget "$plan_percent" \
  --max-positions 400 --threads 1 --trace --port "$(ports 8)" --dir lossy
at=$(sed -n 's/^listen = \["\(.*\)"\]/\1/p' lossy/nodes/s0/node.toml)
there=(--connect "$at" --dir lossy)
"${run[@]}" --prompts prompts.jsonl "${there[@]}" >plain.json 2>errors.txt || fail "a cluster answers: $(<errors.txt)"
# Else nothing of what follows could fail.
told 'sum(x["spent"] for x in a) > 0 and any(x["token_ids"] != y["token_ids"] for x, y in zip(a, r))' plain.json "the plan's budget replaces experts"
told "all(x['quality_budget_percent'] == $plan_percent for x in a)" plain.json "the plan's budget is told"
"${run[@]}" --prompts prompts.jsonl "${there[@]}" --quality-budget 0 >exact.json || fail "a cluster answers without loss"
told 'all(x["token_ids"] == y["token_ids"] and x["spent"] == x["budget"] == x["quality_budget_percent"] == 0 for x, y in zip(a, r))' exact.json "with a budget of 0 answers are the reference's"
"${run[@]}" --prompts prompts.jsonl "${there[@]}" --quality-budget 2.5 >some.json 2>errors.txt || fail "a cluster answers with less loss"
[[ ! -s errors.txt ]] || fail "what was granted is not complained about: $(<errors.txt)"
told 'all(x["spent"] <= x["budget"] and x["quality_budget_percent"] == 2.5 for x in a) and sum(x["spent"] for x in a) > 0' some.json "a smaller budget is kept and used"
expect "more than the plan's is not granted, and said" 0 "5 of 5 prompts stated a larger quality budget than the plan's; $plan_percent % was in force" "$ordermoe" run --prompts prompts.jsonl --max-new-tokens 2 "${there[@]}" --quality-budget 50
"${run[@]}" --prompts mixed.jsonl "${there[@]}" --quality-budget 5 >mixed.json 2>errors.txt || fail "prompts state budgets: $(<errors.txt)"
told "[x['quality_budget_percent'] for x in a] == [0, 5, 3, $plan_percent, 0]" mixed.json "a prompt's own budget comes first"
told 'all(a[i]["token_ids"] == r[i]["token_ids"] for i in (0, 4)) and all(x["spent"] <= x["budget"] for x in a)' mixed.json "budgets of prompts hold"
grep -q "1 of 5 prompts stated a larger" errors.txt || fail "one prompt stated too much: $(<errors.txt)"
expect "a budget is a percentage" 2 "--quality-budget 'nan': expected .* 0 to 100" "$ordermoe" run --prompts prompts.jsonl "${there[@]}" --quality-budget nan
expect "and not above 100" 2 "--quality-budget '101'" "$ordermoe" run --prompts prompts.jsonl "${there[@]}" --quality-budget 101
expect "nor without limit" 2 "--quality-budget 'unbounded'" "$ordermoe" run --prompts prompts.jsonl "${there[@]}" --quality-budget unbounded
printf '{"prompt": "a"}\n{"prompt": "b", "quality_budget_percent": -1}\n' >wrong.jsonl
expect "a prompt's budget is checked with its line" 2 'wrong.jsonl:2.*quality_budget_percent' "$ordermoe" run --prompts wrong.jsonl "${there[@]}"

# ------------------------------------------------------------------------------------------- over HTTP

"$ordermoe" serve --listen 127.0.0.1:0 --json --dir lossy >serve.out 2>serve.err &
serving=$!
others+=("$serving")
eventually grep -q url serve.out || fail "the gateway does not answer: $(<serve.err)"
url=$(python3 -c 'import json; print(json.loads(open("serve.out").readline())["url"])')
cat >ask.py <<'END'
import json, sys, urllib.error, urllib.request
url, plan = sys.argv[1], float(sys.argv[2])
reference = json.load(open("reference.json"))["answers"]
prompts = ["Q: 12 * 3\nA:", "In early spring", "Fedon is known", "The old mill", "Q: 75 * 5"]
def post(body):
    return urllib.request.urlopen(urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}))
def asked(percent=None, **more):
    body = dict({"prompt": prompts, "max_tokens": 24, "temperature": 0}, **more)
    if percent is not None: body["ordermoe"] = {"quality_budget_percent": percent}
    return body
def texts(reply): return [each["text"] for each in reply["choices"]]
exact = [each["text"] for each in reference]
plain = json.load(post(asked()))
ours = plain["usage"]["ordermoe"]
assert ours["quality_budget_percent"] == plan and 0 < ours["spent_nats"] <= ours["budget_nats"], ours
assert not ours["reproducible"] and plain["system_fingerprint"] is None and texts(plain) != exact, plain
assert ours["executions"]["local_substitute"] + ours["executions"]["remote_substitute"] > 0, ours
none = json.load(post(asked(0)))
ours = none["usage"]["ordermoe"]
assert texts(none) == exact and ours["reproducible"] and none["system_fingerprint"], none
assert ours["quality_budget_percent"] == ours["budget_nats"] == ours["spent_nats"] == 0, ours
assert ours["executions"]["local_substitute"] + ours["executions"]["remote_substitute"] == 0, ours
some = json.load(post(asked(1.5)))["usage"]["ordermoe"]
assert some["quality_budget_percent"] == 1.5 and 0 < some["spent_nats"] <= some["budget_nats"] < plain["usage"]["ordermoe"]["budget_nats"] / 5, some
most = json.load(post(asked(99)))["usage"]["ordermoe"]
assert most["quality_budget_percent"] == plan, most
events = [json.loads(line[6:]) for line in post(asked(99, prompt=prompts[1], stream=True)) if line.startswith(b"data: {")]
end = [event["choices"][0] for event in events if event["choices"][0]["finish_reason"]]
assert len(end) == 1 and end[0]["ordermoe"]["quality_budget_percent"] == plan, events
for wrong, param, code in (({"quality_budget_percent": "1"}, "ordermoe.quality_budget_percent", "invalid_type"),
                           ({"quality_budget_percent": -1}, "ordermoe.quality_budget_percent", "invalid_value"),
                           ({"quality_budget_percent": 1e300}, "ordermoe.quality_budget_percent", "invalid_value"),
                           ({"quality": 1}, "ordermoe.quality", "unknown_parameter")):
    try:
        post({"prompt": "a", "ordermoe": wrong})
        raise SystemExit(f"{wrong} is not refused")
    except urllib.error.HTTPError as refused:
        told = json.load(refused)["error"]
        assert refused.code == 400 and told["param"] == param and told["code"] == code and told["message"], told
END
python3 ask.py "$url" "$plan_percent" || fail "budgets over HTTP are as they should be"
expect "a chat states one" 0 '"quality_budget_percent": 0(\.0)?,' "$ordermoe" chat --connect "$url" --once '75 * 5' --json --quality-budget 0
expect "and is told what is in force" 0 "--quality-budget 60: the plan's is less, $plan_percent % is in force" "$ordermoe" chat --connect "$url" --once '75 * 5' --quality-budget 60
expect "a chat's budget is checked" 2 "--quality-budget '-1'" "$ordermoe" chat --connect "$url" --once '75 * 5' --quality-budget=-1
kill -TERM "$serving"
eventually eval '! kill -0 "$serving" 2>/dev/null' || fail "the gateway does not end"
others=()
"$ordermoe" cluster down --dir lossy || fail "the cluster ends"
"$ordermoe" trace merge lossy/nodes/*/trace.jsonl --out trace.jsonl >/dev/null || fail "the traces are merged"
grep -q '"token_budget":0,"epoch"' trace.jsonl || fail "the trace does not say what requests stated"
expect "and hold every request to its own budget" 0 'valid' "$ordermoe" trace verify trace.jsonl

# ---------------------------------------------------------------------------------------- an emulated run

"${run[@]}" --prompts mixed.jsonl --model "$model" --cluster three.toml --strategy local-only --quality-budget "$plan_percent" --trace emulated.jsonl >emulated.json 2>errors.txt || fail "an emulated run takes budgets of prompts: $(<errors.txt)"
told "[x['quality_budget_percent'] for x in a] == [0, $plan_percent, 3, $plan_percent, 0]" emulated.json "an emulated run says what was in force"
told 'all(a[i]["token_ids"] == r[i]["token_ids"] for i in (0, 4)) and sum(x["spent"] for x in a) > 0 and all(x["spent"] <= x["budget"] for x in a)' emulated.json "an emulated run keeps budgets"
grep -q "1 of 5 prompts stated a larger" errors.txt || fail "an emulated run says what it does not grant: $(<errors.txt)"
expect "its trace holds" 0 'valid' "$ordermoe" trace verify emulated.jsonl
expect "where none is kept none is taken" 2 'keeps no budget' "$ordermoe" run --prompts mixed.jsonl --model "$model" --cluster three.toml --strategy router-restricted --max-new-tokens 4

((failures == 0)) || exit 1
echo "requests keep their budgets"
