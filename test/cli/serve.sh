#!/usr/bin/env bash
# The gateway as users meet it: `ordermoe serve` with nothing said, curl, `ordermoe chat`, keys and TLS, in front of a
# cluster.
# serve.sh ORDERMOE DATA
set -uo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/expect.sh"
ordermoe=$1
data=$2
work=$(mktemp -d)
servers=()
strange=
nodes() { cat "$work"/*/nodes/*/pid 2>/dev/null; }
# Whatever went wrong, nothing outlives this.
trap 'for pid in "${servers[@]}" $strange $(nodes); do kill -9 "$pid" 2>/dev/null; done; rm -rf "$work"' EXIT
cd "$work" || exit 1
export ORDERMOE_DATA=$data OPENBLAS_NUM_THREADS=1
model=$data/models/lineage

# serve NAME ARGUMENTS...: starts one in the background; `url` is where it answers.
serve() {
  local name=$1
  shift
  "$ordermoe" serve --listen 127.0.0.1:0 --json "$@" >"$name.out" 2>"$name.err" &
  servers+=($!)
  eventually grep -q url "$name.out" || fail "$name does not answer: $(cat "$name.err")"
  url=$(python3 -c 'import json, sys; print(json.loads(open(sys.argv[1]).readline())["url"])' "$name.out")
}
# ends PID: by a signal, with exit code 0 or 1 and soon.
ends() {
  kill -TERM "$1"
  eventually eval "! kill -0 $1" || fail "a gateway does not end"
}
# post PATH BODY [CURL ARGUMENTS...]
post() { curl -sS -H 'Content-Type: application/json' "${@:3}" "$url$1" -d "$2"; }
# member EXPRESSION: of the JSON on standard input, called j.
member() { python3 -c 'import json, sys; j = json.load(sys.stdin); print(eval(sys.argv[1]))' "$1"; }

# --------------------------------------------------------------------------------------- what is refused

expect "others may not be answered without keys and TLS" 2 '--api-keys and --tls-certificate' "$ordermoe" serve --listen 0.0.0.0:0
expect "who may ask is checked before anything is read" 2 '--api-keys and --tls-certificate' "$ordermoe" serve --listen 0.0.0.0:0 --cluster nowhere.toml
expect "a certificate is read before anything else" 2 'nowhere.crt: no certificate' "$ordermoe" serve --tls-certificate nowhere.crt --tls-key nowhere.key --cluster nowhere.toml
mkdir wordless && cp "$model/config.json" wordless
expect "a model's words are read before a cluster is" 2 'wordless.*tokenizer' "$ordermoe" serve --model wordless --cluster nowhere.toml
expect "an address is checked" 2 '--listen: .*here' "$ordermoe" serve --listen here
expect "a certificate needs its key" 2 'belong together' "$ordermoe" serve --tls-certificate a.crt
expect "keys that are not there" 2 'nowhere' "$ordermoe" serve --api-keys nowhere
expect "a folder that is none" 2 'nowhere: no cluster is there' "$ordermoe" serve --dir nowhere
expect "a cluster has its own plan" 2 '--plan: .*own' "$ordermoe" serve --dir nowhere --plan x
expect "a node or a cluster" 2 '--node and --dir' "$ordermoe" serve --dir nowhere --node nowhere
expect "a node that is none" 2 'nowhere.toml' "$ordermoe" serve --node nowhere.toml
expect "a node has its own plan" 2 '--plan: the node' "$ordermoe" serve --node nowhere.toml --plan x
expect "a url is checked" 2 '--connect: found' "$ordermoe" chat --connect 'ftp://x' --once hello
expect "nobody answers" 1 '127.0.0.1:1' "$ordermoe" chat --connect http://127.0.0.1:1 --once hello
expect "a conversation is no JSON" 2 '--json' "$ordermoe" chat --json

# --------------------------------------------------------------------------------------- as it comes

started=$SECONDS
serve bundled
((SECONDS - started < 15)) || fail "the bundled model took $((SECONDS - started)) s to start"

printf '{"prompt": "Q: 75 * 5\\nA:"}\n{"prompt": "In early spring"}\n{"prompt": "Fedon is known"}\n' >prompts.jsonl
"$ordermoe" run --model "$model" --prompts prompts.jsonl --max-new-tokens 24 --json --mode reference >reference.json || fail "the reference answers"

# The reference's text and ids, over HTTP, at once and in a stream; and drawn from a distribution with a seed.
cat >ask.py <<'END'
import json, sys, urllib.request
url, reference, temperature = sys.argv[1], json.load(open(sys.argv[2])), float(sys.argv[3])
def post(path, body):
    return urllib.request.urlopen(urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}))
