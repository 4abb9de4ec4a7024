#!/usr/bin/env bash
# The command line as users meet it: exit codes, messages, JSON, files left behind.
# commands.sh ORDERMOE DATA
set -uo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/expect.sh"
ordermoe=$1
data=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export ORDERMOE_DATA=$data OPENBLAS_NUM_THREADS=1
model=$data/models/lineage
cluster=$data/clusters/edge8.toml

printf '{"prompt": "Q: 12 * 3\\nA:"}\nIn early spring\n' >prompts.jsonl

# Sources without a repository have no build.
build=''; [[ -e $data/../.git ]] && build=' \(build [0-9a-f]{7,}\+?\)'
expect "version" 0 "^ordermoe [0-9]+\.[0-9]+\.[0-9]+$build\$" "$ordermoe" --version
expect "the command is not linked with LibTorch" 1 '' bash -c "ldd '$ordermoe' | grep -E 'libtorch|libc10'"
expect "no subcommand is a usage error" 2 'subcommand' "$ordermoe"
expect "an unknown flag is a usage error" 2 'unknown' "$ordermoe" demo --unknown
# Every command that there is, found by asking for help.
subcommands() { "$ordermoe" "$@" --help | sed -n '/^Subcommands:/,/^$/p' | sed -nE 's/^  ([a-z][a-z0-9-]*) .*/\1/p'; }
n_commands=0
for first in $(subcommands); do
  for second in $(subcommands "$first") ''; do
    [[ -n $second || -z $(subcommands "$first") ]] || continue
    # shellcheck disable=SC2086
    expect "help of $first $second has an example" 0 "^ +ordermoe $first $second" "$ordermoe" $first $second --help
    # shellcheck disable=SC2086
    expect "help of $first $second offers --json" 0 '--json' "$ordermoe" $first $second --help
    n_commands=$((n_commands + 1))
  done
done
expect "help of plan, which has one of its own, has an example" 0 "^ +ordermoe plan --model" "$ordermoe" plan --help
((n_commands >= 14)) || { echo "FAILED: help lists $n_commands commands"; failures=$((failures + 1)); }

expect "a cluster is drawn" 0 'seed 3' "$ordermoe" cluster draw --seed 3 --out drawn.toml
expect "uplinks are drawn where they are asked for" 0 'uplink_gbps = 0\.5' "$ordermoe" cluster draw --sites 2 --uplink-gbps 0.5 --site-uplink-gbps 0.5
expect "uplinks of sites need sites" 2 '--site-uplink-gbps: there are no sites' "$ordermoe" cluster draw --site-uplink-gbps 1
expect "zero servers are refused" 2 'servers' "$ordermoe" cluster draw --servers 0
expect "the model is described" 0 'experts 8 \(top 2\)' "$ordermoe" model inspect --model "$model"
expect "the model is whole" 0 'valid.*all numbers finite' "$ordermoe" model verify --model "$model"
expect "what a cluster could hold is shown" 0 'one copy' "$ordermoe" model inspect --model "$model" --cluster "$cluster"
expect "sizes come as JSON" 0 '"holds_one_copy": true' "$ordermoe" model inspect --model "$model" --cluster "$cluster" --json
expect "a model is converted" 0 'tensors of' "$ordermoe" model convert --model "$model" --precision int8 --out model-int8
expect "a converted model is whole" 0 'have the digests' "$ordermoe" model verify --model model-int8 --checksums
expect "a converted model gives logits" 0 'fp32' "$ordermoe" model logits --model model-int8 --ids 1,2,3 --out int8.npy
expect "a converted model is not overwritten" 1 'no empty folder' "$ordermoe" model convert --model "$model" --precision fp32 --out model-int8
expect "a model is packed" 0 'tensors of' "$ordermoe" model convert --model "$model" --packed --expert-precision int4 --out model-packed
expect "a packed model keeps its precision" 2 'expert.precision|precision' "$ordermoe" model logits --model model-packed --ids 1,2,3 --expert-precision int8 --out packed.npy
"$ordermoe" model logits --model model-packed --ids 1,2,3 --out packed.npy >/dev/null 2>&1
"$ordermoe" model logits --model "$model" --ids 1,2,3 --expert-precision int4 --out int4.npy >/dev/null 2>&1
cmp -s packed.npy int4.npy || { echo "FAILED: a packed model gives other logits"; failures=$((failures + 1)); }
printf 'x' >>model-int8/config.json
expect "a changed file is named" 2 'config.json' "$ordermoe" model verify --model model-int8 --checksums
expect "a folder without checksums says so" 2 'SHA256SUMS' "$ordermoe" model verify --model "$model" --checksums
cp -r "$model" own && expect "checksums are written" 0 'digests of [0-9]+ files written' "$ordermoe" model verify --model own --write-checksums
(cd own && sha256sum --quiet -c SHA256SUMS) || { echo "FAILED: sha256sum does not agree"; failures=$((failures + 1)); }
expect "logits are written" 0 '"vocabulary": 768' "$ordermoe" model logits --model "$model" --ids 1,2,3 --out logits.npy --json
[[ $(head -c 6 logits.npy | tail -c 5) == NUMPY ]] || { echo "FAILED: logits.npy is no NumPy file"; failures=$((failures + 1)); }
expect "ids outside the vocabulary are refused" 2 'vocabulary|id' "$ordermoe" model logits --model "$model" --ids 1,99999 --out x.npy
expect "a bad id is refused" 2 "found 'two'" "$ordermoe" model logits --model "$model" --ids 1,two --out x.npy
expect "no command is wanted without its verb" 2 'ordermoe: cluster: a subcommand is missing; expected one of draw' "$ordermoe" cluster
expect "a value that is none has one that is near" 2 "ordermoe: --strategy: found 'ordremoe'; did you mean ordermoe" "$ordermoe" run --model "$model" --prompts prompts.jsonl --strategy ordremoe
expect "or all that there are" 2 "--mode: found 'x'; expected one of emulated, local, reference" "$ordermoe" run --model "$model" --prompts prompts.jsonl --mode x
expect "costs may be measured" 2 'expected one of .*, measured; choose' "$ordermoe" run --model "$model" --costs nothing
expect "a file is no folder" 2 'config.json: found a file, expected a folder' "$ordermoe" model inspect --model "$model/config.json"
mkdir carded && printf '# card\n\n    ordermoe model train --shape x --out FOLDER\n' >carded/CARD.md
expect "a model that is here by its card has its command" 2 'found CARD.md and no model; .*made by .ordermoe model train --shape x --out FOLDER.' "$ordermoe" model inspect --model carded
expect "data that are not there are named by their variable" 2 'ORDERMOE_DATA /nope: no such folder' env ORDERMOE_DATA=/nope "$ordermoe" demo
expect "a missing model folder is named" 2 '/nowhere' "$ordermoe" model inspect --model /nowhere

