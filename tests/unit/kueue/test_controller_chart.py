"""The chart as helm renders it: what the controller needs is there, and nothing more."""

from __future__ import annotations

import json

import pytest
import yaml
from rendered import CHART, HELM, NO_HELM, controller_env, helm, render

from kueue_integration.adoption import judge, review, trainjob
from kueue_integration.contract import job_names
from kueue_integration.controller import config
from kueue_integration.controller import config as controller_config
from kueue_integration.controller.key_keeper import server_names
from kueue_integration.guard import names as guards
from kueue_integration.kube.resources import KUEUE_GROUP
from kueue_integration.planner.settings import PlannerSettings

POLICY_KINDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
pytestmark = pytest.mark.skipif(HELM is None, reason=NO_HELM)


def test_helm_lint_is_content():
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_agree_with_the_protocol():
    objects = render()
    controller = job_names.CONTROLLER_NAME
    for key in (
        ("Deployment", controller),
        ("Service", controller),
        ("Secret", job_names.KEYS_SECRET),
        ("ConfigMap", job_names.PLATFORM_CONFIGMAP),
        ("Lease", job_names.HOLD_LEASE),
        ("AdmissionCheck", job_names.ADMISSION_CHECK_NAME),
    ):
        assert key in objects
    check = objects["AdmissionCheck", job_names.ADMISSION_CHECK_NAME]
    assert check["spec"]["controllerName"] == job_names.ADMISSION_CHECK_CONTROLLER
    assert "spec" not in objects["Lease", job_names.HOLD_LEASE]
    assert not any(kind == "ClusterQueue" for kind, _ in objects)


def test_platform_configuration_is_what_clients_read(tmp_path):
    values = tmp_path / "values.yaml"
    volume = {"name": "shared", "hostPath": {"path": "/x"}}
    mount = {"name": "shared", "mountPath": "/shared"}
    pods = {"volumes": [volume], "volumeMounts": [mount], "env": {"OMP_NUM_THREADS": "1"}, "checkpointDisk": "50Gi"}
    values.write_text(
        yaml.safe_dump(
            {
                "images": {"agent": "a:1", "controller": "c:1", "train": "t:1"},
                "store": {"url": "file:///shared/checkpoints"},
                "pods": pods,
                "budget": {"maxSeconds": 33},
                "planner": {"slaTiers": {"tiers": {"high": 0.9}, "windowSeconds": 600}},
            }
        )
    )
    objects = render(values=str(values))
    env = controller_env(objects)
    found = controller_config.load([], {**env, "SINGULARITY_POD": "me"}).published
    assert found is not None and (found.adoption, found.trainjob) == (False, False)
    config = found.platform
    assert config.controller_url == "https://singularity-controller.singularity-system.svc:443"
    assert (config.agent_image, config.train_image, config.store) == ("a:1", "t:1", "file:///shared/checkpoints")
    assert (list(config.volumes), list(config.volume_mounts), config.env) == ([volume], [mount], pods["env"])
    assert (config.max_budget_s, config.checkpoint_disk) == (33, "50Gi")
    assert (config.tiers, config.tiers_window_s) == ({"high": 0.9}, 600)
    deployment = objects["Deployment", job_names.CONTROLLER_NAME]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert (container["image"], env["SINGULARITY_MAX_BUDGET_SECONDS"]) == ("c:1", "33")