def asked(prompt, **more):
    return dict({"model": "lineage", "prompt": prompt, "max_tokens": 24, "temperature": temperature, "seed": 1}, **more)
prompts = [json.loads(line)["prompt"] for line in open("prompts.jsonl")]
whole = json.load(post("/v1/completions", asked(prompts)))
assert whole["usage"]["ordermoe"]["reproducible"] is True, whole
for i, (prompt, answer) in enumerate(zip(prompts, reference["answers"])):
    choice = whole["choices"][i]
    assert choice["text"] == answer["text"], (choice, answer)
    assert choice["finish_reason"] == {"length": "length", "end_of_text": "stop"}[answer["finish"]], (choice, answer)
    if temperature > 0 and i > 0: continue  # Each alone is the first of its request, and draws as that.
    text, ids, finish = "", [], None
    for line in post("/v1/completions", asked(prompt, stream=True, ordermoe={"trace": True})):
        line = line.decode().strip()
        if not line.startswith("data: ") or line == "data: [DONE]": continue
        choice = json.loads(line[6:])["choices"][0]
        text += choice["text"]
        finish = choice["finish_reason"] or finish
        if "ordermoe" in choice: ids.append(choice["ordermoe"]["id"])
    assert text == answer["text"], (text, answer)
    assert ids == answer["token_ids"], (ids, answer)
    assert finish == {"length": "length", "end_of_text": "stop"}[answer["finish"]], (finish, answer)
END
python3 ask.py "$url" reference.json 0 || fail "answers over HTTP are the reference's"
"$ordermoe" run --model "$model" --prompts prompts.jsonl --max-new-tokens 24 --json --mode reference --temperature 0.9 --seed 1 >drawn.json || fail "the reference draws"
python3 ask.py "$url" drawn.json 0.9 || fail "with a seed, what is drawn over HTTP is what the reference draws"

# Every way to choose tokens, as far as it can be told from outside.
cat >choose.py <<'END'
import json, math, sys, urllib.request
def asked(**more):
    body = dict({"prompt": "In early spring", "max_tokens": 8, "temperature": 1, "seed": 5, "ignore_eos": True}, **more)
    request = urllib.request.Request(sys.argv[1] + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))
