"""A rank that wants to become its launcher: what it plants must never run with the launcher's capabilities."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import planted
import pynvml
import pytest
from planted import ADDED
from pod_harness import Pod
from pod_moves import dump_anywhere, until

from singularity_proxy.launcher import tools
from singularity_proxy.launcher.ranks import privileges, seccomp
from singularity_proxy.launcher.snapshot import filters
from singularity_proxy.launcher.snapshot.image import LAYER_TAR
from singularity_proxy.launcher.snapshot.protobuf import Field, encode, fields
from singularity_proxy.protocol import exit_codes, messages, names

pytestmark = pytest.mark.criu
Make = Callable[..., Pod]
G = 5
PLANT = "import plant, os; plant.everything(stdlib=True)\n"
COUNT = """
import os, time
out = open("numbers", "a", buffering=1)
n = 0
while not os.path.exists("end"):
    n += 1
    out.write(f"{n}\\n")
    time.sleep(0.001)
"""
ATTEMPTS = """
import ctypes, errno, os, socket, time
libc = ctypes.CDLL(None, use_errno=True)

def said(name, result):
    print(name, errno.errorcode.get(result, result), flush=True)

def call(name, function, *words):
    said(name, ctypes.get_errno() if function(*words) == -1 else "DONE")

def attempt(name, function, *words):
    try:
        said(name, f"DONE {function(*words)}")
    except OSError as error:
        said(name, error.errno)

for folder in "/singularity", "/singularity/agent", "/singularity/images", "/singularity/run/launcher", "/run":
    attempt(f"move-{folder}", os.rename, folder, "/moved")
for folder in "/singularity/agent", "/singularity/agent/launcher", "/singularity/agent/launcher/python/lib":
    attempt(f"write-{folder}", lambda f: open(f + "/planted", "w"), folder)
attempt("chmod", os.chmod, "/singularity/agent/launcher/start", 0o777)
attempt("features", lambda: open("/run/criu.kdat", "r+b"))
attempt("image", lambda: open("/singularity/images/planted", "w"))
print("images", os.listdir("/singularity/images"), "launcher", os.listdir("/singularity/run/launcher"), flush=True)
attempt("socket", socket.socket(socket.AF_UNIX).connect, "/singularity/run/launcher/sidecar.sock")
for name in "root", "cwd", "exe", "ns/mnt":
    attempt(f"init-{name}", os.readlink if name in ("cwd", "exe", "ns/mnt") else os.listdir, f"/proc/1/{name}")
opened = [f"/proc/1/fd/{number}" for number in range(3, 9)]
attempt("init-images", lambda: [path for path in opened if os.path.exists(path)])
attempt("init-mem", lambda: open("/proc/1/mem", "r+b"))
call("mount", libc.mount, b"none", b"/mnt", b"tmpfs", 0, None)
call("remount", libc.mount, b"none", b"/singularity/agent", None, 4096 | 32, None)
call("umount", libc.umount2, b"/singularity/images", 2)
call("unshare-user", libc.unshare, 0x10000000)
call("unshare-mnt", libc.unshare, 0x20000)
call("setns", libc.setns, 0, 0)
call("ptrace-init", libc.ptrace, 16, 1, 0, 0)
call("bpf", libc.syscall, 321, 0, 0, 0)
call("clone3", libc.syscall, 435, 0, 0)
attempt("device", os.mknod, "/planted-device", 0o060600, os.makedev(8, 0))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("core", lambda: open("/proc/sys/kernel/core_pattern", "w"))
open("file", "w").close()
attempt("chown", os.chown, "file", 1000, 1000)
attempt("kill-init", os.kill, 1, 9)
if os.fork() == 0:
    attempt("become", os.setresuid, 1000, 1000, 1000)
    os._exit(0)
