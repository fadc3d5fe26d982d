# SPDX-License-Identifier: Apache-2.0
# fish completion for zerod.
complete -c zerod -f
complete -c zerod -s a -l arena -x -d 'Memory of each device'
complete -c zerod -s b -l backend -x -a 'host cuda auto' -d 'Emulated devices or GPUs'
complete -c zerod -l check-config -d 'Check configuration and command line, then end'
complete -c zerod -s c -l config -r -F -d Configuration
complete -c zerod -s d -l devices -x -d 'Number of emulated devices'
complete -c zerod -l discard-state -d 'Start without the durable jobs of the former daemon'
complete -c zerod -l exit-when-idle -x -d 'End after so many seconds without a session'
complete -c zerod -s f -l foreground -d 'Log to stderr'
complete -c zerod -s g -l gpus -x -d 'GPUs by UUID or number'
complete -c zerod -l host-arena -x -d 'Host memory for units on the host'
complete -c zerod -l keep-state -x -a 'systemd holder none auto' -d 'Where durable jobs outlive the daemon'
complete -c zerod -l key-file -r -F -d 'Key of groups over several nodes'
complete -c zerod -l nccl -r -F -d "NCCL's library"
complete -c zerod -s s -l socket -r -F -d 'Socket to listen on'
complete -c zerod -s V -l version -d "The program's version"
complete -c zerod -s '?' -l help -d 'List the options'
