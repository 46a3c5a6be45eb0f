"""What may travel with a rank, and how commands are understood: parts that need neither root nor CRIU."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import socket
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from singularity_proxy.launcher.errors import CommandError, DumpError, RestoreError
from singularity_proxy.launcher.ranks import halt, process_scan, torchrun
from singularity_proxy.launcher.snapshot import (
    container_layer,
    image,
    mapped_files,
    restore,
    sockets,
    unix_sockets,
    views,
)
from singularity_proxy.protocol import addresses, names, starters


# --- archives ---------------------------------------------------------------------------------------------------------
def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"x"
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    info.size = len(data) if kind == tarfile.REGTYPE else 0
    return info, data


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return path


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (member("../out"), "leads out of its folder"),
        (member("a/../../out"), "leads out of its folder"),
        (member("/out"), "leads out of its folder"),
        (member("hard", tarfile.LNKTYPE, "../../etc/passwd"), "is a link to '../../etc/passwd', out of its folder"),
        (member("hard", tarfile.LNKTYPE, "/etc/passwd"), "is a link to '/etc/passwd', out of its folder"),
        (member("link/out"), "lies behind a symbolic link"),
        (member("device", tarfile.CHRTYPE), "is neither a file"),
    ],
)
def test_an_archive_that_leads_elsewhere_is_refused(
    tmp_path: Path, bad: tuple[tarfile.TarInfo, bytes], why: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = member("link", tarfile.SYMTYPE, str(tmp_path / "elsewhere"))
    path = archive(tmp_path / "a.tar", link, bad)
    with pytest.raises(RestoreError, match=why):
        image.unpack(path, tmp_path / "new/folder")
    assert not list(tmp_path.rglob("out"))


def test_nothing_is_written_through_a_link_that_is_there(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("mine")
    new = tmp_path / "new"
    new.mkdir()
    (new / "folder").symlink_to(elsewhere)
    with pytest.raises(RestoreError, match="is a symbolic link here, and was a directory"):
        image.unpack(archive(tmp_path / "a.tar", member("folder/file")), new)
    (new / "file").symlink_to(elsewhere / "file")
    image.unpack(archive(tmp_path / "b.tar", member("file", data=b"theirs")), new)
    assert (new / "file").read_text() == "theirs" and not (new / "file").is_symlink()
    assert (elsewhere / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["link", "folder/../file"])
def test_a_written_file_behind_a_link_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("longer than it was")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    record = image.RankRecord(0, 1000, 1, 0, [image.WrittenFile(f"{tmp_path}/{name}", 3)])
    with pytest.raises(RestoreError, match="refused, as the checkpoint must not change another file"):
        image.differing(record)
    assert (tmp_path / "file").read_text() == "longer than it was"


# --- files of the container -------------------------------------------------------------------------------------------
def test_what_changed_is_found_and_put_back(tmp_path: Path) -> None:
    root, new = tmp_path / "root", tmp_path / "new"
    for folder in (root, new):
        (folder / "etc").mkdir(parents=True)
        (folder / "volume").mkdir()
        (folder / "etc/old").write_text("old")
        (folder / "etc/edited").write_text("old")
    since = _later(root / "etc")
    (root / "volume/inside").write_text("x")
    (root / "etc/edited").write_text("edited")
    (root / "made/deep").mkdir(parents=True)
    (root / "made/deep/file").write_text("made")
    (root / "made/link").symlink_to("deep")
    (root / "made/log").write_text("x")
    os.utime(root / "made/log", (0, 0))  # a date that the program sets does not hide it
    found = container_layer.changed(since, root, {str(root / "volume")})
    assert [str(path.relative_to(root)) for path in found] == [
        "etc/edited", "made", "made/deep", "made/deep/file", "made/link", "made/log",
    ]  # fmt: skip
    container_layer.pack(found, tmp_path / "layer.tar", root)
    container_layer.unpack(tmp_path / "layer.tar", new)
    assert (new / "etc/edited").read_text() == "edited"
    assert (new / "made/deep/file").read_text() == "made" and (new / "made/link").readlink() == Path("deep")
    with pytest.raises(RestoreError, match="was a file of the container at the checkpoint, and is in a volume here"):
        container_layer.unpack(tmp_path / "layer.tar", new, {"/made"})


def _later(folder: Path) -> float:
    """Seconds at which a file that is written from now on is newer than all that are there."""
    before = (folder / "old").stat().st_ctime
    probe = folder.parent / "volume/probe"
    end = time.monotonic() + 10
    while True:
        probe.write_text("x")
        now = probe.stat().st_ctime
        if now > before:
            return now
        assert time.monotonic() < end, "the file system's clock stands still"


FILE, FOLDER = member("file"), member("folder", tarfile.DIRTYPE)
LATER = member("file")
LATER[0].mtime = 7
DIFFERENT: dict[str, list[tuple[tuple[tarfile.TarInfo, bytes], ...]]] = {
    "/file": [(FOLDER, member("file", data=b"y"))],
    "/alone": [(FOLDER, FILE, member("alone"))],
    "/folder": [(FILE,), (member("folder", tarfile.SYMTYPE, "x"), FILE)],
}


def test_ranks_share_what_is_the_same_and_nothing_else(tmp_path: Path) -> None:
    """Two pods' files are the same whatever their order and times; any other difference tells them apart by name."""
    one = archive(tmp_path / "one.tar", FOLDER, FILE)
    same = archive(tmp_path / "same.tar", LATER, FOLDER)
    assert container_layer.difference(one, same) is None
    for path, every in DIFFERENT.items():
        for number, members in enumerate(every):
            other = archive(tmp_path / f"{path[1:]}-{number}.tar", *members)
            assert container_layer.difference(one, other) == container_layer.difference(other, one) == path
            assert container_layer.alike({3: other, 0: one, 2: same, 1: other}) == [[0, 2], [1, 3]]