os.wait()
print("all tried", flush=True)
"""


def fresh(ranks: list[int], world: int) -> messages.Plan:
    return messages.Plan("fresh", 1, world, ranks, "127.0.0.1", 29500)


def restore(ranks: list[int], world: int) -> messages.Plan:
    return messages.Plan("restore", 2, world, ranks, "127.0.0.1", 29501, G, "c")


@pytest.fixture
def run(make_pod: Make, rootfs: Path, criu_bundle: Path) -> Make:
    def make(name: str, plan: messages.Plan, script: str, *bring: tuple[Pod, int], **more: object) -> Pod:
        options = {"rootfs": rootfs, "command": ["python3", "program.py"], **more}
        pod = make_pod(name, torch=None, plan=plan, criu=criu_bundle, **options)
        source = pod.volumes / "source"
        (source / "program.py").write_text(script + COUNT)
        for path, text in planted.files().items():
            (source / path).write_text(text)
        for other, rank in bring:
            pod.bring(other, "c", rank)
        return pod.start()

    return make


def dump(pod: Pod, **more: object) -> messages.LauncherEvent:
    return dump_anywhere(pod, G, **more)


def numbers(pod: Pod) -> list[int]:
    path = pod.work(0) / "cwd/numbers"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def recorded(pod: Pod) -> list[planted.Ran]:
    return planted.ran(pod.folder / "upper" / planted.RECORD.lstrip("/"))


def with_added(*pods: Pod) -> list[planted.Ran]:
    """What was planted and ran with a capability that only the launcher has."""
    return [each for pod in pods for each in recorded(pod) if each.effective & ADDED]


def dump_and_go_on(pod: Pod) -> int:
    """Dumped in place it counts on, and is dumped once more; how far it had come."""
    until(lambda: len(numbers(pod)) > 20, "numbers", pod)
    event = dump(pod)
    assert not with_added(pod), pod.log()
    assert event.kind == "dumped", pod.log()
    at = len(numbers(pod))
    pod.sidecar.command("resume", generation=G)
    until(lambda: len(numbers(pod)) > at + 20, "it goes on", pod)
    assert dump(pod).kind == "dumped", pod.log()
    return len(numbers(pod))


def counts_on(pod: Pod, at: int) -> None:
    """Restored, it is dumped in place, counts on without a gap, and ends well."""
    pod.wait_event("restored")
    assert dump(pod).kind == "dumped", pod.log()
    pod.sidecar.command("resume", generation=G)
    until(lambda: len(numbers(pod)) > at + 20, "it goes on in the new pod", pod)
    (pod.work(0) / "cwd/end").touch()
    assert pod.wait() == 0, pod.log()
    assert numbers(pod) == list(range(1, len(numbers(pod)) + 1))


def test_what_a_rank_plants_never_runs_with_the_launchers_capabilities(run: Make) -> None:
    old = run("old", fresh([0], 1), PLANT)
    at = dump_and_go_on(old)
    old.delete()
    new = run("new", restore([0], 1), PLANT, (old, 0))
    counts_on(new, at)
    assert not with_added(old, new), new.log()
    assert "planted" in (new.folder / "upper/etc/ld.so.preload").read_text(), "it came along"


def test_what_is_planted_does_run_for_a_rank_and_is_seen(run: Make, tmp_path: Path) -> None:
    """Else the test before would hold whatever happened."""
    script = PLANT + "os.system('true'); os.spawnv(os.P_WAIT, '/usr/bin/nsenter', ['nsenter'])\n"
    pod = run("pod", fresh([0], 1), script)
    until(lambda: len(recorded(pod)) >= 2, "its programs run", pod)
    assert {each.effective for each in recorded(pod)} == {privileges.MASK}


def test_everything_with_capabilities_is_mapped_from_the_agents_volume(run: Make) -> None:
    pod = run("pod", fresh([0], 1), PLANT)
    dump_and_go_on(pod)
    launcher = pod.launcher_pid()
    slots = [int(word) for word in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]
    inits = [int(word) for slot in slots for word in Path(f"/proc/{slot}/task/{slot}/children").read_text().split()]
    assert len(slots) == len(inits) == 1
    for pid in (launcher, *slots, *inits):
        lines = [line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        files = {words[5] for words in lines if len(words) == 6 and words[5].startswith("/")}
        strange = {name for name in files if not name.startswith("/singularity/agent/launcher/")}
        assert len(files) > 5 and not strange, strange
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert set(environment.decode().rstrip("\0").split("\0")) == ENVIRONMENT


ENVIRONMENT = {"LC_ALL=C", "HOME=/", "PATH=/singularity/agent/launcher/empty"}


def test_a_pods_variables_and_its_images_preload_reach_the_ranks_only(run: Make, rootfs: Path, tmp_path: Path) -> None:
    layer, shared = tmp_path / "layer", tmp_path / "volume"
    (layer / "etc").mkdir(parents=True)
    (layer / "etc/ld.so.preload").write_text("/shared/library.so\n")
    shared.mkdir()
    (shared / "library.so").write_bytes(planted.library())
    for name in ("os", "json", "sitecustomize"):
        (shared / f"{name}.py").write_text(planted.PYTHON)
    (shared / "startup").write_text(planted.PYTHON)
    loaded = {"LD_PRELOAD": "/shared/library.so", "LD_AUDIT": "/shared/library.so", "LD_LIBRARY_PATH": "/shared"}
    python = {"PYTHONHOME": "/shared", "PYTHONSTARTUP": "/shared/startup", "PYTHONINSPECT": "1"}
    planted_tools = shared / "root/agent/launcher"
    planted_tools.mkdir(parents=True)
    (planted_tools / tools.LOADER).write_bytes(planted.program())
    (planted_tools / tools.LOADER).chmod(0o755)
    others = {"LOCPATH": "/shared", "GCONV_PATH": "/shared", "ENV": "/shared/startup", "LANG": "xx_YY.PLANTED"}
    env = {**loaded, **python, **others, "PYTHONPATH": "/shared", "SINGULARITY_ROOT": "/shared/root"}
    pod = run("pod", fresh([0], 1), COUNT, rootfs=f"{layer}:{rootfs}", shared=shared, env=env, command=["sleep", "600"])
    until(lambda: "sleep" in {each.name for each in recorded(pod)}, "the rank has its environment", pod)
    assert dump(pod).kind == "dumped", pod.log()
    seen = recorded(pod)
    runtimes = {"umount", "env", "setpriv"}  # the harness's own way into the container, before the launcher
    assert {each.name for each in with_added(pod)} == runtimes, seen


def test_a_probe_of_gpus_runs_the_images_python_as_a_rank(run: Make, rootfs: Path, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    (layer / "usr/bin").mkdir(parents=True)
    for name in ("python3", (rootfs / "usr/bin/python3").resolve().name):
        (layer / "usr/bin" / name).write_bytes(planted.program())
        (layer / "usr/bin" / name).chmod(0o755)
    pod = run("pod", None, "", rootfs=f"{layer}:{rootfs}", env={names.ENV_PROBE: names.PROBE_GPUS})
    assert pod.wait() == 0, pod.log()
    answer = messages.from_json(messages.GpuProbe, pod.log().splitlines()[-1])
    assert any("/usr/bin/python3 has no torch that can be used" in problem for problem in answer.problems), answer
    assert not any("CRIU" in problem or "not found" in problem for problem in answer.problems), answer
    assert {each.effective for each in recorded(pod)} == {privileges.MASK}


@pytest.fixture
def nvml_agent(criu_bundle: Path, tmp_path: Path) -> Path:
    """The agent with the library that reads a GPU's health."""
    agent = tmp_path / "agent-with-nvml"
    shutil.copytree(criu_bundle, agent, copy_function=os.link)
    (package,) = agent.glob("launcher/python/lib/python3.*/_singularity")
    shutil.copy(pynvml.__file__, package)
    return agent


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.65", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.65"),
        ("home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1", "/usr/local/nvidia"),
    ],
    ids=["a file", "a folder"],
)
def test_the_drivers_library_runs_without_any_right(
    make_pod: Make, rootfs: Path, nvml_agent: Path, tmp_path: Path, source: str, target: str
) -> None:
    """What the container runtime has mounted is the node's, and it only tells of health."""
    layer, library = tmp_path / "layer", tmp_path / source
    layer.mkdir()
    (layer / "recorded").touch()
    (layer / "recorded").chmod(0o666)
    library.parent.mkdir(parents=True)
    library.write_bytes(planted.library())
    shown = library if target.endswith(library.name) else library.parents[1]
    options = {"rootfs": f"{layer}:{rootfs}", "torch": None, "criu": nvml_agent, "command": ["sleep", "60"]}
    pod = make_pod("pod", plan=fresh([0], 1), mounts={target: shown}, **options).start()
    until(lambda: recorded(pod), "the library was loaded", pod)
    until(lambda: any(event.kind == "started" for event in pod.sidecar.events), "the rank runs", pod)
    assert [each.effective for each in recorded(pod)] == [0], pod.log()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("volume/libnvidia-ml.so.1", "/mine/nvidia"),
        ("volume/lib/libnvidia-ml.so.1", "/usr/local/nvidia"),
        ("pods/1-2/volumes/kubernetes.io~configmap/mine/lib/libnvidia-ml.so.1", "/usr/lib/libnvidia-ml.so.1"),
    ],
    ids=["of any name", "in the runtime's place", "of a config map"],
)
def test_a_volume_of_the_users_is_no_driver(
    make_pod: Make, rootfs: Path, nvml_agent: Path, tmp_path: Path, source: str, target: str
) -> None:
    library = tmp_path / source
    library.parent.mkdir(parents=True)
    library.write_bytes(planted.library())
    shown = library if target.endswith(library.name) else tmp_path / "volume"
    options = {"rootfs": rootfs, "torch": None, "criu": nvml_agent, "command": ["sleep", "60"]}
    pod = make_pod("pod", plan=fresh([0], 1), mounts={target: shown}, **options).start()
    until(lambda: any(event.kind == "started" for event in pod.sidecar.events), "the rank runs", pod)
    words = [(each / "cmdline").read_bytes() for each in pod.processes()]
    assert recorded(pod) == [] and not any(b"health_process" in each for each in words), pod.log()


