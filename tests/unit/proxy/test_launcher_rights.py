"""What runs with the launcher's capabilities, and what a rank may do: the parts that need no container."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from module_clock import set_clock

from kueue_integration.contract import job_names
from localcluster.errors import HostError
from localcluster.images import gobuild
from localcluster.shell import wait_until
from singularity_proxy.launcher import tools
from singularity_proxy.launcher.errors import LauncherError, RestoreError
from singularity_proxy.launcher.ranks import accounts, privileges, process_scan, seccomp
from singularity_proxy.launcher.ranks.accounts import Account
from singularity_proxy.launcher.snapshot import filters
from singularity_proxy.launcher.snapshot.protobuf import Field, encode, image, magic
from singularity_proxy.launcher.tools import Tools
from singularity_proxy.protocol import names, user_namespace

REPOSITORY = Path(__file__).resolve().parents[3]
EPERM, ENOSYS = seccomp.ERRNO | errno.EPERM, seccomp.ERRNO | errno.ENOSYS


# --- system calls -----------------------------------------------------------------------------------------------------
def verdict(number: int, first: int = 0, arch: int = seccomp.ARCH_X86_64) -> int:
    """What the kernel would make of a call: the program, executed as the kernel executes it."""
    data = {0: number, 4: arch, 16: first & 0xFFFFFFFF}
    program, at, held = seccomp.program(), 0, 0
    while True:
        code, true, false, value = program[at]
        at += 1
        if code == 0x20:
            held = data[value]
        elif code == 0x06:
            return value
        else:
            holds = {0x15: held == value, 0x45: bool(held & value), 0x35: held >= value}[code]
            at += true if holds else false


@pytest.mark.parametrize("name", seccomp.REFUSED)
def test_what_a_rank_may_not_call(name: str) -> None:
    assert verdict(seccomp.REFUSED[name]) == EPERM


def test_what_is_not_there_and_what_is() -> None:
    assert {verdict(number) for number in seccomp.ABSENT.values()} == {ENOSYS}
    every = {*range(seccomp.NEWEST + 1)} - {*seccomp.REFUSED.values(), *seccomp.ABSENT.values(), seccomp.SOCKET}
    assert {verdict(number) for number in every} == {seccomp.ALLOW}
    assert {verdict(number) for number in (seccomp.NEWEST + 1, 511, 512, 4000)} == {ENOSYS}
    # read, write, mmap, ptrace, mbind, process_vm_readv, personality, sched_setaffinity, memfd_create
    assert every >= {0, 1, 9, 101, 237, 310, 135, 203, 319}


def test_no_way_around_the_numbers() -> None:
    assert verdict(165 | seccomp.X32) == ENOSYS
    assert verdict(21, arch=0x40000003) == ENOSYS, "mount(2) of a program of 32 bits"


@pytest.mark.parametrize("flag", [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000])
def test_no_namespaces(flag: int) -> None:
    thread = 0x3D0F00  # what a thread is made with
    assert verdict(seccomp.CLONE, thread) == verdict(seccomp.UNSHARE, 0x200) == seccomp.ALLOW
    assert verdict(seccomp.CLONE, flag | 17) == verdict(seccomp.UNSHARE, flag) == EPERM
    assert verdict(seccomp.UNSHARE, seccomp.CLONE_NEWTIME) == EPERM
    assert verdict(seccomp.CLONE, 0x80 | 17) == seccomp.ALLOW, "the low byte is a signal's number"


def test_sockets_of_families_that_training_uses() -> None:
    refused = seccomp.ERRNO | errno.EAFNOSUPPORT
    for family in range(64):
        wanted = seccomp.ALLOW if family in seccomp.DOMAINS.values() else refused
        assert verdict(seccomp.SOCKET, family) == wanted, family
    assert verdict(seccomp.SOCKET, -1) == refused


GO = "github.com/containerd/containerd/v2", "golang.org/x/sys"


@pytest.fixture(scope="module")
def profile() -> tuple[set[str], set[str], dict[str, int]]:
    """From the containerd of the local cluster: the calls that its default profile leaves to a container without
    capabilities, the address families of its sockets, and the numbers of all calls."""
    try:
        go = gobuild.find_go()
    except HostError as error:
        pytest.skip(str(error))
    asked = [go, "list", "-m", "-f", "{{.Dir}}", *GO]
    found = subprocess.run(
        asked, capture_output=True, text=True, timeout=120, check=False, cwd=REPOSITORY / "localcluster/go/containerd"
    )
    assert found.returncode == 0, found.stderr
    containerd, system = map(Path, found.stdout.split())
    text = (containerd / "contrib/seccomp/seccomp_default.go").read_text()
    always, _, rest = text[text.index("func DefaultProfile") :].partition("switch runtime.GOARCH")
    (here,) = re.findall(r'case "amd64":(.*?)case "', rest, re.DOTALL)
    families = {name.lower() for name in re.findall(r"^\tunix\.AF_(\w+),", text, re.MULTILINE)}
    numbers = re.findall(r"SYS_(\w+) *= (\d+)", (system / "unix/zsysnum_linux_amd64.go").read_text())
    named = {*re.findall(r'"([a-z0-9_]+)"', always + here)} | {"clone", "unshare", "socket"}  # by their arguments
    return named, families, {name.lower(): int(number) for name, number in numbers}


def test_a_rank_may_call_nothing_that_containerds_default_refuses(
    profile: tuple[set[str], set[str], dict[str, int]],
) -> None:
    named, families, numbers = profile
    assert len(named) > 250 and len(numbers) > 350 and len(families) > 30
    open_here = {name for name, number in numbers.items() if verdict(number, 1) == seccomp.ALLOW}
    assert open_here - named == seccomp.OPEN.keys() - {"personality"}  # which the profile has for some values
    assert families >= seccomp.DOMAINS.keys()
    ours = {**seccomp.REFUSED, **seccomp.ABSENT, **seccomp.OPEN, "socket": seccomp.SOCKET}
    assert {name: numbers[name] for name in ours} == ours


UNDER_THE_FILTER = """
import ctypes, os, threading
from singularity_proxy.launcher.ranks import seccomp
seccomp.apply()
libc = ctypes.CDLL(None, use_errno=True)
said = [libc.unshare(0x10000000), ctypes.get_errno(), libc.syscall(435, 0, 0), ctypes.get_errno()]
thread = threading.Thread(target=lambda: said.append(libc.mount(b"x", b"/", b"tmpfs", 0, None)))
thread.start()
thread.join()
status = dict(line.split(":") for line in open("/proc/self/status") if line.startswith(("Seccomp:", "NoNewPrivs")))
print(*said, *(status[name].strip() for name in ("Seccomp", "NoNewPrivs")))
os.execvp("sh", ["sh", "-c", "grep Seccomp: /proc/self/status; true | cat"])
"""


def test_the_kernel_takes_the_filter_and_programs_inherit_it() -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", UNDER_THE_FILTER], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["-1", "1", "-1", "38", "-1", "2", "1", "Seccomp:", "2"]


def test_a_filter_that_changes_is_known_beside_the_one_before() -> None:
    """Whoever changes the filter writes the new digest into KNOWN, before those of the checkpoints that still go on."""
    assert hashlib.sha256(seccomp.image()).hexdigest() == seccomp.KNOWN[0]


STANDS = """
import ctypes, os, struct, sys, threading, time
from singularity_proxy.launcher.ranks import libc, seccomp
allow = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, seccomp.ALLOW), 8)

