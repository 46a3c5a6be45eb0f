"""Who may see and who may act: the plugin's routes in a real api-server whose users have roles and teams."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from browser import SLOW_MS, open_page
from playwright.sync_api import Page, expect

from localcluster.demo.airflow import Airflow
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

DAG_ID = "mine"
TI = f"/singularity/dags/{DAG_ID}/dagRuns/r/taskInstances/train/-1"
USERS = "boss:admin:team-a,worker:user:team-a,guest:viewer:team-a,stranger:user:team-b"
DAG = f"""
from airflow.sdk import DAG
from airflow_provider.operators import SingularityTrainOperator
with DAG({DAG_ID!r}, schedule=None):
    SingularityTrainOperator(task_id="train", queue_name="q", command=["true"])
"""


class Client:
    """Plain HTTP to one api-server, as one user or as nobody."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url, self.token = url, token
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def call(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> int:
        """HTTP status."""
        return self.ask(method, path, body, headers)[0]

    def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, str, str]:
        """HTTP status, content type, text."""
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, method=method, data=data)
        request.add_header("Content-Type", "application/json")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with self._opener.open(request, timeout=60) as answer:
                return answer.status, answer.headers.get_content_type(), answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers.get_content_type(), error.read().decode()


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, say: Callable[[str], None]) -> Iterator[Airflow]:
    """api-server and dag-processor: nothing runs here."""
    root = tmp_path_factory.mktemp("access")
    (root / "dags").mkdir()
    (root / "dags" / "mine.py").write_text(DAG)
    passwords = root / "passwords.json"
    passwords.write_text(json.dumps({user.split(":")[0]: "secret" for user in USERS.split(",")}))
    bundle = {
        "name": "team-a-dags",
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(root / "dags")},
        "team_name": "team-a",
    }
    made = Airflow(
        home=root / "home",
        dags=root / "dags",
        kubeconfig=root / "none",
        extra_env={
            "AIRFLOW__CORE__MULTI_TEAM": "True",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": USERS,
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
        },
        parts=("api-server", "dag-processor"),
        setup=(("teams", "create", "team-a"), ("teams", "create", "team-b")),
    )
    say("Airflow with users, roles and teams: starting api-server and dag-processor")
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def login(airflow: Airflow) -> Callable[[str | None], Client]:
    url = airflow.url

    def as_user(name: str | None) -> Client:
        if name is None:
            return Client(url)
        status, _, text = Client(url).ask("POST", "/auth/token", {"username": name, "password": "secret"})
        assert status == 201, text
        return Client(url, json.loads(text)["access_token"])

    boss = as_user("boss")
    wait_for(lambda: boss.call("GET", f"/api/v2/dags/{DAG_ID}") == 200, "the Dag in the database", 180)
    return as_user


@pytest.mark.parametrize(
    ("user", "read", "act"),
    [(None, 401, 401), ("stranger", 403, 403), ("guest", 200, 403), ("worker", 200, 404), ("boss", 200, 404)],
)
def test_who_may_what(login: Callable[[str | None], Client], user: str | None, read: int, act: int) -> None:
    """404 is what an allowed action says about a task that has no job."""
    client = login(user)
    status, _, text = client.ask("GET", f"{TI}/context")
    assert status == read
    if read == 200:
        nothing = {"job": None, "kept": None, "why": None, "past": [], "moves": []}
        assert json.loads(text) == {"can_act": act == 404, **nothing}
    assert client.call("GET", f"{TI}/live") == (404 if read == 200 else read)
    bodies: dict[str, object] = {"resize": {"workers": 2}, "migrate": {"flavor": "spot"}}
    bodies |= {"rewind": {"checkpoint": "train-a1-g1"}, "fork": {"checkpoint": "train-a1-g1", "name": "twin"}}
    for verb in ("checkpoint", "resize", "migrate", "pause", "resume", "rewind", "fork"):
        assert client.call("POST", f"{TI}/actions/{verb}", bodies.get(verb, {})) == act, verb
    assert client.call("GET", "/singularity/runs") == (401 if user is None else 200)


def test_a_list_that_a_browser_has_is_not_sent_again(login: Callable[[str | None], Client]) -> None:
    boss = login("boss")
    request = urllib.request.Request(f"{boss.url}/singularity/runs", headers={"Authorization": f"Bearer {boss.token}"})
    with boss._opener.open(request, timeout=60) as answer:
        known = {"If-None-Match": answer.headers["ETag"]}
    assert boss.call("GET", "/singularity/runs", headers=known) == 304
    assert login(None).call("GET", "/singularity/runs", headers=known) == 401