expect "the reference answers" 0 '"token_ids"' "$ordermoe" run --model "$model" --prompts prompts.jsonl --mode reference --max-new-tokens 8 --json
expect "a run without a cluster says what is missing" 2 'cluster' "$ordermoe" run --model "$model" --prompts prompts.jsonl
expect "an emulated run answers and leaves a trace" 0 '"strategies"' "$ordermoe" run --model "$model" --cluster "$cluster" --prompts prompts.jsonl \
  --strategy layer-shards --max-new-tokens 8 --trace trace.jsonl --json
expect "the trace holds" 0 'valid' "$ordermoe" trace verify trace.jsonl
"$ordermoe" cluster draw --servers 2 --seed 1 --out two.toml >/dev/null
expect "the best placement of a small cluster is found" 0 '"ended_by": "optimum"' "$ordermoe" plan gap --model "$model" --cluster two.toml --strategies exact,layer-shards --sets 6 --json
expect "a program that is too large is bounded" 0 'not sought' "$ordermoe" plan gap --model "$model" --cluster two.toml --strategies exact --max-columns 10
"$ordermoe" cluster draw --servers 2 --seed 1 --memory-ratio 0.5 --out small.toml >/dev/null
expect "what has no room is said" 3 'c.2' "$ordermoe" plan gap --model "$model" --cluster small.toml --strategies exact
expect "options stand behind gap" 2 'remove --out' "$ordermoe" plan --out x.json gap --model "$model" --cluster two.toml
expect "plan still needs its own" 2 '--cluster is required' "$ordermoe" plan --model "$model"
expect "a strategy that is none" 2 'no-such' "$ordermoe" plan gap --model "$model" --cluster two.toml --strategies no-such
expect "a pipeline has nothing to choose" 0 'looking ahead changes nothing in' "$ordermoe" trace gap trace.jsonl
expect "the gap of a trace as JSON" 0 '"worst_gap_percent": ' "$ordermoe" trace gap trace.jsonl --json
expect "no labels are too few" 2 "found '0'" "$ordermoe" trace gap trace.jsonl --labels 0
sed '5d' trace.jsonl >shorter.jsonl
expect "a trace with a line removed is refused" 2 'shorter.jsonl' "$ordermoe" trace verify shorter.jsonl
expect "a plan changes while requests run" 0 'plan 2 \(order\): asked at 100.0 ms' "$ordermoe" run --model "$model" --cluster "$cluster" \
  --prompts prompts.jsonl --strategy exact --max-new-tokens 8 --rate 1 --replan 0.1:layer-shards --trace changed.jsonl
expect "the trace of a changed plan holds" 0 'valid' "$ordermoe" trace verify changed.jsonl
expect "an order to plan anew is checked" 2 "--replan 'soon:exact'" "$ordermoe" run --model "$model" --cluster "$cluster" --prompts prompts.jsonl --replan soon:exact
expect "a local run answers" 0 'wall clock' "$ordermoe" run --model "$model" --cluster "$cluster" --prompts prompts.jsonl --strategy exact --mode local --max-new-tokens 8
expect "a local run computes with several threads" 0 'wall clock' "$ordermoe" run --model "$model" --cluster "$cluster" --prompts prompts.jsonl --strategy exact --mode local --threads 3 --max-new-tokens 8
# On the wall clock a server needs room for the model that runs, and nothing is tried where there is one server.
printf '%s\n' 'version = 1' 'name = "one"' '[[servers]]' 'name = "s0"' 'tflops = 0.1' 'memory_bandwidth_gb_per_s = 10' \
  'memory_gb = 0.2' 'kv_gb = 0.05' 'arrival_share = 1' >one.toml
