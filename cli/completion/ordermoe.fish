# fish completion of ordermoe: what fits is asked of the program itself (cli/completion/README.md).

function __ordermoe_complete
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    set -l lines ($before[1] __complete $before[2..-1] "$current" 2>/dev/null)
    # Of --option=path fish completes the path.
    set -l option (string match -r -- '^--[^=]*=' $current)
    set -l path (string replace -- "$option" '' $current)
    switch "$lines[1]"
        case files
            printf "$option%s\n" (__fish_complete_path $path)
        case folders
            printf "$option%s\n" (__fish_complete_directories $path)
    end
    test (count $lines) -gt 1; and printf '%s\n' $lines[2..-1]
end

complete -c ordermoe -f -a '(__ordermoe_complete)'
