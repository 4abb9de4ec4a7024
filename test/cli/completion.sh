#!/usr/bin/env bash
# What shells offer behind `ordermoe`: as the program tells it, and as bash, zsh and fish make of it.
#
# completion.sh ORDERMOE DATA COMPLETION_FOLDER
# shellcheck source-path=SCRIPTDIR source=expect.sh
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
. "$here/expect.sh"
begin "$1" "$2"
functions=$3
PATH=$(dirname "$ordermoe"):$PATH
mkdir folder
touch folder/a.toml 'with space.json'

# offers NAME EXPECTED WORDS...: what else fits, and the words, of `ordermoe WORDS...`.
offers() {
  local name=$1 expected=$2 got
  shift 2
  got=$("$ordermoe" __complete "$@" | cut -f 1 | tr '\n' ' ')
  [[ $got == "$expected " ]] || fail "$name: expected '$expected', got '$got'"
}
offers "a subcommand" "nothing serve" se
offers "subcommands of one" "nothing up" cluster u
offers "an option" "nothing --quality-budget" run --qu
offers "one that was given is not offered again" "nothing" run --quality-budget 1 --qu
offers "one that may come again is" "nothing --address" cluster prepare --address a=b:1 --addr
offers "values" "nothing measured stated" cluster up --links ""
offers "the beginning of a value" "nothing stated" cluster up --links st
offers "an alias" "nothing edgeshard" run --strategy edges
offers "a value behind =" "nothing --links=stated" cluster up --links=st
offers "a file" "files" run --prompts ""
offers "a folder" "folders" run --model x
offers "a folder behind =" "folders" run --model=x
offers "nothing for what only its user knows" "nothing" run --max-new-tokens ""
offers "behind a flag another option" "nothing --config" node --json --conf
offers "options of the command above, where a verb takes them" "nothing --token-file" admin plan apply --tok
offers "verbs behind options of the command above" "nothing drain" admin --dir edge dra
offers "a file that stands for itself" "files" cert show ""
offers "and another" "files" trace merge a.jsonl ""
offers "no second where there is one" "nothing" cert show a.crt x
offers "behind -- no options" "nothing" cert renew -- --d
offers "nothing behind what is unknown" "nothing" no-such-command --mod
# Every subcommand and option that --help has, at each level.
missing() {
  local sub name
  while read -r name; do
    grep -qxF -- "$name" <("$ordermoe" __complete "$@" "$name" | cut -f 1) || fail "'$* $name' is not offered"
  done < <("$ordermoe" "$@" --help | sed -nE 's/^  (-h,)?(--[a-z0-9-]+).*/\2/p')
  for sub in $("$ordermoe" "$@" --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z0-9-]*\) .*/\1/p'); do
    grep -qxF -- "$sub" <("$ordermoe" __complete "$@" "$sub" | cut -f 1) || fail "'$* $sub' is not offered"
    missing "$@" "$sub"
  done
}
missing
[[ $("$ordermoe" __complete "" | wc -l) -gt 10 ]] || fail "few subcommands are offered"

# in_bash NAME EXPECTED COMP_WORDS...: what the function makes of a line that bash took apart.
in_bash() {
  local name=$1 expected=$2 got
  shift 2
  got=$(bash -c '. "$1"; shift; compopt() { echo "compopt $*"; }; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ordermoe; echo "${COMPREPLY[*]}"' bash \
    "$functions/ordermoe.bash" ordermoe "$@" | tr '\n' ' ')
  [[ $got == "$expected " ]] || fail "bash, $name: expected '$expected', got '$got'"
}
in_bash "a subcommand" "serve" se
in_bash "values" "measured stated" cluster up --links ""
in_bash "a value behind =" "stated" cluster up --links = st
in_bash "all values behind =" "measured stated" cluster up --links =
in_bash "behind an address" "--dir" run --connect 127.0.0.1 : 7400 --di
in_bash "files are bash's" "compopt -o default " run --prompts ""
in_bash "folders, too" "compopt -o dirnames " run --model fo

if command -v zsh >/dev/null; then
  zsh -n "$functions/_ordermoe" || fail "zsh cannot read its function"
  # in_zsh NAME TYPED EXPECTED
  in_zsh() {
    local got
    got=$("$here/typed_in_zsh.py" "$functions" "$2" 2>&1)
    [[ $got == "$3" ]] || fail "zsh, $1: expected '$3', got '$got'"
  }
  in_zsh "a subcommand" "ordermoe ser" "ordermoe serve "
  in_zsh "a value behind =" "ordermoe cluster up --links=st" "ordermoe cluster up --links=stated "
  in_zsh "an option behind an address" "ordermoe run --connect 127.0.0.1:7400 --prom" "ordermoe run --connect 127.0.0.1:7400 --prompts "
  in_zsh "a folder behind =" "ordermoe run --model=$work/fol" "ordermoe run --model=$work/folder/"
  in_zsh "a file" "ordermoe run --prompts $work/wi" "ordermoe run --prompts $work/with\\ space.json "
else
  echo "no zsh here: its function is not tested"
fi

if command -v fish >/dev/null; then
  # in_fish NAME LINE EXPECTED
  in_fish() {
    local got
    got=$(HOME=$work fish --no-config -c 'source $argv[1]; complete -C $argv[2]' "$functions/ordermoe.fish" "$2" | cut -f 1 | tr '\n' ' ')
    [[ $got == "$3 " ]] || fail "fish, $1: expected '$3', got '$got'"
  }
  in_fish "a subcommand" "ordermoe ser" "serve"
  in_fish "values" "ordermoe cluster up --links " "measured stated"
  in_fish "a value behind =" "ordermoe cluster up --links=st" "--links=stated"
  in_fish "a folder" "ordermoe run --model fo" "folder/"
  in_fish "a file behind =" "ordermoe run --prompts=folder/" "--prompts=folder/a.toml"
else
  echo "no fish here: its function is not tested"
fi
echo "$failures failures"
exit $((failures > 0))