def ids(**more):
    body = dict({"prompt": "In early spring", "max_tokens": 8, "temperature": 1, "seed": 5, "ignore_eos": True, "stream": True, "ordermoe": {"trace": True}}, **more)
    request = urllib.request.Request(sys.argv[1] + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    lines = [line.decode()[6:] for line in urllib.request.urlopen(request) if line.startswith(b"data: {")]
    told = [json.loads(line)["choices"][0].get("ordermoe") for line in lines]
    told = [each for each in told if each]
    assert all(sum(each["executions"].values()) == 12 for each in told[1:]), told
    return [each["id"] for each in told]
greedy = ids(temperature=0)
assert ids(top_k=1) == greedy and ids(top_p=1e-9) == greedy
assert ids() == ids() and ids(seed=6) != ids()
assert ids(temperature=0, logit_bias={str(greedy[0]): -100})[0] != greedy[0]
assert ids(temperature=0, logit_bias={"300": 100}) == [300] * 8
once = ids(temperature=0, logit_bias={"300": 100}, frequency_penalty=2)
assert once == [300] * 8, once  # A penalty of 2 a time is not a hundred in eight.
many = ids(temperature=0, max_tokens=60, frequency_penalty=2)
assert max(many.count(each) for each in many) <= max(greedy.count(each) for each in greedy) + 4, many
told = asked(logprobs=3)["choices"][0]["logprobs"]
assert len(told["tokens"]) == 8 and all(3 <= len(each) + 1 for each in told["top_logprobs"]), told
assert all(each <= 0 for each in told["token_logprobs"])
assert "".join(told["tokens"]) == asked()["choices"][0]["text"] and told["text_offset"][0] == 0, told
two = asked(n=2)
assert two["choices"][0]["text"] == asked()["choices"][0]["text"] != two["choices"][1]["text"], two
executions = asked()["usage"]["ordermoe"]["executions"]
assert executions["local_exact"] > 0 and executions["local_substitute"] + executions["remote_substitute"] == 0, executions
END
python3 choose.py "$url" || fail "tokens are chosen as a request says"

question='{"messages": [{"role": "user", "content": "75 * 5"}], "temperature": 0}'
[[ $(post /v1/chat/completions "$question" | member 'j["choices"][0]["message"]["content"]') == *"answer 375" ]] || fail "a chat is answered"
[[ $(curl -sS "$url/v1/models" | member 'j["data"][0]["id"]') == lineage ]] || fail "the model is listed"
[[ $(curl -sS -o /dev/null -w '%{http_code}' "$url/health/ready") == 200 ]] || fail "it is ready"
[[ $(post /v1/chat/completions '{' -o /dev/null -w '%{http_code}') == 400 ]] || fail "nonsense is refused"
[[ $(post /v1/completions '{"prompt": "a", "n": 100000}' | member 'j["error"]["param"]') == n ]] || fail "too many choices are refused"
[[ $(head -c 9000000 /dev/zero | curl -sS -o /dev/null -w '%{http_code}' -H 'Content-Type: application/json' --data-binary @- "$url/v1/completions") == 413 ]] || fail "a large body is refused"
[[ $(curl -sS -o /dev/null -w '%{http_code}' -H "X: $(head -c 20000 /dev/zero | tr '\0' x)" "$url/v1/models") == 431 ]] || fail "large fields are refused"

expect "a terminal chat" 0 'answer 375$' "$ordermoe" chat --connect "$url" --once '75 * 5'
expect "as JSON" 0 '"completion_tokens": [1-9]' "$ordermoe" chat --connect "$url/v1" --once '75 * 5' --json
[[ $(printf '75 * 5\n/new\n22 * 3\n\n' | "$ordermoe" chat --connect "$url" | grep -c 'answer') == 2 ]] || fail "lines are answered one by one"
expect "what the server refuses is told" 1 "does not exist" "$ordermoe" chat --connect "$url" --model gpt-4 --once hello

# What is asked for holds, and not what the plan was made for.
"$ordermoe" plan --model "$model" --cluster "$data/clusters/edge8.toml" --strategy paper --quality-budget 1 --out lossy.json >/dev/null || fail "a plan is made"
bundled_url=$url
for budget in 0 1; do
  serve "lossy-$budget" --plan lossy.json --quality-budget "$budget"
  [[ $(post /v1/completions '{"prompt": "In early", "max_tokens": 2}' | member 'j["usage"]["ordermoe"]["quality_budget_percent"]') == "$budget.0" ]] || fail "a budget of $budget % holds"
  ends "${servers[-1]}"
done
url=$bundled_url

expect "an address that is taken is told before anything is read" 1 "${url#http://}" "$ordermoe" serve --listen "${url#http://}" --cluster nowhere.toml

# What others say that is no text where one is expected.
cat >strange.py <<'END'
import http.server, time
class Strange(http.server.BaseHTTPRequestHandler):
    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        time.sleep(0.1)  # The body comes by itself.
        self.wfile.write(text)
    def do_GET(self): self.answer(200, b'{"data": [{"id": 7}]}')
    def do_POST(self): self.answer(400, b'{"error": {"message": null}}')
    def log_message(self, *of): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Strange)
print(server.server_port, flush=True)
server.serve_forever()
END
python3 strange.py >strange.out &
strange=$!
eventually grep -q . strange.out || fail "the strange server does not start"
expect "a model without a name is none" 2 'makes no sense' "$ordermoe" chat --connect "http://127.0.0.1:$(<strange.out)" --once hello
expect "a problem without words is one" 1 ': 400 Bad Request' "$ordermoe" chat --connect "http://127.0.0.1:$(<strange.out)" --model m --once hello
kill "$strange"

# Whoever leaves in the middle of a long answer frees what it had, and it is not made to its end: 8 answers of 500 tokens of 12
# executions each.
executions() { curl -sS "$url/metrics" | awk '/^ordermoe_executions_total/ { sum += $NF } END { printf "%d", sum }'; }
before=$(executions)
running() { curl -sS "$url/metrics" | sed -n 's/^vllm:num_requests_running{.*} //p'; }
post /v1/completions '{"prompt": "In early spring", "max_tokens": 500, "ignore_eos": true, "n": 8, "stream": true}' --max-time 0.3 >/dev/null 2>&1
eventually eval '[[ $(running) == 0 ]]' || fail "what was left is still made: $(running)"
(($(executions) - before < 24000)) || fail "of what was left $(($(executions) - before)) executions were made"
curl -sS "$url/metrics" | grep >/dev/null '^ordermoe_executions_total{server="s0",kind="local_exact"} [1-9]' || fail "no executions are told"
curl -sS "$url/ordermoe/status" | member 'len(j["servers"])' | grep -x 8 >/dev/null || fail "eight servers are told"