mkdir unknown && cp "$model"/*.json "$model"/*.safetensors "$model"/tokenizer.model unknown && rm -f unknown/profile.json unknown/SHA256SUMS
ids() { python3 -c 'import json, sys
said = json.load(sys.stdin)
for each in (said["strategies"][0] if "strategies" in said else said)["answers"]: print(each["token_ids"], each["text"])'; }
here=(--cluster one.toml --prompts prompts.jsonl --max-new-tokens 4)
expect "a local run is planned for the model that runs" 0 'charged as measured' "$ordermoe" run --model "$model" "${here[@]}" --mode local
expect "charges that are named are those" 3 'bytes' "$ordermoe" run --model "$model" "${here[@]}" --mode local --costs mixtral-8x7b
expect "virtual time charges a large model" 3 'bytes' "$ordermoe" run --model "$model" "${here[@]}"
expect "what batches and messages take may be charged" 0 'charged as measured:batch-us=40:message-us=15' "$ordermoe" run --model "$model" "${here[@]}" --costs measured:batch-us=40:message-us=15
expect "what is no part of a cost profile is refused" 2 "found 'batch=4'.*batch-us=N" "$ordermoe" run --model "$model" "${here[@]}" --costs mixtral-8x7b:batch=4
expect "and so is an unknown profile, with the known ones" 2 'qwen3-235b-a22b' "$ordermoe" run --model "$model" "${here[@]}" --costs mixtral
expect "virtual time may charge the model itself" 0 'charged as measured' "$ordermoe" run --model "$model" "${here[@]}" --costs measured --save-plan one.json
expect "a plan brings its charges" 0 'charged as measured' "$ordermoe" run --model "$model" "${here[@]}" --plan one.json
expect "a plan for other charges than those named is refused" 2 'made for the charges measured, not for qwen' \
  "$ordermoe" run --model "$model" "${here[@]}" --plan one.json --costs qwen1.5-moe-a2.7b
sed 's/"costs":"measured"/"costs":"nothing"/; s/"costs": "measured"/"costs": "nothing"/' one.json >nothing.json
expect "a plan for charges that nobody knows is refused" 2 'made for the charges nothing' "$ordermoe" run --model "$model" "${here[@]}" --plan nothing.json
expect "one server needs no profile" 0 'charged as measured' "$ordermoe" run --model unknown "${here[@]}" --mode local
"$ordermoe" run --model unknown "${here[@]}" --mode local 2>&1 >/dev/null | grep . && fail "nothing is said of a profile that is not needed"
"$ordermoe" run --model unknown "${here[@]}" --mode local --json 2>/dev/null | ids >by-one.txt
"$ordermoe" run --model unknown --prompts prompts.jsonl --max-new-tokens 4 --mode reference --json | ids >by-reference.txt
[[ -s by-one.txt ]] && cmp by-one.txt by-reference.txt || fail "one server without a profile answers as the reference"
expect "the reference computes with several threads" 0 '"token_ids"' "$ordermoe" run --model "$model" --prompts prompts.jsonl --mode reference --threads 3 --max-new-tokens 8 --json
expect "a number of threads is checked" 2 'threads' "$ordermoe" run --model "$model" --prompts prompts.jsonl --mode reference --threads 5000
# A budget is tuned on the texts of the model's profile: on few of them here.
cp -r "$model" lineage && python3 -c 'import json
profile = json.load(open("lineage/profile.json"))
profile["texts"] = profile["texts"][:4]
json.dump(profile, open("lineage/profile.json", "w"))'
model=$work/lineage
# plan, run --save-plan and run --plan are one planner.
quick=(--model "$model" --cluster "$cluster" --search-steps 50 --trial-requests 4)
printf 'Q: 12 * 3\nIn early spring\nFedon is known\nQ: 5 + 7\n' >four.txt
expect "a plan is written" 0 'copies of 48 experts' "$ordermoe" plan "${quick[@]}" --quality-budget 1 --out plan.json
expect "a run saves its plan" 0 'strategies' "$ordermoe" run "${quick[@]}" --quality-budget 1 --prompts four.txt --max-new-tokens 4 --save-plan saved.json --json
cmp -s plan.json saved.json || { echo "FAILED: plan and run plan differently"; failures=$((failures + 1)); }
# Everything of a report but what the wall clock says.
report() { "$ordermoe" run "$@" --json 2>/dev/null </dev/null | sed '/host_seconds/d; /tensor_seconds/d'; }
report "${quick[@]}" --quality-budget 1 --prompts four.txt --max-new-tokens 4 >own.json
report --model "$model" --cluster "$cluster" --plan saved.json --prompts four.txt --max-new-tokens 4 >with-plan.json
[[ -s own.json ]] && cmp -s own.json with-plan.json || { echo "FAILED: a saved plan runs differently"; failures=$((failures + 1)); }
expect "a plan with another budget is tuned anew, and that is said" 0 'saved.json is for 1 %: tuning it for 2 %; --save-plan keeps it' "$ordermoe" run --model "$model" --cluster "$cluster" --plan saved.json \
  --prompts four.txt --max-new-tokens 2 --quality-budget 2
"$ordermoe" run --model "$model" --cluster "$cluster" --plan saved.json --prompts four.txt --max-new-tokens 2 2>&1 >/dev/null </dev/null | grep 'tuning it' && fail "a plan with its own budget is said to be tuned"
expect "a budget is something" 2 '--quality-budget: found nothing' "$ordermoe" run --model "$model" --cluster "$cluster" --prompts four.txt --quality-budget ""
expect "what was not estimated is not told" 0 '"estimated_token_ms": null' "$ordermoe" plan --model "$model" --cluster "$cluster" --strategy random --out random.json --json
expect "a plan tells its strategy" 0 '"strategy": "random"' "$ordermoe" plan --model "$model" --cluster "$cluster" --strategy random --out random.json --json
expect "a plan's budget can be left out" 0 '"quality_budget_percent": 0' "$ordermoe" run --model "$model" --cluster "$cluster" --plan saved.json --prompts four.txt --max-new-tokens 2 --ablate substitution --json
expect "a plan of another strategy is refused" 2 'made for the strategy ordermoe, not for exact' "$ordermoe" run --model "$model" --cluster "$cluster" --prompts four.txt --plan plan.json --strategy exact
expect "a plan of another model is refused" 2 'made for the model lineage' "$ordermoe" run --model "$data/models/upcycled" --cluster "$cluster" --prompts four.txt --plan plan.json
sed 's/^name = "s3"/name = "other"/; s/"s3"/"other"/g' "$cluster" >renamed.toml
expect "a plan of another cluster is refused by what differs" 2 'another cluster: .*server 3' "$ordermoe" run --model "$model" --cluster renamed.toml --prompts four.txt --plan plan.json
expect "a budget below zero is refused" 2 'quality-budget' "$ordermoe" run --model "$model" --cluster "$cluster" --prompts prompts.jsonl --quality-budget=-3
: >empty.jsonl
expect "an empty prompt file is refused" 2 'no prompts' "$ordermoe" run --model "$model" --cluster "$cluster" --prompts empty.jsonl
printf '{"prompt": 7}\n' >wrong.jsonl
expect "a prompt of the wrong type is refused with its line" 2 'wrong.jsonl:1' "$ordermoe" run --model "$model" --cluster "$cluster" --prompts wrong.jsonl
printf '{"prompt": ""}\n' >blank.jsonl
expect "an empty prompt is refused with its line and what to do" 2 'blank.jsonl:1: `prompt` is empty; remove' "$ordermoe" run --model "$model" --mode reference --prompts blank.jsonl
printf '{"prompt": "", "answer": "3"}\n' >blank-problem.jsonl
expect "an empty problem is refused with its line" 2 'blank-problem.jsonl:1: `prompt` is empty' "$ordermoe" eval --model "$model" --cluster "$cluster" --problems blank-problem.jsonl
: >blank.txt
expect "an empty text to score is refused" 2 'blank.txt: the text is too short' "$ordermoe" eval --model "$model" --cluster "$cluster" --text blank.txt
expect "what is behind a prompt is scored" 0 'over 156 tokens' "$ordermoe" eval --model "$model" --cluster "$cluster" --strategy layer-shards --tokens 200 --prompt-tokens 44 --rate 0
expect "of a part that is no longer than its prompt the last token is scored" 0 'over 1 tokens' "$ordermoe" eval --model "$model" --cluster "$cluster" --strategy layer-shards --tokens 200 --prompt-tokens 250
expect "no part is all prompt" 2 "fewer than the 256 tokens of each part" "$ordermoe" eval --model "$model" --cluster "$cluster" --strategy layer-shards --prompt-tokens 256
expect "windows of a WikiText file have no prompts" 2 'prompt-tokens' "$ordermoe" eval --model "$model" --cluster "$cluster" --wikitext blank.txt --prompt-tokens 4
expect "an empty WikiText file is refused" 2 'blank.txt' "$ordermoe" eval --model "$model" --cluster "$cluster" --wikitext blank.txt
mkdir plain && cp -r "$model"/. plain/ && rm plain/tokenizer_config.json
expect "a base model has no chat template" 2 'tokenizer_config.json: no such file.*--chat' "$ordermoe" run --model plain --mode reference --prompts prompts.jsonl --chat
cp -r "$model" instruct
printf '%s' '{"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{{ bos_token }}{{ '"'[INST] ' + message['content'] + ' [/INST]'"' }}{{ message.content + eos_token }}"}' >instruct/tokenizer_config.json
printf '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "12 * 3"}]}\nHow?\n' >chat.jsonl
expect "conversations are answered by the template" 0 '"token_ids"' "$ordermoe" run --model instruct --mode reference --prompts chat.jsonl --chat --max-new-tokens 4 --json
expect "messages without --chat are refused" 2 'chat.jsonl:1: found `messages`.*--chat' "$ordermoe" run --model instruct --mode reference --prompts chat.jsonl
printf '{"messages": [{"role": "robot", "content": "Hi"}]}\n' >robot.jsonl
expect "an unknown role is refused with its place" 2 'robot.jsonl:1: messages\[0\].role' "$ordermoe" run --model instruct --mode reference --prompts robot.jsonl --chat
sed -i 's/INST/OTHER/g' instruct/tokenizer_config.json
expect "another template is refused with what is known" 2 'tokenizer_config.json: chat_template.*Mixtral-Instruct' "$ordermoe" run --model instruct --mode reference --prompts chat.jsonl --chat
head -c 20000 /dev/zero | tr '\0' 'x' >long.txt
expect "a prompt beyond the context is refused" 2 'context' "$ordermoe" run --model "$model" --cluster "$cluster" --prompts long.txt --quality-budget 1
sed 's/memory_gb *= *.*/memory_gb = "much"/' "$cluster" >broken.toml
# Servers that keep their experts coarser, and servers that load only their own.
awk '{ print } /^name = "s[67]"/ { print "expert_precision = \"int4\"" }' "$cluster" >coarse.toml
expect "a coarser server takes part" 0 '"execution"' "$ordermoe" run --model "$model" --cluster coarse.toml --prompts prompts.jsonl --quality-budget unbounded --search-steps 200 --max-new-tokens 4 --json
expect "the plan says who keeps what" 0 '"expert_precision"' "$ordermoe" plan --model "$model" --cluster coarse.toml --quality-budget unbounded --search-steps 200
expect "coarser servers need the model as it is" 2 'expert-precision int8' "$ordermoe" run --model "$model" --cluster coarse.toml --prompts prompts.jsonl --expert-precision int8
expect "each server loads its own" 0 'MB of weights' "$ordermoe" run --model "$model" --cluster "$cluster" --prompts prompts.jsonl --strategy exact --own-weights --mode local --max-new-tokens 4
expect "a wrong cluster value is refused with its place" 2 'broken.toml:[0-9]+:[0-9]+' "$ordermoe" run --model "$model" --cluster broken.toml --prompts prompts.jsonl
expect "a cluster that is too small is infeasible, with the missing bytes" 3 'bytes' bash -c \
  "'$ordermoe' cluster draw --seed 1 --memory-ratio 0.5 --out small.toml >/dev/null && '$ordermoe' plan --model '$model' --cluster small.toml --strategy paper"