def test_what_a_rank_may_not_do(run: Make) -> None:
    pod = run("pod", fresh([0], 1), ATTEMPTS)
    until(lambda: "[rank 0] all tried" in pod.log(), "all was tried", pod)
    lines = [line.removeprefix("[rank 0] ") for line in pod.log().splitlines() if line.startswith("[rank 0] ")]
    done = dict(line.split(" ", 1) for line in lines)
    assert done == WANTED, pod.log()
    assert dump(pod).kind == "dumped", pod.log()


WANTED = {
    "move-/singularity": "EBUSY", "move-/singularity/agent": "EXDEV", "move-/singularity/images": "EXDEV",
    "move-/singularity/run/launcher": "EXDEV", "move-/run": "EBUSY", "write-/singularity/agent": "EROFS",
    "write-/singularity/agent/launcher": "EROFS", "write-/singularity/agent/launcher/python/lib": "EROFS",
    "chmod": "EROFS", "features": "EROFS", "image": "EROFS", "images": "['criu.kdat'] launcher []", "socket": "ENOENT",
    "init-root": "EACCES", "init-images": "DONE []", "init-cwd": "EACCES", "init-exe": "EACCES",
    "init-ns/mnt": "EACCES", "init-mem": "EACCES", "mount": "EPERM", "remount": "EPERM", "umount": "EPERM",
    "unshare-user": "EPERM", "unshare-mnt": "EPERM", "setns": "EPERM", "ptrace-init": "EPERM", "bpf": "EPERM",
    "clone3": "ENOSYS", "device": "EPERM", "raw": "EPERM", "core": "EROFS", "chown": "DONE None",
    "kill-init": "DONE None", "become": "DONE None", "all": "tried",
}  # fmt: skip
"""The last lines: what `apt` and `pip` in a script need goes on."""


