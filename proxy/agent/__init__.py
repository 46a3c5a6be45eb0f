"""Injected into every rank's interpreter: step boundaries, communication teardown and rebuild.

`sitecustomize`  switches the agent on (copied beside the package into the folder that PYTHONPATH names)
`hooks`          what to do when a module of torch has been imported
`boundary`       hot path: one store and one load per optimizer step; blocking at the barrier
`cut`            what every rank has issued, compared where step boundaries do not answer a stop
`comm`           replaceable backend and store below the stock ProcessGroup
`work`           handles of asynchronous collectives that do not keep sockets open
`freeze`         what happens between "every rank is here" and "go on, possibly on another machine"
`fork`           forked children give up the communication sockets they inherit

Runs in the pod as `_singularity.agent`, in the user's process: standard library and the user's own torch only, no
threads (but where ranks share a device), nothing at import time beyond definitions. A failure to install switches the
agent off and says so on stderr; it never breaks the user's program.
"""