expect "and what does with less is named" 3 'static-pruning., or ordermoe with --choose-pruning, leaves out' "$ordermoe" plan --model "$model" --cluster small.toml --quality-budget 1 --search-steps 50
expect "pruning is for those that can choose it" 2 '--choose-pruning: layer-shards does not choose' "$ordermoe" plan --model "$model" --cluster small.toml --strategy layer-shards --choose-pruning
expect "only what may be lost is left out" 3 'add memory[^;]*; .offload' "$ordermoe" plan --model "$model" --cluster small.toml --strategy layer-shards
expect "a full disk leaves an error" 1 '/dev/full' "$ordermoe" plan --model "$model" --cluster "$cluster" --strategy exact --out /dev/full
mkdir -p locked && cp "$model"/* locked/ && head -c 100000 "$model/model.safetensors" >locked/model.safetensors
expect "a truncated checkpoint is refused by name" 2 'model.safetensors' "$ordermoe" model inspect --model locked
printf '{"format": 1' >bad-profile.json
expect "a broken profile is refused by name" 2 'bad-profile.json' "$ordermoe" run --model "$model" --cluster "$cluster" --prompts prompts.jsonl --profile bad-profile.json

# What would do nothing, or nothing of what it says.
on_cluster=(--model "$model" --cluster "$cluster" --prompts prompts.jsonl)
expect "the reference has no strategy" 2 '--strategy: --mode reference has no' "$ordermoe" run --model "$model" --prompts prompts.jsonl --mode reference --strategy paper
expect "exact has no budget" 2 'exact has no budget' "$ordermoe" run "${on_cluster[@]}" --strategy exact --quality-budget 7
expect "look-ahead is not of every strategy" 2 'exact does not look ahead' "$ordermoe" run "${on_cluster[@]}" --strategy exact --ablate look-ahead
expect "groups are not either" 2 'random does not place by groups' "$ordermoe" run "${on_cluster[@]}" --strategy random --ablate redundancy
expect "nor is leaving slots out" 2 'paper leaves no slot out' "$ordermoe" run "${on_cluster[@]}" --strategy paper --quality-budget 7 --ablate leaving-out
expect "nor are thresholds" 2 'choose similarity, local-only' "$ordermoe" run "${on_cluster[@]}" --strategy ordermoe --threshold 0.5
expect "what is left out is not asked for" 2 'quality-budget asks for it' "$ordermoe" run "${on_cluster[@]}" --strategy paper --quality-budget 7 --ablate substitution
expect "nor is a horizon" 2 'horizon asks for it' "$ordermoe" run "${on_cluster[@]}" --strategy paper --horizon 2 --ablate look-ahead
expect "eval asks no budget of who has none" 2 'layer-shards has no budget' "$ordermoe" eval --model "$model" --cluster "$cluster" --strategy layer-shards --quality-budget 1
expect "nor of a rule what it does not choose" 2 'paper does not choose what it leaves out' "$ordermoe" eval --model "$model" --cluster "$cluster" --strategy paper --choose-pruning
expect "and scores one text" 2 'excludes' "$ordermoe" eval --model "$model" --cluster "$cluster" --text blank.txt --squad blank.txt
expect "texts have no questions" 2 '--limit: is for --squad' "$ordermoe" eval --model "$model" --cluster "$cluster" --strategy exact --limit 5
expect "eval leaves out, too" 2 'exact does not look ahead' "$ordermoe" eval --model "$model" --cluster "$cluster" --strategy exact --ablate look-ahead
expect "a part that no strategy has is unknown" 2 'ablate' "$ordermoe" run "${on_cluster[@]}" --strategy paper --ablate nothing
# copies STRATEGY OPTION...: of how many experts there is one copy.
copies() { "$ordermoe" plan --model "$model" --cluster "$cluster" --strategy "$@" | python3 -c 'import json, sys, collections
print(collections.Counter(collections.Counter((e["layer"], e["expert"]) for e in json.load(sys.stdin)["experts"]).values())[1])'; }
expect "the paper without copies has one of each" 0 '^48$' copies paper --ablate redundancy,dispersion,look-ahead
expect "with them it has more" 0 '^([0-9]|[1-3][0-9]|4[0-7])$' copies paper --threshold 0.9
expect "an alias is its strategy" 0 '"name": "layer-shards"' "$ordermoe" run "${on_cluster[@]}" --strategy edgeshard --max-new-tokens 2 --json
expect "as a plan it is, too" 0 '"strategy": "layer-shards"' "$ordermoe" plan --model "$model" --cluster "$cluster" --strategy edgeshard
expect "and of a change" 0 'strategies' "$ordermoe" run "${on_cluster[@]}" --strategy exact --rate 1 --replan 0.1:edgeshard --max-new-tokens 2 --json
expect "what is left out is told" 0 '"left_out": 0\.[0-9]+' "$ordermoe" run "${on_cluster[@]}" --strategy drop --quality-budget unbounded --max-new-tokens 2 --json
expect "and is none where nothing may be lost" 1 '' bash -c "'$ordermoe' run ${on_cluster[*]} --strategy drop --max-new-tokens 2 --json | grep left_out"
expect "weights are the paper's" 2 'no such weights' "$ordermoe" run "${on_cluster[@]}" --strategy exact --adapt-weights 0.5
expect "the paper needs groups" 2 'have none; expected similarity, local-only' "$ordermoe" run "${on_cluster[@]}" --strategy paper --replan 2:layer-shards
cp -r "$model" bare && rm bare/profile.json
expect "the reference leaves no experts out" 2 '--choose-pruning: --mode reference' "$ordermoe" run --model bare --prompts prompts.jsonl --mode reference --choose-pruning
expect "the reference needs no profile" 0 'token_ids' "$ordermoe" run --model bare --prompts prompts.jsonl --mode reference --max-new-tokens 2 --json
[[ ! -e bare/profile.json ]] || { echo "FAILED: the reference made a profile"; failures=$((failures + 1)); }

# Numbers are numbers.
for bad in "--temperature nan" "--rate nan" "--rate -1" "--adapt-weights nan" "--horizon -1" "--horizon 1e9" "--seed -1" \
  "--seed 010" "--seed 18446744073709551616" "--max-new-tokens -3" "--replan-on-drift inf" "--search-steps 0" "--threads 1x"; do
  # shellcheck disable=SC2086
  expect "run refuses $bad" 2 "^ordermoe: ${bad%% *}: found '${bad#* }'" "$ordermoe" run "${on_cluster[@]}" $bad
done
for bad in nan -3 0 1e300; do
  expect "plan refuses --concurrency $bad" 2 '--concurrency: found' "$ordermoe" plan "${quick[@]}" --concurrency "$bad"
done
for bad in nan inf 0 -1; do
  expect "draw refuses --memory-ratio $bad" 2 '--memory-ratio: found' "$ordermoe" cluster draw --memory-ratio "$bad"
  expect "frontier refuses --memory-ratio $bad" 2 '--memory-ratio: found' "$ordermoe" testbed frontier --model "$model" --memory-ratio "$bad"
done
expect "what the reader would refuse is not drawn" 2 '100000' "$ordermoe" cluster draw --layers 1000 --experts 1000 --memory-ratio 1000 --out huge.toml
[[ ! -e huge.toml ]] || { echo "FAILED: a cluster was written that cannot be read"; failures=$((failures + 1)); }
expect "a horizon beyond the layers is the whole model" 0 'strategies' "$ordermoe" run "${on_cluster[@]}" --strategy paper --horizon 1000000 --max-new-tokens 2 --json

# Misspelt names come before what is missing.
expect "a misspelt subcommand" 2 "unknown subcommand 'rnu'; did you mean run" "$ordermoe" rnu
expect "a misspelt subcommand of a subcommand" 2 "cluster: unknown subcommand 'drwa'; did you mean draw" "$ordermoe" cluster drwa
expect "a misspelt option" 2 "unknown option '--modle'; did you mean --model" "$ordermoe" run --modle x
expect "a misspelt option beside good ones" 2 "unknown option '--promts'; did you mean --prompts" "$ordermoe" run --model "$model" --promts p
expect "a word too many" 2 "found 'good3.toml' where an option" "$ordermoe" run --model "$model" good3.toml

# Outputs are checked before the work, and standard output's end is an error.
expect "frontier checks --out first" 1 'no folder' "$ordermoe" testbed frontier --model "$model" --out nowhere/x.json --seeds 1000
expect "calibrate checks --out first" 1 'no folder' "$ordermoe" calibrate --model "$model" --out nowhere/p.json --tokens 100000000
expect "run checks --trace first" 1 'is a folder' "$ordermoe" run "${on_cluster[@]}" --trace own
expect "run keeps what it reads" 2 'is a file that this command reads' "$ordermoe" run "${on_cluster[@]}" --trace prompts.jsonl
expect "and what it writes besides" 2 'is what --trace names, too' "$ordermoe" run "${on_cluster[@]}" --trace both.json --save-plan ./both.json
expect "eval keeps what it reads" 2 'is a file that this command reads' "$ordermoe" eval --model "$model" --cluster "$cluster" --text prompts.jsonl --losses prompts.jsonl
expect "logits keep the model" 2 'is a file that this command reads' "$ordermoe" model logits --model bare --ids 1,2 --out bare/config.json
expect "a name that is no UTF-8 ends nothing" 0 '"vocabulary"' "$ordermoe" model logits --model bare --ids 1,2 --out $'\xe9.npy' --json
expect "plan checks --out first" 1 'no folder' "$ordermoe" plan --model "$model" --cluster "$cluster" --out nowhere/p.json --search-steps 1000000
full() { "$@" >/dev/full; }
expect "a full output ends a plan with an error" 1 'standard output cannot be written' full "$ordermoe" plan "${quick[@]}" --strategy paper
expect "a full output ends a draw with an error" 1 'standard output cannot be written' full "$ordermoe" cluster draw --servers 64
for _ in $(seq 400); do echo 'Q: 5 + 7'; done >many.txt
expect "a full output ends the reference with an error" 1 'standard output cannot be written' full "$ordermoe" run --model "$model" --prompts many.txt --mode reference --max-new-tokens 1
expect "unknown rows are refused" 2 "--rows 'foo': no such row" "$ordermoe" testbed frontier --model "$model" --rows foo
expect "unknown budgets are refused" 2 "--rows 'ordermoe 2 %': no such row" "$ordermoe" testbed frontier --model "$model" --rows "ordermoe 2 %"
expect "a frontier where exact is infeasible compares with the model alone" 0 '^. ordermoe 7 % .*. [+-][0-9.]+ .[+-].*' "$ordermoe" testbed frontier --model "$model" --memory-ratio 1 --choose-precision --rows "ordermoe 7 %" \
  --seeds 1 --requests 2 --max-new-tokens 2 --scored-tokens 64 --problems 1 --search-steps 50 --trial-requests 4
clusters=("$ordermoe" testbed frontier --model "$model" --rows layer-shards --requests 2 --max-new-tokens 2
  --scored-tokens 64 --problems 1 --search-steps 50 --out clusters.json)
expect "a frontier keeps its clusters" 0 'seeds 1 to 1' "${clusters[@]}" --seeds 1
sed -i 's/"perplexity": [0-9.]*/"perplexity": 4321/' clusters.json
expect "a frontier goes on" 0 'seeds 1 to 2' "${clusters[@]}" --seeds 2 --continue
counts() { echo "$(grep -c '"perplexity": 4321.0,' clusters.json) $(grep -c '"perplexity":' clusters.json)"; }
expect "what was measured is not measured again" 0 '^1 2$' counts
rows() { "$ordermoe" testbed frontier --model "$model" --rows exact --requests 2 --max-new-tokens 2 --scored-tokens 64 --problems 1 \
  --search-steps 50 --out clusters.json --seeds 2 --continue | sed -n 's/^| \([a-z-]*\) |.*/\1/p' | tr '\n' ' '; }
