"""Turns EndpointSlices into backends: which endpoints are ready, and at which address.

Pure; the types are the part of discovery.k8s.io/v1 that matters here. A service has several slices
(by size, by address family), so a pod can be in more than one: it is one backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from ferrule.discovery.dns import url_of
from ferrule.routing.backend import BackendSpec


class Metadata(msgspec.Struct, rename="camel"):
    name: str
    resource_version: str


class Version(msgspec.Struct, rename="camel"):
    resource_version: str


class Conditions(msgspec.Struct):
    """Unknown (null) readiness counts as ready, unknown termination as not terminating: the API
    says so."""

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
    metadata: Metadata
    address_type: str = "IPv4"
    endpoints: list[Endpoint] | None = None
    ports: list[Port] | None = None


class SliceList(msgspec.Struct):
    """`kind` is checked because the empty list is a valid answer, and JSON of another kind must not
    be taken for it."""

    kind: Literal["EndpointSliceList"]
    metadata: Version
    items: list[Slice] | None = None


class Bookmark(msgspec.Struct):
    metadata: Version


class Event(msgspec.Struct):
    """A line of a watch. `object` is a Slice, a Bookmark or a Status, by `type`."""

    type: str
    object: msgspec.Raw


class Status(msgspec.Struct):
    code: int = 0
    message: str = ""


def specs_of(slices: Iterable[Slice], port: int | str) -> list[BackendSpec]:
    """The backends behind `port`: a number, which the pods listen on, or the name of a port of the
    service."""
    by_pod: dict[str, str] = {}
    # IPv4 before IPv6: the address by which a pod of both families is known must not depend on the
    # order of slices.
    for one in sorted(slices, key=lambda s: (s.address_type, s.metadata.name)):
        number = port if isinstance(port, int) else _number(one, port)
        if number is None:
            continue
        for endpoint in _serving(one):
            address = endpoint.addresses[0]  # the others are the same endpoint's
            uid = endpoint.target_ref.uid if endpoint.target_ref else ""
            by_pod.setdefault(uid or address, url_of(address, number))
    return [BackendSpec(url) for url in sorted(set(by_pod.values()))]


def _serving(one: Slice) -> Iterator[Endpoint]:
    for endpoint in one.endpoints or ():
        conditions = endpoint.conditions or Conditions()
        if endpoint.addresses and conditions.ready is not False and not conditions.terminating:
            yield endpoint


def _number(one: Slice, name: str) -> int | None:
    return next((p.port for p in one.ports or () if p.name == name), None)


class Held(msgspec.Struct):
    """The slices known from the list and the events so far. `version`: the newest."""

    slices: dict[str, Slice]
    version: str

    @classmethod
    def of(cls, listed: SliceList) -> Held:
        return cls(
            {one.metadata.name: one for one in listed.items or ()}, listed.metadata.resource_version
        )

    def apply(self, event: Event) -> bool:
        """Applies one event; True: the slices may have changed. Raises Expired, or
        msgspec.DecodeError for what is no event."""
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=Status)
            raise Expired(f"{status.code} {status.message}")
        if event.type == "BOOKMARK":
            self._advance(
                msgspec.json.decode(event.object, type=Bookmark).metadata.resource_version
            )
            return False
        one = msgspec.json.decode(event.object, type=Slice)
        if not self._advance(one.metadata.resource_version):
            return False
        if event.type == "DELETED":
            self.slices.pop(one.metadata.name, None)
        elif event.type in ("ADDED", "MODIFIED"):
            self.slices[one.metadata.name] = one
        else:
            raise msgspec.DecodeError(f"an event of type {event.type[:40]!r}")
        return True

    def _advance(self, version: str) -> bool:
        # Versions compare as numbers (KEP-5504). A watch that sends older events
        # than its list replays the past.
        if version.isdecimal() and self.version.isdecimal() and int(version) <= int(self.version):
            return False
        self.version = version or self.version
        return True


class Expired(Exception):
    """The API ended a watch with an ERROR event, as it does when the version is too old (410): list
    again."""