def test_where_no_overlay_can_be_mounted_two_pods_files_are_refused_by_name(tmp_path: Path) -> None:
    one, other = archive(tmp_path / "1.tar", FILE), archive(tmp_path / "2.tar", member("file", data=b"y"))
    (tmp_path / "views").touch()  # where a folder is to be made
    with pytest.raises(
        RestoreError, match=r"ranks 0 and 1 come from two pods whose file /file is not the same, and no"
    ):
        views.unpack({0: one, 1: other, 2: one}, tmp_path / "views", [])


@pytest.mark.parametrize(("text", "size"), [("", 10 << 30), ("5", 5), ("2k", 2000), ("3Mi", 3 << 20), ("1Ti", 1 << 40)])
def test_sizes_of_limits(text: str, size: int) -> None:
    assert container_layer.limit({container_layer.ENV_LIMIT: text}) == size


@pytest.mark.parametrize("text", ["x", "-1", "1.5Gi", "10 Gi", "10gi"])
def test_limits_that_are_none(text: str) -> None:
    with pytest.raises(CommandError, match="wanted a number of bytes"):
        container_layer.limit({container_layer.ENV_LIMIT: text})


def test_the_largest_files_are_named(tmp_path: Path) -> None:
    files = {tmp_path / str(n): n << 20 for n in range(6)}
    container_layer.check_size(0, files, 15 << 20)
    wanted = r"files of rank 3 are 15\.0 MiB, more than the 14\.0 MiB.*/5 \(5\.0 MiB\), \S*/4"
    with pytest.raises(DumpError, match=wanted):
        container_layer.check_size(3, files, 14 << 20)


# --- files of the image -----------------------------------------------------------------------------------------------
def mapping(path: object, access: str = "r-xp", inode: int = 7) -> str:
    return f"7f0000000000-7f0000001000 {access} 00000000 fe:01 {inode}      {path}\n"


