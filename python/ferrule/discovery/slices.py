"""Turns EndpointSlices into backends: which endpoints are ready, and at which address.

Pure; the types are the part of discovery.k8s.io/v1 that matters here. A service has several slices
(by size, by address family), so a pod can be in more than one: it is one backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from ferrule.discovery.dns import build_url
from ferrule.routing.backend import BackendSpec


class ObjectMeta(msgspec.Struct, rename="camel"):
    name: str
    resource_version: str


class ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str


class Conditions(msgspec.Struct):
    """The API defines unknown (null) readiness as ready, and unknown termination as not
    terminating."""

    ready: bool | None = None
    terminating: bool | None = None


class TargetRef(msgspec.Struct):
    uid: str = ""


class Endpoint(msgspec.Struct, rename="camel"):
    addresses: list[str]
    conditions: Conditions | None = None
    target_ref: TargetRef | None = None


class Port(msgspec.Struct):
    port: int | None = None
    name: str | None = None


class Slice(msgspec.Struct, rename="camel"):
    metadata: ObjectMeta
    address_type: str = "IPv4"
    endpoints: list[Endpoint] | None = None
    ports: list[Port] | None = None


class SliceList(msgspec.Struct):
    """`kind` is checked: an empty list is valid, so JSON of another kind must not decode as one."""

    kind: Literal["EndpointSliceList"]
    metadata: ListMeta
    items: list[Slice] | None = None


class Bookmark(msgspec.Struct):
    metadata: ListMeta


class Event(msgspec.Struct):
    """One line of a watch. `object` is a Slice, a Bookmark or a Status, depending on `type`."""

    type: str
    object: msgspec.Raw


class Status(msgspec.Struct):
    code: int = 0
    message: str = ""


def build_specs(slices: Iterable[Slice], port: int | str) -> list[BackendSpec]:
    """The backends of ready endpoints. `port`: the number that the pods listen on, or the name of a
    port of the service."""
    by_pod: dict[str, str] = {}
    # Sorted, with IPv4 before IPv6: the address chosen for a dual-stack pod must not depend on the
    # order of slices.
    for endpoint_slice in sorted(slices, key=lambda s: (s.address_type, s.metadata.name)):
        number = port if isinstance(port, int) else _find_port(endpoint_slice, port)
        if number is None:
            continue
        for endpoint in _iter_ready(endpoint_slice):
            address = endpoint.addresses[0]  # further addresses are of the same pod
            uid = endpoint.target_ref.uid if endpoint.target_ref else ""
            by_pod.setdefault(uid or address, build_url(address, number))
    return [BackendSpec(url) for url in sorted(set(by_pod.values()))]


def _iter_ready(endpoint_slice: Slice) -> Iterator[Endpoint]:
    for endpoint in endpoint_slice.endpoints or ():
        conditions = endpoint.conditions or Conditions()
        if endpoint.addresses and conditions.ready is not False and not conditions.terminating:
            yield endpoint


def _find_port(endpoint_slice: Slice, name: str) -> int | None:
    return next((p.port for p in endpoint_slice.ports or () if p.name == name), None)


class SliceSet(msgspec.Struct):
    """The slices known from the list and the events since. `version`: the newest seen."""

    by_name: dict[str, Slice]
    version: str

    @classmethod
    def from_list(cls, listed: SliceList) -> SliceSet:
        by_name = {item.metadata.name: item for item in listed.items or ()}
        return cls(by_name, listed.metadata.resource_version)

    def apply(self, event: Event) -> bool:
        """Applies one event; True: the slices may have changed. Raises Expired, or
        msgspec.DecodeError for a malformed event."""
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=Status)
            raise Expired(f"{status.code} {status.message}")
        if event.type == "BOOKMARK":
            self._advance(
                msgspec.json.decode(event.object, type=Bookmark).metadata.resource_version
            )
            return False
        changed = msgspec.json.decode(event.object, type=Slice)
        if not self._advance(changed.metadata.resource_version):
            return False
        if event.type == "DELETED":
            self.by_name.pop(changed.metadata.name, None)
        elif event.type in ("ADDED", "MODIFIED"):
            self.by_name[changed.metadata.name] = changed
        else:
            raise msgspec.DecodeError(f"an event of type {event.type[:40]!r}")
        return True

    def _advance(self, version: str) -> bool:
        # Versions compare as numbers (KEP-5504). Events older than the list are a replay.
        if version.isdecimal() and self.version.isdecimal() and int(version) <= int(self.version):
            return False
        self.version = version or self.version
        return True


class Expired(Exception):
    """The API ended a watch with an ERROR event, as it does when the version is too old (410); the
    slices must be listed again."""
