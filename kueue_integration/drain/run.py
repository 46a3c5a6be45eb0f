"""The loop of a drain: look at the jobs on the nodes, let `plan` decide, ask, and look again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..contract import job_names, kinds, progress_objects
from ..errors import Forbidden, JobNotFoundError, KubeError, PlatformError, RequestRefusedError, SingularityError
from ..kube.api import Kube
from ..kube.resources import POD, Object, selector
from ..requests import user_requests, verbs
from . import departure, plan
from .look import Key, Look, Refusal, by_job, look
from .plan import Ask, Move, Stage

_LOOK_S = 1.0
_NO_ANSWER = "the API server does not answer, trying again"


class Drain:
    """One drain of `nodes`. `namespace` None: of all; `by`: who asks; `say` hears of every step of a job;
    `lose_work`: a job that cannot be saved leaves all the same.

    `clock` is monotonic, `pause` passes the time between two looks; both in seconds.
    """

    def __init__(
        self,
        kube: Kube,
        nodes: Sequence[str],
        namespace: str | None,
        by: str,
        at_once: int = 1,
        timeout_s: float = 600.0,
        say: Callable[[Key, str], None] = lambda key, text: None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[], None] = lambda: time.sleep(_LOOK_S),
        lose_work: bool = False,
    ) -> None:
        self._kube, self._nodes, self._namespace = kube, nodes, namespace
        what = f"drain of {', '.join(nodes)}"
        self._by = f"{by} ({what})" if by else what
        self._at_once, self._timeout_s, self._lose_work = at_once, timeout_s, lose_work
        self._say, self._clock, self._pause = say, clock, pause
        self._told: dict[Key, str] = {}
        self._pods: dict[Key, list[Object]] = {}
        self.moves: dict[Key, Move] = {}
        """Every job that had pods on the nodes since the drain began."""

    def preview(self) -> dict[Key, tuple[Look, Refusal | None]]:
        """What would be moved and what would not. Writes nothing. Raises PlatformError, KubeError."""
        shown: dict[Key, tuple[Look, Refusal | None]] = {}
        for key, pods in self._on_the_nodes().items():
            seen, job = self._look(key, pods)
            refusal = seen.refusal
            if refusal is None and job is not None and not seen.ended and not seen.stopping:
                try:
                    departure.refusal(self._kube, job, self._nodes, self._by)
                except (RequestRefusedError, PlatformError) as error:
                    refusal = _refused(key, error)
            shown[key] = seen, refusal
        return dict(sorted(shown.items(), key=lambda item: (-item[1][0].priority, item[0])))

    def run(self) -> None:
        """Until every job on the nodes is away, stays, or is overdue: `moves` has them.

        Raises PlatformError (may not look at pods), KubeError (the API server is away for longer than a job may take).
        """
        answered = self._clock()
        while True:
            try:
                self._round(self._on_the_nodes())
                answered = self._clock()
            except KubeError as error:
                if not error.transient or self._clock() - answered > self._timeout_s:
                    raise
                for key in [key for key, move in self.moves.items() if not move.stage.final]:
                    self._tell(key, f"{_NO_ANSWER}: {error}")
                self._pause()
                continue
            if all(move.stage.final for move in self.moves.values()):
                return
            self._pause()

    def _on_the_nodes(self) -> dict[Key, list[Object]]:
        """All pods of each job that has one on the nodes."""
        try:
            pods = self._kube.list(POD, self._namespace, selector({job_names.LABEL_MANAGED: "true"}))
        except Forbidden as error:
            raise PlatformError(
                f"drain has to list the pods of all namespaces; ask for that, or name one with -n ({error})"
            ) from None
        self._pods = by_job(pods)
        return {key: own for key, own in self._pods.items() if look(None, None, own, self._nodes, "").on}

    def _round(self, found: dict[Key, list[Object]]) -> None:
        for key, pods in found.items():
            known = self.moves.get(key)
            if known is None:
                self._first(key, pods)
            elif known.stage is Stage.AWAY:
                on = look(None, None, pods, self._nodes, "").on
                self._keep(plan.came_back(known, on, self._clock()))
        for key, move in list(self.moves.items()):
            if not move.stage.final and not (move.stage is Stage.FOUND and key in found):
                self._step(move)
        # A job that refuses leaves its place at once: the next one need not wait for the next look.
        while turns := plan.due(self.moves.values(), self._at_once):
            for key in turns:
                self._step(plan.begin(self.moves[key], self._clock()))
        self.moves = plan.over(self.moves, self._at_once)

    def _first(self, key: Key, pods: list[Object]) -> None:
        move = Move(key, saved=self._lose_work)
        try:
            seen, _ = self._look(key, pods)
        except KubeError as error:
            if error.transient:
                raise
            self.moves[key] = move
            self._keep(plan.stays(move, _refused(key, error), self._clock()))
            return
        self.moves[key] = replace(move, priority=seen.priority, attempt=seen.attempt)

    def _step(self, move: Move) -> None:
        self.moves[move.key] = move
        try:
            seen, job = self._look(move.key, self._pods.get(move.key, []))
            self._ask(plan.advance(move, seen, self._clock(), self._timeout_s), seen, job)
        except KubeError as error:
            self._not_answered(self.moves[move.key], error)

    def _ask(self, move: Move, seen: Look, job: Object | None) -> None:
        now = self._clock()
        self._keep(move, seen)
        if move.stage is Stage.AWAY and move.departure is not None:
            self._give_back(move, move.departure, seen)
        ask = plan.wanted(move, seen)
        if ask is None or job is None:
            return
        try:
            if ask is Ask.SAVE:  # for a job that could not leave afterwards nothing is saved
                departure.refusal(self._kube, job, self._nodes, self._by)
            self._keep(self._asked(move, ask, now), seen)
        except (RequestRefusedError, PlatformError) as error:
            self._keep(plan.stays(move, _refused(move.key, error), now))
        except JobNotFoundError:
            return  # the next look tells that it is gone

    def _asked(self, move: Move, ask: Ask, now: float) -> Move:
        namespace, name = move.key
        if ask is Ask.LEAVE:
            left = departure.leave(self._kube, namespace, name, self._nodes, self._by, self._lose_work)
            return replace(move, stage=Stage.LEAVING, asked=left.asked, departure=left)
        left_s = self._timeout_s - (now - (now if move.since is None else move.since))
        seconds = min(max(1.0, left_s), user_requests.MAX_CHECKPOINT_S)
        try:
            asked = verbs.checkpoint(self._kube, namespace, name, round(seconds, 1), self._by)
        except RequestRefusedError:
            return replace(move, saved=True)  # nothing to save since the look: it is being stopped, or has ended
        return replace(move, stage=Stage.SAVING, asked=asked)

    def _give_back(self, move: Move, left: departure.Departure, seen: Look) -> None:
        """Let the job go to the nodes again later. One that waits must not be admitted for a flavor without a node."""
        if seen.ended:
            return
        # The answer to our own request was lost, say: where the job might run before is not known.
        unknown = {*self._nodes} <= {*left.before.avoid_nodes}
        keeps = f"keeps away from {', '.join(self._nodes)} until `singularityctl migrate {move.key[1]} --anywhere`"
        if unknown or (not seen.runs and left.narrowed):
            self._tell(move.key, keeps)
            return
        try:
            departure.allow_again(self._kube, left, self._by)
        except KubeError as error:
            self._tell(move.key, f"{keeps}: {error}")

    def _look(self, key: Key, pods: list[Object]) -> tuple[Look, Object | None]:
        namespace, name = key
        job = kinds.find(self._kube, namespace, name)
        if job is not None:
            job = progress_objects.shown(self._kube, job)
        workload = None if job is None else self._kube.get_workload_for_job(job)
        return look(job, workload, pods, self._nodes, self._by, self._lose_work), job

    def _not_answered(self, move: Move, error: KubeError) -> None:
        now = self._clock()
        if not error.transient:
            self._keep(plan.stays(move, _refused(move.key, error), now))
        elif move.since is not None and now - move.since >= self._timeout_s:
            self._keep(plan.late(move, str(error), now, self._timeout_s))
        else:
            self._tell(move.key, f"{_NO_ANSWER}: {error}")

    def _keep(self, move: Move, seen: Look | None = None) -> None:
        self.moves[move.key] = move
        text = words(move, seen)
        if text:
            self._tell(move.key, text)

    def _tell(self, key: Key, text: str) -> None:
        if self._told.get(key) != text:
            self._told[key] = text
            self._say(key, text)


def words(move: Move, seen: Look | None) -> str:
    """What a person reads of `move` while the drain goes on; "" for nothing. No numbers that change all the time."""
    if move.stage is Stage.AWAY:
        return f"away after {move.seconds:.1f} s: {move.where}"
    if move.refusal is not None:
        return f"{'stays' if move.stage is Stage.STAYS else 'overdue'}: {move.refusal.why}"
    if move.stage is Stage.SAVING:
        return "is saved while it goes on"
    if move.stage is Stage.TURN and seen is not None and seen.stopping:
        return "is being stopped already"
    if move.stage is not Stage.LEAVING or seen is None or seen.status is None:
        return ""
    return f"moves: {seen.status.phase}" if not seen.runs or not seen.on else "is asked to leave"


def _refused(key: Key, error: SingularityError) -> Refusal:
    if not isinstance(error, RequestRefusedError):
        return Refusal(str(error), "an administrator has the permission, or can give it")
    namespace, name = key
    field, value, text = error.problem
    own = f"{name} -n {namespace}"
    fix = f"`singularityctl pause {own} --wait`, upgrade the node, `singularityctl resume {own}`"
    return Refusal(text if field in ("name", "affinity", "placement") else f"{field} {value}: {text}", fix)