def test_which_mapped_files_the_next_pod_must_have(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    for name in ("lib one", "lib\ntwo", "data", "moved", "own/agent"):
        (tmp_path / name).write_text(name)
    lines = [
        mapping(tmp_path / "lib one"), mapping(tmp_path / "lib one", "rw-p"),
        mapping(str(tmp_path / "lib\ntwo").replace("\n", "\\012"), "r--s"), mapping(tmp_path / "data", "rw-s"),
        mapping(tmp_path / "moved"), mapping(tmp_path / "own/agent"), mapping(f"{tmp_path}/old (deleted)"),
        mapping("/dev/null", "rw-p"), mapping(tmp_path / "not there"), mapping("[heap]", "rw-p", 0),
        mapping("", "rw-p", 0),
    ]  # fmt: skip
    (tmp_path / "9").mkdir()
    (tmp_path / "9/maps").write_text("".join(lines))
    found = mapped_files.files([9, 10], {str(tmp_path / "moved")}, tmp_path / "own", proc=tmp_path)
    assert [Path(file.path).name for file in found] == ["lib\ntwo", "lib one"]
    assert [file.size for file in found] == [7, 7]


def test_every_rank_finds_its_files_and_the_first_that_differ_are_named(tmp_path: Path) -> None:
    def look(name: str) -> image.MappedFile:
        (tmp_path / "proc/9").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/9/maps").write_text(mapping(tmp_path / name))
        return mapped_files.files([9], (), Path("/none"), proc=tmp_path / "proc")[0]

    for number in range(6):
        (tmp_path / str(number)).write_bytes(b"x" * mapped_files.HEAD + b"y")
    ranks = {0: [look("0"), look("1")], 3: [look(str(number)) for number in range(1, 6)]}
    mapped_files.check(ranks, [])
    (tmp_path / "0").write_bytes(b"z" * mapped_files.HEAD + b"y")
    (tmp_path / "1").unlink()
    (tmp_path / "4").write_bytes(b"x")
    (tmp_path / "5").write_bytes(b"x")
    with pytest.raises(RestoreError) as caught:
        mapped_files.check(ranks, {str(tmp_path / "4"), str(tmp_path / "3"), "/elsewhere"})
    said = str(caught.value)
    assert re.search(r"/0 begins with other bytes here \(digest \w{16}\) than in rank 0 \(\w{16}\); ", said)
    assert f"{tmp_path}/1 (4097 bytes), which rank 0 runs, is not here; {tmp_path}/4 has 1 bytes here" in said
    assert "and 4097 in rank 3 and 1 more. " in said
    assert said.endswith(f"; what is mounted at {tmp_path}/4 must be the same, too")


# --- sockets ----------------------------------------------------------------------------------------------------------
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LO, ANY, POD, LO6 = "0100007F", "00000000", "0500000A", "00000000000000000000000001000000"
MAPPED = "0000000000000000FFFF00000100007F"


@pytest.mark.parametrize(
    ("kind", "lines", "refused", "cut"),
    [
        ("tcp", [(f"{LO}:0050", f"{ANY}:0000", "0A")], [], []),
        ("tcp", [(f"{ANY}:0050", f"{ANY}:0000", "0A")], [], []),
        ("tcp6", [(f"{LO6}:0050", f"{'0' * 32}:0000", "0A")], [], []),
        ("tcp", [(f"{POD}:0050", f"{ANY}:0000", "0A")], ["listens on 10.0.0.5:80"], []),
        ("tcp", [(f"{LO}:0050", f"{LO}:1000", "01"), (f"{LO}:1000", f"{LO}:0050", "01")], [], []),
        ("tcp", [(f"{LO}:1000", f"{LO}:0050", "01")], ["(tcp) from 127.0.0.1:4096 to 127.0.0.1:80"], [""]),
        ("tcp", [(f"{POD}:1000", "08080808:01BB", "01")], [], ["(tcp) from 10.0.0.5:4096 to 8.8.8.8:443"]),
        ("tcp", [(f"{POD}:1000", "08080808:01BB", "02")], [], ["from 10.0.0.5:4096 to 8.8.8.8:443"]),
        ("tcp", [(f"{POD}:1000", "0600000A:01BB", "01")], ["from 10.0.0.5:4096 to 10.0.0.6:443"], [""]),
        ("tcp", [(f"{POD}:1000", f"{POD}:01BB", "01")], ["from 10.0.0.5:4096 to 10.0.0.5:443"], [""]),
        ("tcp6", [(f"{MAPPED}:0050", f"{MAPPED}:1000", "01"), (f"{MAPPED}:1000", f"{MAPPED}:0050", "01")], [], []),
        ("udp", [(f"{ANY}:0035", f"{ANY}:0000", "07")], [], []),
        ("udp", [(f"{POD}:0035", f"{ANY}:0000", "07")], ["receives (udp) on 10.0.0.5:53"], []),
        ("udp", [(f"{POD}:1000", "08080808:0035", "01")], [], ["(udp) from 10.0.0.5:4096 to 8.8.8.8:53"]),
        ("udp", [(f"{POD}:1000", "0600000A:0035", "01")], ["(udp) from 10.0.0.5:4096 to 10.0.0.6:53"], [""]),
    ],
)
def test_which_sockets_travel(
    tmp_path: Path, kind: str, lines: list[tuple[str, str, str]], refused: list[str], cut: list[str]
) -> None:
    (tmp_path / "net").mkdir()
    rows = [f" {n}: {a} {b} {state} 0:0 0:0 0 0 0 {70 + n}\n" for n, (a, b, state) in enumerate(lines)]
    (tmp_path / "net" / kind).write_text(HEAD + "".join(rows))
    (tmp_path / "9/fd").mkdir(parents=True)
    for n in range(len(lines)):
        (tmp_path / f"9/fd/{n}").symlink_to(f"socket:[{70 + n}]")
    found = (sockets.refused([9], {"10.0.0.5", "10.0.0.6"}, tmp_path), sockets.cut([9], tmp_path))
    for wanted, texts in zip((refused, cut), found, strict=True):
        assert len(texts) == len(wanted) and all(want in text for want, text in zip(wanted, texts, strict=True)), texts
    assert len(sockets.kept([9], tmp_path)) == len(lines) - len(cut)


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        ("tcp 127.0.0.1:80", "tcp 127.0.0.1:80", True),
        ("tcp 127.0.0.1:80", "tcp 127.0.0.1:81", False),
        ("tcp 127.0.0.1:80", "udp 127.0.0.1:80", False),
        ("tcp 127.0.0.1:80", "tcp 127.0.0.2:80", False),
        ("tcp 127.0.0.1:80", "tcp 0.0.0.0:80", True),
        ("tcp [::1]:80", "tcp [::]:80", True),
        ("tcp 127.0.0.1:80", "tcp 127.0.0.1:80>127.0.0.1:90", False),
        ("tcp 127.0.0.1:90>127.0.0.1:80", "tcp 127.0.0.1:90>127.0.0.1:80", True),
        ("unix @name", "unix @name", True),
        ("unix @name:80", "tcp 0.0.0.0:80", False),
    ],
)
def test_which_addresses_clash(one: str, other: str, wanted: bool) -> None:
    assert addresses.clash(one, other) is addresses.clash(other, one) is wanted


