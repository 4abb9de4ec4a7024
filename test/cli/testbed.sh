#!/usr/bin/env bash
# Experiments as users run them: what is killed goes on to the same bytes, and what does not belong together is refused.
# testbed.sh ORDERMOE DATA
set -uo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/expect.sh"
begin "$1" "$2"

small=(--model "$model" --quick --requests 2 --max-new-tokens 2 --scored-tokens 64 --problems 1)
thresholds() { "$ordermoe" testbed thresholds "${small[@]}" --seeds 8 "$@"; }

expect "unknown experiments are refused" 2 'tresholds' "$ordermoe" testbed tresholds --out x
expect "a folder is needed" 2 '--out is required' "$ordermoe" testbed thresholds --model "$model"
expect "no seeds are refused" 2 '--seeds: found' thresholds --seeds 0 --out x
expect "one tuning text is refused" 2 '--tuning-texts: .*give 2 or more' thresholds --tuning-texts 1 --out x
expect "an SLA that is no number is refused" 2 '--sla-ms: found' thresholds --sla-ms soon --out x
expect "a file is no folder" 1 'settings.json|folder' thresholds --out "$model/config.json"
[[ ! -e x ]] || fail "refused commands leave a folder"

# Killed at any time: here as soon as a row is there.
expect "an experiment" 0 '^\| paper 7 % \| by layer \|' thresholds --out whole
"$ordermoe" testbed thresholds "${small[@]}" --seeds 8 --at-once 1 --out killed >/dev/null 2>&1 &
others+=($!)
eventually test -s killed/thresholds.csv || fail "no row within a minute"
expect "a folder is one process at a time" 2 'killed: found another process' thresholds --out killed
kill -9 "${others[-1]}" 2>/dev/null
wait "${others[-1]}" 2>/dev/null
# An interrupt is told, and is no loss either.
n_rows=$(wc -l <killed/thresholds.csv)
"$ordermoe" testbed thresholds "${small[@]}" --seeds 8 --at-once 1 --out killed >told 2>&1 &
others+=($!)
has_more() { [[ $(wc -l <killed/thresholds.csv) -gt $n_rows ]]; }
eventually has_more || fail "no further row within a minute"
kill -TERM "${others[-1]}"
wait "${others[-1]}" && fail "an interrupted experiment ends as if it were done"
grep -q 'interrupted; killed holds what was measured: the same command goes on' told || fail "an interrupt is told as: $(<told)"
n_rows=$(wc -l <killed/thresholds.csv)
((n_rows < 25)) || fail "all rows were there before it was killed: $n_rows"
expect "a killed experiment goes on" 0 '^\| paper 7 % \| 0\.9 \|' thresholds --out killed
for file in thresholds.csv thresholds.json settings.json; do
  cmp -s "whole/$file" "killed/$file" || fail "what was interrupted has another $file"
done
[[ $(wc -l <whole/thresholds.csv) -eq 25 ]] || fail "expected 24 rows, found $(wc -l <whole/thresholds.csv) lines"
head -n 1 whole/thresholds.csv | grep -q '^settings,strategy,budget_percent,' || fail "the CSV has other columns"
[[ -z $(find whole -name '.trace*') ]] || fail "traces are left behind"

cp -r whole before
expect "nothing is measured again" 0 'Fig\. 8, paper' thresholds --out whole
diff -r whole before >/dev/null || fail "running again changed files"
expect "other settings are refused by name" 2 'whole/settings.json: requests: found 2, expected 3.*another name' "$ordermoe" testbed thresholds \
  --model "$model" --quick --requests 3 --max-new-tokens 2 --scored-tokens 64 --problems 1 --out whole
expect "and so is the whole in a quick folder" 2 'settings.json: quick: found true, expected false' \
  "$ordermoe" testbed thresholds --model "$model" --requests 2 --max-new-tokens 2 --scored-tokens 64 --problems 1 --out whole
