"""The system calls that a rank may not make: a filter of the kernel's seccomp, as small as it can be.

A container runtime's own filter cannot be used: under it, CRIU could not suspend the ranks' (`kueue_integration.pod`).
So each rank gets one here. It refuses what containerd's default profile refuses to a container without capabilities,
except what `OPEN` names, and all calls that are newer than that profile. A test reads containerd's own list. The kernel
keeps the verdict for each call by its number, so that the length of the program does not count.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from typing import Final, NamedTuple

from . import libc

# Numbers of x86_64 (arch/x86/entry/syscalls/syscall_64.tbl).
REFUSED: Final = {
    # mounts and roots
    "pivot_root": 155, "mount": 165, "umount2": 166, "open_tree": 428, "move_mount": 429, "fsopen": 430,
    "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442, "open_tree_attr": 467,
    # other namespaces, files by handle
    "setns": 308, "name_to_handle_at": 303, "open_by_handle_at": 304,
    # the kernel: modules, another one, its log, its counters, its programs
    "create_module": 174, "init_module": 175, "delete_module": 176, "get_kernel_syms": 177, "query_module": 178,
    "finit_module": 313, "kexec_load": 246, "kexec_file_load": 320, "syslog": 103, "perf_event_open": 298, "bpf": 321,
    "userfaultfd": 323, "lookup_dcookie": 212, "_sysctl": 156, "uselib": 134, "ustat": 136, "sysfs": 139,
    "nfsservctl": 180,
    # keys of the kernel, which no namespace divides
    "add_key": 248, "request_key": 249, "keyctl": 250,
    # the machine: clock, swap, ports, quotas, names, accounting
    "settimeofday": 164, "clock_settime": 227, "adjtimex": 159, "clock_adjtime": 305, "swapon": 167, "swapoff": 168,
    "reboot": 169, "iopl": 172, "ioperm": 173, "quotactl": 179, "quotactl_fd": 443, "acct": 163, "vhangup": 153,
    "sethostname": 170, "setdomainname": 171, "fanotify_init": 300,
    # other processes and their memory, beyond ptrace's own rules; another root
    "kcmp": 312, "pidfd_getfd": 438, "process_madvise": 440, "migrate_pages": 256, "move_pages": 279, "chroot": 161,
    # numbers that never had a call in Linux
    "getpmsg": 181, "putpmsg": 182, "afs_syscall": 183, "tuxcall": 184, "security": 185, "vserver": 236,
}  # fmt: skip
"""These fail with EPERM."""
ABSENT: Final = {"clone3": 435, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427}
"""These fail with ENOSYS, and their callers have another way. A filter cannot see the namespaces in a call of clone3,
and no image could hold the rings of io_uring."""
NEWEST: Final = 467
"""Numbers above fail with ENOSYS, as on a kernel that does not have them."""
OPEN: Final = {
    "get_mempolicy": 239, "set_mempolicy": 238, "mbind": 237, "set_mempolicy_home_node": 450,  # NUMA policies
    "personality": 135,  # addresses without randomness
    "uprobe": 336,  # the kernel's own, where an administrator traces the program
}  # fmt: skip
"""What a rank may call beyond containerd's default profile."""
SOCKET: Final = 41
DOMAINS: Final = {
    "unix": 1, "inet": 2, "inet6": 10, "netlink": 16, "packet": 17, "rds": 21, "ib": 27, "smc": 43, "xdp": 44,
}  # fmt: skip
"""Address families that training uses. Others fail with EAFNOSUPPORT, as on a kernel that does not have them: AF_VSOCK
reaches the machine's host, AF_ALG the kernel's cryptography."""
NAMESPACES: Final = 0x7E020080
"""All of CLONE_NEW..., which clone and unshare are not given (CLONE_NEWTIME, 0x80, is a signal's number for clone)."""
CLONE, UNSHARE, CLONE_NEWTIME = 56, 272, 0x80