expect "a frontier says what is left out" 0 '^paper: without look-ahead; one threshold, 0\.7\.$' "$ordermoe" testbed frontier --model "$model" --rows "paper 7 %" \
  --ablate look-ahead --threshold 0.7 --seeds 1 --requests 2 --max-new-tokens 2 --scored-tokens 64 --problems 1 --search-steps 50
expect "a frontier has rows without substitution" 2 'rows at 0 % are without it' "$ordermoe" testbed frontier --model "$model" --ablate substitution
expect "strategies are told" 0 '^wdmoe \(adapted\)$' "$ordermoe" testbed strategies
expect "and whose they are" 0 'budget: never substitutes; from: EdgeShard, arXiv 2405\.14371' "$ordermoe" testbed strategies
expect "to programs, too" 0 '"alias": "edgeshard"' "$ordermoe" testbed strategies --json
expect "a rival in a frontier says that it is adapted" 0 '^\| parallax \(adapted\) \|' "$ordermoe" testbed frontier --model "$model" --rows parallax \
  --seeds 1 --requests 2 --max-new-tokens 2 --scored-tokens 64 --problems 1 --search-steps 50
expect "only rows that are asked for are printed" 0 '^strategy exact $' rows
expect "other settings are not mixed" 2 'settings.rate: found 4.0, expected 5.0' "${clusters[@]}" --rate 5 --continue
expect "lengths are among the settings" 2 'settings.equal_lengths' "${clusters[@]}" --equal-lengths --continue
sed 's/^  "memory_ratio"/  "equal_lengths": true,\n&/' clusters.json >equal.json
expect "also where the file has them and nobody asks for them" 2 'equal.json: settings.equal_lengths: found true, expected none' \
  "${clusters[@]/clusters.json/equal.json}" --continue
