"""Runs `programs/small_world.py` many times, with two ranks, two stops, and one error put into the agent each time.

Runs in the training root file system, as a process that imports torch once and forks the ranks of each run:

    python3 fault_nursery.py FOLDER record             -> JSON lines: call sites of the agent, by rank
    python3 fault_nursery.py FOLDER inject < plan      -> JSON lines: what became of each run of the plan

A call site is where code of the agent calls something, by file, function and offset. The error is raised in place of
the call, the first time that the site is reached.
"""

import atexit
import contextlib
import faulthandler
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

FOLDER = Path(sys.argv[1])
LIB = FOLDER / "lib"
sys.path[:0] = [str(LIB), str(FOLDER)]

import small_world  # noqa: E402
import torch  # noqa: E402
import torch.distributed.distributed_c10d as c10d  # noqa: E402
import torch.optim.optimizer as optimizer  # noqa: E402
from _singularity.agent import boundary, freeze, hooks  # noqa: E402
from _singularity.launcher import pagewords  # noqa: E402
from _singularity.launcher.paths import Paths  # noqa: E402
from _singularity.launcher.snapshot import rank_dump  # noqa: E402
from _singularity.protocol import names, page, ratchet  # noqa: E402

AGENT = str(LIB / "_singularity/agent")
WORLD = 2
LIMIT_S = 40.0
TOOL = 3
ERRORS = {
    "OSError": OSError(28, "put in"),
    "RuntimeError": RuntimeError("put in"),
    "MemoryError": MemoryError("put in"),
}


def site_of(code, offset):
    return [Path(code.co_filename).name, code.co_qualname, offset]


class Injector:
    """Raises `error` where `site` is reached first; records all sites without one."""

    def __init__(self, run, rank, site, error):
        self.run, self.rank, self.site, self.error = run, rank, site, error
        self.sites = {}
        sys.monitoring.use_tool_id(TOOL, "faults")
        sys.monitoring.register_callback(TOOL, sys.monitoring.events.CALL, self.called)
        sys.monitoring.set_events(TOOL, sys.monitoring.events.CALL)

    def called(self, code, offset, callee, _):
        if not code.co_filename.startswith(AGENT):
            return sys.monitoring.DISABLE
        site = site_of(code, offset)
        if self.site is None:
            # What releases a lock, or ends a block, cannot fail without ending the process.
            if getattr(callee, "__name__", "") == "__exit__":
                return sys.monitoring.DISABLE
            name = getattr(callee, "__qualname__", "") or type(callee).__name__
            self.sites[tuple(site)] = f"{getattr(callee, '__module__', '') or ''}.{name}"
            return sys.monitoring.DISABLE
        if site != self.site:
            return sys.monitoring.DISABLE
        self.site = [None]
        stack = [frame.name for frame in traceback.extract_stack()[:-1] if frame.filename.startswith(AGENT)]
        (self.run / f"hit-{self.rank}").write_text(json.dumps(stack))
        raise self.error

    def save(self):
        if self.site is None:
            found = [[*site, callee] for site, callee in self.sites.items()]
            (self.run / f"sites-{self.rank}").write_text(json.dumps(found))


def rank_main(run, rank, port, site, error):
    """In the child: what the interpreter, the launcher and the script would do."""
    with (run / f"log-{rank}").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), names.ENV_RANK_DIR: str(Paths(run).control(rank)), "USE_LIBUV": "0",
    }  # fmt: skip
    atexit._clear()
    boundary.PATIENCE_S = boundary.NO_STEPS_S = 0.3
    faulthandler.dump_traceback_later(LIMIT_S - 5)
    injector = Injector(run, rank, site, error)
    code = 1
    try:
        for module in (optimizer, c10d):
            # As after its import.
            try:
                hooks.INSTALLERS[module.__name__](module)
            except Exception as failure:
                hooks._failed(module.__name__, failure)
        (run / f"weights-{rank}").write_text(small_world.main())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        sys.monitoring.set_events(TOOL, 0)
        injector.save()
        sys.stderr.flush()
        os._exit(code)