# --- checkpoints that somebody has changed ----------------------------------------------------------------------------
def saved(run: Make, **more: object) -> Pod:
    """A pod that is gone, with its checkpoint."""
    pod = run("old", fresh([0], 1), "", **more)
    until(lambda: len(numbers(pod)) > 20, "numbers", pod)
    assert dump(pod).kind == "dumped", pod.log()
    pod.delete()
    return pod


def changed_core(data: bytes, change: Callable[[list[Field]], list[Field]]) -> bytes:
    """CRIU's image of a process, with other rights of its main thread (`thread_core`, 5, of images/core.proto)."""
    (size,) = struct.unpack_from("<I", data, 8)
    core = list(fields(data[12 : 12 + size]))
    assert len(data) == 12 + size and [field.number for field in core].count(5) == 1
    thread = next(bytes(field.value) for field in core if field.number == 5)  # type: ignore[arg-type]
    changed = Field(5, 2, encode(change(list(fields(thread)))))
    entry = encode([changed if field.number == 5 else field for field in core])
    return data[:8] + struct.pack("<I", len(entry)) + entry


def all_capabilities(thread: list[Field]) -> list[Field]:
    """`creds`, 10: cap_prm, cap_eff and cap_bnd, 10 to 12, two words each."""
    (creds,) = (list(fields(bytes(field.value))) for field in thread if field.number == 10)  # type: ignore[arg-type]
    assert [field.number for field in creds].count(11) == 2
    seen: set[int] = set()
    full = []
    for each in creds:
        first = each.number in (10, 11, 12) and each.number not in seen
        full.append(Field(each.number, each.kind, int(each.value) | ADDED) if first else each)
        seen.add(each.number)
    return [Field(10, 2, encode(full)) if field.number == 10 else field for field in thread]