def test_two_renders_are_the_same_text():
    """Argo CD and `helm template | kubectl apply` render at each sync, and cannot look into the cluster."""
    everything = ("adoption.enabled=true", "trainjob.enabled=true", "metrics.alerts.enabled=true",
                  "multikueue.manager.enabled=true", "multikueue.worker.enabled=true", "sampleQueues.enabled=true",
                  "tls.certManager.issuerRef.name=ours")  # fmt: skip
    options = [f"--set={value}" for value in everything]
    first, second = (helm("template", "s", str(CHART), "--kube-version=1.36.0", *options) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    for template in [*(CHART / "templates").rglob("*.yaml"), *(CHART / "templates").rglob("*.tpl")]:
        text = template.read_text()
        assert not [word for word in ("lookup ", "genCA", "genSigned", "rand", "now |") if word in text], template


def test_what_the_controller_writes_is_rendered_without_content():
    objects = render("adoption.enabled=false")
    for kind, name in (("Secret", job_names.KEYS_SECRET), ("ConfigMap", job_names.PLATFORM_CONFIGMAP)):
        assert not {"data", "stringData", "binaryData"} & set(objects[kind, name])
    assert not [kind for kind, _ in objects if kind in ("PodTemplate", "ClusterTrainingRuntime")]
    (hook,) = render("adoption.enabled=true")["MutatingWebhookConfiguration", review.NAME]["webhooks"]
    assert "caBundle" not in hook["clientConfig"]


def test_the_controller_reads_and_writes_its_own_secret_alone():
    def rights(*sets):
        rules = render(*sets)["Role", job_names.CONTROLLER_NAME]["rules"]
        found = {(r, n, v) for rule in rules for r in rule["resources"] for n in rule.get("resourceNames", ["*"])
                 for v in rule["verbs"]}  # fmt: skip
        return {right for right in found if right[0] != "leases"}

    own = {("secrets", job_names.KEYS_SECRET, verb) for verb in ("get", "patch")}
    old = {("secrets", job_names.CONTROLLER_NAME, "get")}
    told = {("configmaps", job_names.PLATFORM_CONFIGMAP, verb) for verb in ("get", "patch")}
    assert rights() == own | old | told
    objects = render()
    for (kind, name), one in objects.items():
        if kind == "ClusterRole":
            assert not any("secrets" in rule.get("resources", ()) for rule in one["rules"]), name


@pytest.mark.parametrize(
    ("sets", "secret"),
    [((), None), (("tls.existingSecret=ours",), "ours"),
     (("tls.certManager.issuerRef.name=i", "tls.certManager.issuerRef.kind=ClusterIssuer"),
      "singularity-controller-tls"),
     (("tls=null",), None), (("tls.certManager=null",), None)],
)  # fmt: skip
def test_keys_of_somebody_else_are_mounted(sets, secret):
    objects = render(*sets)
    env = controller_env(objects)
    pod = objects["Deployment", job_names.CONTROLLER_NAME]["spec"]["template"]["spec"]
    mounted = [v["secret"]["secretName"] for v in pod["volumes"] or () if "secret" in v]
    assert mounted == ([secret] if secret else [])
    assert env.get("SINGULARITY_SECRET_DIR") == ("/etc/singularity" if secret else None)
    made = objects.get(("Certificate", job_names.CONTROLLER_NAME))
    assert (made is not None) == (secret == "singularity-controller-tls")
    if made is not None:
        assert made["spec"]["secretName"] == secret
        assert set(made["spec"]["dnsNames"]) == set(server_names(job_names.SYSTEM_NAMESPACE))


def test_an_upgrade_first_keeps_the_secret_that_the_chart_of_before_made():
    objects = render()
    made = [objects[kind, "singularity-keep-keys"] for kind in ("ServiceAccount", "Role", "RoleBinding", "Job")]
    assert all(one["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade" for one in made)
    (rule,) = made[1]["rules"]
    assert (rule["resourceNames"], rule["verbs"]) == ([job_names.CONTROLLER_NAME], ["get", "patch"])
    (container,) = made[3]["spec"]["template"]["spec"]["containers"]
    assert container["command"][1:] == ["-m", "kueue_integration.keep_keys"]


def test_the_controllers_rights_are_exactly_these():
    role = render()["ClusterRole", job_names.CONTROLLER_NAME]
    allowed = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    kueue = KUEUE_GROUP
    assert allowed == {
        *(("batch", "jobs", verb) for verb in ("get", "list", "watch", "patch")),
        *(("jobset.x-k8s.io", "jobsets", verb) for verb in ("get", "list", "watch", "patch")),
        *(("trainer.kubeflow.org", "trainjobs", verb) for verb in ("get", "list", "watch", "patch")),
        *(("", "pods", verb) for verb in ("list", "watch")),
        *(("policy", "poddisruptionbudgets", verb) for verb in ("list", "delete")),
        *((kueue, "workloads", verb) for verb in ("get", "list", "watch", "patch")),
        *((kueue, what, verb) for what in ("clusterqueues", "localqueues") for verb in ("list", "watch")),
        (kueue, "resourceflavors", "get"),
        *(("", "namespaces", verb) for verb in ("get", "patch")),
        *(("", "nodes", verb) for verb in ("list", "watch")),
        ("", "events", "create"),
        *(("singularity.dev", "jobprogresses", verb) for verb in ("create", "list", "patch", "watch")),
        (kueue, "workloads/status", "patch"),
        (kueue, "admissionchecks", "get"),
        (kueue, "admissionchecks/status", "patch"),
        *(
            ("admissionregistration.k8s.io", what, "get")
            for what in ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
        ),
        ("authentication.k8s.io", "tokenreviews", "create"),
    }


def test_the_planner_gets_its_values_and_rights_only_with_a_policy():
    def of(*sets):
        objects = render(*sets)
        (container,) = objects["Deployment", job_names.CONTROLLER_NAME]["spec"]["template"]["spec"]["containers"]
        env = {item["name"]: item.get("value") for item in container["env"]}
        rules = objects["ClusterRole", job_names.CONTROLLER_NAME]["rules"]
        found = config.planner(env)
        return found, {(r, v) for rule in rules for r in rule["resources"] for v in rule["verbs"]}

    off, none = of()
    assert off == PlannerSettings()  # the defaults of chart and code are the same
    dry, some = of("planner.cordon.mode=propose", "planner.limits.movesPerHour=9", "planner.everySeconds=5")
    assert (dry.cordon.mode, dry.limits.moves_per_hour, dry.every_s) == ("propose", 9, 5)
    assert some - none == {("resourceflavors", "list"), ("localqueues", "get"), ("cohorts", "list")}
    assert of("planner.defragmentation.mode=act")[1] == some  # it moves by the same request
    lends, rights = of("planner.lending.mode=act", "planner.lending.expectSeconds=600")
    assert (lends.lending.mode, lends.lending.expect_s, rights - none) == ("act", 600, {("cohorts", "list")})


def test_only_a_cordon_that_acts_may_make_budgets():
    def budgets(mode):
        rules = render(f"planner.cordon.mode={mode}")["ClusterRole", job_names.CONTROLLER_NAME]["rules"]
        return {verb for rule in rules if "poddisruptionbudgets" in rule["resources"] for verb in rule["verbs"]}

    assert budgets("none") == budgets("propose") == {"list", "delete"}, "those of an earlier setting"
    assert budgets("act") == {"list", "delete", "create", "patch"}
    objects = render("planner.cordon.mode=act", "planner.cordon.disruptionBudgets=false")
    assert config.planner(controller_env(objects)).cordon.disruption_budgets is False


def test_only_a_health_that_taints_may_write_nodes():
    def nodes(*sets):
        rules = render(*sets)["ClusterRole", job_names.CONTROLLER_NAME]["rules"]
        return {verb for rule in rules if "nodes" in rule["resources"] for verb in rule["verbs"]}

    assert nodes("planner.health.mode=act") == {"list", "watch"}
    assert nodes("planner.health.mode=propose", "planner.health.taint=true") == {"list", "watch"}
    assert nodes("planner.health.mode=act", "planner.health.taint=true") == {"list", "watch", "patch"}


def test_helm_refuses_a_mode_that_is_none():
    done = helm("template", "s", str(CHART), "--kube-version", "1.36.0", "--set", "planner.cordon.mode=on")
    assert done.returncode != 0 and "value must be one of 'none', 'propose', 'act'" in done.stderr


def test_the_policy_fails_open_and_asks_for_kueues_user():
    objects = render("kueue.username=system:serviceaccount:k:k")
    policy = objects["ValidatingAdmissionPolicy", "singularity-hold"]["spec"]
    binding = objects["ValidatingAdmissionPolicyBinding", "singularity-hold"]["spec"]
    assert policy["failurePolicy"] == "Ignore"
    assert policy["matchConstraints"]["objectSelector"] == {"matchLabels": {job_names.LABEL_MANAGED: "true"}}
    conditions = {item["name"]: item["expression"] for item in policy["matchConditions"]}
    assert conditions["kueue-asks"] == 'request.userInfo.username == "system:serviceaccount:k:k"'
    assert f"'{job_names.ANN_HOLD}'] == '{job_names.HOLD_ARMED}'" in conditions["held"]
    assert job_names.ANN_HOLD_DEADLINE in json.dumps(policy["variables"])
    assert binding["paramRef"] == {
        "name": job_names.HOLD_LEASE,
        "namespace": job_names.SYSTEM_NAMESPACE,
        "parameterNotFoundAction": "Allow",
    }


def test_the_guards_are_always_there_and_the_controller_may_look_for_them():
    objects = render()
    for name in guards.POLICIES:
        policy, binding = (objects[kind, name]["spec"] for kind in POLICY_KINDS)
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        reads = lease if name in (guards.PODS, guards.JOBS) else None
        assert policy["failurePolicy"] == "Fail" and policy.get("paramKind") == reads
        assert (binding["policyName"], binding["validationActions"]) == (name, ["Deny"])
    (rule,) = [
        rule
        for rule in objects["ClusterRole", job_names.CONTROLLER_NAME]["rules"]
        if rule["apiGroups"] == ["admissionregistration.k8s.io"]
    ]
    assert rule["resourceNames"] == [job_names.HOLD_LEASE, *guards.POLICIES]


def test_the_accounts_that_may_write_the_controllers_annotations():
    def accounts(*sets):
        conditions = render(*sets)["ValidatingAdmissionPolicy", guards.ANNOTATIONS]["spec"]["matchConditions"]
        return json.loads(conditions[0]["expression"].partition(" in ")[2].removesuffix(")"))

    own = f"system:serviceaccount:{job_names.SYSTEM_NAMESPACE}:{job_names.CONTROLLER_NAME}"
    assert accounts() == [own]
    worker = f"system:serviceaccount:{job_names.SYSTEM_NAMESPACE}:singularity-multikueue"
    assert accounts("multikueue.worker.enabled=true", "guard.accounts={velero,it's}") == [own, worker, "velero", "it's"]


def test_values_of_an_older_chart_are_enough_for_the_guards():
    """`helm upgrade --reuse-values`, which `doctor` tells people to do, brings no defaults of the newer chart."""
    objects = render("guard=null", "images.trusted=null")
    policy = objects["ValidatingAdmissionPolicy", guards.PODS]["spec"]
    images = {v["name"]: v["expression"] for v in policy["variables"]}["configured"]
    assert json.loads(images) == ["localhost/singularity-agent:dev"]
    (rule,) = objects["ValidatingAdmissionPolicy", guards.EXEC]["spec"]["validations"]
    assert rule["expression"].startswith("false || ")


@pytest.mark.parametrize(
    ("values", "said"),
    [((), "120"), (("saveTrial=null",), "120"), (("saveTrial.afterSeconds=45",), "45"),
     (("saveTrial.enabled=false",), "off")],
)  # fmt: skip
def test_the_trial_of_an_attempt_can_be_moved_and_switched_off(values, said):
    (container,) = render(*values)["Deployment", "singularity-controller"]["spec"]["template"]["spec"]["containers"]
    assert {e["name"]: e.get("value") for e in container["env"]}["SINGULARITY_TRIAL_AFTER_SECONDS"] == said


@pytest.mark.parametrize(
    ("values", "said"),
    [((), "propose"), (("regrow.mode=null",), "propose"), (("regrow.mode=none",), "none"),
     (("regrow.mode=act",), "act")],
)  # fmt: skip
def test_regrowth_has_a_mode_and_begins_with_a_dry_run(values, said):
    (container,) = render(*values)["Deployment", "singularity-controller"]["spec"]["template"]["spec"]["containers"]
    assert {e["name"]: e.get("value") for e in container["env"]}["SINGULARITY_REGROW"] == said


def test_the_guard_of_pods_knows_the_platforms_images_and_volumes(tmp_path):
    values = tmp_path / "values.yaml"
    volumes = [{"name": name, "hostPath": {"path": f"/{name}"}} for name in ("a", "b", "c", "d")]
    mounts = [
        {"name": "a", "mountPath": "/a", "readOnly": True},
        {"name": "b", "mountPath": "/b"},
        {"name": "c", "mountPath": "/c", "readOnly": True},
        {"name": "c", "mountPath": "/c2", "readOnly": False},
    ]
    pods = {"volumes": [*volumes, {"name": "e", "emptyDir": {}}], "volumeMounts": mounts}
    images = {"agent": "a:1", "controller": "c:1", "trusted": ["mirror/a@sha256:0", "it's:1"]}
    values.write_text(yaml.safe_dump({"images": images, "pods": pods, "guard": {"anyExec": True}}))
    objects = render(values=str(values))
    for name in (guards.PODS, guards.JOBS):
        policy = objects["ValidatingAdmissionPolicy", name]["spec"]
        given = {v["name"]: v["expression"] for v in policy["variables"]}
        assert json.loads(given["configured"]) == ["a:1", "mirror/a@sha256:0", "it's:1"]
        assert json.loads(given["hostPaths"]) == {"paths": ["/a", "/b", "/c", "/d"], "readOnly": ["/a"], "store": []}
        selector = {"matchLabels": {job_names.LABEL_TRAINING: job_names.TRAINING_ENABLED}}
        assert policy["matchConstraints"]["namespaceSelector"] == selector
    (rule,) = objects["ValidatingAdmissionPolicy", guards.EXEC]["spec"]["validations"]
    assert rule["expression"].startswith("true || ")


def test_the_controller_is_told_the_trusted_images_and_keeps_them_where_the_guard_looks():
    objects = render("images.agent=a:2", "images.trusted={mirror/a:2}")
    (container,) = objects["Deployment", "singularity-controller"]["spec"]["template"]["spec"]["containers"]
    said = {e["name"]: e.get("value") for e in container["env"]}["SINGULARITY_AGENT_IMAGES"]
    assert json.loads(said) == ["a:2", "mirror/a:2"]
    kept = objects["Lease", job_names.TRUSTED_IMAGES_LEASE]
    assert "annotations" not in kept["metadata"]  # an upgrade would take away what the controller has written
    for name in (guards.PODS, guards.JOBS):
        parameter = objects["ValidatingAdmissionPolicyBinding", name]["spec"]["paramRef"]
        # The kind of the hold's parameter: a copy of the API server's that an upgrade and a rollback keep going.
        guard, hold = (objects["ValidatingAdmissionPolicy", one]["spec"] for one in (name, "singularity-hold"))
        assert guard["paramKind"] == hold["paramKind"]
        assert (parameter["name"], parameter["namespace"]) == (kept["metadata"]["name"], kept["metadata"]["namespace"])
        assert parameter["parameterNotFoundAction"] == "Deny"


def test_a_policy_that_matches_nothing_keeps_the_api_servers_copy_of_leases_and_stays_when_the_chart_goes():
    objects = render()
    policy, binding = (objects[kind, "singularity-hold-parameter"] for kind in POLICY_KINDS)
    hold = objects["ValidatingAdmissionPolicy", "singularity-hold"]
    assert policy["spec"]["paramKind"] == hold["spec"]["paramKind"]
    assert policy["spec"]["validations"] == [{"expression": "true"}]
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    for one in (policy, binding):
        assert one["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_sample_queues_name_the_fence():
    objects = render("sampleQueues.enabled=true")
    queue = objects["ClusterQueue", "training"]["spec"]
    assert queue["admissionChecksStrategy"] == {"admissionChecks": [{"name": job_names.ADMISSION_CHECK_NAME}]}
    (group,) = queue["resourceGroups"]
    assert [(f["name"], f["resources"][0]["nominalQuota"]) for f in group["flavors"]] == [
        ("ondemand", "8"),
        ("spot", "4"),
    ]
    assert objects["LocalQueue", "training"]["metadata"]["namespace"] == "default"
    classes = {name: o["value"] for (kind, name), o in objects.items() if kind == "WorkloadPriorityClass"}
    assert classes == {"low": 10, "normal": 100, "high": 1000}


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("budget.maxSeconds=0", "maxSeconds"),
        ("imagePullPolicy=Sometimes", "imagePullPolicy"),
        (r"commonLabels.app\.kubernetes\.io/name=x", "commonLabels"),
        ("image.agent=x", "image"),
        ("store.url=checkpoints", "url"),
        ("lease.durationSeconds=1", "durationSeconds"),
        ("guard.accounts=me", "accounts"),
        ("guard.anyExec=perhaps", "anyExec"),
        ("sampleQueues.enabled=true,sampleQueues.coveredResources={cpu,memory}", "ondemand has no quota for memory"),
    ],
)
def test_bad_values_are_refused_by_name(value, named):
    done = helm("template", "x", str(CHART), "--kube-version", "1.36.0", "--set", value)
    assert done.returncode != 0
    assert named in done.stderr


def test_metrics_objects_come_only_when_asked_for():
    assert not any(kind == "PodMonitor" or name == "singularity-dashboard" for kind, name in render())
    wanted = render("metrics.podMonitor.enabled=true", "metrics.dashboard.enabled=true")
    monitor = wanted["PodMonitor", job_names.CONTROLLER_NAME]
    ports = wanted["Deployment", job_names.CONTROLLER_NAME]["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] in {port["name"] for port in ports}
    boards = wanted["ConfigMap", "singularity-dashboard"]["data"]
    assert {name: len(json.loads(text)["panels"]) >= 8 for name, text in boards.items()} == {
        "singularity-control-plane.json": True, "singularity-jobs.json": True, "singularity-planner.json": True,
    }  # fmt: skip


def test_multikueue_adds_what_manager_and_worker_need_and_nothing_unless_asked():
    assert not any("multikueue" in name for _, name in render())
    manager = render("multikueue.manager.enabled=true", "multikueue.manager.secrets={a,b}")
    pod = manager["Deployment", job_names.CONTROLLER_NAME]["spec"]["template"]["spec"]
    (controller,) = pod["containers"]
    assert {"name": "SINGULARITY_MULTIKUEUE_NAMESPACE", "value": "kueue-system"} in controller["env"]
    assert {"name": "tmp", "mountPath": "/tmp"} in controller["volumeMounts"]
    assert any(volume["name"] == "tmp" and volume["emptyDir"]["medium"] == "Memory" for volume in pod["volumes"])
    (rule,) = manager["Role", "singularity-multikueue-manager"]["rules"]
    assert rule["resources"] == ["secrets"] and rule["resourceNames"] == ["a", "b"] and rule["verbs"] == ["get"]
    worker = render("multikueue.worker.enabled=true")
    rules = worker["ClusterRole", "singularity-multikueue"]["rules"]
    assert all("*" not in value for rule in rules for value in (*rule["resources"], *rule["verbs"]))
    assert not any("secrets" in rule["resources"] for rule in rules)
    assert {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]} in rules
    assert ("ServiceAccount", "singularity-multikueue") in worker


def test_a_job_that_runs_in_another_cluster_is_not_held_here():
    conditions = render()["ValidatingAdmissionPolicy", job_names.HOLD_LEASE]["spec"]["matchConditions"]
    (here,) = [c["expression"] for c in conditions if c["name"] == "runs-here"]
    assert job_names.MULTIKUEUE_CONTROLLER in here


VALUES = """
images: {train: "t:1"}
store: {url: "file:///shared/it's"}
pods:
  volumes: [{name: shared, emptyDir: {}}, {name: data, emptyDir: {}}]
  volumeMounts: [{name: shared, mountPath: /shared}, {name: data, mountPath: "/it's data"}]
  env: {PYTHONPATH: /opt/torch, PRICE: "$5"}
trainjob: {enabled: true}
adoption: {enabled: true}
"""


@pytest.fixture
def filled(tmp_path):
    (tmp_path / "values.yaml").write_text(VALUES)
    options = (f"--values={tmp_path / 'values.yaml'}", "--kube-version=1.36.0")
    done = helm("template", "singularity", str(CHART), "-n", job_names.SYSTEM_NAMESPACE, *options)
    assert done.returncode == 0, done.stderr
    return {(d["kind"], d["metadata"]["name"]): d for d in yaml.safe_load_all(done.stdout) if d}


def test_the_controller_may_write_what_adoption_needs(filled):
    published = controller_config.load([], {**controller_env(filled), "SINGULARITY_POD": "me"}).published
    assert published.adoption and published.trainjob
    assert published.platform.env == {"PYTHONPATH": "/opt/torch", "PRICE": "$5"}
    rules = filled["ClusterRole", job_names.CONTROLLER_NAME]["rules"]
    for what, name, create in (
        ("mutatingwebhookconfigurations", review.NAME, []),
        ("clustertrainingruntimes", trainjob.RUNTIME, [(None, ["create"])]),
    ):
        found = [(rule.get("resourceNames"), rule["verbs"]) for rule in rules if what in rule["resources"]]
        assert found == [([name], ["get", "update"]), *create]


def test_rules_of_adoption_have_the_platforms_values_and_say_the_same_to_webhook_and_policy(filled):
    policy = filled["ValidatingAdmissionPolicy", review.NAME]["spec"]
    (broken,) = [variable["expression"] for variable in policy["variables"]]
    for text in (r'["/shared","/it\u0027s data"]', '["shared","data"]', r'"file:///shared/it\u0027s"', "<= 600"):
        assert text in broken or text.replace(r"\u0027", "'") in broken, text
    (hook,) = filled["MutatingWebhookConfiguration", review.NAME]["webhooks"]
    asked = [condition["expression"] for condition in hook["matchConditions"]]
    assert asked[0] == policy["matchConditions"][0]["expression"]
    assert [rule for rule in asked[1:] if f'({rule}) ? "" :' not in broken] == []
    assert len(asked) == 1 + broken.count(' ? "" :')
    assert len(asked) <= 64, "more match conditions than the API server takes"
    assert hook["clientConfig"]["service"]["path"] == review.PATH and hook["failurePolicy"] == "Fail"


def test_without_adoption_by_label_the_command_is_answered_all_the_same():
    """Of the store, too, which may be each namespace's own then."""
    policy = render("store.namespaces.a.url=gs://x")["ValidatingAdmissionPolicy", review.NAME]["spec"]
    (whom,) = policy["matchConstraints"]["objectSelector"]["matchExpressions"]
    assert whom["values"] == [judge.ASKED] and len(policy["validations"]) == 1
    assert '{"a":"gs://x"}[?request.namespace]' in policy["variables"][0]["expression"]


def test_an_uninstall_asks_first_whether_a_queue_is_fenced():
    objects = render()
    name = "singularity-queues-are-still-fenced"  # all that Helm before 3.18 prints of a hook that fails
    made = [objects[kind, name] for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job")]
    assert all(one["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete" for one in made)
    (rule,) = made[1]["rules"]
    assert (rule["resources"], rule["verbs"]) == (["clusterqueues"], ["list"])
    pod = made[3]["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"][1:] == ["-m", "kueue_integration.fencing"]
    assert made[3]["spec"]["backoffLimit"] == 0 and pod["restartPolicy"] == "Never"
    assert made[3]["metadata"]["annotations"]["helm.sh/hook-output-log-policy"] == "hook-failed"


def test_an_uninstall_leaves_the_keys_that_jobs_trust():
    assert render()["Secret", job_names.KEYS_SECRET]["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_two_replicas_on_two_nodes_of_which_a_drain_takes_one():
    objects = render()
    deployment = objects["Deployment", "singularity-controller"]["spec"]
    pod, labels = deployment["template"]["spec"], deployment["selector"]["matchLabels"]
    assert deployment["replicas"] == 2
    budget = objects["PodDisruptionBudget", "singularity-controller"]["spec"]
    assert (budget["maxUnavailable"], budget["selector"]["matchLabels"]) == (1, labels)
    spread = pod["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    assert all(each["labelSelector"]["matchLabels"] == labels for each in spread)
    assert ("PriorityClass", pod["priorityClassName"]) in objects
    assert ("PodDisruptionBudget", "singularity-controller") not in render("replicas=1")  # it would stop every drain
    assert not [kind for kind, _ in render("controller.priorityClassName=theirs") if kind == "PriorityClass"]


def test_the_lease_and_the_holds_have_queues_of_their_own_at_the_api_server():
    objects = render()
    account = {"name": "singularity-controller", "namespace": job_names.SYSTEM_NAMESPACE}
    lease, other = (objects["FlowSchema", f"singularity-{name}"]["spec"] for name in ("lease", "controller"))
    for schema in (lease, other):
        assert schema["rules"][0]["subjects"] == [{"kind": "ServiceAccount", "serviceAccount": account}]
        assert schema["matchingPrecedence"] < 9000  # before that of all accounts
    assert lease["priorityLevelConfiguration"]["name"] == "leader-election"
    assert lease["matchingPrecedence"] < other["matchingPrecedence"]
    assert ("PriorityLevelConfiguration", other["priorityLevelConfiguration"]["name"]) in objects
    assert not [name for kind, name in render("controller.flowSchema=false") if kind == "FlowSchema"]


def test_labels_of_a_platform_are_on_every_object_and_on_no_selector():
    usual, labelled = render(), render("commonLabels.team=ml")
    assert all("team" not in (each["metadata"].get("labels") or {}) for each in usual.values())
    bare = [key for key, each in labelled.items() if (each["metadata"].get("labels") or {}).get("team") != "ml"]
    assert not bare
    name = ("Deployment", job_names.CONTROLLER_NAME)
    made = labelled[name]["spec"]
    assert made["template"]["metadata"]["labels"]["team"] == "ml"
    assert made["selector"] == usual[name]["spec"]["selector"], "a selector cannot be changed"


def test_what_a_platform_sets_on_every_chart_is_on_the_controller(tmp_path):
    values = tmp_path / "values.yaml"
    own = {
        "podLabels": {"team": "ml"}, "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
        "volumes": [{"name": "ca", "configMap": {"name": "ca"}}], "volumeMounts": [{"name": "ca", "mountPath": "/ca"}],
        "topologySpreadConstraints": [{"maxSkew": 2}], "priorityClassName": "theirs",
        "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "mon"}}}]},
    }  # fmt: skip
    account = {"annotations": {"eks.amazonaws.com/role-arn": "arn"}}
    registry = [{"name": "registry"}]
    given = {"controller": own, "imagePullSecrets": registry, "serviceAccount": account}
    values.write_text(yaml.safe_dump(given))
    objects = render(values=str(values))
    made = objects["Deployment", "singularity-controller"]["spec"]["template"]
    pod, container = made["spec"], made["spec"]["containers"][0]
    assert made["metadata"]["labels"]["team"] == "ml" and pod["priorityClassName"] == "theirs"
    assert own["env"][0] in container["env"] and own["volumeMounts"][0] in container["volumeMounts"]
    assert own["volumes"][0] in pod["volumes"] and pod["topologySpreadConstraints"] == [{"maxSkew": 2}]
    assert objects["ServiceAccount", "singularity-controller"]["metadata"]["annotations"] == account["annotations"]
    pods = (pod, objects["Pod", "singularity-doctor"]["spec"],
            objects["Job", "singularity-queues-are-still-fenced"]["spec"]["template"]["spec"])  # fmt: skip
    assert all(each["imagePullSecrets"] == registry for each in pods)
    rules = objects["NetworkPolicy", "singularity-controller"]["spec"]["ingress"]
    assert rules[1]["from"] == own["networkPolicy"]["metricsFrom"]
    assert rules[0]["from"][0]["podSelector"]["matchLabels"] == {job_names.LABEL_MANAGED: "true"}