# The page, and every file that it and its scripts name.
page=$(curl -sS "$url/")
named=$(grep -oE '/dashboard/[a-z.]+' <<<"$page")
named+=$'\n'$(for each in $named; do [[ $each == *.js ]] && curl -sS "$url$each"; done | grep -oE '"\./[a-z]+\.js"' | sed -E 's|"\./(.*)"|/dashboard/\1|')
[[ $(sort -u <<<"$named" | wc -l) -ge 7 ]] || fail "the page's files are found: $named"
for each in $(sort -u <<<"$named"); do
  [[ $(curl -sS -o /dev/null -w '%{http_code}' "$url$each") == 200 ]] || fail "the page names $each"
done
grep -qE '(src|href)="(https?:)?//' <<<"$page" && fail "the page needs somebody else's files"
ends "${servers[-1]}"

# ------------------------------------------------------------------------------------------ keys and TLS

(umask 077 && printf '0123456789abcdef\n' >keys.txt)
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout tls.key -out tls.crt -days 2 -subj /CN=localhost -addext 'subjectAltName = DNS:localhost, IP:127.0.0.1' 2>/dev/null
serve secret --api-keys keys.txt --tls-certificate tls.crt --tls-key tls.key --name mine
[[ $url == https://* ]] || fail "it says that it speaks TLS: $url"
[[ $(curl -sS --cacert tls.crt -o /dev/null -w '%{http_code}' "$url/v1/models") == 401 ]] || fail "a key is asked for"
[[ $(curl -sS --cacert tls.crt -H 'Authorization: Bearer 0123456789abcdef' "$url/v1/models" | member 'j["data"][0]["id"]') == mine ]] || fail "a key opens"
expect "a chat with a key" 0 'answer 375$' env ORDERMOE_API_KEY=0123456789abcdef "$ordermoe" chat --connect "$url" --ca tls.crt --once '75 * 5'
expect "one without" 2 "401" "$ordermoe" chat --connect "$url" --ca tls.crt --once '75 * 5'
expect "a certificate that nobody trusts" 1 "handshake" "$ordermoe" chat --connect "$url" --once '75 * 5'
ends "${servers[-1]}"

# ----------------------------------------------------------------------------------- in front of a cluster

"$ordermoe" cluster draw --servers 3 --seed 2 --memory-ratio 1.5 --layers 6 --experts 8 --out three.toml >/dev/null || fail "three servers are drawn"
"$ordermoe" cluster up --model "$model" --cluster three.toml --search-steps 200 --max-positions 512 --threads 1 --port "$(ports 8)" --dir edge >/dev/null || fail "a cluster starts"
serve fronting --dir edge
fronting=${servers[-1]}
python3 ask.py "$url" reference.json 0 || fail "answers of a cluster are the reference's"
python3 ask.py "$url" drawn.json 0.9 || fail "of a cluster, too, what is drawn is the reference's"
python3 choose.py "$url" || fail "a cluster chooses tokens as a request says"
eventually eval '[[ $(curl -sS "$url/ordermoe/status" | member "sum(\"epoch\" in each for each in j[\"servers\"])") == 3 ]]' || fail "all nodes are reached"
kill -9 "$(cat edge/nodes/s0/pid)"
eventually eval '[[ $(curl -sS "$url/ordermoe/status" | member "sum(\"epoch\" in each for each in j[\"servers\"])") == 2 ]]' || fail "a node that is gone is missed"
[[ $(curl -sS "$url/ordermoe/status" | member '[sorted(s) for s in j["servers"] if "epoch" not in s]') == "[['error', 'name']]" ]] || fail "of a node that is gone, its name and why are told"
curl -sS "$url/metrics" >away.metrics
grep '^ordermoe_plan_epoch{server="s1"}' away.metrics >/dev/null || fail "what is left has figures: $(cat away.metrics)"
grep 'server="s0"' away.metrics >/dev/null && fail "a node that is gone has figures: $(grep 'server="s0"' away.metrics)"
[[ $(curl -sS -o /dev/null -w '%{http_code}' "$url/health/ready") == 200 ]] || fail "the others answer"
front=$url
# The node comes back with a gateway in its own process.
serve node --node edge/nodes/s0/node.toml
eventually eval '[[ $("$ordermoe" cluster status --dir edge | grep -c "^s[0-2] .* yes .* 2/2 ") == 3 ]]' || fail "the node is not back"
python3 ask.py "$url" reference.json 0 || fail "answers of a node's own gateway are the reference's"
ends "${servers[-1]}"
url=$front
"$ordermoe" cluster down --dir edge >/dev/null 2>&1
eventually eval '[[ $(curl -sS -o /dev/null -w "%{http_code}" "$url/health/ready") == 503 ]]' || fail "without nodes it is not ready"
[[ $(post /v1/completions '{"prompt": "a"}' -o /dev/null -w '%{http_code}') == 503 ]] || fail "without nodes nothing is answered"
ends "$fronting"

((failures == 0)) || exit 1
echo "the gateway answers"