KNOWN: Final = ("28e0dc643ab5f23d7a32f74d2cd4ae4a81b803f215f2a348dd4f9169381a5536",)
"""SHA-256 of the filters that a restored rank may be under: that of `image()`, and those of the releases whose
checkpoints this one restores."""

_LOAD, _JUMP_EQUAL, _JUMP_SET, _JUMP_GREATER_EQUAL, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in the kernel's struct seccomp_data."""
ARCH_X86_64, X32 = 0xC000003E, 0x40000000
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
_SET_MODE_FILTER, _SPEC_ALLOW = 1, 4
_SYS_SECCOMP = 317
PR_SET_NO_NEW_PRIVS = 38


class Instruction(NamedTuple):
    """One of classic BPF: `true` and `false` are how many instructions a jump skips."""

    code: int
    true: int
    false: int
    value: int


def program() -> list[Instruction]:
    """The filter."""
    eperm, enosys, allow = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS, ALLOW
    checks: list[tuple[int, int, int]] = [(_JUMP_EQUAL, number, eperm) for number in sorted(REFUSED.values())]
    checks += [(_JUMP_EQUAL, number, enosys) for number in sorted(ABSENT.values())]
    made = [
        Instruction(_LOAD, 0, 0, _ARCH),
        Instruction(_JUMP_EQUAL, 1, 0, ARCH_X86_64),
        Instruction(_RETURN, 0, 0, enosys),  # programs of 32 bits, whose calls have other numbers
        Instruction(_LOAD, 0, 0, _NUMBER),
        Instruction(_JUMP_GREATER_EQUAL, 0, 1, X32),
        Instruction(_RETURN, 0, 0, enosys),
    ]
    checks.append((_JUMP_GREATER_EQUAL, NEWEST + 1, enosys))
    for code, value, verdict in checks:
        made += [Instruction(code, 0, 1, value), Instruction(_RETURN, 0, 0, verdict)]
    for number, flags in ((CLONE, NAMESPACES & ~CLONE_NEWTIME), (UNSHARE, NAMESPACES)):
        made += [
            Instruction(_JUMP_EQUAL, 0, 4, number),
            Instruction(_LOAD, 0, 0, _FIRST_ARGUMENT),
            Instruction(_JUMP_SET, 0, 1, flags),
            Instruction(_RETURN, 0, 0, eperm),
            Instruction(_RETURN, 0, 0, allow),
        ]
    known = sorted(DOMAINS.values())
    made += [
        Instruction(_JUMP_EQUAL, 0, len(known) + 3, SOCKET),
        Instruction(_LOAD, 0, 0, _FIRST_ARGUMENT),
        *(Instruction(_JUMP_EQUAL, len(known) - at, 0, domain) for at, domain in enumerate(known)),
        Instruction(_RETURN, 0, 0, ERRNO | errno.EAFNOSUPPORT),
        Instruction(_RETURN, 0, 0, allow),
    ]
    return [*made, Instruction(_RETURN, 0, 0, allow)]


def apply() -> None:
    """Put this process, and all that it starts, under the filter, for good. Raises OSError.

    No program that it executes gains anything by its owner or its capabilities from now on (no_new_privs).
    """
    c = libc.load()
    if c.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs cannot be set")
    packed = image()
    code = ctypes.create_string_buffer(packed, len(packed))
    sock_fprog = struct.pack("HxxxxxxP", len(packed) // 8, ctypes.addressof(code))
    # Linux before 5.16 slows filtered processes down (speculative store bypass), unless a flag says not to.
    for flags in (_SPEC_ALLOW, 0):
        result = c.syscall(_SYS_SECCOMP, _SET_MODE_FILTER, flags, sock_fprog)
        if result == 0:
            return
    libc.check(result, "the filter of system calls cannot be set")


def image() -> bytes:
    """The filter as the kernel takes it, and CRIU where the kernel does not show it: an array of struct sock_filter."""
    return b"".join(struct.pack("HBBI", *each) for each in program())
