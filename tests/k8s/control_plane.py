"""A real control plane for tests: etcd and kube-apiserver as processes on this machine, and a
client for its HTTP API.

Only what tests ask: apply (server-side, strict, dry or real), delete, a service account's token.
"""

from __future__ import annotations

import json
import secrets
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.doubles.proxy import free_port
from tests.k8s.rendering import ROOT, Manifest

APISERVER = ROOT / ".cache/bin/kube-apiserver"
START_TIMEOUT_S = 60.0


class Refused(Exception):
    """An answer of the API other than success."""


class ControlPlane:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"https://127.0.0.1:{free_port()}"
        self._token = secrets.token_hex(16)
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.start()

    # The processes

    def start(self) -> None:
        etcd, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        urls = [
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peer}",
        ]
        cluster = [
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        ]
        self._spawn(
            "etcd", str(shutil.which("etcd")), f"--data-dir={self.folder}/etcd", *urls, *cluster
        )
        key = self.folder / "accounts.key"
        subprocess.run(
            ["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True
        )
        (self.folder / "tokens.csv").write_text(f"{self._token},admin,admin,system:masters\n")
        self._spawn(
            "kube-apiserver",
            str(APISERVER),
            f"--etcd-servers={etcd}",
            f"--secure-port={self.url.rpartition(':')[2]}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.folder}/certificates",
            f"--token-auth-file={self.folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.96.0.0/16",
        )
        self._wait_until_ready()

    def _spawn(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder)
            )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            alive = all(process.poll() is None for process in self._processes)
            assert alive and time.monotonic() < deadline, (
                self.folder / "kube-apiserver.log"
            ).read_text(errors="replace")[-3000:]
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        try:
            return bool(self.ask("GET", "/readyz") == "ok")
        except (OSError, Refused):
            return False

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
        for process in self._processes:
            process.wait(30)

    # The API

    @property
    def ca_file(self) -> Path:
        return self.folder / "certificates/apiserver.crt"

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """The answer's JSON (or text); its warnings are raised too, because a manifest that earns
        one is not right."""
        data = None if body is None else json.dumps(body).encode()
        headers = {
            "authorization": f"Bearer {self._token}",
            "content-type": kind,
            "accept": "application/json",
        }
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        context = (
            ssl.create_default_context(cafile=self.ca_file)
            if self.ca_file.exists()
            else ssl.create_default_context()
        )
        try:
            with urllib.request.urlopen(request, timeout=20, context=context) as answer:
                warnings, text = answer.headers.get_all("warning"), answer.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                raise Refused(
                    f"{method} {path}: {refusal.code} {refusal.read().decode()[:2000]}"
                ) from None
        if warnings:
            raise Refused(f"{method} {path}: {warnings}")
        return json.loads(text) if text.startswith("{") else text

    def apply(self, manifest: Manifest, namespace: str, *, is_dry: bool = False) -> Any:
        dry = "&dryRun=All" if is_dry else ""
        path = f"{self._path(manifest, namespace)}?fieldManager=test&fieldValidation=Strict&force=true{dry}"
        return self.ask("PATCH", path, manifest, "application/apply-patch+yaml")

    def delete(self, manifest: Manifest, namespace: str) -> None:
        self.ask("DELETE", self._path(manifest, namespace))

    def token_of(self, account: str, namespace: str) -> str:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        token: str = self.ask("POST", path, body)["status"]["token"]
        return token

    def _path(self, manifest: Manifest, namespace: str) -> str:
        version, kind = manifest["apiVersion"], manifest["kind"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, kind) not in self._plurals:
            for resource in self.ask("GET", root)["resources"]:
                if "/" not in resource["name"]:
                    self._plurals[version, resource["kind"]] = (
                        resource["name"],
                        resource["namespaced"],
                    )
        plural, is_namespaced = self._plurals[version, kind]
        place = f"/namespaces/{namespace}" if is_namespaced else ""
        return f"{root}{place}/{plural}/{manifest['metadata']['name']}"
