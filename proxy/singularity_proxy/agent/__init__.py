"""Injected into every rank's interpreter: step boundaries, communication teardown and rebuild.

`sitecustomize`  switches the agent on (copied beside the package into the folder that PYTHONPATH names)
`hooks`          what to do when a module of torch has been imported
`boundary`       hot path: one store and one load per optimizer step; blocking at the barrier
`membership`     which process is a rank of the job, and which stands aside
`cut`            what every rank has issued, compared where step boundaries do not answer a stop
`comm`           puts replaceable backends below the stock ProcessGroup
`swap_backend`   such a backend, for torch 2.14 or newer
`lanes`          the same for an older torch, whose backends are made in place
`swap_group`     the process group that has them
`stand_in`       a class in the place of one of torch's
`groups`         all that the script has made: dropped together, and made again
`store`          replaceable rendezvous store, with what the script keeps in it
`gate`           what may begin, and what is under way: operations come from several threads
`work`           handles of asynchronous collectives that do not keep sockets open
`freeze`         what happens between "every rank is here" and "go on, possibly on another machine"
`train_host`     state engine: the steps of `singularity_train` are the boundaries, and it saves the rank
`resume_order`   the launcher's order to go on, and where the ranks meet
`gpu_names`      UUIDs of the GPUs, also of those that have taken another's place
`guard`          where errors of the agent itself end
`fork`           forked children give up the communication sockets they inherit

Runs in the pod as `_singularity.agent`, in the user's process. So it uses the standard library and the user's own torch
only, and has no threads (except where ranks share a device). Its import does nothing beyond definitions. A failure to
install switches the agent off and says so on stderr. A later failure fails checkpoints (`guard`). Neither breaks the
user's program.
"""