def add():
    program = struct.pack("HxxxxxxP", 1, ctypes.addressof(allow))
    libc.check(libc.load().syscall(317, 1, 0, program), "no filter")

def thread(act):
    done = threading.Event()
    threading.Thread(target=lambda: (act(), done.set(), time.sleep(600)), daemon=True).start()
    assert done.wait(120)

ways = {
    "ours": lambda: (seccomp.apply(), thread(int)),
    "one more": lambda: (seccomp.apply(), add()),
    "another": lambda: (libc.load().prctl(38, 1, 0, 0, 0), add()),
    "one thread": lambda: (libc.load().prctl(38, 1, 0, 0, 0), thread(add), seccomp.apply()),
}
ways[sys.argv[1]]()
print("stands", flush=True)
os.kill(os.getpid(), 19)
"""


@pytest.fixture
def standing() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """`standing(way)`: a process of two threads or one that has stopped itself, as a restored one stands still."""
    made: list[subprocess.Popen[str]] = []

    def start(way: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", STANDS, way], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )  # fmt: skip
        made.append(process)
        assert process.stdout is not None and process.stdout.readline() == "stands\n"
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        return process

    yield start
    for process in made:
        process.kill()
        process.wait(120)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0 or user_namespace.inside():
        pytest.skip("needs root: the kernel shows filters to nobody else")


@pytest.mark.parametrize("way", ["ours", "one more"])
@pytest.mark.usefixtures("shown")
def test_a_restored_rank_under_the_launchers_filter_stands_still_for_the_check_and_goes_on(
    standing: Callable[[str], subprocess.Popen[str]], way: str
) -> None:
    process = standing(way)
    filters.check(0, [process.pid])
    # Let go, it stands still again on its own, a moment later; one that ran on would end.
    stat = Path(f"/proc/{process.pid}/stat")
    wait_until(lambda: process_scan.stat_words(stat)[0] in ("T", "Z"), "the process stands still", timeout=30)
    assert process_scan.stat_words(stat)[0] == "T"


@pytest.mark.parametrize("way", ["another", "one thread"])
@pytest.mark.usefixtures("shown")
def test_a_restored_rank_under_another_filter_is_refused(
    standing: Callable[[str], subprocess.Popen[str]], way: str
) -> None:
    process = standing(way)
    with pytest.raises(RestoreError, match=r"(?s)^rank 3: .* is under another filter of system calls"):
        filters.check(3, [process.pid])


def test_in_a_user_namespace_the_image_is_read_before_a_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow = struct.pack("HBBI", 6, 0, 0, seccomp.ALLOW)

    def check(*programs: bytes) -> None:
        chains = [Field(1, 2, encode([Field(1, 2, program), Field(3, 0, 4)])) for program in programs]
        (tmp_path / filters.FILE).write_bytes(image(magic(0x64413049), [encode(chains)]))
        filters.check_image(3, tmp_path)

    monkeypatch.setattr(user_namespace, "inside", lambda: True)
    filters.check_image(3, tmp_path)  # no filter is loaded
    check(seccomp.image())
    for programs in ([allow], [seccomp.image(), allow], [allow, seccomp.image()], [seccomp.image()[:-8]], []):
        with pytest.raises(RestoreError, match=r"^rank 3: seccomp.img has another filter of system calls, which no"):
            check(*programs)
    (tmp_path / filters.FILE).write_bytes(b"x" * 64)
    with pytest.raises(RestoreError, match=r"^rank 3: seccomp.img cannot be read: it begins with"):
        filters.check_image(3, tmp_path)
    monkeypatch.setattr(user_namespace, "inside", lambda: False)
    filters.check_image(3, tmp_path)  # the kernel shows what was loaded


# --- capabilities -----------------------------------------------------------------------------------------------------
def test_a_root_rank_keeps_what_packages_need_and_nothing_of_the_launchers() -> None:
    assert privileges.MASK == 0x4FB
    added = {"SYS_ADMIN": 21, "NET_ADMIN": 12, "SYS_TIME": 25, "SYS_PTRACE": 19}
    others = {"NET_RAW": 13, "MKNOD": 27, "SETPCAP": 8, "DAC_READ_SEARCH": 2}
    assert not [name for name, number in {**added, **others}.items() if privileges.MASK >> number & 1]


STATUS = (
    "Name:\tx\nState:\tT (stopped)\nNSpid:\t5\nCapInh:\t0\nCapPrm:\t4fb\nCapEff:\t4fb\nCapBnd:\t4fb\nCapAmb:\t0\n"
    "NoNewPrivs:\t1\nSeccomp:\t2\n"
)


def _task(proc: Path, process: int, tid: int, status: str = STATUS, **links: str) -> None:
    for folder in (proc / str(process), proc / f"{process}/task/{tid}"):
        (folder / "ns").mkdir(parents=True, exist_ok=True)
        (folder / "status").write_text(status)
        (folder / "cmdline").write_bytes(b"x\0")
        for name in privileges.NAMESPACES:
            (folder / "ns" / name).unlink(missing_ok=True)
            (folder / "ns" / name).symlink_to(links.get(name, f"{name}:[1]"))


def test_restored_processes_with_a_ranks_rights_go_on(tmp_path: Path) -> None:
    _task(tmp_path, 1, 1, STATUS.replace("4fb", "1ffffffffff"))  # the slot's init
    _task(tmp_path, 5, 5)
    _task(tmp_path, 5, 6, STATUS.replace("4fb", "0"))
    (tmp_path / "7/task/7").mkdir(parents=True)  # it has just ended
    (tmp_path / "self").mkdir()
    privileges.check(0, tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("CapEff:\t4fb", "CapEff:\t2004fb", "has capabilities CapEff 200000"),
        ("CapPrm:\t4fb", "CapPrm:\t14fb", "has capabilities CapPrm 1000"),
        ("CapBnd:\t4fb", "CapBnd:\t1ffffffffff", "has capabilities CapBnd 1fffffffb04"),
        ("CapInh:\t0", "CapInh:\t200000", "has capabilities CapInh 200000"),
        ("CapAmb:\t0", "CapAmb:\t200000", "has capabilities CapAmb 200000"),
        ("Seccomp:\t2", "Seccomp:\t0", "is under no filter of system calls"),
        ("NoNewPrivs:\t1", "NoNewPrivs:\t0", "may gain capabilities from programs that it runs"),
    ],
)
def test_a_restored_process_with_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, said: str
) -> None:
    monkeypatch.setattr(privileges, "ENDS_S", 0.1)
    _task(tmp_path, 1, 1)
    _task(tmp_path, 5, 5)
    _task(tmp_path, 5, 9, STATUS.replace(old, new))  # one thread is enough
    with pytest.raises(RestoreError, match=rf"rank 3: .*pid 5\) {re.escape(said)}"):
        privileges.check(3, tmp_path)


def test_a_process_of_crius_that_ends_a_moment_later_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _task(tmp_path, 1, 1)
    _task(tmp_path, 5, 5)
    _task(tmp_path, 13, 13, STATUS.replace("4fb", "aa2c3100"))
    _task(tmp_path, 14, 14, STATUS.replace("4fb", "aa2c3100").replace("T (stopped)", "Z (zombie)"))
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            shutil.rmtree(tmp_path / "13")

    set_clock(monkeypatch, privileges, sleep=sleep)
    privileges.check(0, tmp_path)
    assert len(looks) == 2


@pytest.mark.parametrize("name", privileges.NAMESPACES)
def test_a_restored_process_in_another_namespace_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(privileges, "ENDS_S", 0.1)
    _task(tmp_path, 1, 1)
    _task(tmp_path, 5, 5, **{name: f"{name}:[2]"})
    with pytest.raises(RestoreError, match=rf"lives in another namespace \({name}\)"):
        privileges.check(0, tmp_path)


# --- tools ------------------------------------------------------------------------------------------------------------
def test_the_script_starts_the_launcher_as_the_launcher_starts_its_own() -> None:
    """Two places that have to agree: a shell's and Python's."""
    folder = Path(job_names.LAUNCHER).parent
    text = (REPOSITORY / "images/start").read_text()
    assert text.startswith(f"#!{folder}/busybox sh\n") and f"launcher={folder}\n" in text
    assert f"environment={names.RUN_DIR}/environment\n" in text
    words = text[text.rindex("exec ") :].replace("\\\n", "").replace('"', "").replace("$launcher", str(folder)).split()
    environment = dict(word.split("=") for word in words if "=" in word)
    assert environment == Tools(folder).environment()
    words = [word for word in words if "=" not in word]
    wanted = [word.removesuffix(".") for word in (*Tools(folder).python(""), "$@")]
    assert words == ["exec", f"{folder}/busybox", "env", "-i", *wanted]


def test_nothing_of_the_container_has_a_say_in_what_criu_runs(tmp_path: Path) -> None:
    made = Tools(tmp_path)
    argv = made.criu("check")
    assert argv[:4] == [str(tmp_path / tools.LOADER), "--inhibit-cache", "--library-path", str(tmp_path / "lib")]
    assert "--no-default-config" in argv and argv[argv.index("--libdir") + 1] == str(tmp_path / "empty")
    assert made.environment()["PATH"] == str(tmp_path / "empty")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match=r"ld-linux-x86-64.so.2 is not there; has the agent been installed\?"):
        Tools(tmp_path).check()


def test_what_criu_cannot_tell_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def python(self: Tools, module: str, *words: str) -> list[str]:
        asked.append(module)
        return ["sh", "-c", "echo no such probe >&2; exit 3"]

    monkeypatch.setattr(Tools, "python", python)
    monkeypatch.setattr(Tools, "environment", lambda self: {"PATH": os.environ["PATH"]})
    made = Tools(tmp_path)
    for _ in range(2):
        with pytest.raises(LauncherError, match="CRIU did not tell what this kernel can do: no such probe"):
            made.features()
    assert asked == ["snapshot.criu_features"]


def test_a_criu_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tools, "python", lambda self, *words: ["sleep", "60"])
    monkeypatch.setattr(Tools, "environment", lambda self: {"PATH": os.environ["PATH"]})
    monkeypatch.setattr(tools, "FEATURES_S", 0.1)
    with pytest.raises(LauncherError, match="CRIU did not tell within 0 s"):
        Tools(tmp_path).features()


# --- accounts ---------------------------------------------------------------------------------------------------------
def test_accounts_are_read_from_the_images_files(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root:x:0:0::/root:/bin/sh\nbroken:x\nme:x:7:70:Me,:/home/me:\nnobody:x:8:8::\n")
    (tmp_path / "group").write_text("root:x:0:\nseven:x:77:other,me\nbad:x:no:me\nmen:x:78:men\n")
    assert accounts.by_uid(7, tmp_path) == Account("me", 7, 70, "/home/me")
    assert accounts.by_uid(8, tmp_path) == Account("nobody", 8, 8, "/")
    assert accounts.by_uid(9, tmp_path) is None
    assert accounts.groups("me", tmp_path) == {77}
    assert accounts.by_uid(0, tmp_path / "none") is None and accounts.groups("me", tmp_path / "none") == set()


def test_the_launcher_asks_no_name_service() -> None:
    """The C library would load what the container's /etc/nsswitch.conf names."""
    code = (
        "import runpy, sys, os; os._exit = lambda code: None\n"
        "runpy.run_module('singularity_proxy.launcher', run_name='__main__')\n"
        "import tarfile; print(sys.modules['pwd'], tarfile.pwd, tarfile.grp)"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.split()[-3:] == ["None", "None", "None"], done.stderr


def test_the_charts_profile_has_four_calls_more_than_containerds_default(
    profile: tuple[set[str], set[str], dict[str, int]],
) -> None:
    """For pods without any privilege: docs/project/decisions/0021-no-privilege.md says what each one is for."""
    named, _, numbers = profile
    found = json.loads((REPOSITORY / "charts/singularity/seccomp/no-privilege.json").read_text())
    *_, clone3, added = found["syscalls"]
    assert (clone3["names"], clone3["errnoRet"]) == (["clone3"], errno.ENOSYS)
    assert added == {"names": ["kcmp", "mount", "setns", "unshare"], "action": "SCMP_ACT_ALLOW"}
    default = {name for call in found["syscalls"][:-1] for name in call["names"]}
    assert default & numbers.keys() == (named - {"unshare"} | {"clone3"}) & numbers.keys()