def test_what_a_process_occupies_and_what_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        (host, port), (_, own) = server.getsockname(), client.getsockname()
        accepted, _ = server.accept()
        taken = sockets.occupied([os.getpid()])
        assert {f"tcp {host}:{port}", f"tcp {host}:{own}>{host}:{port}"} <= set(taken)
        assert f"tcp {host}:{port}" in sockets.in_use()
        accepted.close()
    assert f"tcp {host}:{port}" not in sockets.in_use()


def test_a_rank_holds_its_abstract_names() -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{os.getpid()}-name")
        assert f"unix @{os.getpid()}-name" in unix_sockets.abstract([os.getpid()])
    assert not unix_sockets.abstract([os.getpid()])


def holder(rank: int, pod: str, *occupied: str) -> image.RankRecord:
    return image.RankRecord(rank, 1000, 1, 0, occupied=[*occupied], pod=pod)


def test_ranks_that_listen_on_one_port_cannot_share_a_pod() -> None:
    ranks = [holder(0, "a", "tcp 127.0.0.1:80"), holder(1, "b", "tcp 127.0.0.1:81"), holder(2, "b", "tcp 0.0.0.0:80")]
    restore.check_addresses(ranks[:2], [])
    with pytest.raises(
        RestoreError, match=r"ranks 0 and 2 cannot share a pod: the one has tcp 127.0.0.1:80, the other"
    ):
        restore.check_addresses(ranks, [])
    shared = [holder(0, "a", "tcp 127.0.0.1:80"), holder(1, "a", "tcp 127.0.0.1:80")]
    restore.check_addresses(shared, [])  # SO_REUSEPORT, say: they did already
    with pytest.raises(RestoreError, match=r"rank 1 has tcp 127.0.0.1:81, and in this pod tcp 0.0.0.0:81 is in use"):
        restore.check_addresses(ranks[:2], ["tcp 0.0.0.0:81"])


