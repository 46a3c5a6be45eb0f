"""What may travel with a rank, and how commands are understood: parts that need neither root nor CRIU."""

from __future__ import annotations

import io
import shlex
import tarfile
from pathlib import Path

import pytest

from proxy.launcher import image, torchrun
from proxy.launcher.errors import CommandError, RestoreError


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
    record = image.RankRecord(0, 1000, 1, "", 0, [image.WrittenFile(f"{tmp_path}/{name}", 3)])
    with pytest.raises(RestoreError, match="refused, as the checkpoint must not change another file"):
        image.rewind(record)
    assert (tmp_path / "file").read_text() == "longer than it was"


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


def test_torchrun_without_a_script() -> None:
    with pytest.raises(CommandError, match="torchrun is given no script"):
        torchrun.unwrapped(["no-such/torchrun", "--standalone"], 1)