python3 -c 'import json; of = json.load(open("clusters.json")); of["measurements"] *= 2; json.dump(of, open("twice.json", "w"))'
expect "nothing counts twice" 2 'twice.json: found layer-shards of seed 1 twice' "${clusters[@]/clusters.json/twice.json}" --continue
# Of the bundled prompts' answers most end before the fortieth token.
latency() { "$ordermoe" testbed frontier --model "$model" --rows layer-shards --seeds 1 --requests 6 --max-new-tokens 60 --scored-tokens 64 --problems 1 \
  --json "$@" | python3 -c 'import json, sys; print([each["latency_ms"] for each in json.load(sys.stdin)["measurements"]][-1])'; }
python3 -c "import sys; sys.exit(not $(latency --equal-lengths) > 1.1 * $(latency))" || fail "answers end with the text where lengths are to be equal"
echo '{"settings": {}}' >torn.json
expect "a torn file cannot be continued" 2 'torn.json: .*measurements' "$ordermoe" testbed frontier --model "$model" --rows exact --out torn.json --continue
expect "a frontier without a file cannot go on" 2 'requires --out' "$ordermoe" testbed frontier --model "$model" --continue

expect "an authority is made" 0 'authority, CN=' "$ordermoe" cert init --dir certificates --cluster edge8
expect "an authority is not replaced" 2 'ca.key: is there already' "$ordermoe" cert init --dir certificates --cluster edge8
expect "a certificate says cluster, role and name" 0 'ordermoe://edge8/node/berlin' "$ordermoe" cert issue berlin --dir certificates --host 10.0.0.7
expect "a console's certificate says its role" 0 '"uri": "ordermoe://edge8/viewer/ann"' "$ordermoe" cert issue ann --dir certificates --role viewer --json
expect "roles are known" 2 "--role: role: found 'root'" "$ordermoe" cert issue eve --dir certificates --role root
expect "names are checked" 2 "name: found '../eve'" "$ordermoe" cert issue ../eve --dir certificates
expect "a certificate is shown" 0 'host +10.0.0.7' "$ordermoe" cert show certificates/berlin.crt
expect "what is no certificate is refused" 2 'found no certificate' "$ordermoe" cert show certificates/berlin.key
[[ $(stat -c %a certificates/berlin.key) == 600 ]] || { echo "FAILED: a key can be read by others"; failures=$((failures + 1)); }

