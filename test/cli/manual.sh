#!/usr/bin/env bash
# Manual pages: well-formed roff, found by their names, and nothing that --help lists is missing.
#
# manual.sh ORDERMOE DATA
# shellcheck source-path=SCRIPTDIR source=expect.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/expect.sh"
begin "$1" "$2"
SOURCE_DATE_EPOCH=86400 "$ordermoe" __manual pages || fail "pages are written"
head -n 3 pages/ordermoe-run.1 | grep -q ' 1970-01-02 ' || fail "SOURCE_DATE_EPOCH is the date"
expect "a date that is none" 2 'SOURCE_DATE_EPOCH: found' env SOURCE_DATE_EPOCH=today "$ordermoe" __manual none
touch file
expect "a folder that cannot be" 1 'file/pages' "$ordermoe" __manual file/pages
expect "no folder" 2 'expected one folder' "$ordermoe" __manual

# Subcommands that are listed below `ordermoe WORDS...`.
below() { "$ordermoe" "$@" --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z0-9-]*\) .*/\1/p'; }
# of PAGE WORDS...: every option of these and of what is below is on the page.
of() {
  local page=$1 name sub
  shift
  while read -r name; do
    grep -qF -- "\\fB${name//-/\\-}\\fR" "$page" || fail "$page does not have $name of '$*'"
  done < <("$ordermoe" "$@" --help | sed -nE 's/^  (-h,)?(--[a-z0-9-]+).*/\2/p')
  for sub in $(below "$@"); do of "$page" "$@" "$sub"; done
}
n=0
for command in $(below); do
  of "pages/ordermoe-$command.1" "$command"
  grep -qF "ordermoe\\-$command\\fR(1)" pages/ordermoe.1 || fail "ordermoe.1 does not refer to $command"
  n=$((n + 1))
done
[[ $n -gt 10 && $(find pages -name '*.1' | wc -l) -eq $((n + 1)) ]] || fail "there is a page for each of $n commands"
grep -qF 'ordermoe\ cluster\ up' pages/ordermoe-cluster.1 || grep -q '^\.SS ordermoe cluster up' pages/ordermoe-cluster.1 ||
  fail "subcommands are on the page of the command above"

# with TOOL COMMAND...: it has nothing to say about any page.
with() {
  local page said
  command -v "$1" >/dev/null || { echo "no $1 here: pages are not checked by it"; return; }
  for page in pages/*.1; do
    said=$("$@" "$page" 2>&1 >/dev/null) && [[ -z $said ]] || fail "$1: $page: $said"
  done
}
with groff -ww -man -Tutf8
with mandoc -T lint -W warning
with lexgrog
if command -v groff >/dev/null; then
  groff -man -Tutf8 pages/ordermoe-run.1 | sed 's/\x1b\[[0-9;]*m//g' >run.txt
  grep -q -- '--prompts data/eval' run.txt || fail "options are read as they are typed"
  grep -qF 'ordermoe run --model data/models/lineage --cluster data/clusters/edge8.toml \' run.txt || fail "examples are read as they are typed"
fi
echo "$failures failures"
exit $((failures > 0))