def no_filter(thread: list[Field]) -> list[Field]:
    """`seccomp_mode`, 11, and `seccomp_filter`, 12."""
    return [field for field in thread if field.number not in (11, 12)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (all_capabilities, "has capabilities CapPrm 2281000, CapEff 2281000, CapBnd 2281000"),
        (no_filter, "is under no filter of system calls"),
    ],
)
def test_an_image_that_gives_a_process_more_rights_is_refused(
    run: Make, change: Callable[[list[Field]], list[Field]], said: str
) -> None:
    old = saved(run)
    core = old.image("c", 0) / "core-1000.img"
    core.write_bytes(changed_core(core.read_bytes(), change))
    at = numbers(old)
    new = run("new", restore([0], 1), "", (old, 0))
    assert refusal(new).startswith(f"rank 0: python3 program.py (pid 1000) {said}, which no rank may")
    assert numbers(new) == at, "it never ran"


@pytest.mark.parametrize("uids", [None, 100_000], ids=["root of the node", "user namespace"])
def test_an_image_with_a_filter_that_allows_everything_is_refused(run: Make, uids: int | None) -> None:
    old = saved(run, uids=uids)
    path = old.image("c", 0) / filters.FILE
    data = path.read_bytes()
    ours, allow = seccomp.image(), struct.pack("HBBI", 6, 0, 0, seccomp.ALLOW)
    assert data.count(ours) == 1
    path.write_bytes(data.replace(ours, allow * (len(ours) // len(allow))))
    at = numbers(old)
    new = run("new", restore([0], 1), "", (old, 0), uids=uids)
    what = "python3 program.py (pid 1000) is under" if uids is None else "seccomp.img has"
    assert refusal(new).startswith(f"rank 0: {what} another filter of system calls, which no rank may")
    assert numbers(new) == at, "it never ran"


def refusal(pod: Pod) -> str:
    """Why the checkpoint is not restored."""
    event = pod.wait_event("restored", "restore_failed")
    assert event.kind == "restore_failed" and pod.wait() == exit_codes.NOT_RESTORED, pod.log()
    return event.message


def layer_of(pod: Pod, *members: tarfile.TarInfo | tuple[str, bytes, int]) -> None:
    """Another layer in the pod's checkpoint."""
    with tarfile.open(pod.image("c", 0) / LAYER_TAR, "w") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            name, content, mode = member
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            tar.addfile(info, io.BytesIO(content))


def test_a_layer_replaces_programs_and_settings_and_none_of_them_runs(run: Make, rootfs: Path) -> None:
    old = saved(run)
    programs = [f"usr/bin/{name}" for name in ("nsenter", "setpriv", "unshare", "mount", "sh", "iptables", "nft")]
    mapped = {file["path"] for file in json.loads((old.image("c", 0) / "rank.json").read_text())["mapped"]}
    libraries = (path for path in rootfs.glob("usr/lib/x86_64-linux-gnu/lib*.so.*") if not path.is_symlink())
    unused = [str(path.relative_to(rootfs)) for path in libraries if f"/{path.relative_to(rootfs)}" not in mapped]
    layer_of(
        old,
        *((name, planted.program(), 0o6755) for name in programs),
        *((name, planted.library(), 0o755) for name in unused),
        ("usr/lib/planted.so", planted.library(), 0o755),
        ("usr/lib/criu/planted.so", planted.library(), 0o755),
        ("etc/ld.so.preload", b"/usr/lib/planted.so\n", 0o644),
        ("etc/criu/default.conf", b"action-script /usr/bin/nsenter\n", 0o644),
        ("run/criu.kdat", b"x" * 4096, 0o644),
    )
    new = run("new", restore([0], 1), "", (old, 0))
    counts_on(new, len(numbers(old)))
    assert (new.folder / "upper/usr/bin/nsenter").read_bytes() == planted.program(), "it was unpacked"
    assert not with_added(new), new.log()


def _entry(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.devmajor, info.devminor = kind, link, 0o777, 8, 0
    return info


AGENT = "singularity/agent/launcher"
PROGRAM = planted.program()


Members = list[tarfile.TarInfo | tuple[str, bytes, int]]
BEYOND: list[tuple[Members, str]] = [
    ([(f"{AGENT}/start", PROGRAM, 0o755)], "is in a volume here"),
    ([("singularity/planted", PROGRAM, 0o755)], "is in a volume here"),
    ([(f"usr/../{AGENT}/start", PROGRAM, 0o755)], "leads out of its folder"),
    ([(f"/{AGENT}/start", PROGRAM, 0o755)], "leads out of its folder"),
    ([("../../planted", PROGRAM, 0o755)], "leads out of its folder"),
    ([_entry("way", tarfile.SYMTYPE, f"/{AGENT}"), ("way/start", PROGRAM, 0o755)], "lies behind a symbolic link"),
    ([("lib64/planted", PROGRAM, 0o755)], "is a symbolic link here"),
    ([_entry("start", tarfile.LNKTYPE, f"{AGENT}/start"), ("start", PROGRAM, 0o755)], "cannot be a link to"),
    ([_entry("disk", tarfile.BLKTYPE)], "is neither a file, a directory, a link nor a pipe"),
    ([("proc/sys/kernel/core_pattern", b"|/planted", 0o644)], "is in a volume here"),
    ([("dev/null", PROGRAM, 0o755)], "is in a volume here"),
]  # fmt: skip


def test_a_layer_does_not_reach_what_is_the_launchers(run: Make, criu_bundle: Path) -> None:
    old = saved(run)
    start = criu_bundle / "launcher/start"
    before = start.read_bytes()
    for number, (members, said) in enumerate(BEYOND):
        layer_of(old, *members)
        new = run(f"new-{number}", restore([0], 1), "", (old, 0))
        assert said in refusal(new)
        assert start.read_bytes() == before
        assert not recorded(new)