def test_other_sites_and_plain_forms_are_refused(login: Callable[[str | None], Client]) -> None:
    boss = login("boss")
    path = f"{TI}/actions/pause"
    for site in ("cross-site", "same-site"):
        assert boss.call("POST", path, {}, {"Sec-Fetch-Site": site}) == 403
    assert boss.call("POST", path, {}, {"Sec-Fetch-Site": "same-origin"}) == 404
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        assert boss.call("POST", path, b"{}", {"Content-Type": kind}) == 415
    assert boss.call("GET", path) == 405


def test_wrong_arguments_are_named(login: Callable[[str | None], Client]) -> None:
    worker = login("worker")
    for verb, body, field in (
        ("resize", {"workers": 0}, "workers"),
        ("resize", {}, "workers"),
        ("migrate", {"flavor": ""}, "flavor"),
        ("pause", {"now": True}, "now"),
    ):
        status, _, text = worker.ask("POST", f"{TI}/actions/{verb}", body)
        assert status == 422
        assert field in text


def test_only_what_was_allowed_is_in_the_audit_log(login: Callable[[str | None], Client]) -> None:
    worker, guest = login("worker"), login("guest")
    assert guest.call("POST", f"{TI}/actions/migrate", {"flavor": "by-guest"}) == 403
    assert worker.call("POST", f"{TI}/actions/migrate", {"flavor": "by-worker"}) == 404

    def rows() -> str:
        return login("boss").ask("GET", "/api/v2/eventLogs?event=training_migrate&limit=100")[2]

    wait_for(lambda: "by-worker" in rows(), "the row in the audit log", 60)
    assert "by-guest" not in rows()


def test_the_bundle_is_javascript(login: Callable[[str | None], Client]) -> None:
    """A prefix that Airflow refuses would be answered with its own page, and status 200."""
    status, kind, text = login(None).ask("GET", "/singularity/static/training.js?v=1&place=task")
    assert (status, kind) == (200, "text/javascript")
    assert "AirflowPlugin" in text


# --- what they see ----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def drawn(airflow: Airflow, login: Callable[[str | None], Client]) -> str:
    """Address of the tab of a task that was cleared once and whose second job was preempted."""
    airflow.python(str(Path(__file__).parent / "drawn_run.py"), DAG_ID, "drawn")
    return f"{airflow.url}/dags/{DAG_ID}/runs/drawn/tasks/train/plugin/training"


@pytest.mark.parametrize(("user", "acts"), [("guest", False), ("worker", True)])
def test_the_tab_shows_all_tries_and_buttons_to_whom_may_act(
    drawn: str, login: Callable[[str | None], Client], say: Callable[[str], None], user: str, acts: bool
) -> None:
    with open_page(say) as (page, errors):
        enter(page, login(user))
        page.goto(drawn)
        timeline = page.get_by_test_id("training-timeline")
        for row in ("job 1, attempt 0 · spot × 2", "job 2, attempt 1 · spot × 2", "job 2, attempt 2 · ondemand × 2"):
            expect(timeline).to_contain_text(row, timeout=SLOW_MS)
        for kind, count in (("queue", 3), ("start", 3), ("run", 3), ("save", 2)):
            expect(timeline.locator(f"rect[data-kind={kind}]")).to_have_count(count)
        expect(page.get_by_test_id("training-attempts")).to_contain_text("preempted by Job team-b/urgent")
        expect(page.get_by_test_id("training-loss")).to_be_visible()
        expect(page.get_by_test_id("training-warning")).to_contain_text("Preempted 1 times: more often than")
        # The cluster cannot be asked: what Airflow has kept is shown, and why.
        expect(page.get_by_test_id("training-info")).to_contain_text("no_such_connection", timeout=SLOW_MS)
        for verb in ("checkpoint", "resize", "migrate", "pause"):
            expect(page.get_by_test_id(f"training-{verb}")).to_have_count(int(acts))
        if acts:
            # The task's own record names a connection that its Dag does not: Airflow's servers refuse to use it.
            page.get_by_test_id("training-pause").click()
            refusal = page.get_by_test_id("training-error")
            expect(refusal).to_contain_text("pause was refused (409)", timeout=SLOW_MS)
            expect(refusal).to_contain_text("is not one that the Dag names")
        assert errors == []


def test_a_stranger_is_told_so_in_the_tab(
    drawn: str, login: Callable[[str | None], Client], say: Callable[[str], None]
) -> None:
    with open_page(say) as (page, errors):
        enter(page, login("stranger"))
        page.goto(drawn)
        expect(page.get_by_test_id("training-error")).to_contain_text("You may not read this Dag", timeout=SLOW_MS)
        assert errors == []


def enter(page: Page, user: Client) -> None:
    """What the login page leaves in the browser."""
    assert user.token is not None
    page.context.add_cookies([{"name": "_token", "value": user.token, "url": user.url}])