# --- everything stands still ------------------------------------------------------------------------------------------
def family(pid: int) -> list[int]:
    """The process and its children, in place of all processes of a PID namespace."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def test_a_program_that_starts_others_is_told_once_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_scan, "processes", family)
    loop = "n=0; while :; do n=$((n+1)); (:); echo $n; done"
    with subprocess.Popen(["sh", "-c", loop], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        try:
            for _ in range(20):
                assert shell.stdout.readline()
                for pid in halt.stop(shell.pid, time.time() + 60):
                    status = Path(f"/proc/{pid}/status").read_text()
                    assert re.search(r"^State:\s[TZ]", status, re.M), status
                    if "State:\tZ" in status:
                        continue  # it ended when its stop came: nothing takes the signal any more
                    pending = re.search(r"^ShdPnd:\s(\w+)", status, re.M)
                    # A second one would come in the midst of CRIU's work in the process.
                    assert pending is not None and not int(pending[1], 16) & 1 << signal.SIGSTOP - 1, status
                halt.let_go(shell.pid)
        finally:
            shell.kill()


# --- torchrun ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("command", "world", "wanted"),
    [
        ("python3 train.py --nproc-per-node 2", 1, "python3 train.py --nproc-per-node 2"),
        ("sh -c torchrun", 1, "sh -c torchrun"),
        ("python3 -m torch.distributed.run train.py", 4, "python3 -u train.py"),
        ("/opt/python -u -m torch.distributed.launch --nproc_per_node=2 t.py a -b", 4, "/opt/python -u t.py a -b"),
        ("no-such/torchrun --standalone --nproc-per-node 4 train.py --steps 3", 4, "python3 -u train.py --steps 3"),
        ("no-such/torchrun --nnodes 2 --nproc-per-node=auto --rdzv-id=5 --rdzv-endpoint h:1 -m pkg.train x", 3,
         "python3 -u -m pkg.train x"),
        ("no-such/torchrun --no-python ./run.sh y", 2, "./run.sh y"),
    ],
)  # fmt: skip
def test_torchruns_place_is_taken(command: str, world: int, wanted: str) -> None:
    assert shlex.join(torchrun.unwrapped(shlex.split(command), world)) == wanted


def test_the_python_of_torchrun_is_used(tmp_path: Path) -> None:
    python = tmp_path / "python3.14"
    python.touch()
    program = tmp_path / "torchrun"
    program.write_text(f"#!{python}\nimport sys\n")
    program.chmod(0o755)
    assert torchrun.unwrapped([str(program), "train.py"], 2) == [str(python), "-u", "train.py"]


@pytest.mark.parametrize(("options", "world"), [("--nproc-per-node 4", 1), ("--nproc-per-node=2", 3)])
def test_another_number_of_processes_than_the_job_has(options: str, world: int) -> None:
    with pytest.raises(CommandError, match=f"but the job has {world} rank.*give it a world_size of"):
        torchrun.unwrapped(["no-such/torchrun", *options.split(), "train.py"], world)


def test_torchruns_virtual_local_rank_is_refused() -> None:
    with pytest.raises(CommandError, match=r"--virtual-local-rank is not supported.*use LOCAL_RANK"):
        torchrun.unwrapped(["no-such/torchrun", "--virtual_local_rank", "train.py"], 1)


def test_what_torchrun_tells_a_rank() -> None:
    base = {names.ENV_JOB: "train", names.ENV_WORKERS: "2"}
    assert torchrun.environment(["python3", "train.py", "--rdzv-id", "x"], 1, 4, base) == {}
    plain = torchrun.environment(["no-such/torchrun", "train.py", "--rdzv-id", "x"], 1, 4, base)
    assert plain == {
        "GROUP_WORLD_SIZE": "2", "ROLE_NAME": "default", "ROLE_RANK": "1", "ROLE_WORLD_SIZE": "4",
        "TORCHELASTIC_RUN_ID": "train", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }  # fmt: skip
    told = ["--rdzv-id=seven", "--role", "trainer", "--max_restarts", "3"]
    more = torchrun.environment(["no-such/torchrun", *told, "train.py"], 1, 4, {})
    assert more == {
        **plain, "GROUP_WORLD_SIZE": "1", "ROLE_NAME": "trainer", "TORCHELASTIC_RUN_ID": "seven",
        "TORCHELASTIC_MAX_RESTARTS": "3",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("accelerate launch --num_processes 2 train.py", "ACCELERATE_MIXED_PRECISION=bf16"),
        ("/opt/bin/accelerate-launch train.py", "ACCELERATE_MIXED_PRECISION=bf16"),
        ("python3 -u -m accelerate.commands.launch train.py", "ACCELERATE_MIXED_PRECISION=bf16"),
        ("deepspeed --num_gpus 2 train.py --deepspeed_config c.json", "--deepspeed_config for one, stay"),
        ("python3.12 -m deepspeed.launcher.runner train.py", "--deepspeed_config for one, stay"),
        ("mpirun -np 2 python3 train.py", "world_size: how many)"),
        ("accelerate config", ""),
        ("python3 train.py -m deepspeed", ""),
        ("python3 -m train deepspeed", ""),
        ("torchrun --nproc-per-node 2 train.py", ""),
    ],
)
def test_other_programs_that_start_ranks_are_refused(command: str, hint: str) -> None:
    said = starters.problem(shlex.split(command), 2)
    assert hint in said and bool(said) is bool(hint)
    assert not hint or said.startswith("starts the ranks itself, so 2 ranks would each start a world of their own")
    assert starters.problem(shlex.split(command), 1) == "", "one slot may hold a whole world"


def test_torchrun_without_a_script() -> None:
    with pytest.raises(CommandError, match="torchrun is given no script"):
        torchrun.unwrapped(["no-such/torchrun", "--standalone"], 1)


# --- memory -----------------------------------------------------------------------------------------------------------
def test_memory_that_processes_share_counts_once_where_it_matters(tmp_path: Path) -> None:
    for pid in (1, 2):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / f"{pid}/status").write_text("Name:\tx\nRssAnon:\t    1000 kB\nRssFile:\t 9 kB\nRssShmem:\t 24 kB\n")
        (tmp_path / f"{pid}/smaps_rollup").write_text("Pss:  700 kB\nPss_Anon:    512 kB\nPss_Shmem:    12 kB\n")
    assert process_scan.memory_bytes([1, 2, 3], enough=1 << 30, proc=tmp_path) == 2048 * 1024
    assert process_scan.memory_bytes([1, 2, 3], enough=1 << 20, proc=tmp_path) == 1048 * 1024