steered() { printf '%s\n' "$@" | "$ordermoe" relay --to 127.0.0.1:9 --json; }
expect "a relay answers what it is told" 0 '"command":"status".*"to":\{"delay_ms":20.0.*"back":.*"stalled":true' steered 'delay to 20' 'stall back' status quit
expect "what it does not understand is named, and the rest done" 2 "'dlay', expected delay" steered 'dlay to 20' status
expect "and not followed" 2 '"ok":true,"command":"status".*"delay_ms":0.0' steered 'dlay to 20' status
expect "its input's end ends a relay" 0 'ok: cut' bash -c "echo cut | '$ordermoe' relay --to '[::1]:9'"
expect "names are not looked up" 2 "--to: found 'localhost:9'" "$ordermoe" relay --to localhost:9
expect "a relay listens for this host alone" 2 '--listen: found 0.0.0.0:0.*--allow-remote' "$ordermoe" relay --listen 0.0.0.0:0 --to 127.0.0.1:9
expect "unless others are allowed" 0 'listening on 0.0.0.0:' bash -c "echo quit | '$ordermoe' relay --listen 0.0.0.0:0 --to 127.0.0.1:9 --allow-remote"
expect "delays are checked" 2 '--delay-ms' "$ordermoe" relay --to 127.0.0.1:9 --delay-ms nan
# Without commands it runs until a signal.
for flag in --json --no-commands; do
  rm -f relay.txt
  "$ordermoe" relay --to 127.0.0.1:9 $flag </dev/null >relay.txt &
  until [[ -s relay.txt ]] || ! kill -0 $!; do
    sleep 0.05
  done
  kill -TERM $! && wait $! || { echo "FAILED: a relay without commands ended before its signal, or badly"; failures=$((failures + 1)); }
done

few_threads() { (ulimit -v 6000000; "$@"); }
expect "too many threads are an error" 1 'gives [0-9]+ threads, expected' few_threads "$ordermoe" run --model "$model" --prompts prompts.jsonl --mode reference --threads 1024 --max-new-tokens 1
expect "too many threads of all servers are an error" 1 'gives [0-9]+ threads, expected' few_threads "$ordermoe" run --model "$model" --prompts prompts.jsonl --mode local --cluster "$cluster" --strategy exact --threads 1024 --max-new-tokens 1
expect "a folder is no trace" 2 'is a folder' "$ordermoe" trace verify own
expect "nor has it a gap" 2 'is a folder' "$ordermoe" trace gap own
expect "inspect says what it counts in" 0 'own$' "$ordermoe" model inspect --model "$model" --cluster "$cluster"