class Run:
    def __init__(self, number, faulty=None, site=None, error=None):
        self.folder = FOLDER / f"run-{number}"
        self.paths = Paths(self.folder)
        for rank in range(WORLD):
            self.paths.control(rank).mkdir(parents=True)
        words = [0] * (page.PAGE_SIZE // 8)
        words[page.W_MAGIC], words[page.W_VERSION], words[page.W_WORLD] = page.MAGIC, page.VERSION, WORLD
        (self.paths.run / names.PAGE_FILE).write_bytes(b"".join(word.to_bytes(8, sys.byteorder) for word in words))
        port = free_port()
        self.pids, self.codes, self.notes = {}, {}, []
        for rank in range(WORLD):
            pid = os.fork()
            if pid == 0:
                mine = faulty == rank
                rank_main(self.folder, rank, port, site if mine or site is None else [None], error)
            self.pids[rank] = pid
        self.until = time.monotonic() + LIMIT_S

    def reap(self):
        for rank, pid in self.pids.items():
            if rank not in self.codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self.codes[rank] = os.waitstatus_to_exitcode(status)

    def alive(self):
        self.reap()
        if time.monotonic() > self.until:
            raise TimeoutError
        return len(self.codes) < WORLD

    def word(self, rank, word):
        return pagewords.read(self.paths.run, rank, word)

    def publish(self, request, stop_at, acquired):
        with (self.paths.run / names.PAGE_FILE).open("r+b") as file:
            for word, value in ((page.W_ACQUIRED, acquired), (page.W_STOP_AT, stop_at), (page.W_REQUEST, request)):
                os.pwrite(file.fileno(), value.to_bytes(8, sys.byteorder), 8 * word)

    def views(self):
        found = (
            ratchet.RankView(*(self.word(rank, word) for word in (page.R_COUNT, page.R_BLOCKED, page.R_STATE)))
            for rank in range(WORLD)
        )
        return list(found)

    def refused(self, generation):
        return any(self.word(rank, page.R_REFUSED) >= generation for rank in range(WORLD))

    def answered(self, rank, name, generation):
        with contextlib.suppress(FileNotFoundError, ValueError):
            return json.loads((self.paths.control(rank) / name).read_text())["generation"] == generation
        return False

    def stop(self, generation, step):
        """As leader and launchers do: barrier, wait for all to freeze, let them go on. A refusal ends it."""
        while self.alive() and max(view.count for view in self.views()) < step:
            time.sleep(0.002)
        stop_at = acquired = 0
        until = time.monotonic() + 15
        while self.alive() and not acquired:
            decision = ratchet.decide(self.views(), generation, stop_at)
            gone = any(self.codes.values()) or time.monotonic() > until
            if decision.finished or self.refused(generation) or gone:
                self.notes.append("refused" if self.refused(generation) else "not reached")
                self.publish(0, stop_at, 0)
                return
            stop_at = decision.stop_at
            acquired = generation if decision.acquired else 0
            self.publish(generation, stop_at, acquired)
            time.sleep(0.002)
        refused = False
        while self.alive():
            self.reap()
            refused = self.refused(generation)
            frozen = [self.answered(rank, names.FROZEN_FILE, generation) for rank in range(WORLD)]
            if refused or all(frozen) or any(self.codes.values()):
                break
            time.sleep(0.002)
        self.notes.append("refused" if refused else "frozen")
        self.publish(0, stop_at, generation)
        port = free_port()
        for rank in range(WORLD):
            rank_dump.write_resume(self.paths, rank, generation, "127.0.0.1", port, {})

    def result(self):
        try:
            for number, step in ((1, 3), (2, 9)):
                if self.alive():
                    self.stop(page.generation(1, number), step)
            while self.alive():
                if any(self.codes.values()):
                    self.until = min(self.until, time.monotonic() + 10)
                time.sleep(0.002)
            hang = False
        except TimeoutError:
            hang = True
        for rank, pid in self.pids.items():
            if rank not in self.codes:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        folder = self.folder
        read = {name: [text(folder / f"{name}-{rank}") for rank in range(WORLD)] for name in ("weights", "hit", "log")}
        lost = [(self.paths.control(rank) / names.LOST_PEER_FILE).exists() for rank in range(WORLD)]
        codes = [self.codes.get(rank) for rank in range(WORLD)]
        return {"codes": codes, "hang": hang, "notes": self.notes, "lost": lost, **read}


def text(path):
    return path.read_text(errors="replace")[-4000:] if path.exists() else ""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    if sys.argv[2] == "record":
        run = Run("record")
        result = run.result()
        sites = [json.loads(text_whole(run.folder / f"sites-{rank}") or "[]") for rank in range(WORLD)]
        print(json.dumps({**result, "sites": sites}), flush=True)
        return
    for number, line in enumerate(sys.stdin):
        rank, site, error = json.loads(line)
        print(json.dumps(Run(number, rank, site, ERRORS[error]).result()), flush=True)


def warm_up():
    """Import what torch imports when DDP is first made, or each rank would: a child tells what that is."""
    told = FOLDER / "modules"
    if (pid := os.fork()) == 0:
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        torch.distributed.init_process_group("gloo")
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
        told.write_text(json.dumps(sorted(sys.modules)))
        os._exit(0)
    os.waitpid(pid, 0)
    for name in json.loads(told.read_text()):
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def text_whole(path):
    return path.read_text() if path.exists() else ""


assert freeze.TRIES > 1
warm_up()
gc.collect()
gc.freeze()  # what was imported is none of the collections in the ranks: they are quick, and share its memory
main()
sys.stdout.flush()
os._exit(0)  # what was imported has much to say at its end
