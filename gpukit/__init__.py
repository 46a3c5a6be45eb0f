"""The GPU kit: one command that shows on a machine with an NVIDIA GPU whether the device path works, and how fast.

The machine needs root, python3 with torch, and a driver; no network, and nothing is installed. Where there is no GPU,
all parts run against the fake driver. `make gpu-kit` (`gpukit.build`) makes the folder that is carried to the machine.

It is a package of its own at the top, in no image and no wheel. It plays agent, launcher, store and a sidecar's side
together, which no part of `proxy` may do. `parts` holds a module for each part, `programs` what the ranks run. `runner`
bounds the parts in time and keeps the report; `job` and `conductor` make pods of real launchers.
"""
