"""The page of the cluster in a real Chromium on a real api-server, with a made-up cluster behind real HTTP.

What a real Kueue reports is the matter of `test_e2e_top`: both show the same data. The pictures go to
build/e2e/cluster-page; those of the documentation are made by this test.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cluster_scene
import pytest
from browser import SLOW_MS, open_page
from playwright.sync_api import Page, expect
from served_kube import Server, served
from test_e2e_ui_access import Client, enter

from kueue_integration.kube.fake import FakeKube
from localcluster.demo.airflow import Airflow
from localcluster.demo.stage import CHECKOUT
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.full, pytest.mark.timeout(900)]
PICTURES = CHECKOUT / "build" / "e2e" / "cluster-page"
USERS = "worker:user:team-a,stranger:user:team-c"
DAG = """
from airflow.sdk import DAG
from airflow_provider.operators import SingularityTrainOperator
for dag_id in {!r}:
    with DAG(dag_id, schedule=None) as dag:
        SingularityTrainOperator(task_id="train", queue_name="q", command=["true"])
    globals()[dag_id] = dag
"""


@dataclass
class Scene:
    """Airflow with users of two teams, and the server of the cluster that its connection names."""

    airflow: Airflow
    cluster: Server

    def login(self, name: str) -> Client:
        status, _, text = Client(self.airflow.url).ask("POST", "/auth/token", {"username": name, "password": "secret"})
        assert status == 201, text
        return Client(self.airflow.url, json.loads(text)["access_token"])

    def open(self, page: Page, name: str) -> None:
        enter(page, self.login(name))
        page.goto(f"{self.airflow.url}/plugin/training_cluster")


def airflow(root: Path) -> Airflow:
    """Not started. Each team has a bundle of Dags."""
    bundles = []
    for team, dag_ids in {"team-a": cluster_scene.TEAM_A, "team-b": cluster_scene.TEAM_B}.items():
        folder = root / team
        folder.mkdir()
        (folder / "dags.py").write_text(DAG.format(list(dag_ids)))
        local = "airflow.dag_processing.bundles.local.LocalDagBundle"
        bundles.append({"name": team, "classpath": local, "kwargs": {"path": str(folder)}, "team_name": team})
    passwords = root / "passwords.json"
    passwords.write_text(json.dumps({user.split(":")[0]: "secret" for user in USERS.split(",")}))
    settings = {
        "CORE__MULTI_TEAM": "True",
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "CORE__SIMPLE_AUTH_MANAGER_USERS": USERS,
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
    }
    return Airflow(
        home=root / "home",
        dags=root / "team-a",
        kubeconfig=root / "kubeconfig",
        extra_env={f"AIRFLOW__{name}": value for name, value in settings.items()},
        parts=("api-server", "dag-processor"),
        setup=tuple(("teams", "create", team) for team in ("team-a", "team-b", "team-c")),
    )


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, say: Callable[[str], None]) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("cluster-page")
    made = airflow(root)
    say("Airflow with teams: starting api-server and dag-processor")
    with served(FakeKube()) as server:
        server.write_kubeconfig(root / "kubeconfig")
        try:
            made.start()
            found = Scene(made, server)
            dag_ids = [*cluster_scene.TEAM_A, *cluster_scene.TEAM_B]
            count = "import sys; from airflow.utils.session import create_session as c; from sqlalchemy import text\n"
            count += "with c() as s: print(s.scalar(text('select count(*) from dag_version')))"
            wait_for(lambda: made.python("-c", count).split()[-1] == str(len(dag_ids)), "the Dags in the database", 180)
            own = made.python(str(Path(cluster_scene.__file__)), *dag_ids).split()[-1]
            server.kube = cluster_scene.cluster(time.time(), own)
            yield found
        finally:
            made.stop()


def test_the_page_names_what_the_user_may_see_and_counts_the_rest(scene: Scene, say: Callable[[str], None]) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    with open_page(say) as (page, errors):
        scene.open(page, "worker")
        expect(page.get_by_test_id("cluster-page")).to_be_visible(timeout=SLOW_MS)
        expect(page.get_by_test_id("cluster-holds")).to_have_text("6", timeout=SLOW_MS)
        expect(page.get_by_test_id("cluster-waits")).to_have_text("3")
        language = page.locator('[data-quota="language/a100/nvidia.com/gpu"]')
        expect(language).to_contain_text("12 of 8")
        expect(language).to_contain_text("4 borrowed")
        holders = page.get_by_test_id("cluster-holders")
        expect(holders).to_contain_text("segmentation · train")
        expect(holders).to_contain_text("writes a checkpoint")
        waiting = page.get_by_test_id("cluster-waiting")
        expect(waiting).to_contain_text("needs 14 nvidia.com/gpu more in flavor a100")
        expect(waiting).to_contain_text("1 job that you may not see")
        actions = page.get_by_test_id("cluster-actions").get_by_role("row")
        done, proposed = actions.filter(has_text="regrow"), actions.filter(has_text="cordon")
        expect(done).to_contain_text("segmentation · train")
        expect(done).to_contain_text("quota is free again: 4 -> 8 workers on a100 (costs about")
        expect(done).not_to_contain_text("dry run")
        expect(proposed).to_contain_text("speech · train")
        expect(proposed).to_contain_text("dry run")
        expect(proposed).to_contain_text("node a100-7 is cordoned")
        costs = page.get_by_test_id("cluster-cost").get_by_role("row")
        expect(costs).to_have_count(5)  # with the head
        # One job, four pods, five hours until the scene was made, and no step known.
        expect(costs.filter(has_text="robotics")).to_have_text(re.compile(r"^robotics6[0-9](\.\d+)?–0$"))
        expect(costs.filter(has_text="vision")).to_have_text(re.compile(r"^vision[1-9][0-9]+(\.\d+)?0\.\d+\d+$"))
        shares = page.get_by_test_id("cluster-shares")
        expect(shares).to_contain_text("segmentation · train")
        expect(shares).to_contain_text("90 %")
        expect(page.get_by_test_id("cluster-tenant-shares")).to_contain_text("team-a / language")
        for name in ("robot_arm", "robot-arm", "grasping", "team-b"):
            expect(page.get_by_test_id("cluster-page")).not_to_contain_text(name)
        in_both_themes(page)
        on_a_narrow_screen(page)
        holders.get_by_role("link", name="segmentation · train").click()
        page.wait_for_url("**/dags/segmentation/runs/**/plugin/training", timeout=SLOW_MS)
        assert errors == []


def in_both_themes(page: Page) -> None:
    high = page.get_by_test_id("cluster-page").evaluate("page => page.scrollHeight")
    page.set_viewport_size({"width": 1440, "height": high + 10})
    for theme in ("dark", "light"):
        page.evaluate(f"localStorage.setItem('theme', '{theme}')")
        page.reload()
        expect(page.get_by_test_id("cluster-quota")).to_be_visible(timeout=SLOW_MS)
        page.screenshot(path=PICTURES / f"cluster-page-{theme}.png")


def on_a_narrow_screen(page: Page) -> None:
    """Nothing but tables is wider than the screen, and these scroll."""
    page.set_viewport_size({"width": 420, "height": 900})
    expect(page.get_by_test_id("cluster-quota")).to_be_visible(timeout=SLOW_MS)
    beyond = page.get_by_test_id("cluster-page").evaluate("page => page.scrollWidth - page.clientWidth")
    assert beyond <= 0
    page.screenshot(path=PICTURES / "cluster-page-narrow.png")
    page.set_viewport_size({"width": 1440, "height": 1000})


def test_a_user_without_a_training_dag_sees_no_cluster(scene: Scene, say: Callable[[str], None]) -> None:
    with open_page(say) as (page, errors):
        scene.open(page, "stranger")
        expect(page.get_by_test_id("training-empty")).to_contain_text("No cluster yet", timeout=SLOW_MS)
        assert errors == []
    assert scene.login("stranger").call("GET", "/singularity/cluster?connection=kubernetes_default") == 404
    assert Client(scene.airflow.url).call("GET", "/singularity/cluster") == 401


def test_a_missing_right_and_a_cluster_that_is_away_are_said(scene: Scene, say: Callable[[str], None]) -> None:
    with open_page(say) as (page, errors):
        scene.open(page, "worker")
        expect(page.get_by_test_id("cluster-quota")).to_be_visible(timeout=SLOW_MS)
        scene.cluster.forbidden = {"clusterqueues"}
        right = "The right to list clusterqueues.kueue.x-k8s.io cluster-wide is missing"
        expect(page.get_by_test_id("training-info")).to_contain_text(right, timeout=SLOW_MS)
        scene.cluster.forbidden, scene.cluster.down = set(), True
        expect(page.get_by_test_id("training-warning")).to_contain_text("does not answer", timeout=SLOW_MS)
        expect(page.get_by_test_id("cluster-holders")).to_be_visible()
        scene.cluster.down = False
        expect(page.get_by_test_id("training-warning")).to_have_count(0, timeout=SLOW_MS)
        assert errors == []