# A trace goes where its name leads, and replaces neither links nor pipes.
printf 'old' >real.jsonl && ln -s real.jsonl link.jsonl && mkfifo pipe.jsonl
quick_run=(run "${on_cluster[@]}" --strategy paper --max-new-tokens 2)
expect "a trace is written through a link" 0 'requests on' "$ordermoe" "${quick_run[@]}" --trace link.jsonl
[[ -L link.jsonl ]] && "$ordermoe" trace verify real.jsonl >/dev/null || { echo "FAILED: a link was replaced by its trace"; failures=$((failures + 1)); }
timeout 60 cat pipe.jsonl >piped.jsonl &
expect "a trace is written into a pipe" 0 'requests on' "$ordermoe" "${quick_run[@]}" --trace pipe.jsonl
wait $!
[[ -p pipe.jsonl ]] && cmp -s piped.jsonl real.jsonl || { echo "FAILED: a pipe was not written through"; failures=$((failures + 1)); }

# An answer is what stands behind its prompt, and nothing else.
answers=$("$ordermoe" run "${on_cluster[@]}" --strategy paper --max-new-tokens 8 2>/dev/null)
text=$("$ordermoe" run "${on_cluster[@]}" --strategy paper --max-new-tokens 8 --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["strategies"][0]["answers"][1]["text"], end="")')
[[ -n $text && $answers == *"[2] In early spring$text"$'\n\n'* ]] || { echo "FAILED: an answer is printed with something else"; failures=$((failures + 1)); }
widest=$(grep -A 20 -- '^----' <<<"$answers" | wc -L)
((widest > 0 && widest <= 100)) || { echo "FAILED: the table takes $widest columns"; failures=$((failures + 1)); }

# A model learns a text and brings its own profile; what it was calibrated on decides whether it may have a budget.
head -c 60000 "$data/eval/calibration.txt" >learn.txt
expect "a model is trained in one step" 0 'held-out perplexity' "$ordermoe" model train --text learn.txt --out learnt --tokens 2048
[[ -e learnt/profile.json && -e learnt/CARD.md && ! -e learnt.training ]] || { echo "FAILED: the trained folder"; failures=$((failures + 1)); }
expect "what was trained is whole" 0 'valid' "$ordermoe" model verify --model learnt --checksums
expect "a finished model is not trained over" 1 'is there already' "$ordermoe" model train --text learn.txt --out learnt --tokens 2048
expect "a model that learnt nothing keeps no budget" 2 'does not fit it.*calibrate --text' "$ordermoe" run --model learnt --cluster "$cluster" --prompts prompts.jsonl --quality-budget 1 --search-steps 200
expect "nor is one planned for" 2 'does not fit it' "$ordermoe" plan --model learnt --cluster "$cluster" --quality-budget 1 --search-steps 200
expect "without a budget it runs" 0 '"execution"' "$ordermoe" run --model learnt --cluster "$cluster" --prompts prompts.jsonl --quality-budget 0 --search-steps 200 --max-new-tokens 4 --json
head -c 300 "$data/eval/calibration.txt" >few.txt
expect "few tokens are warned about" 0 'tokens, a quality budget needs' "$ordermoe" calibrate --model "$model" --text few.txt --copies none --out few.json
expect "and keep no budget" 2 'tokens, a quality budget needs' "$ordermoe" run --model "$model" --profile few.json --cluster "$cluster" --prompts prompts.jsonl --quality-budget 1
"$ordermoe" model train --text learn.txt --out half --minutes 5 >/dev/null 2>&1 &
until [[ -e half.training/half-trained.txt ]] || ! kill -0 $!; do
  sleep 0.05
done
kill -INT $! && wait $!
expect "half a model is refused with how to go on" 2 "half trained; go on with .ordermoe model train --text 'learn.txt'" "$ordermoe" model verify --model half
expect "and not run" 2 'half trained' "$ordermoe" run --model half.training --cluster "$cluster" --prompts prompts.jsonl

# An interrupt ends a long command and leaves no half-written file.
"$ordermoe" calibrate --model "$model" --tokens 65536 --out interrupted.json >/dev/null 2>&1 &
# Once it is no longer the shell's fork and catches the signal (bit 1 of the mask), however long starting takes.
until_interruptible() {
  until { grep -q '^ordermoe' "/proc/$1/comm" && grep -q '^SigCgt:.*[2367abef]$' "/proc/$1/status"; } || ! kill -0 "$1"; do
    sleep 0.05
  done
}
until_interruptible $!
kill -INT $! && wait $!
if [[ $? -ne 130 || -e interrupted.json ]]; then
  echo "FAILED: an interrupted calibration left a file or the wrong exit code"
  failures=$((failures + 1))
fi
# and planning within a second or so of it.
"$ordermoe" plan --model "$model" --cluster "$cluster" --search-steps 100000000 --out never.json 2>/dev/null &
until_interruptible $!
sleep 2 && kill -INT $! && begin=$EPOCHREALTIME && wait $!
if [[ $? -ne 130 || -e never.json ]] || ((${EPOCHREALTIME/./} - ${begin/./} > 5000000)); then
  echo "FAILED: an interrupted plan left a file, took too long or has the wrong exit code"
  failures=$((failures + 1))
fi
# By the signal itself, which a shell tells from an exit code of 130; SIGTERM with 143.
ended_by() {
  python3 - "$1" "$ordermoe" calibrate --model "$model" --tokens 65536 --out interrupted.json <<'PYTHON'
import signal, subprocess, sys, time
child = subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
catches = lambda: any(line.startswith("SigCgt") and int(line.split()[1], 16) & 2 for line in open(f"/proc/{child.pid}/status"))
while child.poll() is None and not catches():
    time.sleep(0.05)
child.send_signal(getattr(signal, sys.argv[1]))
print(child.wait())
PYTHON
}
expect "an interrupt is the signal's" 0 '^-2$' ended_by SIGINT
expect "an end that was asked for has its code" 0 '^143$' ended_by SIGTERM
leftovers=$(find . -name '*.partial' -o -name '*.json.??????' | head -n 1)
[[ -z $leftovers ]] || { echo "FAILED: left behind: $leftovers"; failures=$((failures + 1)); }

echo "$failures failures"
[[ $failures -eq 0 ]]
