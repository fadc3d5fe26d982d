# SPDX-License-Identifier: Apache-2.0
# fish completion for zeroctl: verbs, options, and ids or names that the daemon knows.

# A column of one of the daemon's tables. Names are chosen by all users: those with other characters are not offered.
function __zeroctl_column --argument-names column verb
    set -l words (commandline -opc)
    set -l socket
    if set -l at (contains -i -- --socket $words)
        set socket --socket $words[(math $at + 1)]
    end
    zeroctl $socket $verb --columns $column --raw --no-headings 2>/dev/null | string match -r '^[A-Za-z0-9._:+@%,=/-]+$'
end
set -l verbs status self-test devices jobs sessions readers groups units buffers scopes buckets alloc map snapshot explain watch top metrics events trace trim drain undrain \
    kill-session abort-group end-job holders kill-job help
set -l none "not __fish_seen_subcommand_from $verbs"

complete -c zeroctl -f
complete -c zeroctl -n $none -a status -d 'The daemon: version, uptime, totals'
complete -c zeroctl -n $none -a self-test -d 'Try a gather and a reduction of two ranks'
complete -c zeroctl -n $none -a devices -d 'Arenas, blocks and budgets of each device'
complete -c zeroctl -n $none -a jobs -d 'Jobs and their charged memory'
complete -c zeroctl -n $none -a sessions -d 'Connected processes and the reasons of their waits'
complete -c zeroctl -n $none -a readers -d 'Processes that read commits of a job'
complete -c zeroctl -n $none -a groups -d 'Groups, their ranks and last committed step'
complete -c zeroctl -n $none -a units -d 'Registered units, versions and gathered buffers'
complete -c zeroctl -n $none -a buffers -d 'Every live gathered buffer, its holders and why'
complete -c zeroctl -n $none -a scopes -d 'Forward scopes, claims and contexts'
complete -c zeroctl -n $none -a buckets -d 'Gradient buckets and the reasons of their waits'
complete -c zeroctl -n $none -a alloc -d 'Plain allocations'
complete -c zeroctl -n $none -a watch -d 'Status and buffers, repeatedly'
complete -c zeroctl -n $none -a top -d 'Devices, sessions and waits, live'
complete -c zeroctl -n $none -a trim -d 'Release unused segments to the devices'
complete -c zeroctl -n $none -a map -d 'What lies where in the arena of a device'
complete -c zeroctl -n $none -a snapshot -d 'A page of all memory and its history'
complete -c zeroctl -n $none -a explain -d 'Holders of an object, its wait, how to free it'
complete -c zeroctl -n $none -a metrics -d 'Figures for Prometheus'
complete -c zeroctl -n $none -a events -d 'What has happened, a line an event'
complete -c zeroctl -n $none -a trace -d 'A timeline for Perfetto'
complete -c zeroctl -n $none -a drain -d 'Close the daemon for new jobs'
complete -c zeroctl -n $none -a undrain -d 'End a drain'
complete -c zeroctl -n $none -a kill-session -d 'End a session'
complete -c zeroctl -n $none -a abort-group -d 'Abort a group'
complete -c zeroctl -n $none -a end-job -d 'End a durable job without sessions'
complete -c zeroctl -n $none -a holders -d 'Processes that hold durable state'
complete -c zeroctl -n $none -a help -d 'List the verbs, or the options of one'
complete -c zeroctl -n $none -a kill-job -d 'End all sessions of a job, and the memory of a durable one'
complete -c zeroctl -n '__fish_seen_subcommand_from kill-session' -a '(__zeroctl_column id sessions)'
complete -c zeroctl -n '__fish_seen_subcommand_from abort-group' -a '(__zeroctl_column id groups)'
complete -c zeroctl -n '__fish_seen_subcommand_from end-job kill-job explain' -a '(__zeroctl_column job jobs)'
complete -c zeroctl -l socket -r -F -d 'Socket of the daemon'
complete -c zeroctl -l json -d 'JSON instead of a table'
complete -c zeroctl -l bytes -d 'Exact bytes'
complete -c zeroctl -l job -x -a '(__zeroctl_column job jobs)' -d 'Only rows of this job'
complete -c zeroctl -l sort -x -d 'Sort by this column'
complete -c zeroctl -l interval -x -d 'Time between two pictures'
complete -c zeroctl -l delay -x -d 'Time between two samples'
complete -c zeroctl -l count -x -d 'End after so many pictures'
complete -c zeroctl -l device -x -a '(__zeroctl_column device devices)' -d 'Only this device'
complete -c zeroctl -l keep -x -d 'Bytes that may remain on each device'
complete -c zeroctl -l columns -x -d 'These columns alone'
complete -c zeroctl -l wide -d 'All columns, uncut'
complete -c zeroctl -l raw -d 'Exact values, for scripts'
complete -c zeroctl -l no-headings -d 'No line of titles'
complete -c zeroctl -l end -r -F -d 'End the holder of this socket'
complete -c zeroctl -l format -x -a 'openmetrics prometheus' -d 'Of metrics'
complete -c zeroctl -l http -d 'Answer HTTP requests on standard input'
complete -c zeroctl -l follow -d 'Events from now on'
complete -c zeroctl -l since -x -d 'Events behind this number'
complete -c zeroctl -l seconds -x -d 'How long to trace'
complete -c zeroctl -s o -l output -r -F -d 'The file of the page or trace'
complete -c zeroctl -l help -d 'List the options'
complete -c zeroctl -l version -d "The program's version"
