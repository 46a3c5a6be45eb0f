"""How worker clusters are reached: what a kubeconfig or a ClusterProfile may say; the rest is refused with a fix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rendered import HELM, NO_HELM, render

from kueue_integration.contract import job_names
from kueue_integration.errors import PlatformError
from kueue_integration.kube.credentials import connect_to
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CLUSTER_PROFILE, Object
from kueue_integration.multikueue import access

NAMESPACE = "kueue-system"
SERVER = "https://east.example.com"


def kubeconfig(user: dict[str, Any] | None = None, **cluster: Any) -> dict[str, Any]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": SERVER, **cluster}}],
        "users": [{"name": "u", "user": user if user is not None else {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


USERS: dict[str, Any] = {
    "exec": {"command": "sh", "apiVersion": "v1"}, "auth-provider": {"name": "gcp"}, "tokenFile": "/run/token",
    "username": "u", "password": "p", "client-certificate": "/tmp/c.crt", "client-key": "/tmp/c.key",
}  # fmt: skip
CLUSTERS: dict[str, Any] = {"certificate-authority": "/tmp/ca.crt", "insecure-skip-tls-verify": True}


@pytest.mark.parametrize("field", [*USERS, *CLUSTERS])
def test_a_kubeconfig_that_reads_our_files_runs_a_program_or_trusts_anybody_is_refused_with_a_fix(field: str):
    made = kubeconfig({"token": "t", field: USERS[field]}) if field in USERS else kubeconfig(**{field: CLUSTERS[field]})
    with pytest.raises(PlatformError, match=rf"\.{field} is refused: give .*data"):
        connect_to(made)


def test_what_a_kubeconfig_may_say():
    made = connect_to({**kubeconfig({"token": "t"}, **{"proxy-url": "http://proxy:3128"})})
    assert made.server == SERVER and made.has_token
    assert connect_to(kubeconfig({"token": "t", "exec": None}, **{"insecure-skip-tls-verify": False})).has_token
    with pytest.raises(PlatformError, match=r"cluster\.server is missing"):
        connect_to(kubeconfig(server=""))
    with pytest.raises(PlatformError, match="not a kubeconfig"):
        connect_to({"clusters": []})


def provider(name: str, command: str) -> dict[str, Any]:
    env = [{"name": "REGION", "value": name}]
    api = "client.authentication.k8s.io/v1"
    config = {"apiVersion": api, "command": command, "args": ["--quiet"], "env": env, "interactiveMode": "Never"}
    return {"name": name, "execConfig": config}


PROVIDERS = [provider("google", "gke-gcloud-auth-plugin"), provider("ours", "false")]


def known() -> list[access.AccessProvider]:
    return [*access.providers(json.dumps(PROVIDERS))]


def profile(*offered: str, older: tuple[str, ...] = (), **cluster: Any) -> Object:
    def each(name: str) -> dict[str, Any]:
        return {"name": name, "cluster": {"server": f"https://{name}.example.com", **cluster}}

    meta = {"name": "east", "namespace": NAMESPACE, "uid": "u", "resourceVersion": "1"}
    status = {"accessProviders": [*map(each, offered)], "credentialProviders": [*map(each, older)]}
    return {"apiVersion": CLUSTER_PROFILE.api_version, "kind": CLUSTER_PROFILE.name, "metadata": meta, "status": status}


def declared(**source: Any) -> Object:
    return {"metadata": {"name": "east"}, "spec": {"clusterSource": source}}


def test_the_first_of_the_charts_providers_that_the_profile_has_is_taken():
    taken, cluster = access.chosen(profile("theirs", "ours", older=("google",)), known())
    assert (taken.name, cluster["server"]) == ("google", "https://google.example.com")
    taken, _ = access.chosen(profile("theirs", "ours"), known())
    assert taken.name == "ours"


def test_a_profile_says_where_a_cluster_is_and_never_what_is_run():
    """Kueue leaves out what a profile adds to the program, and verifies the certificate whatever the profile says."""
    added = [{"name": "clusterprofiles.multicluster.x-k8s.io/exec/additional-args", "extension": ["--evil"]}]
    loose = {"insecure-skip-tls-verify": True, "certificate-authority": "/etc/x"}
    found = profile("google", **loose, **{"extensions": added, "certificate-authority-data": "YQ=="})
    made = access.of(declared(clusterProfileRef={"name": "east"}), FakeKube(found), NAMESPACE, known())
    (cluster,), (user,) = made.kubeconfig["clusters"], made.kubeconfig["users"]
    assert cluster["cluster"] == {
        "server": "https://google.example.com", "certificate-authority-data": "YQ==", "extensions": added,
    }  # fmt: skip
    command = user["user"]["exec"]
    assert [command["command"], *command["args"]] == ["timeout", "30", "gke-gcloud-auth-plugin", "--quiet"]
    assert command["env"] == [{"name": "REGION", "value": "google"}]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({}, "neither kubeConfig nor clusterProfileRef"),
        ({"kubeConfig": {"locationType": "Path", "location": "/x"}}, "locationType is 'Path'.*into a Secret"),
        ({"kubeConfig": {"location": "none"}}, f"no Secret none in namespace {NAMESPACE}"),
        ({"clusterProfileRef": {"name": "none"}}, f"no ClusterProfile none in namespace {NAMESPACE}"),
        (
            {"clusterProfileRef": {"name": "east"}},
            "accessProviders has theirs, and the chart knows google, ours: name one",
        ),
    ],
)
def test_a_source_that_leads_nowhere_is_named(source: dict[str, Any], words: str):
    with pytest.raises(PlatformError, match=words):
        access.of(declared(**source), FakeKube(profile("theirs")), NAMESPACE, known())


def test_a_program_that_gives_no_token_is_named():
    made = access.of(declared(clusterProfileRef={"name": "east"}), FakeKube(profile("ours")), NAMESPACE, known())
    with pytest.raises(PlatformError, match="false of ours gave no token"):
        access.connected(made)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{}", "accessProviders: expected a list"),
        ("[", "not valid JSON"),
        ('[{"name": "x"}]', r"accessProviders\[0\]: field 'execConfig' is missing"),
        ('[{"name": "x", "execConfig": {"command": "c"}}]', "field 'apiVersion' is missing"),
        ('[{"name": "", "execConfig": {"command": "c", "apiVersion": "v"}}]', "name is empty"),
        ('[{"name": "x", "execConfig": {"command": "", "apiVersion": "v"}}]', "command is empty"),
        ('[{"name": "x", "exec": {}}]', "unknown field 'exec'"),
    ],
)
def test_a_wrong_chart_value_is_named(value: str, words: str):
    with pytest.raises(PlatformError, match=words):
        access.providers(value)


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
def test_the_chart_gives_the_providers_on_and_the_right_to_read_the_profiles():
    objects = render(
        "multikueue.manager.enabled=true", "multikueue.manager.clusterProfiles={east}",
        "multikueue.manager.accessProviders[0].name=google",
        "multikueue.manager.accessProviders[0].execConfig.apiVersion=client.authentication.k8s.io/v1",
        "multikueue.manager.accessProviders[0].execConfig.command=plugin",
        "multikueue.manager.accessProviders[0].execConfig.env[0].name=A",
        "multikueue.manager.accessProviders[0].execConfig.env[0].value=$(B)",
    )  # fmt: skip
    (controller,) = objects["Deployment", job_names.CONTROLLER_NAME]["spec"]["template"]["spec"]["containers"]
    (value,) = [e["value"] for e in controller["env"] if e["name"] == "SINGULARITY_MULTIKUEUE_ACCESS_PROVIDERS"]
    (given,) = access.providers(value.replace("$$", "$"))  # as the kubelet does it
    assert (given.execConfig.command, given.execConfig.env) == ("plugin", [{"name": "A", "value": "$(B)"}])
    (rule,) = objects["Role", "singularity-multikueue-manager"]["rules"]
    assert (rule["resources"], rule["resourceNames"], rule["verbs"]) == (["clusterprofiles"], ["east"], ["get"])


def test_a_program_is_run_again_when_its_token_is_about_to_expire(tmp_path: Path):
    """One that fails then costs nothing while the API server still takes the token before."""
    program, words = tmp_path / "gives-token", tmp_path / "token"
    program.write_text(f"#!/bin/sh\ncat {words}\n")
    program.chmod(0o755)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "args": [], "env": []}}

    def gives(token: str, expires: str) -> None:
        status = {"token": token, "expirationTimestamp": expires}
        words.write_text(
            json.dumps({"apiVersion": user["exec"]["apiVersion"], "kind": "ExecCredential", "status": status})
        )

    gives("first", "2020-01-01T00:00:00Z")
    made = access.connected(access.Access("1", kubeconfig(user), "gives-token of ours"))
    words.write_text("no JSON")
    assert made.credentials.headers()["authorization"] == "Bearer first"
    gives("second", "2999-01-01T00:00:00Z")
    assert made.credentials.headers()["authorization"] == "Bearer second"
    gives("third", "2999-01-01T00:00:00Z")
    assert made.credentials.headers()["authorization"] == "Bearer second"
