# SPDX-License-Identifier: Apache-2.0
"""python -m zerod.demo trains a small language model on several processes, with parameters and gradients in zerod.

    __main__.py   the command line, and a private daemon
    model.py      the model, its passes and Adam, in numpy
    ranks.py      a rank's training through the daemon, the processes, and the same training in one process
    common.py     the text, processes and bars, which zerod.torch.demo also uses
    report.py     progress and summary
"""