grep -q '^ "build": ' before/settings.json || fail "settings do not say which build measures"
sed -i 's/^ "build": .*/ "build": "another",/' before/settings.json
expect "nor are rows of two builds mixed" 2 'before/settings.json: build: found "another", expected' thresholds --out before
rm before/report.html before/thresholds.svg before/thresholds.png
cp before/thresholds.csv rows.csv
expect "a page is written again, whichever build measured the rows" 0 'before/report\.html' "$ordermoe" testbed page before
[[ -s before/report.html ]] || fail "there is no page again"
cmp -s rows.csv before/thresholds.csv || fail "a page changes rows"
expect "and as JSON" 0 '"agrees_from"' "$ordermoe" testbed page before --json
mkdir nothing
expect "not of a folder without any" 2 'nothing/settings\.json' "$ordermoe" testbed page nothing
grep -q '^ "tuning_texts": 8,' before/settings.json || fail "settings do not say on how many texts budgets are tuned"
cp -r "$data" data
echo >>data/eval/held-out.txt
expect "nor rows of other texts" 2 'killed/settings.json: evaluation_data: found' env ORDERMOE_DATA="$work/data" \
  "$ordermoe" testbed thresholds "${small[@]}" --seeds 8 --out killed
sed -i '3s/measured/guessed/' whole/thresholds.csv
expect "a changed row is refused with its line" 2 'thresholds.csv:3: column status' thresholds --out whole
expect "JSON has rows and claims" 0 '"claims"' thresholds --out killed --json

# Points of one experiment that another one has are taken from there.
expect "a page" 0 'report\.html' "$ordermoe" testbed thresholds "${small[@]}" --seeds 8 --out killed
python3 - killed/report.html <<'P' || fail "the page is no HTML that is closed"
import html.parser, sys
class page(html.parser.HTMLParser):
    void = {"meta", "link", "br", "hr", "img", "input"}
    def __init__(self):
        super().__init__()
        self.open = []
    def handle_starttag(self, tag, attrs):
        if tag not in self.void: self.open.append(tag)
    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open[-3:], self.getpos())
        self.open.pop()
reader = page()
reader.feed(open(sys.argv[1]).read())
assert not reader.open, reader.open
P
if command -v gnuplot >/dev/null; then
  [[ -s killed/thresholds.svg && -s killed/thresholds.png ]] || fail "no figures"
  grep -q '<svg' killed/report.html || fail "no figure on the page"
else
  echo "gnuplot is not there: figures are not looked at"
fi

# Further settings than the paper's.
more() { local name="$1"; shift; "$ordermoe" testbed "$name" "${small[@]}" --tuning-texts 2 --trial-requests 2 --search-steps 200 --out more "$@"; }
expect "what messages and batches take" 0 '^\| exact \| 100 \|' more overheads
python3 - more/overheads.csv <<'P' || fail "a token takes no longer where messages and batches take time"
import csv, sys
rows = [r for r in csv.DictReader(open(sys.argv[1])) if r["strategy"] == "exact"]
free, charged = (next(float(r["tpot_ms"]) for r in rows if r["message_us"] == us) for us in ("0", "100"))
assert charged > free + 0.2, (free, charged)
P
expect "prompts longer than the model was trained on" 0 '^\| layer-shards \| 1024 \|' more prompts
expect "a map of settings" 0 'A budget of 7 % saves more than 10 % of the fastest exact plan' more map
expect "a rate that nobody bears" 0 '^\| layer-shards \(infeasible on 1 of 1\) \|' "$ordermoe" testbed saturation "${small[@]}" --search-steps 200 \
  --trial-requests 2 --sla-ms 1 --out borne
grep -q 'not even 0.25 requests a second are answered in time' borne/saturation.csv || fail "it is not told why"
[[ -z $(find more -name '.trace*') ]] || fail "a longer model is left behind"
expect "models are compared by rows of overall" 2 'more: found no rows of overall; measure them with' "$ordermoe" testbed models more

mkdir empty
expect "without gnuplot there are rows all the same" 0 'gnuplot is not there' \
  env PATH="$work/empty" "$ordermoe" testbed thresholds "${small[@]}" --seeds 8 --out killed
has_figure() { [[ -s killed/thresholds.svg ]]; }
if command -v gnuplot >/dev/null; then has_figure || fail "figures of the same rows are gone"; fi
expect "and no figures of other rows" 0 'gnuplot is not there' \
  env PATH="$work/empty" "$ordermoe" testbed thresholds "${small[@]}" --seeds 9 --out killed
has_figure && fail "a figure of fewer rows is left"

((failures == 0)) || exit 1
echo "experiments go on"
