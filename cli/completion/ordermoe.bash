# bash completion of ordermoe: what fits is asked of the program itself (cli/completion/README.md).

_ordermoe() {
  local current=${COMP_WORDS[COMP_CWORD]} each also text
  local -a words=()
  local -i i
  # Bash takes words apart at = and :, which the program does not.
  for ((i = 1; i <= COMP_CWORD; i++)); do
    each=${COMP_WORDS[i]}
    if ((${#words[@]} > 0)) && { [[ $each == [=:]* ]] || [[ ${words[-1]} == *[=:] ]]; }; then
      words[-1]+=$each
    else
      words+=("$each")
    fi
  done
  COMPREPLY=()
  {
    read -r also || return 0
    while IFS=$'\t' read -r each text; do
      # What is before the last = or : stays on the line.
      [[ ${words[-1]} == "$current" ]] || each=${each:${#words[-1]} - ${#current}}
      [[ $current == = ]] && each=${each#=}
      COMPREPLY+=("$each")
    done
  } < <("${COMP_WORDS[0]/#\~/$HOME}" __complete "${words[@]}" 2>/dev/null)
  # With nothing in COMPREPLY bash completes names itself, with the quotes that they need.
  case $also in
    files) compopt -o default ;;
    folders) compopt -o dirnames ;;
  esac
}
complete -F _ordermoe ordermoe
